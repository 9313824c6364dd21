#include "passes/lower.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Operators.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "passes/lowered.h"
#include "torch/facts.h"
#include "torch/overrides.h"

namespace lazytrace {

namespace {

using Registers = std::vector<at::Tensor>;

// A tensor that looks as recorded, with memory of its own.
at::Tensor blank(const TensorMeta& meta, Recycler& recycler) {
  at::Tensor found = recycler.take(meta);
  if (found.defined()) return found;
  found = at::detail::empty_strided_cpu(meta.sizes(), meta.strides(), meta.dtype());
  return found.key_set().raw_repr() == meta.keys() ? found : at::Tensor();
}

// A tensor of the CPU that has nothing special: neither sparse nor quantized, no subclass, no pending
// conjugation or negation, no zeros without memory, no names. Its set of keys says all of this at once; it is
// one of these two.
bool is_ordinary(const at::Tensor& tensor) {
  static const auto keys_of_empty = [](bool inference) {
    c10::InferenceMode mode(inference);
    return at::detail::empty_cpu({0}, at::kFloat, at::kStrided, at::kCPU, false, std::nullopt)
        .key_set()
        .raw_repr();
  };
  static const uint64_t usual = keys_of_empty(false), inference = keys_of_empty(true);
  uint64_t keys = tensor.key_set().raw_repr();
  return keys == usual || keys == inference;
}

// Another look at the memory of a tensor. Shares its version, as views do, but is no view to autograd: only
// for registers that never leave the program and that nothing writes to.
at::Tensor alias_of(const at::Tensor& base, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                    int64_t offset) {
  c10::TensorImpl* of = base.unsafeGetTensorImpl();
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(of->unsafe_storage()),
                                                   of->key_set(), of->dtype());
  impl->set_sizes_and_strides(sizes, strides, offset);
  if (!of->is_inference()) impl->set_version_counter(of->version_counter());
  return at::Tensor(std::move(impl));
}

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

// ---------------------------------------------------------------- operators that can be told where to write
// One argument of an operator, taken out of the recording once and handed over as the operator takes it.
template <typename T>
struct Slot;

// A number as the tensor of no dimensions that torch makes of it, but of float32. Past the dispatcher, where
// somebody may be recording.
at::Tensor empty_single() {
  at::Tensor made = at::detail::empty_cpu({}, at::kFloat, at::kStrided, at::kCPU, false, std::nullopt);
  made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

void put(const at::Tensor& single, float value) {
  *static_cast<float*>(single.unsafeGetTensorImpl()->mutable_data()) = value;
}

// The same of one that the program has worked out, in memory that is used again.
const at::Tensor& single_of(int number, const Desk& desk) {
  if (!desk.scalar.defined()) desk.scalar = empty_single();
  auto id = static_cast<size_t>(number);
  NumberValue value = desk.values[id];
  put(desk.scalar, desk.numbers[id].real ? static_cast<float>(value.real) : static_cast<float>(value.whole));
  return desk.scalar;
}

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

// A structured operator computes its result by the very kernel that its out= variant uses, once the result is
// there with the sizes and strides that it works out; and those are known.
template <typename... A>
class Out final : public Lowered {
 public:
  using Call = at::Tensor& (*)(A..., at::Tensor&);

  // `single`: it computes in float32, as all its tensors are of it.
  static std::unique_ptr<Lowered> make(Call call, const std::vector<Argument>& arguments, bool single) {
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
    if (result.reg >= 0) desk.registers[result.reg] = std::move(out);
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

  static std::unique_ptr<Lowered> make(Call call, const std::vector<Argument>& arguments) {
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

using Arguments = std::vector<Argument>;
using Maker = std::function<std::unique_ptr<Lowered>(const Step&)>;

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
std::unique_ptr<Lowered> out(at::Tensor& (*call)(A...), const Arguments& arguments, bool single = false) {
  return Strip<std::tuple<>, A...>::type::make(call, arguments, single);
}

template <typename... A>
std::unique_ptr<Lowered> in_place(at::Tensor& (*call)(at::Tensor&, A...), const Arguments& arguments) {
  return InPlace<A...>::make(call, arguments);
}

Argument constant(c10::IValue value) {
  Argument argument;
  argument.constant = std::move(value);
  return argument;
}

// relu(x) is clamp_min(x, 0), but for bool, which it refuses (ATen/native/Activation.cpp).
std::unique_ptr<Lowered> relu(const Step& step) {
  return out(&at::_ops::clamp_min_out::call, {step.arguments[0], constant(0)});
}

// softmax(x, dim) is _softmax(x, dim, false) where no other dtype is asked for (ATen/native/SoftMax.cpp).
std::unique_ptr<Lowered> softmax(const Step& step) {
  if (step.arguments.size() != 3 || !step.arguments[2].constant.isNone()) return nullptr;
  return out(&at::_ops::_softmax_out::call, {step.arguments[0], step.arguments[1], constant(false)});
}

// linear() on a contiguous input is addmm, or mm, of the input as a matrix and the transposed weight
// (ATen/native/Linear.cpp).
class Linear final : public Lowered {
 public:
  static std::unique_ptr<Lowered> make(const Step& step) {
    auto made = std::make_unique<Linear>();
    const Arguments& a = step.arguments;
    if (a.size() != 3 || step.takes_numbers || !made->input_.set(a[0]) || !made->weight_.set(a[1]))
      return nullptr;
    made->biased_ = a[2].kind == Argument::Kind::Register;
    if (made->biased_) made->bias_.set(a[2]);
    auto& sizes = step.results[0].meta->sizes();
    // An input without a batch is multiplied as a vector.
    if (sizes.size() != 2 && sizes.size() != 3) return nullptr;
    made->width_ = sizes.back();
    made->rows_ = 1;
    for (size_t i = 0; i + 1 < sizes.size(); ++i) made->rows_ *= sizes[i];
    return made;
  }

  bool run(const Step& step, const Desk& desk) const override {
    Registers& registers = desk.registers;
    const Result& result = step.results[0];
    const at::Tensor &input = input_.get(desk), &weight = weight_.get(desk);
    if (!input_.fits(desk) || !weight_.fits(desk) || (biased_ && !bias_.fits(desk))) return false;
    if (!input.is_contiguous() || weight.dim() != 2 ||
        input.dim() != static_cast<int64_t>(result.meta->sizes().size()))
      return false;
    at::Tensor whole = blank(*result.meta, desk.recycler);
    if (!whole.defined()) return false;
    at::AutoDispatchBelowADInplaceOrView below;
    int64_t inner = weight.size(1);
    bool flat = input.dim() == 2;
    at::Tensor matrix = flat ? input : alias_of(input, {rows_, inner}, {inner, 1}, input.storage_offset());
    at::Tensor out = flat ? whole : alias_of(whole, {rows_, width_}, {width_, 1}, 0);
    at::Tensor transposed = alias_of(weight, {inner, weight.size(0)}, {weight.stride(1), weight.stride(0)},
                                     weight.storage_offset());
    if (biased_)
      at::_ops::addmm_out::call(bias_.get(desk), matrix, transposed, 1, 1, out);
    else
      at::_ops::mm_out::call(matrix, transposed, out);
    if (result.reg >= 0) registers[result.reg] = std::move(whole);
    return true;
  }

 private:
  Slot<const at::Tensor&> input_, weight_, bias_;
  bool biased_ = false;
  int64_t rows_ = 0, width_ = 0;
};

// The first of two ways that fits.
class Either final : public Lowered {
 public:
  Either(std::unique_ptr<Lowered> one, std::unique_ptr<Lowered> other)
      : one_(std::move(one)), other_(std::move(other)) {}
  bool run(const Step& step, const Desk& desk) const override {
    return one_->run(step, desk) || other_->run(step, desk);
  }

 private:
  std::unique_ptr<Lowered> one_, other_;
};

bool is_contiguous(const TensorMeta& meta) {
  int64_t expected = 1;
  for (size_t i = meta.sizes().size(); i-- > 0; expected *= meta.sizes()[i])
    if (meta.sizes()[i] != 1 && meta.strides()[i] != expected) return false;
  return true;
}

// addmm with one bias for all rows copies it into the result and adds the product to that
// (ATen/native/LinearAlgebra.cpp). Here the rows are copied without a view of the bias.
class BiasedProduct final : public Lowered {
 public:
  static std::unique_ptr<Lowered> make(const Step& step) {
    auto made = std::make_unique<BiasedProduct>();
    const Arguments& a = step.arguments;
    const TensorMeta& meta = *step.results[0].meta;
    auto is_one = [](const Argument& argument) {
      return argument.kind == Argument::Kind::Constant && argument.constant.isScalar() &&
             argument.constant.toScalar().equal(1);
    };
    bool real = meta.dtype() == at::kFloat || meta.dtype() == at::kDouble;
    if (a.size() != 5 || !real || meta.sizes().size() != 2 || !is_contiguous(meta)) return nullptr;
    if (!is_one(a[3]) || !is_one(a[4])) return nullptr;
    for (size_t i = 0; i < 3; ++i)
      if (a[i].kind != Argument::Kind::Register) return nullptr;
    bool set = made->bias_.set(a[0]) && made->one_.set(a[1]) && made->other_.set(a[2]);
    return set ? std::move(made) : nullptr;
  }

  bool run(const Step& step, const Desk& desk) const override {
    const Result& result = step.results[0];
    c10::ScalarType dtype = result.meta->dtype();
    if (!bias_.fits(desk) || !one_.fits(desk) || !other_.fits(desk)) return false;
    if (!bias_.is(dtype, desk) || !one_.is(dtype, desk) || !other_.is(dtype, desk)) return false;
    const at::Tensor &bias = bias_.get(desk), &one = one_.get(desk), &other = other_.get(desk);
    int64_t rows = result.meta->sizes()[0], columns = result.meta->sizes()[1];
    bool fits = bias.dim() == 1 && bias.size(0) == columns && bias.is_contiguous() && one.dim() == 2 &&
                one.size(0) == rows && other.dim() == 2 && other.size(1) == columns;
    if (!fits) return false;
    at::Tensor out = blank(*result.meta, desk.recycler);
    if (!out.defined()) return false;
    auto* to = static_cast<char*>(out.unsafeGetTensorImpl()->mutable_data());
    size_t width = static_cast<size_t>(columns) * c10::elementSize(dtype);
    for (int64_t row = 0; row < rows; ++row, to += width) std::memcpy(to, bias.const_data_ptr(), width);
    at::AutoDispatchBelowADInplaceOrView below;
    at::_ops::addmm_out::call(out, one, other, 1, 1, out);
    if (result.reg >= 0) desk.registers[result.reg] = std::move(out);
    return true;
  }

 private:
  Slot<const at::Tensor&> bias_, one_, other_;
};

std::unique_ptr<Lowered> addmm(const Step& step) {
  auto usual = out(&at::_ops::addmm_out::call, step.arguments);
  auto biased = usual ? BiasedProduct::make(step) : nullptr;
  if (!biased) return usual;
  return std::make_unique<Either>(std::move(biased), std::move(usual));
}

// A tensor of ones, however the argument looks that says how large it is.
class Ones final : public Lowered {
 public:
  static std::unique_ptr<Lowered> make(const Step& step) {
    bool single = step.results[0].meta->dtype() == at::kFloat;
    return single ? std::make_unique<Ones>() : nullptr;
  }
  bool run(const Step& step, const Desk& desk) const override {
    const Result& result = step.results[0];
    at::Tensor out = blank(*result.meta, desk.recycler);
    if (!out.defined()) return false;
    auto* data = static_cast<float*>(out.unsafeGetTensorImpl()->mutable_data());
    std::fill_n(data, out.numel(), 1.0F);
    if (result.reg >= 0) desk.registers[result.reg] = std::move(out);
    return true;
  }
};

// The loss of scores by class, without weights of the classes: the loss, and how many rows it is the mean of.
class NllLoss final : public Lowered {
 public:
  static std::unique_ptr<Lowered> make(const Step& step) {
    auto made = std::make_unique<NllLoss>();
    const Arguments& a = step.arguments;
    bool set = a.size() == 5 && a[2].constant.isNone() && a[2].kind == Argument::Kind::Constant &&
               made->scores_.set(a[0]) && made->classes_.set(a[1]) && made->reduction_.set(a[3]) &&
               made->ignored_.set(a[4]);
    return set ? std::move(made) : nullptr;
  }
  bool run(const Step& step, const Desk& desk) const override {
    if (!scores_.fits(desk) || !classes_.fits(desk)) return false;
    at::Tensor loss = blank(*step.results[0].meta, desk.recycler);
    at::Tensor count = blank(*step.results[1].meta, desk.recycler);
    if (!loss.defined() || !count.defined()) return false;
    at::AutoDispatchBelowADInplaceOrView below;
    at::_ops::nll_loss_forward_output::call(scores_.get(desk), classes_.get(desk), std::nullopt,
                                            reduction_.get(desk), ignored_.get(desk), loss, count);
    if (step.results[0].reg >= 0) desk.registers[step.results[0].reg] = std::move(loss);
    if (step.results[1].reg >= 0) desk.registers[step.results[1].reg] = std::move(count);
    return true;
  }

 private:
  Slot<const at::Tensor&> scores_, classes_;
  Slot<int64_t> reduction_, ignored_;
};

class NllLossBackward final : public Lowered {
 public:
  static std::unique_ptr<Lowered> make(const Step& step) {
    auto made = std::make_unique<NllLossBackward>();
    const Arguments& a = step.arguments;
    bool set = a.size() == 7 && a[3].constant.isNone() && a[3].kind == Argument::Kind::Constant &&
               made->gradient_.set(a[0]) && made->scores_.set(a[1]) && made->classes_.set(a[2]) &&
               made->reduction_.set(a[4]) && made->ignored_.set(a[5]) && made->count_.set(a[6]);
    return set ? std::move(made) : nullptr;
  }
  bool run(const Step& step, const Desk& desk) const override {
    const Result& result = step.results[0];
    if (!gradient_.fits(desk) || !scores_.fits(desk) || !classes_.fits(desk) || !count_.fits(desk))
      return false;
    at::Tensor out = blank(*result.meta, desk.recycler);
    if (!out.defined()) return false;
    at::AutoDispatchBelowADInplaceOrView below;
    at::_ops::nll_loss_backward_grad_input::call(gradient_.get(desk), scores_.get(desk), classes_.get(desk),
                                                 std::nullopt, reduction_.get(desk), ignored_.get(desk),
                                                 count_.get(desk), out);
    if (result.reg >= 0) desk.registers[result.reg] = std::move(out);
    return true;
  }

 private:
  Slot<const at::Tensor&> gradient_, scores_, classes_, count_;
  Slot<int64_t> reduction_, ignored_;
};

template <auto Call>
std::unique_ptr<Lowered> same(const Step& step) {
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
std::unique_ptr<Lowered> arithmetic(const Step& step) {
  bool numbers = any(step.arguments, Argument::Kind::NumberTensor);
  auto made = numbers ? nullptr : out(Call, step.arguments);
  bool meets_tensor = any(step.arguments, Argument::Kind::Register);
  if (!meets_tensor || !(numbers || any(step.arguments, Argument::Kind::Constant))) return made;
  auto arguments = narrowed(step);
  bool single = arguments && step.results[0].meta->dtype() == at::kFloat;
  auto narrow = single ? out(Call, *arguments, true) : nullptr;
  if (!narrow || !made) return narrow ? std::move(narrow) : std::move(made);
  return std::make_unique<Either>(std::move(narrow), std::move(made));
}

template <auto Call>
std::unique_ptr<Lowered> arithmetic_in_place(const Step& step) {
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
      {"aten::ones_like", Ones::make},
      {"aten::nll_loss_backward", NllLossBackward::make},
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
      {"aten::linear", Linear::make},
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

// ---------------------------------------------------------------- what may be lowered
std::string full_name(const c10::FunctionSchema& schema) {
  return schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
}

class Lowering {
 public:
  Lowering(Plan* plan, const std::vector<int>& outputs) : plan_(*plan), program_(plan->program()) {
    bound_.assign(static_cast<size_t>(program_.registers), 0);
    metas_.assign(static_cast<size_t>(program_.registers), nullptr);
    for (const Step& step : program_.steps)
      for (const Result& result : step.results) {
        if (result.reg >= 0) metas_[result.reg] = result.meta.get();
        for (const Result& one : result.list)
          if (one.reg >= 0) metas_[one.reg] = one.meta.get();
      }
    for (int reg : outputs) bound_[reg] = 1;
    find_bound();
  }

  void run() {
    const Modes* modes = &program_.modes[0];
    for (size_t i = 0; i < program_.steps.size(); ++i) {
      const Step& step = program_.steps[i];
      StepPlan& planned = plan_.steps[i];
      if (step.modes >= 0) modes = &program_.modes[step.modes];
      if (step.kind != Step::Kind::Operator || step.random || step.gives_either) continue;
      // A kernel has nothing to do with autograd, whatever it is told of the mode.
      bool plain = (step.flat || !modes->grad) && !modes->any_autocast();
      if (plain && !program_.dynamic) planned.lowered = way_in_place(step);
      if (planned.lowered || step.effect) continue;
      if (step.takes_numbers && !program_.dynamic) {
        if (plain && takes_scalars(step)) planned.lowered = way_of(step, i, plain);
        continue;
      }
      if (plain && !program_.dynamic && is_plain_loss(step)) planned.lowered = NllLoss::make(step);
      // The other shorter ways are made of constants, for known sizes.
      if (step.results.size() == 1)
        planned.lowered = !program_.dynamic         ? way_of(step, i, plain)
                          : gives_back_always(step) ? nothing()
                                                    : nullptr;
      if (plain && leaves_no_trace(step))
        planned.quiet = step.flat ? StepPlan::Quiet::Always : quiet(step.op);
    }
  }

 private:
  // Registers that leave the program, that something writes to, that other code than torch's is given, or
  // whose views do or are any of these: what they are to autograd can be seen.
  void find_bound() {
    for (size_t i = program_.steps.size(); i-- > 0;) {
      const Step& step = program_.steps[i];
      bool foreign = step.kind != Step::Kind::Operator || step.op.schema().name().rfind("aten::", 0) != 0;
      bool kept = static_cast<int>(i) <= plan_.keep_until || foreign || hands_on_gradients(step);
      const auto& declared = step.op.schema().arguments();
      for (size_t a = 0; a < step.arguments.size(); ++a) {
        const Argument& argument = step.arguments[a];
        bool written = step.kind == Step::Kind::Operator && a < declared.size() && declared[a].alias_info() &&
                       declared[a].alias_info()->isWrite();
        if (kept || written || step.effect) bind(argument);
      }
      if (detaches(step)) continue;
      for (const Result& result : step.results) {
        pass_on(result, kept);
        for (const Result& one : result.list) pass_on(one, kept);
      }
      if (may_show_other_memory(step) && gives_bound(step))
        for (const Argument& argument : step.arguments) bind(argument);
    }
  }

  // Whether a result that is a copy in the recording may show the memory of an argument at another size.
  bool may_show_other_memory(const Step& step) const {
    return program_.dynamic && !facts_of(step.op).makes_new;
  }

  bool gives_bound(const Step& step) const {
    auto leaves = [&](const Result& result) { return result.reg >= 0 && bound_[result.reg]; };
    return std::any_of(step.results.begin(), step.results.end(), [&](const Result& result) {
      return leaves(result) || std::any_of(result.list.begin(), result.list.end(), leaves);
    });
  }

  void bind(const Argument& argument) {
    if (argument.kind == Argument::Kind::Register) bound_[argument.reg] = 1;
    if (argument.kind != Argument::Kind::List) return;  // of Numbers the list names numbers
    for (int reg : argument.list)
      if (reg >= 0) bound_[reg] = 1;
  }

  // A kernel that gives another look at the memory of its argument, which is no view of it to autograd.
  static bool detaches(const Step& step) {
    return step.flat && step.op.schema().name() == "aten::detach" && step.results[0].base >= 0 &&
           step.results[0].reg >= 0 && !step.results[0].known && step.results[0].meta->strided() &&
           step.results[0].meta->plain_keys();
  }

  // Whether the results require gradients because an argument does, in a step that its operator must run: an
  // alias of the argument, which requires none, would not do.
  bool hands_on_gradients(const Step& step) const {
    auto real = [&](const Result& result) {
      if (!result.meta->requires_grad() || result.known) return false;
      if (!is_view(step) || result.base < 0) return true;
      const TensorMeta* base =
          metas_[result.base];  // null of what is there before the program: it is no alias
      return base && (base->keys() != result.meta->keys() || base->dtype() != result.meta->dtype());
    };
    for (const Result& result : step.results)
      if (real(result) || std::any_of(result.list.begin(), result.list.end(), real)) return true;
    return false;
  }

  void pass_on(const Result& result, bool kept) {
    if (result.reg >= 0 && kept) bound_[result.reg] = 1;
    if (result.base >= 0 && (result.reg < 0 || bound_[result.reg])) bound_[result.base] = 1;
  }

  // Whether the numbers that may differ are factors and the like, which say nothing of how results look.
  static bool takes_scalars(const Step& step) {
    const Result& result = step.results[0];
    if (step.results.size() != 1 || result.loose || result.known) return false;
    return std::all_of(step.arguments.begin(), step.arguments.end(), [](const Argument& argument) {
      return argument.kind != Argument::Kind::Numbers && argument.kind != Argument::Kind::Generator &&
             argument.memory == Argument::Memory::Any;
    });
  }

  static std::shared_ptr<const Lowered> way_in_place(const Step& step) {
    if (step.results.size() != 1 || step.arguments.empty()) return nullptr;
    const Result& result = step.results[0];
    const Argument& self = step.arguments[0];
    bool gives_self = result.kind == Result::Kind::Register && result.known && !result.loose &&
                      self.kind == Argument::Kind::Register && result.reg == self.reg;
    if (!gives_self || self.memory != Argument::Memory::Any) return nullptr;
    auto maker = makers_in_place().find(full_name(step.op.schema()));
    return maker == makers_in_place().end() ? nullptr : maker->second(step);
  }

  std::shared_ptr<const Lowered> way_of(const Step& step, size_t at, bool plain) {
    const auto& schema = step.op.schema();
    const std::string name = full_name(schema);
    const Result& result = step.results[0];
    if (gives_back(step, schema.name())) return nothing();
    if (name == "aten::item" && result.kind == Result::Kind::Number &&
        step.arguments[0].kind == Argument::Kind::Register)
      return item();
    if (!plain) return nullptr;
    if ((is_alias(result, at) && is_view(step)) || detaches(step)) return alias();
    if (result.kind != Result::Kind::Register || result.known || result.base >= 0 || !is_plain(*result.meta))
      return nullptr;
    // With a bias and three dimensions the result is a view of a matrix.
    bool viewed = schema.name() == "aten::linear" && result.meta->sizes().size() == 3 && result.reg >= 0 &&
                  step.arguments[2].kind == Argument::Kind::Register;
    if (viewed && bound_[result.reg]) return nullptr;
    auto maker = makers().find(name);
    if (maker == makers().end()) return nullptr;
    return maker->second(step);
  }

  // Whether the operator may run below autograd, and below what counts versions and keeps track of views:
  // where none of its results is seen, and it changes nothing else, nobody can tell.
  bool leaves_no_trace(const Step& step) {
    // A view of what requires gradients requires them, and does not where it is made below autograd.
    auto seen = [&](const Result& result) {
      return result.known || result.meta->requires_grad() || (result.reg >= 0 && bound_[result.reg]);
    };
    for (const Result& result : step.results) {
      if (result.kind == Result::Kind::Read || result.kind == Result::Kind::Number || seen(result))
        return false;
      for (const Result& one : result.list)
        if (seen(one)) return false;
    }
    const auto& schema = step.op.schema();
    // What the kernels of autograd do by themselves (VariableTypeManual.cpp).
    static const std::unordered_set<std::string> kByHand = {"aten::detach", "aten::_fw_primal",
                                                            "aten::_make_dual", "aten::_unpack_dual"};
    if (schema.name().rfind("aten::", 0) != 0 || kByHand.count(schema.name())) return false;
    for (auto& argument : schema.arguments())
      if (argument.alias_info() && argument.alias_info()->isWrite()) return false;
    return true;
  }

  // An operator with a kernel for autograd runs the rest of its code below autograd in any case. The code of
  // any other meets autograd at each step: there, views of what requires gradients require them, and some
  // operators choose another kernel for such tensors.
  static StepPlan::Quiet quiet(const c10::OperatorHandle& op) {
    // These hand their tensors on to one operator that has such a kernel, whether or not any requires
    // gradients (ATen/native: layer_norm.cpp, group_norm.cpp, Convolution.cpp).
    static const std::unordered_set<std::string> kHandOn = {"aten::layer_norm", "aten::group_norm",
                                                            "aten::conv1d", "aten::conv2d", "aten::conv3d"};
    // Of both kinds of kernel the dispatcher takes the composite one.
    bool own = op.hasKernelForDispatchKey(c10::DispatchKey::Autograd) &&
               !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    return own || kHandOn.count(op.schema().name()) ? StepPlan::Quiet::Always
                                                    : StepPlan::Quiet::WithoutGradients;
  }

  // Whether the operator gives its argument back for reasons that the look of the argument decides.
  static bool gives_back(const Step& step, const std::string& name) {
    static const std::unordered_set<std::string> kNames = {"aten::to",           "aten::contiguous",
                                                           "aten::dropout",      "aten::type_as",
                                                           "aten::resolve_conj", "aten::resolve_neg"};
    const Result& result = step.results[0];
    return result.known && result.kind == Result::Kind::Register && result.reg >= 0 &&
           !step.arguments.empty() && step.arguments[0].kind == Argument::Kind::Register &&
           step.arguments[0].reg == result.reg && kNames.count(name);
  }

  // Whether it does so at all sizes: for its dtype and device, or since dropout is off.
  static bool gives_back_always(const Step& step) {
    const std::string& name = step.op.schema().name();
    if (!gives_back(step, name)) return false;
    const Argument& last = step.arguments.back();
    bool is_constant = last.kind == Argument::Kind::Constant;
    if (name == "aten::to") return is_constant && last.constant.isNone();  // no memory format is asked for
    if (name == "aten::dropout") return is_constant && last.constant.isBool() && !last.constant.toBool();
    return name != "aten::contiguous";
  }

  // Whether a result that shows the memory of an argument is a view that follows from how the arguments look,
  // as the key and the guards hold it: an operator of torch that writes nothing and takes no other tensor
  // whose values could say which part is shown. The offset that as_strided takes counts from the beginning of
  // the memory, which they do not hold.
  static bool is_view(const Step& step) {
    static const std::unordered_set<std::string> kByLook = {"aten::view_as", "aten::expand_as",
                                                            "aten::reshape_as"};
    const auto& schema = step.op.schema();
    const std::string& name = schema.name();
    if (name.rfind("aten::", 0) != 0 || name.find("as_strided") != std::string::npos || step.exit)
      return false;
    int tensors = 0;
    for (auto& argument : step.arguments)
      tensors += argument.kind != Argument::Kind::Constant || argument.constant.isTensor();
    for (auto& argument : schema.arguments())
      if (argument.alias_info() && argument.alias_info()->isWrite()) return false;
    return tensors == 1 || kByLook.count(name);
  }

  bool is_alias(const Result& result, size_t at) const {
    if (static_cast<int>(at) <= plan_.keep_until) return false;
    if (result.kind == Result::Kind::Register) return is_loose(result);
    if (result.kind != Result::Kind::List || result.list.empty()) return false;
    for (const Result& one : result.list)
      if (!is_loose(one)) return false;
    return true;
  }

  bool is_loose(const Result& result) const {
    return result.base >= 0 && !result.known && result.meta->strided() && result.meta->plain_keys() &&
           (result.reg < 0 || !bound_[result.reg]);
  }

  // Dense memory without gaps, of the CPU, as a factory would make it.
  static bool is_plain(const TensorMeta& meta) {
    return meta.strided() && meta.device().is_cpu() && meta.plain_keys() && !meta.requires_grad() &&
           meta.bytes() > 0 && meta.dense();
  }

  // The one operator with several results that can be told where to write them.
  static bool is_plain_loss(const Step& step) {
    auto is_new = [](const Result& result) {
      return result.kind == Result::Kind::Register && !result.known && result.base < 0 &&
             is_plain(*result.meta);
    };
    return step.results.size() == 2 && full_name(step.op.schema()) == "aten::nll_loss_forward" &&
           std::all_of(step.results.begin(), step.results.end(), is_new);
  }

  static std::shared_ptr<const Lowered> nothing() {
    static const auto* one = new std::shared_ptr<const Lowered>(std::make_shared<Nothing>());
    return *one;
  }
  static std::shared_ptr<const Lowered> item() {
    static const auto* one = new std::shared_ptr<const Lowered>(std::make_shared<Item>());
    return *one;
  }
  static std::shared_ptr<const Lowered> alias() {
    static const auto* one = new std::shared_ptr<const Lowered>(std::make_shared<Alias>());
    return *one;
  }

  Plan& plan_;
  const Program& program_;
  std::vector<char> bound_;
  std::vector<const TensorMeta*> metas_;  // by register, of what steps give
};

}  // namespace

// A kernel that somebody has put in the place of torch's own, from Python, may be reached from any operator.
void lower(Plan* plan, const std::vector<int>& outputs) {
  plan->overrides = aten_overrides();
  if (!aten_is_overridden()) Lowering(plan, outputs).run();
}

}  // namespace lazytrace
