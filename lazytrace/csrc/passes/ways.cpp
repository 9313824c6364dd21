#include "passes/ways.h"

#include <ATen/Operators.h>

#include <algorithm>
#include <cstring>

#include "passes/registers.h"
#include "passes/told.h"

namespace lazytrace {

namespace {

// ---------------------------------------------------------------- steps that give back their argument
class Nothing final : public Lowered {
 public:
  bool run(const Step&, const Desk&) const override { return true; }
};

// ---------------------------------------------------------------- views
class Alias final : public Lowered {
 public:
  bool run(const Step& step, const Desk& desk) const override {
    const Result& only = step.results[0];
    if (only.kind == Result::Kind::Register) return one(only, desk);
    for (const Result& result : only.list)
      if (!one(result, desk)) return false;
    return true;
  }

 private:
  static bool one(const Result& result, const Desk& desk) {
    if (result.reg < 0) return true;
    const at::Tensor& base = desk.registers[result.base];
    // A view that shows the memory as another dtype, or has other keys than its base, is made by its
    // operator.
    if (!base.defined() || base.key_set().raw_repr() != result.meta->keys() ||
        base.scalar_type() != result.meta->dtype())
      return false;
    at::Tensor& alias = desk.registers[result.reg];
    alias = desk.shells.show(result.reg, base, *result.meta, base.storage_offset() + result.distance);
    // matmul, for one, takes another kernel for what requires gradients, without gradients, too.
    if (result.meta->requires_grad()) alias.set_requires_grad(true);
    return true;
  }
};

// item() of a tensor that has one value.
class Item final : public Lowered {
 public:
  bool run(const Step& step, const Desk& desk) const override {
    const at::Tensor& tensor = desk.registers[step.arguments[0].reg];
    const Result& result = step.results[0];
    if (!is_ordinary(tensor) || tensor.numel() != 1 || !tensor.has_storage()) return false;
    NumberValue& place = desk.values[static_cast<size_t>(result.number)];
    const void* data = tensor.const_data_ptr();
    if (result.read.isDouble() && tensor.scalar_type() == at::kFloat)
      place = NumberValue::of_real(*static_cast<const float*>(data));
    else if (result.read.isDouble() && tensor.scalar_type() == at::kDouble)
      place = NumberValue::of_real(*static_cast<const double*>(data));
    else if (result.read.isInt() && tensor.scalar_type() == at::kLong)
      place = NumberValue::of(*static_cast<const int64_t*>(data));
    else
      return false;
    return true;
  }
};

// A way that is made for the looks of the recording, in a program that fits others.
class WhereSame final : public Lowered {
 public:
  WhereSame(const Step& step, std::shared_ptr<const Lowered> way,
            std::vector<std::pair<int, NumberValue>> numbers)
      : way_(std::move(way)), numbers_(std::move(numbers)) {
    each_argument(step, [&](int reg) { takes_.push_back(reg); });
    each_result(step, [&](int reg) {
      if (reg >= 0) gives_.push_back(reg);
    });
  }
  bool run(const Step& step, const Desk& desk) const override {
    for (int reg : takes_)
      if (!desk.looks.are_same(reg, desk.registers[static_cast<size_t>(reg)])) return false;
    for (const auto& [id, then] : numbers_)
      if (std::memcmp(&desk.values[static_cast<size_t>(id)], &then, sizeof then) != 0) return false;
    if (!way_->run(step, desk)) return false;
    for (int reg : gives_) desk.looks.set_same(reg);
    return true;
  }

 private:
  std::shared_ptr<const Lowered> way_;
  std::vector<int> takes_, gives_;
  std::vector<std::pair<int, NumberValue>> numbers_;
};

// relu(x) is clamp_min(x, 0), but for bool, which it refuses (ATen/native/Activation.cpp).
Way relu(const Step& step) {
  return out(LAZYTRACE_KERNEL(clamp_min_out, clamp_min_outf), {step.arguments[0], constant(0)});
}

// softmax(x, dim) is _softmax(x, dim, false) where no other dtype is asked for, and so it is of log_softmax
// (ATen/native/SoftMax.cpp).
template <auto Call>
Way softmax(const Step& step) {
  if (step.arguments.size() != 3 || step.arguments[2].kind != Argument::Kind::Constant) return nullptr;
  const c10::IValue& dtype = step.arguments[2].constant;
  bool single = dtype.isInt() && dtype.toScalarType() == at::kFloat;
  if (!single && !dtype.isNone()) return nullptr;
  return out(Call, {step.arguments[0], step.arguments[1], constant(false)}, single);
}
// square(x) is pow(x, 2) (ATen/native/UnaryOps.cpp).
Way square(const Step& step) {
  return out(LAZYTRACE_KERNEL(pow_Tensor_Scalar_out, pow_outf), {step.arguments[0], constant(2)});
}
// A tensor of ones, however the argument looks that says how large it is.
class Ones final : public Lowered {
 public:
  static Way make(const Step& step) {
    bool single = step.results[0].meta->dtype() == at::kFloat;
    return single ? std::make_unique<Ones>() : nullptr;
  }
  bool run(const Step& step, const Desk& desk) const override {
    const Result& result = step.results[0];
    at::Tensor out = blank(*result.meta, desk.recycler);
    if (!out.defined()) return false;
    auto* data = static_cast<float*>(out.unsafeGetTensorImpl()->mutable_data());
    std::fill_n(data, out.numel(), 1.0F);
    keep(result, std::move(out), desk);
    return true;
  }
};
// clone() copies into memory of the look that the memory format asks for.
class Copy final : public Lowered {
 public:
  static Way make(const Step& step) {
    auto made = std::make_unique<Copy>();
    return made->from_.set(step.arguments[0]) ? std::move(made) : nullptr;
  }
  bool run(const Step& step, const Desk& desk) const override {
    const Result& result = step.results[0];
    if (!from_.fits(desk) || !from_.is(result.meta->dtype(), desk)) return false;
    at::Tensor out = blank(*result.meta, desk.recycler);
    if (!out.defined()) return false;
    at::AutoDispatchBelowADInplaceOrView below;
    at::_ops::copy_::call(out, from_.get(desk), false);
    keep(result, std::move(out), desk);
    return true;
  }

 private:
  Slot<const at::Tensor&> from_;
};

template <auto Call>
Way same(const Step& step) {
  return out(Call, step.arguments);
}

// Numbers take part in arithmetic as tensors of no dimensions, in double precision, which is made the dtype
// of the others at each call. Where that is float32, so are the numbers right away. Empty where a number that
// the program works out would be needed as another dtype, or where there are two of them.
std::optional<Arguments> narrowed(const Step& step) {
  Arguments arguments = step.arguments;
  bool single = step.results[0].meta->dtype() == at::kFloat;
  int worked_out = 0;
  for (Argument& argument : arguments) {
    worked_out += argument.kind == Argument::Kind::NumberTensor;
    if (worked_out > (single ? 1 : 0)) return std::nullopt;
    if (!single || argument.kind != Argument::Kind::Constant || !argument.constant.isTensor()) continue;
    const at::Tensor& number = argument.constant.toTensor();
    if (!number.defined() || !number.unsafeGetTensorImpl()->is_wrapped_number()) continue;
    c10::ScalarType dtype = number.scalar_type();
    if (dtype != at::kDouble && dtype != at::kLong) continue;
    const void* data = number.const_data_ptr();
    argument.constant =
        new_single(dtype == at::kDouble ? static_cast<float>(*static_cast<const double*>(data))
                                        : static_cast<float>(*static_cast<const int64_t*>(data)));
  }
  return arguments;
}

bool any(const Arguments& arguments, Argument::Kind kind) {
  return std::any_of(arguments.begin(), arguments.end(),
                     [&](const Argument& one) { return one.kind == kind; });
}

template <auto Call>
Way arithmetic(const Step& step) {
  bool numbers = any(step.arguments, Argument::Kind::NumberTensor);
  auto made = numbers ? nullptr : out(Call, step.arguments);
  bool meets_tensor = any(step.arguments, Argument::Kind::Register);
  if (!meets_tensor || !(numbers || any(step.arguments, Argument::Kind::Constant))) return made;
  auto arguments = narrowed(step);
  bool single = arguments && step.results[0].meta->dtype() == at::kFloat;
  auto narrow = single ? out(Call, *arguments, true) : nullptr;
  if (!narrow || !made) return narrow ? std::move(narrow) : std::move(made);
  return either(std::move(narrow), std::move(made));
}

template <auto Call>
Way arithmetic_in_place(const Step& step) {
  auto arguments = narrowed(step);
  c10::ScalarType dtype = step.results[0].meta->dtype();
  bool real = dtype == at::kFloat || dtype == at::kDouble || dtype == at::kLong;
  return arguments && real ? in_place(Call, *arguments) : nullptr;
}

Way relu_in_place(const Step& step) {
  c10::ScalarType dtype = step.results[0].meta->dtype();
  bool real = dtype == at::kFloat || dtype == at::kDouble;
  return real ? in_place(LAZYTRACE_KERNEL(clamp_min_, clamp_min_), {step.arguments[0], constant(0)})
              : nullptr;
}

const Makers& makers() {
  static const auto* table = new Makers{
      {"aten::add.Tensor", arithmetic<LAZYTRACE_KERNEL(add_out, add_outf)>},
      {"aten::sub.Tensor", arithmetic<LAZYTRACE_KERNEL(sub_out, sub_outf)>},
      {"aten::mul.Tensor", arithmetic<LAZYTRACE_KERNEL(mul_out, mul_outf)>},
      {"aten::div.Tensor", arithmetic<LAZYTRACE_KERNEL(div_out, div_outf)>},
      {"aten::pow.Tensor_Scalar", same<LAZYTRACE_KERNEL(pow_Tensor_Scalar_out, pow_outf)>},
      {"aten::maximum", same<LAZYTRACE_KERNEL(maximum_out, maximum_outf)>},
      {"aten::minimum", same<LAZYTRACE_KERNEL(minimum_out, minimum_outf)>},
      {"aten::sigmoid", same<LAZYTRACE_KERNEL(sigmoid_out, sigmoid_outf)>},
      {"aten::tanh", same<LAZYTRACE_KERNEL(tanh_out, tanh_outf)>},
      {"aten::silu", same<LAZYTRACE_KERNEL(silu_out, silu_outf)>},
      {"aten::gelu", same<LAZYTRACE_KERNEL(gelu_out, gelu_outf)>},
      {"aten::exp", same<LAZYTRACE_KERNEL(exp_out, exp_outf)>},
      {"aten::log", same<LAZYTRACE_KERNEL(log_out, log_outf)>},
      {"aten::neg", same<LAZYTRACE_KERNEL(neg_out, neg_outf)>},
      {"aten::sqrt", same<LAZYTRACE_KERNEL(sqrt_out, sqrt_outf)>},
      {"aten::rsqrt", same<LAZYTRACE_KERNEL(rsqrt_out, rsqrt_outf)>},
      {"aten::reciprocal", same<LAZYTRACE_KERNEL(reciprocal_out, reciprocal_outf)>},
      {"aten::sin", same<LAZYTRACE_KERNEL(sin_out, sin_outf)>},
      {"aten::cos", same<LAZYTRACE_KERNEL(cos_out, cos_outf)>},
      {"aten::erf", same<LAZYTRACE_KERNEL(erf_out, erf_outf)>},
      {"aten::mean.dim", same<LAZYTRACE_KERNEL(mean_out, mean_outf)>},
      {"aten::sum.dim_IntList", same<LAZYTRACE_KERNEL(sum_IntList_out, sum_outf)>},
      {"aten::mm", same<LAZYTRACE_KERNEL(mm_out, mm_outf)>},
      {"aten::bmm", same<LAZYTRACE_KERNEL(bmm_out, bmm_outf)>},
      {"aten::addmm", addmm},
      {"aten::clone", Copy::make},
      {"aten::stack", stack},
      {"aten::linalg_vector_norm", same<LAZYTRACE_KERNEL(linalg_vector_norm_out, linalg_vector_norm_outf)>},
      {"aten::ones_like", Ones::make},
      {"aten::nll_loss_backward", nll_loss_backward},
      {"aten::nll_loss2d_backward", nll_loss2d_backward},
      {"aten::baddbmm", same<LAZYTRACE_KERNEL(baddbmm_out, baddbmm_outf)>},
      {"aten::_softmax", same<LAZYTRACE_KERNEL(_softmax_out, _softmax_outf)>},
      {"aten::cat", same<LAZYTRACE_KERNEL(cat_out, cat_outf)>},
      {"aten::_log_softmax", same<LAZYTRACE_KERNEL(_log_softmax_out, _log_softmax_outf)>},
      {"aten::_log_softmax_backward_data",
       same<LAZYTRACE_KERNEL(_log_softmax_backward_data_out, _log_softmax_backward_data_outf)>},
      {"aten::_softmax_backward_data",
       same<LAZYTRACE_KERNEL(_softmax_backward_data_out, _softmax_backward_data_outf)>},
      {"aten::gelu_backward", same<LAZYTRACE_KERNEL(gelu_backward_grad_input, gelu_backward_outf)>},
      {"aten::tanh_backward", same<LAZYTRACE_KERNEL(tanh_backward_grad_input, tanh_backward_outf)>},
      {"aten::sigmoid_backward", same<LAZYTRACE_KERNEL(sigmoid_backward_grad_input, sigmoid_backward_outf)>},
      {"aten::threshold_backward",
       same<LAZYTRACE_KERNEL(threshold_backward_grad_input, threshold_backward_outf)>},
      {"aten::relu", relu},
      {"aten::softmax.int", softmax<LAZYTRACE_KERNEL(_softmax_out, _softmax_outf)>},
      {"aten::log_softmax.int", softmax<LAZYTRACE_KERNEL(_log_softmax_out, _log_softmax_outf)>},
      {"aten::square", square},
      {"aten::linear", linear},
      {"aten::matmul", matmul},
  };
  return *table;
}

// Operators that do nothing but write to their first argument, whose look they leave alone.
const Makers& makers_in_place() {
  static const auto* table = new Makers{
      {"aten::add_.Tensor", arithmetic_in_place<LAZYTRACE_KERNEL(add__Tensor, add_)>},
      {"aten::sub_.Tensor", arithmetic_in_place<LAZYTRACE_KERNEL(sub__Tensor, sub_)>},
      {"aten::mul_.Tensor", arithmetic_in_place<LAZYTRACE_KERNEL(mul__Tensor, mul_)>},
      {"aten::div_.Tensor", arithmetic_in_place<LAZYTRACE_KERNEL(div__Tensor, div_)>},
      {"aten::lerp_.Scalar", arithmetic_in_place<LAZYTRACE_KERNEL(lerp__Scalar, lerp_)>},
      {"aten::addcmul_", arithmetic_in_place<LAZYTRACE_KERNEL(addcmul_, addcmul_)>},
      {"aten::addcdiv_", arithmetic_in_place<LAZYTRACE_KERNEL(addcdiv_, addcdiv_)>},
      {"aten::sqrt_", arithmetic_in_place<LAZYTRACE_KERNEL(sqrt_, sqrt_)>},
      {"aten::exp_", arithmetic_in_place<LAZYTRACE_KERNEL(exp_, exp_)>},
      {"aten::neg_", arithmetic_in_place<LAZYTRACE_KERNEL(neg_, neg_)>},
      {"aten::relu_", relu_in_place},
      {"aten::sigmoid_", arithmetic_in_place<LAZYTRACE_KERNEL(sigmoid_, sigmoid_)>},
      {"aten::silu_", arithmetic_in_place<LAZYTRACE_KERNEL(silu_, silu_)>},
      {"aten::tanh_", arithmetic_in_place<LAZYTRACE_KERNEL(tanh_, tanh_)>},
      {"aten::zero_", arithmetic_in_place<LAZYTRACE_KERNEL(zero_, zero_)>},
  };
  return *table;
}

const Makers& makers_of_several() {
  static const auto* table = new Makers{
      {"aten::nll_loss_forward", nll_loss},
      {"aten::nll_loss2d_forward", nll_loss2d},
  };
  return *table;
}

template <typename Only>
std::shared_ptr<const Lowered> only() {
  static const auto* one = new std::shared_ptr<const Lowered>(std::make_shared<Only>());
  return *one;
}

}  // namespace

std::string full_name(const c10::FunctionSchema& schema) {
  return schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
}

Way made(const Makers& makers, const Step& step) {
  auto maker = makers.find(full_name(step.op.schema()));
  return maker == makers.end() ? nullptr : maker->second(step);
}

Way way(const Step& step) { return made(makers(), step); }
Way way_in_place(const Step& step) { return made(makers_in_place(), step); }
Way way_of_several(const Step& step) { return made(makers_of_several(), step); }

std::shared_ptr<const Lowered> where_same(const Step& step, std::shared_ptr<const Lowered> way,
                                          std::vector<std::pair<int, NumberValue>> numbers) {
  return std::make_shared<WhereSame>(step, std::move(way), std::move(numbers));
}

std::shared_ptr<const Lowered> nothing() { return only<Nothing>(); }
std::shared_ptr<const Lowered> alias() { return only<Alias>(); }
std::shared_ptr<const Lowered> item() { return only<Item>(); }

}  // namespace lazytrace
