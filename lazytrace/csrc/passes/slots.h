// Arguments of operators, taken out of a recording once and handed over as the operator takes them.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "passes/lowered.h"

namespace lazytrace {

using Registers = std::vector<at::Tensor>;

// A tensor that looks as recorded, with memory of its own; undefined where it cannot be had.
at::Tensor blank(const TensorMeta& meta, Recycler& recycler);

// A tensor of the CPU that has nothing special: neither sparse nor quantized, no subclass, no pending
// conjugation or negation, no zeros without memory, no names.
bool is_ordinary(const at::Tensor& tensor);

// A number as the tensor of no dimensions that torch makes of it, but of float32. Past the dispatcher, where
// somebody may be recording.
at::Tensor new_single(float value);
// The same of one that the program has worked out, in memory that is used again.
const at::Tensor& single_of(int number, const Desk& desk);

// One argument.
template <typename T>
struct Slot;

template <>
struct Slot<const at::Tensor&> {
  int reg = -1, number = -1;
  at::Tensor constant;
  bool set(const Argument& argument) {
    if (argument.kind == Argument::Kind::Register)
      reg = argument.reg;
    else if (argument.kind == Argument::Kind::NumberTensor)
      number = argument.reg;
    else if (argument.kind == Argument::Kind::Constant && argument.constant.isTensor())
      constant = argument.constant.toTensor();
    return reg >= 0 || number >= 0 || constant.defined();
  }
  const at::Tensor& get(const Desk& desk) const {
    if (number >= 0) return single_of(number, desk);
    return reg >= 0 ? desk.registers[reg] : constant;
  }
  bool fits(const Desk& desk) const { return number >= 0 || is_ordinary(get(desk)); }
  // Whether an operator on tensors of this dtype computes in it.
  bool is(c10::ScalarType dtype, const Desk& desk) const {
    return number >= 0 || get(desk).scalar_type() == dtype;
  }
};

template <typename T>
struct ConstantSlot {
  T value;
  template <typename F>
  bool fill(const Argument& argument, bool fits, F take) {
    if (argument.kind != Argument::Kind::Constant || !fits) return false;
    value = take(argument.constant);
    return true;
  }
  const T& get(const Desk&) const { return value; }
  bool fits(const Desk&) const { return true; }
  bool is(c10::ScalarType, const Desk&) const { return true; }
};

template <>
struct Slot<const at::Scalar&> : ConstantSlot<at::Scalar> {
  int number = -1;
  bool set(const Argument& a) {
    if (a.kind == Argument::Kind::Number) number = a.reg;
    return number >= 0 || fill(a, a.constant.isScalar(), [](const c10::IValue& v) { return v.toScalar(); });
  }
  at::Scalar get(const Desk& desk) const {
    if (number < 0) return value;
    auto id = static_cast<size_t>(number);
    return to_ivalue(desk.numbers[id], desk.values[id]).toScalar();
  }
};
template <>
struct Slot<int64_t> : ConstantSlot<int64_t> {
  bool set(const Argument& a) {
    return fill(a, a.constant.isInt(), [](const c10::IValue& v) { return v.toInt(); });
  }
};
template <>
struct Slot<bool> : ConstantSlot<bool> {
  bool set(const Argument& a) {
    return fill(a, a.constant.isBool(), [](const c10::IValue& v) { return v.toBool(); });
  }
};
template <>
struct Slot<at::ScalarType> : ConstantSlot<at::ScalarType> {
  bool set(const Argument& a) {
    return fill(a, a.constant.isInt(), [](const c10::IValue& v) { return v.toScalarType(); });
  }
};
template <>
struct Slot<c10::string_view> : ConstantSlot<std::string> {
  bool set(const Argument& a) {
    return fill(a, a.constant.isString(), [](const c10::IValue& v) { return v.toStringRef(); });
  }
};
template <>
struct Slot<std::optional<at::ScalarType>> : ConstantSlot<std::optional<at::ScalarType>> {
  bool set(const Argument& a) {
    return fill(a, a.constant.isNone(), [](const c10::IValue&) { return std::nullopt; });
  }
};
template <>
struct Slot<at::OptionalIntArrayRef> {
  std::optional<std::vector<int64_t>> value;
  bool set(const Argument& a) {
    if (a.kind != Argument::Kind::Constant) return false;
    if (a.constant.isIntList()) value = a.constant.toIntVector();
    return a.constant.isIntList() || a.constant.isNone();
  }
  at::OptionalIntArrayRef get(const Desk&) const {
    return value ? at::OptionalIntArrayRef(*value) : at::OptionalIntArrayRef();
  }
  bool fits(const Desk&) const { return true; }
  bool is(c10::ScalarType, const Desk&) const { return true; }
};

// A list of tensors that the registers hold meanwhile: without references of its own, which are not free.
class Borrowed {
 public:
  Borrowed(const std::vector<int>& list, const Registers& registers) {
    for (int reg : list) tensors_.emplace_back(Pointer::reclaim(registers[reg].unsafeGetTensorImpl()));
  }
  ~Borrowed() {
    for (at::Tensor& tensor : tensors_) tensor.unsafeReleaseTensorImpl();
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  at::TensorList list() const { return tensors_; }

 private:
  using Pointer = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  c10::SmallVector<at::Tensor, 8> tensors_;
};

template <>
struct Slot<const at::ITensorListRef&> {
  std::vector<int> list;
  bool set(const Argument& a) {
    if (a.kind != Argument::Kind::List || a.optional_list) return false;
    list = a.list;
    return true;
  }
  Borrowed get(const Desk& desk) const { return {list, desk.registers}; }
  bool fits(const Desk& desk) const {
    return std::all_of(list.begin(), list.end(), [&](int reg) { return is_ordinary(desk.registers[reg]); });
  }
  bool is(c10::ScalarType, const Desk&) const { return false; }
};

// The arguments of one operator.
template <typename... A>
class Slots {
 public:
  bool set(const std::vector<Argument>& arguments, size_t from) {
    return arguments.size() == from + sizeof...(A) && set(arguments, from, All());
  }
  bool fit(const Desk& desk) const { return fit(desk, All()); }
  bool are(c10::ScalarType dtype, const Desk& desk) const { return are(dtype, desk, All()); }
  template <typename F>
  void give(const Desk& desk, F call) const {
    give(desk, call, All());
  }

 private:
  using All = std::index_sequence_for<A...>;
  template <size_t... I>
  bool set(const std::vector<Argument>& arguments, size_t from, std::index_sequence<I...>) {
    return (std::get<I>(slots_).set(arguments[from + I]) && ...);
  }
  template <size_t... I>
  bool fit(const Desk& desk, std::index_sequence<I...>) const {
    return (std::get<I>(slots_).fits(desk) && ...);
  }
  template <size_t... I>
  bool are([[maybe_unused]] c10::ScalarType dtype, [[maybe_unused]] const Desk& desk,
           std::index_sequence<I...>) const {
    return (std::get<I>(slots_).is(dtype, desk) && ...);
  }
  template <typename F, size_t... I>
  void give(const Desk& desk, F call, std::index_sequence<I...>) const {
    if constexpr ((std::is_same_v<A, const at::ITensorListRef&> || ...)) {
      const Borrowed tensors = std::get<0>(slots_).get(desk);
      at::ITensorListRef list(tensors.list());
      give_list(list, desk, call, std::make_index_sequence<sizeof...(A) - 1>());
    } else {
      call(std::get<I>(slots_).get(desk)...);
    }
  }
  // The list comes first.
  template <typename F, size_t... Others>
  void give_list(const at::ITensorListRef& list, const Desk& desk, F call,
                 std::index_sequence<Others...>) const {
    call(list, std::get<Others + 1>(slots_).get(desk)...);
  }

  std::tuple<Slot<A>...> slots_;
};

}  // namespace lazytrace
