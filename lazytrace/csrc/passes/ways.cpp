#include "passes/ways.h"

#include <ATen/Operators.h>

#include <algorithm>
#include <functional>
#include <unordered_map>

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

using Maker = std::function<Way(const Step&)>;

Argument constant(c10::IValue value) {
  Argument argument;
  argument.constant = std::move(value);
  return argument;
}

// relu(x) is clamp_min(x, 0), but for bool, which it refuses (ATen/native/Activation.cpp).
Way relu(const Step& step) { return out(&at::_ops::clamp_min_out::call, {step.arguments[0], constant(0)}); }

// softmax(x, dim) is _softmax(x, dim, false) where no other dtype is asked for (ATen/native/SoftMax.cpp).
Way softmax(const Step& step) {
  if (step.arguments.size() != 3 || !step.arguments[2].constant.isNone()) return nullptr;
  return out(&at::_ops::_softmax_out::call, {step.arguments[0], step.arguments[1], constant(false)});
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
    at::Tensor narrow = empty_single();
    put(narrow, dtype == at::kDouble ? static_cast<float>(*static_cast<const double*>(data))
                                     : static_cast<float>(*static_cast<const int64_t*>(data)));
    argument.constant = narrow;
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
const std::unordered_map<std::string, Maker>& makers() {
  static const auto* table = new std::unordered_map<std::string, Maker>{
      {"aten::add.Tensor", arithmetic<&at::_ops::add_out::call>},
      {"aten::sub.Tensor", arithmetic<&at::_ops::sub_out::call>},
      {"aten::mul.Tensor", arithmetic<&at::_ops::mul_out::call>},
      {"aten::div.Tensor", arithmetic<&at::_ops::div_out::call>},
      {"aten::pow.Tensor_Scalar", same<&at::_ops::pow_Tensor_Scalar_out::call>},
      {"aten::maximum", same<&at::_ops::maximum_out::call>},
      {"aten::minimum", same<&at::_ops::minimum_out::call>},
      {"aten::sigmoid", same<&at::_ops::sigmoid_out::call>},
      {"aten::tanh", same<&at::_ops::tanh_out::call>},
      {"aten::silu", same<&at::_ops::silu_out::call>},
      {"aten::gelu", same<&at::_ops::gelu_out::call>},
      {"aten::exp", same<&at::_ops::exp_out::call>},
      {"aten::log", same<&at::_ops::log_out::call>},
      {"aten::neg", same<&at::_ops::neg_out::call>},
      {"aten::sqrt", same<&at::_ops::sqrt_out::call>},
      {"aten::rsqrt", same<&at::_ops::rsqrt_out::call>},
      {"aten::reciprocal", same<&at::_ops::reciprocal_out::call>},
      {"aten::sin", same<&at::_ops::sin_out::call>},
      {"aten::cos", same<&at::_ops::cos_out::call>},
      {"aten::erf", same<&at::_ops::erf_out::call>},
      {"aten::mean.dim", same<&at::_ops::mean_out::call>},
      {"aten::sum.dim_IntList", same<&at::_ops::sum_IntList_out::call>},
      {"aten::mm", same<&at::_ops::mm_out::call>},
      {"aten::bmm", same<&at::_ops::bmm_out::call>},
      {"aten::addmm", addmm},
      {"aten::clone", Copy::make},
      {"aten::stack", stack},
      {"aten::linalg_vector_norm", same<&at::_ops::linalg_vector_norm_out::call>},
      {"aten::ones_like", Ones::make},
      {"aten::nll_loss_backward", nll_loss_backward},
      {"aten::nll_loss2d_backward", nll_loss2d_backward},
      {"aten::baddbmm", same<&at::_ops::baddbmm_out::call>},
      {"aten::_softmax", same<&at::_ops::_softmax_out::call>},
      {"aten::cat", same<&at::_ops::cat_out::call>},
      {"aten::_log_softmax", same<&at::_ops::_log_softmax_out::call>},
      {"aten::_log_softmax_backward_data", same<&at::_ops::_log_softmax_backward_data_out::call>},
      {"aten::_softmax_backward_data", same<&at::_ops::_softmax_backward_data_out::call>},
      {"aten::gelu_backward", same<&at::_ops::gelu_backward_grad_input::call>},
      {"aten::tanh_backward", same<&at::_ops::tanh_backward_grad_input::call>},
      {"aten::sigmoid_backward", same<&at::_ops::sigmoid_backward_grad_input::call>},
      {"aten::threshold_backward", same<&at::_ops::threshold_backward_grad_input::call>},
      {"aten::relu", relu},
      {"aten::softmax.int", softmax},
      {"aten::linear", linear},
  };
  return *table;
}

// Operators that do nothing but write to their first argument, whose look they leave alone.
const std::unordered_map<std::string, Maker>& makers_in_place() {
  static const auto* table = new std::unordered_map<std::string, Maker>{
      {"aten::add_.Tensor", arithmetic_in_place<&at::_ops::add__Tensor::call>},
      {"aten::sub_.Tensor", arithmetic_in_place<&at::_ops::sub__Tensor::call>},
      {"aten::mul_.Tensor", arithmetic_in_place<&at::_ops::mul__Tensor::call>},
      {"aten::div_.Tensor", arithmetic_in_place<&at::_ops::div__Tensor::call>},
      {"aten::lerp_.Scalar", arithmetic_in_place<&at::_ops::lerp__Scalar::call>},
      {"aten::addcmul_", arithmetic_in_place<&at::_ops::addcmul_::call>},
      {"aten::addcdiv_", arithmetic_in_place<&at::_ops::addcdiv_::call>},
      {"aten::sqrt_", arithmetic_in_place<&at::_ops::sqrt_::call>},
      {"aten::zero_", arithmetic_in_place<&at::_ops::zero_::call>},
  };
  return *table;
}

const std::unordered_map<std::string, Maker>& makers_of_several() {
  static const auto* table = new std::unordered_map<std::string, Maker>{
      {"aten::nll_loss_forward", nll_loss},
      {"aten::nll_loss2d_forward", nll_loss2d},
  };
  return *table;
}

Way made(const std::unordered_map<std::string, Maker>& table, const Step& step) {
  auto maker = table.find(full_name(step.op.schema()));
  return maker == table.end() ? nullptr : maker->second(step);
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

Way way(const Step& step) { return made(makers(), step); }
Way way_in_place(const Step& step) { return made(makers_in_place(), step); }
Way way_of_several(const Step& step) { return made(makers_of_several(), step); }

std::shared_ptr<const Lowered> nothing() { return only<Nothing>(); }
std::shared_ptr<const Lowered> alias() { return only<Alias>(); }
std::shared_ptr<const Lowered> item() { return only<Item>(); }

}  // namespace lazytrace
