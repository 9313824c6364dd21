#include <ATen/Operators.h>

#include <algorithm>

#include "passes/told.h"
#include "passes/ways.h"

namespace lazytrace {

namespace {

// The list that an operator of this family takes first: ordinary tensors of float32, at least one.
class Floats {
 public:
  bool set(const Argument& argument) { return list_.set(argument) && !list_.list.empty(); }
  const std::vector<int>& registers() const { return list_.list; }
  bool fit(const Desk& desk) const {
    return std::all_of(list_.list.begin(), list_.list.end(), [&](int reg) {
      const at::Tensor& one = desk.registers[reg];
      return is_ordinary(one) && one.scalar_type() == at::kFloat;
    });
  }
  Borrowed get(const Desk& desk) const { return list_.get(desk); }

 private:
  Slot<const at::ITensorListRef&> list_;
};

class Stack final : public Lowered {
 public:
  static Way make(const Step& step) {
    auto made = std::make_unique<Stack>();
    const Arguments& a = step.arguments;
    bool set = a.size() == 2 && step.results[0].meta->dtype() == at::kFloat && made->tensors_.set(a[0]) &&
               made->dim_.set(a[1]);
    return set ? std::move(made) : nullptr;
  }
  bool run(const Step& step, const Desk& desk) const override {
    const Result& result = step.results[0];
    if (!tensors_.fit(desk)) return false;
    at::Tensor out = blank(*result.meta, desk.recycler);
    if (!out.defined()) return false;
    at::AutoDispatchBelowADInplaceOrView below;
    at::_ops::stack_out::call(tensors_.get(desk).list(), dim_.get(desk), out);
    keep(result, std::move(out), desk);
    return true;
  }

 private:
  Floats tensors_;
  Slot<int64_t> dim_;
};

// ---------------------------------------------------------------- _foreach_
// On the CPU these are loops over operators of one tensor (ATen/native/ForeachOpsKernels.cpp), which make a
// tensor of each number once for each of the list.
class NormOfEach final : public Lowered {
 public:
  static Way make(const Step& step) {
    auto made = std::make_unique<NormOfEach>();
    const Arguments& a = step.arguments;
    bool set = a.size() == 3 && made->tensors_.set(a[0]) && made->order_.set(a[1]) && made->dtype_.set(a[2]);
    return set ? std::move(made) : nullptr;
  }
  bool run(const Step& step, const Desk& desk) const override {
    const std::vector<Result>& results = step.results[0].list;
    if (!tensors_.fit(desk)) return false;
    at::AutoDispatchBelowADInplaceOrView below;
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].reg < 0) continue;
      at::Tensor out = blank(*results[i].meta, desk.recycler);
      if (!out.defined()) return false;
      at::cpu::linalg_vector_norm_outf(desk.registers[tensors_.registers()[i]], order_.get(desk),
                                       std::nullopt, false, std::nullopt, out);
      desk.registers[results[i].reg] = std::move(out);
    }
    return true;
  }

 private:
  Floats tensors_;
  Slot<const at::Scalar&> order_;
  Slot<std::optional<at::ScalarType>> dtype_;
};

// Writes to each tensor of its list, and counts up its version, as the operators of the loop do.
template <typename... A>
class InPlaceEach final : public Lowered {
 public:
  using Call = at::Tensor& (*)(at::Tensor&, A...);

  static Way make(Call call, const Arguments& arguments) {
    auto made = std::make_unique<InPlaceEach>();
    made->call_ = call;
    bool set = made->tensors_.set(arguments[0]) && made->slots_.set(arguments, 1);
    return set ? std::move(made) : nullptr;
  }
  bool run(const Step&, const Desk& desk) const override {
    const std::vector<int>& list = tensors_.registers();
    if (!tensors_.fit(desk) || !slots_.fit(desk) || !slots_.are(at::kFloat, desk)) return false;
    for (int reg : list)
      if (desk.registers[reg].is_inference()) return false;
    at::AutoDispatchBelowADInplaceOrView below;
    for (int reg : list) {
      slots_.give(desk, [&](auto&&... arguments) { call_(desk.registers[reg], arguments...); });
      desk.registers[reg].unsafeGetTensorImpl()->bump_version();
    }
    return true;
  }

 private:
  Call call_ = nullptr;
  Floats tensors_;
  Slots<A...> slots_;
};

template <typename... A>
Way in_place_each(at::Tensor& (*call)(at::Tensor&, A...), const Arguments& arguments) {
  return InPlaceEach<A...>::make(call, arguments);
}

// The number as the tensor that the operators of single tensors take.
std::optional<Argument> single(const Argument& number) {
  if (number.kind != Argument::Kind::Constant || !number.constant.isScalar()) return std::nullopt;
  at::Scalar value = number.constant.toScalar();
  if (!value.isFloatingPoint() && !value.isIntegral(false)) return std::nullopt;
  return constant(new_single(value.isFloatingPoint() ? static_cast<float>(value.toDouble())
                                                     : static_cast<float>(value.toLong())));
}

Way add_scalar(const Step& step) {
  auto number = single(step.arguments[1]);
  return number
             ? in_place_each(LAZYTRACE_KERNEL(add__Tensor, add_), {step.arguments[0], *number, constant(1)})
             : nullptr;
}

Way multiply_scalar(const Step& step) {
  auto number = single(step.arguments[1]);
  return number ? in_place_each(LAZYTRACE_KERNEL(mul__Tensor, mul_), {step.arguments[0], *number}) : nullptr;
}

Way multiply(const Step& step) { return in_place_each(LAZYTRACE_KERNEL(mul__Tensor, mul_), step.arguments); }

}  // namespace

Way stack(const Step& step) { return Stack::make(step); }

Way norm_of_each(const Step& step) { return NormOfEach::make(step); }

Way way_in_place_of_each(const Step& step) {
  static const auto* table = new Makers{
      {"aten::_foreach_add_.Scalar", add_scalar},
      {"aten::_foreach_mul_.Scalar", multiply_scalar},
      {"aten::_foreach_mul_.Tensor", multiply},
  };
  return made(*table, step);
}

}  // namespace lazytrace
