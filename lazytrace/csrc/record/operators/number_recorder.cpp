#include "record/operators/number_recorder.h"

#include <ATen/ScalarOps.h>
#include <c10/core/SymInt.h>
#include <c10/core/SymNodeImpl.h>
#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/python_symnode.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <unordered_set>

#include "cpython/objects.h"
#include "cpython/text_carrier.h"
#include "cpython/values.h"
#include "support/reasons.h"

namespace lazytrace {

namespace {

using Kind = Number::Kind;

// What takes the arguments of a binding out of Python objects is inline code of this file of torch's.
bool is_from_parser(const char* file) {
  constexpr const char* kParser = "python_arg_parser.h";
  size_t length = std::strlen(file), tail = std::strlen(kParser);
  return length >= tail && std::strcmp(file + length - tail, kParser) == 0;
}

// A number inside torch, between the parser of Python's arguments and the dispatcher.
class NumberNode final : public c10::SymNodeImpl {
 public:
  NumberNode(std::shared_ptr<NumberRecorder> recorder, int id, bool truth = false)
      : recorder_(std::move(recorder)), id_(id), real_((*recorder_)[id].real), truth_(truth) {}
  // One that the program has only if somebody asks for it: torch compares numbers with sizes of this call,
  // and goes the way that fits all. With these the program would differ from call to call.
  NumberNode(std::shared_ptr<NumberRecorder> recorder, std::function<int()> find, bool real, bool truth)
      : recorder_(std::move(recorder)), find_(std::move(find)), real_(real), truth_(truth) {}

  int id() const {
    if (id_ < 0) id_ = find_();
    TORCH_CHECK(id_ >= 0, "a number that lazytrace cannot follow");
    return id_;
  }
  NumberRecorder& recorder() const { return *recorder_; }

  bool is_int() override { return !truth_ && !is_real(); }
  bool is_bool() override { return truth_; }
  bool is_float() override { return is_real(); }
  c10::SymNode clone() override { return make(id(), truth_); }
  c10::SymNode wrap_int(int64_t value) override { return constant(value, false); }
  c10::SymNode wrap_float(double value) override {
    return late([recorder = recorder_, value] { return recorder->real_constant(value); }, true, false);
  }
  c10::SymNode wrap_bool(bool value) override { return constant(value, true); }
  c10::SymNode add(const c10::SymNode& other) override { return with(Kind::Add, other); }
  c10::SymNode sub(const c10::SymNode& other) override { return with(Kind::Sub, other); }
  c10::SymNode mul(const c10::SymNode& other) override { return with(Kind::Mul, other); }
  c10::SymNode truediv(const c10::SymNode& other) override { return with(Kind::TrueDiv, other); }
  c10::SymNode float_truediv(const c10::SymNode& other) override { return with(Kind::TrueDiv, other); }
  c10::SymNode int_truediv(const c10::SymNode& other) override { return with(Kind::TrueDiv, other); }
  c10::SymNode floordiv(const c10::SymNode& other) override { return with(Kind::FloorDiv, other); }
  c10::SymNode int_floordiv(const c10::SymNode& other) override { return with(Kind::FloorDiv, other); }
  c10::SymNode mod(const c10::SymNode& other) override { return with(Kind::Mod, other); }
  c10::SymNode sym_min(const c10::SymNode& other) override { return with(Kind::Min, other); }
  c10::SymNode sym_max(const c10::SymNode& other) override { return with(Kind::Max, other); }
  c10::SymNode eq(const c10::SymNode& other) override { return compared(Kind::Equal, self(), other); }
  c10::SymNode ne(const c10::SymNode& other) override { return compared(Kind::NotEqual, self(), other); }
  c10::SymNode lt(const c10::SymNode& other) override { return compared(Kind::Less, self(), other); }
  c10::SymNode le(const c10::SymNode& other) override { return compared(Kind::LessEqual, self(), other); }
  c10::SymNode gt(const c10::SymNode& other) override { return compared(Kind::Less, other, self()); }
  c10::SymNode ge(const c10::SymNode& other) override { return compared(Kind::LessEqual, other, self()); }
  c10::SymNode neg() override { return made(apply(Kind::Neg, id(), -1)); }
  c10::SymNode sym_float() override { return made(apply(Kind::Float, id(), -1)); }
  // What asks two truths at once asks for each of them.
  c10::SymNode sym_or(const c10::SymNode& other) override { return plain(read() || read(other)); }
  c10::SymNode sym_and(const c10::SymNode& other) override { return plain(read() && read(other)); }
  c10::SymNode sym_not() override { return plain(!read()); }
  int64_t guard_int(const char* file, int64_t) override {
    if (!is_from_parser(file)) return read();
    TORCH_CHECK(!is_real(), "a float in place of an int");
    return recorder_->parse(id());
  }
  double guard_float(const char*, int64_t) override {
    return is_real() ? read_real() : static_cast<double>(read());
  }
  bool guard_bool(const char*, int64_t) override { return is_real() ? read_real() != 0 : read(); }
  bool guard_size_oblivious(const char*, int64_t) override { return read(); }
  bool guard_or_false(const char*, int64_t) override { return read(); }
  bool guard_or_true(const char*, int64_t) override { return read(); }
  bool statically_known_true(const char*, int64_t) override { return false; }
  bool expect_true(const char*, int64_t) override { return read(); }
  int64_t int_() override { return read(); }
  bool bool_() override { return read(); }
  bool has_hint() override { return true; }
  std::string str() override { return text_of_value(); }

 private:
  bool is_real() const { return real_; }
  int64_t read() const {
    TORCH_CHECK(!is_real(), "a float in place of an int");
    return recorder_->read(id()).whole;
  }
  double read_real() const { return recorder_->read(id()).real; }
  std::string text_of_value() const {
    return is_real() ? std::to_string(recorder_->value(id()).real)
                     : std::to_string(recorder_->value(id()).whole);
  }
  static int64_t read(const c10::SymNode& other) { return other->guard_bool("", 0); }
  c10::SymNode self() { return c10::intrusive_ptr<NumberNode>::reclaim_copy(this); }
  c10::SymNode make(int id, bool truth) const {
    return c10::make_intrusive<NumberNode>(recorder_, id, truth);
  }
  c10::SymNode late(std::function<int()> find, bool real, bool truth) const {
    return c10::make_intrusive<NumberNode>(recorder_, std::move(find), real, truth);
  }
  c10::SymNode constant(int64_t value, bool truth) const {
    return late([recorder = recorder_, value] { return recorder->constant(value); }, false, truth);
  }
  c10::SymNode made(int id) const {
    TORCH_CHECK(id >= 0, "a number that lazytrace cannot follow");
    return make(id, false);
  }
  c10::SymNode plain(bool value) const { return constant(value, true); }
  static int number_of(NumberRecorder& recorder, const c10::SymNode& node) {
    if (auto* number = dynamic_cast<NumberNode*>(node.get())) return number->id();
    if (node->is_float()) return recorder.real_constant(node->guard_float("", 0));
    return recorder.constant(node->is_int() ? node->guard_int("", 0) : node->guard_bool("", 0));
  }
  int apply(Kind kind, int a, int b) const {
    py::gil_scoped_acquire gil;
    return recorder_->apply(kind, a, b);
  }
  c10::SymNode with(Kind kind, const c10::SymNode& other) const {
    return made(apply(kind, id(), number_of(*recorder_, other)));
  }
  c10::SymNode compared(Kind kind, const c10::SymNode& a, const c10::SymNode& b) const {
    auto find = [recorder = recorder_, kind, a, b] {
      py::gil_scoped_acquire gil;
      int left = number_of(*recorder, a);
      return recorder->apply(kind, left, number_of(*recorder, b));
    };
    return late(find, false, true);
  }

  std::shared_ptr<NumberRecorder> recorder_;
  mutable int id_ = -1;
  std::function<int()> find_;
  bool real_;
  bool truth_;
};

Number works_number(Kind kind, int a, int b) {
  Number number;
  number.kind = Kind::Works;
  number.a = a;
  number.b = b;
  number.which = static_cast<int64_t>(kind);
  return number;
}

// Ours behind what torch has made of it: of a float it takes no other node than one that asks Python.
const NumberNode* node_of(const c10::SymNode& node) {
  if (auto* ours = dynamic_cast<NumberNode*>(node.get())) return ours;
  auto* python = dynamic_cast<torch::impl::PythonSymNodeImpl*>(node.get());
  if (!python) return nullptr;
  py::gil_scoped_acquire gil;
  py::handle inside = python->getPyObj();
  if (!py::isinstance<c10::SymNodeImpl>(inside)) return nullptr;
  return dynamic_cast<NumberNode*>(py::cast<c10::SymNode>(inside).get());
}

}  // namespace

py::object symbolic_node(const std::shared_ptr<NumberRecorder>& recorder, int id) {
  return py::cast(c10::SymNode(c10::make_intrusive<NumberNode>(recorder, id)));
}

// ---------------------------------------------------------------- numbers
namespace {
size_t hash_of(const Number& number) {
  size_t hash = static_cast<size_t>(number.kind) * 2 + number.real;
  for (int64_t part : {int64_t{number.reg}, int64_t{number.a}, int64_t{number.b}, number.which})
    hash = hash * 0x9E3779B97F4A7C15u + static_cast<size_t>(part);
  return hash;
}
}  // namespace

namespace {
constexpr int kAllBits = 64;
// The product of two sizes is taken to fit into an int64, one of three is not.
constexpr int kBitsOfSize = 31;

int bits_of_leaf(const Number& number) {
  if (number.is_given()) return kAllBits;
  if (number.kind != Kind::Constant) return kBitsOfSize;
  auto rest = static_cast<uint64_t>(number.which);
  if (number.which < 0) rest = 0 - rest;
  int bits = 0;
  for (; rest; rest >>= 1) ++bits;
  return bits;
}
}  // namespace

// How many bits the size of the int takes at most that arithmetic gives; `kAllBits` or more where it may not
// fit.
int NumberRecorder::bits_of(Kind kind, int a, int b) const {
  int left = bits_[static_cast<size_t>(a)], right = b < 0 ? 0 : bits_[static_cast<size_t>(b)];
  int larger = std::max(left, right);
  switch (kind) {
    case Kind::Less:
    case Kind::LessEqual:
    case Kind::Equal:
    case Kind::NotEqual:
    case Kind::Works:
      return 1;
    case Kind::Add:
    case Kind::Sub:
      return larger + 1;
    case Kind::Mul:
      return left + right;
    case Kind::FloorDiv:
    case Kind::Neg:
    case Kind::Abs:
      return left;
    case Kind::Mod:
      return right;
    case Kind::Pow:
      if (!is_constant(b) || value(b).whole < 0 || value(b).whole >= kAllBits) return kAllBits;
      return left * static_cast<int>(value(b).whole);
    default:
      return larger;
  }
}

// Which number it is, or will be once it is added.
int NumberRecorder::id_of(const Number& number, size_t hash) const {
  auto range = index_.equal_range(hash);
  for (auto at = range.first; at != range.second; ++at)
    if ((*numbers_)[static_cast<size_t>(at->second)] == number) return at->second;
  return static_cast<int>(numbers_->size());
}

int NumberRecorder::add(const Number& number, NumberValue value) {
  size_t hash = hash_of(number);
  int id = id_of(number, hash);
  if (static_cast<size_t>(id) < numbers_->size()) return id;
  numbers_->push_back(number);
  values_.push_back(value);
  read_.push_back(number.kind == Kind::Constant);
  bits_.push_back(number.real        ? kAllBits
                  : number.is_leaf() ? bits_of_leaf(number)
                                     : std::min(bits_of(number.kind, number.a, number.b), kAllBits));
  new_.push_back(id);
  index_.emplace(hash, id);
  return id;
}

int NumberRecorder::constant(int64_t value) {
  Number number;
  number.which = value;
  return add(number, NumberValue::of(value));
}

int NumberRecorder::real_constant(double value) {
  Number number;
  number.real = true;
  std::memcpy(&number.which, &value, sizeof value);
  return add(number, NumberValue::of_real(value));
}

int NumberRecorder::leaf(Kind kind, int reg, int64_t which, const at::Tensor& tensor) {
  Number number;
  number.kind = kind;
  number.reg = reg;
  number.which = which;
  return add(number, NumberValue::of(ask(number, tensor)));
}

int NumberRecorder::given(Kind kind, int64_t which, bool real, NumberValue value, std::string name,
                          bool size) {
  Number number;
  number.kind = kind;
  number.which = which;
  number.real = real;
  number.name = std::make_shared<const std::string>(std::move(name));
  int id = add(number, value);
  if (size) bits_[static_cast<size_t>(id)] = kBitsOfSize;
  return id;
}

int NumberRecorder::item(int reg, const c10::IValue& value) {
  Number number;
  number.kind = Kind::Item;
  number.reg = reg;
  number.which = items_++;
  number.real = value.isDouble();
  return add(number, number.real ? NumberValue::of_real(value.toDouble()) : NumberValue::of(value.toInt()));
}

int NumberRecorder::answer(PyObject* value, std::string name) {
  int overflow = 0;
  NumberValue found = PyFloat_CheckExact(value)
                          ? NumberValue::of_real(PyFloat_AS_DOUBLE(value))
                          : NumberValue::of(PyLong_AsLongLongAndOverflow(value, &overflow));
  if (overflow) return -1;
  int id = given(Kind::Asked, answers_++, PyFloat_CheckExact(value), found, std::move(name));
  if (PyBool_Check(value)) bits_[static_cast<size_t>(id)] = 1;
  return id;
}

// Whether a replay with other operands may come to something that is no number of the program, and could not
// start over. Where Python would raise, the replay raises the same, unless the function would catch it.
bool NumberRecorder::must_ask(Kind kind, int a, int b) const {
  if (!owner_.changed() || (kind >= Kind::Less && kind <= Kind::NotEqual)) return false;
  if (kind >= Kind::IfSet && kind <= Kind::Either) return false;  // one of two that are there
  bool real = gives_real(kind, (*this)[a].real, b >= 0 && (*this)[b].real);
  bool whole = !(*this)[a].real, rounds = kind >= Kind::Trunc && kind <= Kind::Round;
  if (whole && (kind == Kind::Long || kind == Kind::Trunc)) return false;  // the same number
  bool fits = kind == Kind::Max || kind == Kind::Min || kind == Kind::Mod;
  if (!real && (rounds || (!fits && bits_of(kind, a, b) >= kAllBits))) return true;
  if (kind >= Kind::NumpyAbsolute) return true;  // numpy is not asked where it would warn
  bool of_numpy = (*this)[a].is_scalar() || (b >= 0 && (*this)[b].is_scalar());
  if (real && of_numpy && kind >= Kind::Add && kind <= Kind::Pow) return true;  // nor is Python
  double base = (*this)[a].real ? value(a).real : static_cast<double>(value(a).whole);
  if (kind == Kind::Pow && real && !(is_constant(a) && base > 0)) return true;  // of less than zero: complex
  bool always = kind == Kind::Add || kind == Kind::Sub || kind == Kind::Mul || kind == Kind::Max ||
                kind == Kind::Min || kind == Kind::Neg || kind == Kind::Abs || kind == Kind::Fabs ||
                kind == Kind::Copysign;
  return !always && owner_.would_catch();
}

// What a function that runs again has changed by now may be less than it was when it was recorded: a place
// that was written to may hold that value already. It asks what it asked then, and not before: the same was
// worked out without asking, maybe, before anything was changed.
bool NumberRecorder::asks(Kind kind, int a, int b) const {
  Number works = works_number(kind, a, b);
  std::optional<bool> asked = owner_.asked(id_of(works, hash_of(works)), works);
  return asked ? *asked : must_ask(kind, a, b);
}

// Asks, so that a replay for which it does not is led back to Python.
bool NumberRecorder::works(Kind kind, int a, int b) {
  Number number = works_number(kind, a, b);
  auto found = lazytrace::apply(*numbers_, number, values_.data());
  if (!found) found = apply_in_python(*numbers_, number, values_.data());
  return read(add(number, *found)).whole;
}

int NumberRecorder::apply(Kind kind, int a, int b) {
  bool reals = (*this)[a].real || (b >= 0 && (*this)[b].real);
  if ((kind == Kind::Max || kind == Kind::Min) && (*this)[a].real != (*this)[b].real) return -1;
  // A replay must not divide by zero where Python would have raised before, or gone another way. Asked before
  // anything else, so that a function that runs again asks the same.
  if ((kind == Kind::FloorDiv || kind == Kind::Mod) && !reals && !is_constant(b))
    read(apply(Kind::NotEqual, b, constant(0)));
  bool constants = is_constant(a) && is_constant(b);
  if (!constants && asks(kind, a, b) && !works(kind, a, b)) return -1;
  Number number;
  number.kind = kind;
  number.a = a;
  number.b = b;
  number.real = gives_real(kind, (*this)[a].real, b >= 0 && (*this)[b].real);
  std::optional<NumberValue> result = lazytrace::apply(*numbers_, number, values_.data());
  if (!result && (reals || number.real || kind == Kind::Pow)) {
    try {
      result = apply_in_python(*numbers_, number, values_.data());
    } catch (py::error_already_set&) {
      return -1;  // Python will raise it again
    }
  }
  if (!result) return -1;
  if (constants && !number.is_scalar())
    return number.real ? real_constant(result->real) : constant(result->whole);
  return add(number, *result);
}

NumberValue NumberRecorder::read(int id) {
  NumberValue found = value(id);
  if (live() && !read_[static_cast<size_t>(id)]) {
    read_[static_cast<size_t>(id)] = 1;
    refuse_answer(id);
    owner_.read(id, to_ivalue((*this)[id], found));
  }
  return found;
}

// Of a clock or of random floats, which no other call will be given again.
void NumberRecorder::refuse_answer(int id) {
  if (!(*this)[id].real) return;
  auto asked = [](const Number& number) { return number.kind == Kind::Asked; };
  std::vector<int> answers = leaves_of(*numbers_, id, asked);
  if (!answers.empty()) owner_.fail(say(reason::AskedValue, *(*this)[answers[0]].name));
}

// ---------------------------------------------------------------- carriers
PyObject* NumberRecorder::carrier(int id) {
  const Number& number = (*this)[id];
  PyObject* made = number.kind == Kind::Long ? new_long_carrier(value(id).whole)
                   : number.is_scalar()      ? new_scalar_carrier(value(id).real, number.kind == Kind::Single)
                   : number.real             ? new_real_carrier(value(id).real)
                                             : new_carrier(value(id).whole);
  if (!made) throw py::error_already_set();
  Py_INCREF(made);
  carriers_.push_back(made);
  carried_[made] = id;
  return made;
}

// Which object a nan is shows in containers that hold it, so it is compared rather than followed. But where a
// program has followed another number there, the steps that have run took the nan for it.
bool NumberRecorder::follows_nan(int id) const {
  if (!owner_.again()) return false;
  auto stands = [&](const Standing& one) { return one.id == id; };
  if (std::any_of(standing_.begin(), standing_.end(), stands)) return true;
  return !read_[static_cast<size_t>(id)] && !owner_.asked(id, (*this)[id]).value_or(false);
}

PyObject* NumberRecorder::carrier_of(int id, PyObject* original) {
  if (is_nan(original) && !follows_nan(id)) {
    read(id);
    return Py_NewRef(original);
  }
  for (const Standing& one : standing_)
    if (one.id == id && one.original == original) return Py_NewRef(one.carrier);
  PyObject* made = carrier(id);
  stand(id, original, made);
  return made;
}

namespace {
// Of this thread: the one that has made flags last.
thread_local NumberRecorder* of_flags = nullptr;

void read_flag(PyObject* flag) {
  int number = of_flags ? of_flags->number_of_flag(flag) : -1;
  if (number >= 0) of_flags->read(number);
}
}  // namespace

PyObject* NumberRecorder::flag(int id, bool value) {
  read_flags_by(read_flag);
  of_flags = this;
  PyObject* original = value ? Py_True : Py_False;
  for (const Standing& one : standing_)
    if (one.id == id && is_flag(one.carrier)) return Py_NewRef(one.carrier);
  PyObject* made = new_flag(value);
  if (!made) throw py::error_already_set();
  Py_INCREF(made);
  carriers_.push_back(made);
  carried_[made] = id;
  stand(id, original, made);
  has_flags_ = true;
  return made;
}

int NumberRecorder::number_of_flag(PyObject* flag) const {
  const int* id = is_flag(flag) ? carried_.find(flag) : nullptr;
  return id ? *id : -1;
}

void NumberRecorder::stand(int id, PyObject* original, PyObject* carrier) {
  standing_.push_back({id, Py_NewRef(original), Py_NewRef(carrier)});
}

PyObject* NumberRecorder::original_of(PyObject* carrier) const {
  for (const Standing& one : standing_)
    if (one.carrier == carrier) return one.original;
  return nullptr;
}

int NumberRecorder::number_of(PyObject* object) {
  if (is_carrier(object)) {
    const int* id = carried_.find(object);
    return id ? *id : -1;
  }
  if (PyFloat_CheckExact(object)) return real_constant(PyFloat_AS_DOUBLE(object));
  if (!PyLong_CheckExact(object) && !PyBool_Check(object)) return -1;
  int overflow = 0;
  long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow ? -1 : constant(value);
}

void NumberRecorder::settle(PyObject* object) {
  if (is_text(object)) return texts_.settle(object);
  if (!is_carrier(object)) return;
  if (const int* id = carried_.find(object)) read(*id);
  retire_carrier(object);
}

void NumberRecorder::settle_inside(PyObject* object, int depth) {
  constexpr int kDeepest = 16;
  if (!object || !live()) return;
  settle(object);
  if (depth > kDeepest) return owner_.fail(say(reason::SizesTooDeep));
  if (PyTuple_Check(object) || PyList_Check(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i)
      settle_inside(PySequence_Fast_GET_ITEM(object, i), depth + 1);
  } else if (PyDict_Check(object)) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(object, &at, &key, &value)) {
      settle(key);
      settle_inside(value, depth + 1);
    }
  } else if (PySlice_Check(object)) {
    auto* slice = reinterpret_cast<PySliceObject*>(object);
    for (PyObject* part : {slice->start, slice->stop, slice->step}) settle(part);
  }
}

void NumberRecorder::settle_odd(PyObject* object, int depth) {
  constexpr int kDeepest = 16;
  if (!object || !live() || !has_carriers() || is_followed(object)) return;
  if (depth > kDeepest) return settle_inside(object, depth);
  if (PyTuple_CheckExact(object) || PyList_CheckExact(object) || is_named_tuple(object) ||
      THPSize_Check(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i)
      settle_odd(PySequence_Fast_GET_ITEM(object, i), depth + 1);
  } else if (PyDict_CheckExact(object)) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(object, &at, &key, &value)) {
      settle_inside(key);
      settle_odd(value, depth + 1);
    }
  } else {
    settle_inside(object, depth);
  }
}

// Of small ints Python has one object each, which stands in the place of those that somebody holds.
void NumberRecorder::keep_small(PyObject* retired) {
  if (Py_REFCNT(retired) == 1 || !PyLong_CheckExact(retired) || original_of(retired)) return;
  int overflow;
  long long value = PyLong_AsLongLongAndOverflow(retired, &overflow);
  PyObject* plain = PyLong_FromLongLong(overflow ? 0 : value);
  if (!plain) throw py::error_already_set();
  bool small = !overflow && plain != retired && Py_REFCNT(plain) > 1;  // others have it, too
  if (small) stand(-1, plain, retired);
  Py_DECREF(plain);
}

void NumberRecorder::end() {
  live_ = false;
  if (carriers_.empty()) return;
  py::gil_scoped_acquire gil;
  texts_.end();
  for (PyObject* object : carriers_) {
    retire_carrier(object);
    keep_small(object);
    Py_DECREF(object);
  }
  carriers_.clear();
  carried_ = {};
}

NumberRecorder::~NumberRecorder() {
  end();
  if (of_flags == this) of_flags = nullptr;
  if (standing_.empty()) return;
  py::gil_scoped_acquire gil;
  for (const Standing& one : standing_) {
    Py_DECREF(one.original);
    // All that could be found have True or False in their place by now.
    if (is_flag(one.carrier) && Py_REFCNT(one.carrier) > 1) retire_flag(one.carrier);
    Py_DECREF(one.carrier);
  }
}

// ---------------------------------------------------------------- arguments of operators
int NumberRecorder::lift_number(c10::IValue* value) {
  if (!value->isSymInt() && !value->isSymFloat()) return -1;
  bool real = value->isSymFloat();
  c10::SymNode symbolic = real ? value->toSymFloat().toSymNodeImpl() : value->toSymInt().toSymNode();
  const NumberNode* node = node_of(symbolic);
  if (!node || &node->recorder() != this) {
    *value = real ? c10::IValue(symbolic->guard_float(__FILE__, __LINE__))
                  : c10::IValue(symbolic->guard_int(__FILE__, __LINE__));
    return -1;
  }
  int id = node->id();
  *value = to_ivalue((*this)[id], this->value(id));
  return is_constant(id) ? -1 : id;
}

std::optional<Argument> NumberRecorder::lift_list(c10::IValue* value) {
  auto items = value->toListRef();
  bool any = std::any_of(items.begin(), items.end(),
                         [](const c10::IValue& item) { return item.isSymInt() || item.isSymFloat(); });
  if (!any) return {};
  Argument argument;
  argument.kind = Argument::Kind::Numbers;
  bool sizes = value->toList().elementType()->kind() == c10::TypeKind::SymIntType;
  c10::List<int64_t> whole;
  c10::List<at::Scalar> scalars;
  for (const c10::IValue& item : items) {
    c10::IValue one = item;
    argument.list.push_back(lift_number(&one));
    sizes ? whole.push_back(one.toInt()) : scalars.push_back(one.toScalar());
  }
  *value = sizes ? c10::IValue(whole) : c10::IValue(scalars);
  argument.constant = *value;
  bool constant = std::all_of(argument.list.begin(), argument.list.end(), [](int id) { return id < 0; });
  return constant ? std::nullopt : std::make_optional(std::move(argument));
}

// Where a tensor may stand, torch's parser makes one of a number: with another value in it, and the number
// itself as an attribute of its Python object.
std::optional<Argument> NumberRecorder::lift_tensor(c10::IValue* value) {
  const at::Tensor& tensor = value->toTensor();
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->is_wrapped_number()) return {};
  PyObject* object = tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
  if (!object) return {};
  py::gil_scoped_acquire gil;
  static PyObject* name = PyUnicode_InternFromString("_wrapped_number");
  py::object number = py::reinterpret_steal<py::object>(PyObject_GetAttr(object, name));
  if (!number) PyErr_Clear();
  int id = number && is_carrier(number.ptr()) ? number_of(number.ptr()) : -1;
  if (id < 0) return {};
  at::Tensor plain = c10::scalar_to_tensor(to_ivalue((*this)[id], this->value(id)).toScalar());
  plain.unsafeGetTensorImpl()->set_wrapped_number(true);
  *value = plain;
  Argument argument;
  argument.kind = Argument::Kind::NumberTensor;
  argument.reg = id;
  return argument;
}

std::optional<Argument> NumberRecorder::lift_value(c10::IValue* value) {
  if (value->isTensor()) return lift_tensor(value);
  if (value->isTensorList() || value->isOptionalTensorList()) return {};
  if (value->isList()) return lift_list(value);
  int id = lift_number(value);
  if (id < 0) return {};
  Argument argument;
  argument.kind = Argument::Kind::Number;
  argument.reg = id;
  return argument;
}

std::vector<std::pair<size_t, Argument>> NumberRecorder::lift(const c10::FunctionSchema& schema,
                                                              torch::jit::Stack* stack) {
  std::vector<std::pair<size_t, Argument>> lifted;
  size_t count = schema.arguments().size(), first = stack->size() - count;
  for (size_t i = 0; i < count; ++i)
    if (auto argument = lift_value(&(*stack)[first + i])) lifted.emplace_back(i, std::move(*argument));
  if (!parsed_.open() || parsed_.waits_behind(schema)) return lifted;
  auto parsed = take_parsed(schema, *stack, lifted);
  std::move(parsed.begin(), parsed.end(), std::back_inserter(lifted));
  std::sort(lifted.begin(), lifted.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  // Before the step: an operator that writes must not have run with what it would not be given.
  close_binding();
  return lifted;
}

// Which number is which of the arguments is told by their values: where the function runs again, it is what
// it was when the step ran, as others may have one value now.
std::vector<std::pair<size_t, Argument>> NumberRecorder::take_parsed(
    const c10::FunctionSchema& schema, const torch::jit::Stack& stack,
    const std::vector<std::pair<size_t, Argument>>& known) {
  const std::vector<int> asked = parsed_.asked();
  auto was_read = [&](int id) {
    const Number& number = (*this)[id];
    // The one number that there is, which an operator gave, is followed from the exit on, as the next
    // recording may know that it says how much.
    bool goes_on = asked.size() == 1 && number.comes_later() && owner_.at_exit();
    return !goes_on && owner_.asked(id, number).value_or(false);
  };
  // In the order in which they were.
  for (size_t i = 0; i < asked.size(); ++i) {
    auto next = std::find_if(asked.begin(), asked.end(), was_read);
    if (next == asked.end()) break;
    read(*next);
  }
  if (const Step* then = owner_.then())
    if (auto taken = parsed_.take_as(*then, schema, stack)) return *std::move(taken);
  return parsed_.take(schema, stack, known);
}

void NumberRecorder::open_binding(std::string name, std::vector<int> in_lists) {
  close_binding();
  parsed_.begin(std::move(name), std::move(in_lists));
}

void NumberRecorder::close_binding() {
  for (int id : parsed_.end()) read(id);
}

int64_t NumberRecorder::parse(int id) {
  if (!parsed_.open()) return read(id).whole;
  parsed_.add(id, value(id).whole);
  return value(id).whole;
}

void NumberRecorder::settle(const Argument& argument) {
  if (argument.reg >= 0) read(argument.reg);
  for (int id : argument.list)
    if (id >= 0) read(id);
}

void NumberRecorder::settle(const std::vector<std::pair<size_t, Argument>>& lifted) {
  for (auto& [at, argument] : lifted) settle(argument);
}

namespace {
// Whole numbers among the arguments of an operator that say which elements it takes, and not how many.
bool says_no_size(const c10::FunctionSchema& schema, size_t at) {
  static const std::unordered_map<std::string, std::unordered_set<std::string>> kOthers = {
      {"aten::select", {"index"}},
      {"aten::roll", {"shifts"}},
      {"aten::triu", {"diagonal"}},
      {"aten::tril", {"diagonal"}},
      {"aten::kthvalue", {"k"}},
      {"aten::randint", {"low", "high"}},
      {"aten::randint_like", {"low", "high"}}};
  auto others = kOthers.find(schema.name());
  return others != kOthers.end() && others->second.count(schema.arguments()[at].name());
}
}  // namespace

void NumberRecorder::settle_kinds(const c10::FunctionSchema& schema, const OperatorFacts& facts,
                                  std::vector<std::pair<size_t, Argument>>* lifted) {
  auto says_what = [&](const std::pair<size_t, Argument>& one) {
    // Without a chance of it, dropout gives its argument itself.
    if (static_cast<int>(one.first) == facts.dropout && one.second.reg >= 0) {
      py::gil_scoped_acquire gil;
      int is_zero = apply(Kind::Equal, one.second.reg, constant(0));
      if (is_zero >= 0) read(is_zero);
    }
    // A norm of order 0 has no gradient. Elsewhere p is a chance.
    const std::string& name = schema.arguments()[one.first].name();
    if (facts.dropout >= 0 || facts.seeded || (name != "p" && name != "ord")) return false;
    settle(one.second);
    return true;
  };
  lifted->erase(std::remove_if(lifted->begin(), lifted->end(), says_what), lifted->end());
}

// A number as a sum of others, each so many times, and of a constant. Nothing where that may be no int64.
std::optional<NumberRecorder::Sum> NumberRecorder::sum_of(int id, int depth) const {
  constexpr int kDeepest = 16;
  const Number& number = (*this)[id];
  if (number.real || depth > kDeepest) return {};
  if (number.kind == Kind::Constant) return Sum{{}, value(id).whole};
  Sum self{{{id, 1}}, 0};
  bool adds = number.kind == Kind::Add || number.kind == Kind::Sub;
  if (!adds && number.kind != Kind::Mul) return self;
  auto a = sum_of(number.a, depth + 1), b = sum_of(number.b, depth + 1);
  if (!a || !b) return {};
  if (!adds && !a->parts.empty()) std::swap(a, b);
  if (!adds && !a->parts.empty()) return self;  // a product of two that may differ is one of them
  auto note = [&](int64_t* to, int64_t value, int64_t times) {
    int64_t more = 0;
    return !__builtin_mul_overflow(value, times, &more) && !__builtin_add_overflow(*to, more, to);
  };
  int64_t times = adds ? (number.kind == Kind::Add ? 1 : -1) : a->constant;
  Sum sum = adds ? std::move(*a) : Sum{};
  bool fits = note(&sum.constant, b->constant, times);
  for (auto [part, count] : b->parts) fits &= note(&sum.parts[part], count, times);
  for (auto at = sum.parts.begin(); at != sum.parts.end();)
    at = at->second ? std::next(at) : sum.parts.erase(at);
  return fits ? std::make_optional(std::move(sum)) : std::nullopt;
}

std::optional<std::vector<int>> NumberRecorder::state_behind(int id) const {
  auto other = [](const Number& leaf) { return leaf.kind != Kind::State && leaf.kind != Kind::Constant; };
  if (!leaves_of(*numbers_, id, other).empty()) return std::nullopt;
  return leaves_of(*numbers_, id, [](const Number& leaf) { return leaf.kind == Kind::State; });
}

// Whether the call or its state has brought any of what it is worked out of.
bool NumberRecorder::is_given(int id) const {
  return !leaves_of(*numbers_, id, [](const Number& leaf) {
            return leaf.kind == Kind::Argument || leaf.kind == Kind::State;
          }).empty();
}

namespace {
struct Measuring {
  bool* flag;
  explicit Measuring(bool* set) : flag(set) { *flag = true; }
  ~Measuring() { *flag = false; }
  Measuring(const Measuring&) = delete;
  Measuring& operator=(const Measuring&) = delete;
};
}  // namespace

// `x[i : i + n]` has the same size wherever it is, as long as it is inside of x: that is compared. So is how
// long it is, where two values of tensors say so.
bool NumberRecorder::is_window(const c10::FunctionSchema& schema, const torch::jit::Stack& stack,
                               const std::vector<std::pair<size_t, Argument>>& lifted) {
  enum { kSelf, kDim, kStart, kEnd, kStep, kCount };
  if (schema.name() != "aten::slice" || lifted.size() != 2 || lifted[0].first != kStart ||
      lifted[1].first != kEnd)
    return false;
  const c10::IValue* arguments = &stack[stack.size() - kCount];
  int start = lifted[0].second.reg, end = lifted[1].second.reg;
  auto first = sum_of(start), last = sum_of(end);
  if (!first || !last || arguments[kStep].toInt() != 1) return false;
  bool steady = first->parts == last->parts;
  if (steady ? first->constant > last->constant : is_given(start) || is_given(end)) return false;
  const at::Tensor& self = arguments[kSelf].toTensor();
  int64_t size = self.dim() ? self.size(arguments[kDim].toInt()) : 0;
  py::gil_scoped_acquire gil;
  // A function that runs again asks the same in the same order, whatever it finds.
  auto asked = [&](Kind kind, int a, int b) {
    int id = apply(kind, a, b);
    return id < 0 ? -1 : read(id).whole;
  };
  auto measured = [&] {
    Measuring now(&measures_);
    return asked(Kind::Sub, end, start);
  };
  return asked(Kind::LessEqual, constant(0), start) > 0 && (steady || measured() >= 0) &&
         asked(Kind::LessEqual, end, constant(size)) > 0;
}

bool NumberRecorder::settle_sizes(const c10::FunctionSchema& schema, const torch::jit::Stack& stack,
                                  std::vector<std::pair<size_t, Argument>>* lifted) {
  if (is_window(schema, stack, *lifted)) return false;
  // Of these the numbers say how long the result is.
  bool counts = schema.name() == "aten::arange" || schema.name() == "aten::range";
  auto is_size = [&](const std::pair<size_t, Argument>& one) {
    if (counts) return true;
    if (one.second.kind == Argument::Kind::NumberTensor || says_no_size(schema, one.first)) return false;
    if (one.second.kind == Argument::Kind::Numbers) return one.second.constant.isIntList();
    c10::TypePtr type = schema.arguments()[one.first].real_type();
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    return type->kind() != c10::TypeKind::NumberType && type->kind() != c10::TypeKind::FloatType;
  };
  bool given = false;
  auto sizes =
      std::stable_partition(lifted->begin(), lifted->end(), [&](const auto& one) { return !is_size(one); });
  for (auto at = sizes; at != lifted->end(); ++at) {
    given |= is_given(at->second.reg);
    for (int id : at->second.list) given |= is_given(id);
    Measuring now(&measures_);
    settle(at->second);
  }
  lifted->erase(sizes, lifted->end());
  return given;
}

}  // namespace lazytrace
