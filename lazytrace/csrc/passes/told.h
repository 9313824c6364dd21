// Operators that can be told where to write.
#pragma once

#include <ATen/CPUFunctions.h>
#include <ATen/Operators.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "passes/slots.h"

// The kernel of the CPU that the dispatcher would find for this operator, which shares its signature.
#define LAZYTRACE_KERNEL(operator_, kernel) \
  static_cast<decltype(&at::_ops::operator_::call)>(&at::cpu::kernel)

namespace lazytrace {

using Arguments = std::vector<Argument>;

// An optional tensor that is not there: an undefined one, behind autograd.
inline bool is_nothing(const Argument& argument) {
  if (argument.kind != Argument::Kind::Constant) return false;
  const c10::IValue& value = argument.constant;
  return value.isNone() || (value.isTensor() && !value.toTensor().defined());
}

inline Argument constant(c10::IValue value) {
  Argument argument;
  argument.constant = std::move(value);
  return argument;
}

inline void keep(const Result& result, at::Tensor&& made, const Desk& desk) {
  if (result.reg >= 0) desk.registers[result.reg] = std::move(made);
}

// A structured operator computes its result by the very kernel that its out= variant uses, once the result is
// there with the sizes and strides that it works out; and those are known.
template <typename... A>
class Out final : public Lowered {
 public:
  using Call = at::Tensor& (*)(A..., at::Tensor&);

  // `single`: it computes in float32, as all its tensors are of it.
  static Way make(Call call, const std::vector<Argument>& arguments, bool single) {
    auto made = std::make_unique<Out>();
    made->call_ = call;
    made->single_ = single;
    // They are made as float32.
    for (const Argument& argument : arguments)
      if (argument.kind == Argument::Kind::NumberTensor && !single) return nullptr;
    return made->slots_.set(arguments, 0) ? std::move(made) : nullptr;
  }

  bool run(const Step& step, const Desk& desk) const override {
    const Result& result = step.results[0];
    if (!slots_.fit(desk) || (single_ && !slots_.are(at::kFloat, desk))) return false;
    at::Tensor out = blank(*result.meta, desk.recycler);
    if (!out.defined()) return false;
    at::AutoDispatchBelowADInplaceOrView below;
    slots_.give(desk, [&](auto&&... arguments) { call_(arguments..., out); });
    keep(result, std::move(out), desk);
    return true;
  }

 private:
  Call call_ = nullptr;
  bool single_ = false;
  Slots<A...> slots_;
};

// An operator that writes to its first argument runs below autograd where there is no graph: what autograd
// would do is to count up the version. All tensors are of one real dtype, so that it does not warn.
template <typename... A>
class InPlace final : public Lowered {
 public:
  using Call = at::Tensor& (*)(at::Tensor&, A...);

  static Way make(Call call, const std::vector<Argument>& arguments) {
    auto made = std::make_unique<InPlace>();
    made->call_ = call;
    made->self_ = arguments[0].reg;
    return made->slots_.set(arguments, 1) ? std::move(made) : nullptr;
  }

  bool run(const Step& step, const Desk& desk) const override {
    at::Tensor& self = desk.registers[self_];
    c10::ScalarType dtype = step.results[0].meta->dtype();
    if (!is_ordinary(self) || self.is_inference() || !slots_.fit(desk)) return false;
    if (self.scalar_type() != dtype || !slots_.are(dtype, desk)) return false;
    {
      at::AutoDispatchBelowADInplaceOrView below;
      slots_.give(desk, [&](auto&&... arguments) { call_(self, arguments...); });
    }
    self.unsafeGetTensorImpl()->bump_version();
    return true;
  }

 private:
  Call call_ = nullptr;
  int self_ = -1;
  Slots<A...> slots_;
};

// The first of two ways that fits.
class Either final : public Lowered {
 public:
  Either(Way one, Way other) : one_(std::move(one)), other_(std::move(other)) {}
  bool run(const Step& step, const Desk& desk) const override {
    return one_->run(step, desk) || other_->run(step, desk);
  }

 private:
  Way one_, other_;
};

inline Way either(Way one, Way other) { return std::make_unique<Either>(std::move(one), std::move(other)); }

// Strips the result from the arguments of the out= variant.
template <typename Last, typename... Before>
struct Strip;
template <typename... Before>
struct Strip<std::tuple<Before...>, at::Tensor&> {
  using type = Out<Before...>;
};
template <typename... Before, typename Next, typename... After>
struct Strip<std::tuple<Before...>, Next, After...> : Strip<std::tuple<Before..., Next>, After...> {};

template <typename... A>
Way out(at::Tensor& (*call)(A...), const Arguments& arguments, bool single = false) {
  return Strip<std::tuple<>, A...>::type::make(call, arguments, single);
}

template <typename... A>
Way in_place(at::Tensor& (*call)(at::Tensor&, A...), const Arguments& arguments) {
  return InPlace<A...>::make(call, arguments);
}

}  // namespace lazytrace
