#include "record/python/flags.h"

#include <torch/csrc/Dtype.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "cpython/bytecode.h"
#include "cpython/callee.h"
#include "cpython/carried_iterator.h"
#include "cpython/carrier.h"
#include "cpython/imports.h"
#include "cpython/objects.h"
#include "cpython/stack_moves.h"
#include "cpython/values.h"
#include "record/python/code_facts.h"
#include "support/reasons.h"

namespace lazytrace {

namespace {

constexpr int kDeepestFlag = 8;

// What goes through a container in C, and holds it, one of our generators that stands in for that, or a
// partial.
bool is_gone_through_in_c(PyObject* v) {
  if (function_of_partial(v)) return true;
  if (PyGen_CheckExact(v))
    return stands_for_code(reinterpret_cast<PyObject*>(reinterpret_cast<PyGenObject*>(v)->gi_code));
  return PyIter_Check(v) && Py_TYPE(v)->tp_traverse && !PyType_HasFeature(Py_TYPE(v), Py_TPFLAGS_HEAPTYPE);
}

// That a method is bound to, or null.
PyObject* self_of(PyObject* v) {
  if (PyMethod_Check(v)) return PyMethod_GET_SELF(v);
  return PyCFunction_Check(v) ? PyCFunction_GET_SELF(v) : nullptr;
}

bool is_list_or_tuple(PyObject* v) { return PyList_CheckExact(v) || PyTuple_Check(v); }

bool is_append(PyObject* callee) {
  static PyObject* const append = PyDict_GetItemString(PyList_Type.tp_dict, "append");
  return callee == append;
}

// C code that keeps what it is given, or gives it on, and looks at none of it.
bool looks_at_nothing(PyObject* callee) {
  static const auto* all = [] {
    auto* made = new AddressSet();
    for (const char* name :
         {"zip", "reversed", "enumerate", "list", "tuple", "len", "iter", "next", "isinstance", "type", "id"})
      made->insert(builtin(name));
    return made;
  }();
  return all->count(callee);
}

// Code of the user's, which is watched, what stands in for C code, and named tuples.
bool comes_to_seen_code(PyObject* callee) {
  constexpr uintptr_t kUnseen = kSkipped | kOpaque | kOwn | kThrough | kTorchs;
  if (PyMethod_Check(callee)) return comes_to_seen_code(PyMethod_GET_FUNCTION(callee));
  if (PyFunction_Check(callee)) {
    uintptr_t flags = code_flags(PyFunction_GET_CODE(callee));
    return (flags & kStandsIn) || !(flags & kUnseen);
  }
  return PyType_Check(callee) && is_python_class(reinterpret_cast<PyTypeObject*>(callee)) &&
         c_base(reinterpret_cast<PyTypeObject*>(callee)) == &PyTuple_Type;
}

bool has_module(const char* name) {
  py::str text(name);
  return static_cast<bool>(py::reinterpret_steal<py::object>(PyImport_GetModule(text.ptr())));
}

// What makes a tensor or an array of the numbers in a list, of a type that these decide, or of one of its
// own.
enum class Makes : uint8_t { Nothing, Tensor, TypedTensor, Array, Stack };

Makes made_by(PyObject* callee) {
  auto collect = [](const char* module, std::initializer_list<const char*> names) {
    auto* all = new AddressSet();
    for (const char* name : names) all->insert(from_module(module, name).release().ptr());
    return all;
  };
  static const auto* tensors = collect("torch", {"tensor", "as_tensor"});
  static const auto* typed =
      collect("torch", {"Tensor", "FloatTensor", "DoubleTensor", "LongTensor", "IntTensor", "ByteTensor"});
  if (tensors->count(callee)) return Makes::Tensor;
  if (typed->count(callee)) return Makes::TypedTensor;
  static const auto* arrays = has_module("numpy") ? collect("numpy", {"array", "asarray"}) : new AddressSet();
  static const auto* stacks =
      has_module("numpy") ? collect("numpy", {"stack", "vstack", "hstack"}) : new AddressSet();
  return arrays->count(callee) ? Makes::Array : stacks->count(callee) ? Makes::Stack : Makes::Nothing;
}

// The argument of this name, or null; `top`: the last one of the call.
PyObject* named_argument(PyObject* const* top, PyObject* names, const char* name) {
  Py_ssize_t count = names ? PyTuple_GET_SIZE(names) : 0;
  for (Py_ssize_t i = 0; i < count; ++i)
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, i), name) == 0) return top[i + 1 - count];
  return nullptr;
}

// A type for which True is 1: to text it is "True", and None says nothing.
bool is_type_of_numbers(PyObject* type) {
  if (THPDtype_Check(type) || type == reinterpret_cast<PyObject*>(&PyFloat_Type) ||
      type == reinterpret_cast<PyObject*>(&PyLong_Type))
    return true;
  static PyObject* const number =
      has_module("numpy") ? from_module("numpy", "number").release().ptr() : nullptr;
  return PyType_Check(type) && number &&
         PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type), reinterpret_cast<PyTypeObject*>(number));
}

}  // namespace

// ---------------------------------------------------------------- places
const Flags::Held* Flags::held(PyObject* const* place) const {
  auto at = std::find_if(held_.begin(), held_.end(), [&](const Held& one) { return one.place == place; });
  return at == held_.end() ? nullptr : &*at;
}

void Flags::note(const Held& held) {
  forget(held.place);
  held_.push_back(held);
}

std::optional<Flags::Held> Flags::take(PyObject* const* place) {
  const Held* found = held(place);
  if (!found) return {};
  Held taken = *found;
  held_.erase(held_.begin() + (found - held_.data()));
  return taken;
}

void Flags::read(PyObject* const* place) {
  auto taken = take(place);
  if (taken && recorder_->numbers())
    recorder_->numbers()->read(taken->flag >= 0 ? taken->flag : taken->number);
}

void Flags::read_all(Frame f) {
  std::vector<PyObject**> places;
  for (const Held& one : held_)
    if (f.owns(one.place)) places.push_back(one.place);
  for (PyObject** place : places) read(place);
}

void Flags::forget_all(Frame f) {
  held_.erase(std::remove_if(held_.begin(), held_.end(), [&](const Held& one) { return f.owns(one.place); }),
              held_.end());
}

void Flags::read_stack(Frame f, int count) {
  for (int depth = 1; depth <= std::min(count, f.height()); ++depth) read(f.place(depth));
}

// An exception takes values from the stack, and nobody is told.
void Flags::drop_stale(Frame f) {
  auto is_stale = [&](const Held& one) {
    return f.owns(one.place) && !(f.has(one.place) && *one.place == one.value);
  };
  held_.erase(std::remove_if(held_.begin(), held_.end(), is_stale), held_.end());
}

namespace {
// True or False in the place of a carrier, whose number it gives.
int put_plain_flag(NumberRecorder* numbers, PyObject** place) {
  int number = numbers->number_of_flag(*place);
  Py_SETREF(*place, PyBool_FromLong(numbers->value(number).whole != 0));
  return number;
}
}  // namespace

void Flags::arrive(Frame f) {
  NumberRecorder* numbers = recorder_->numbers();
  for (PyObject** place : f.places(true)) {
    if (!*place || !is_flag(*place)) continue;
    int number = put_plain_flag(numbers, place);
    // What a cell has, other functions come to.
    f.owns(place) ? note({place, *place, number}) : void(numbers->read(number));
    if (!recorder_->numbers()) return;  // the recording has ended
  }
}

// ---------------------------------------------------------------- containers
void Flags::settle(PyObject** place, AddressSet* seen, int depth) {
  NumberRecorder* numbers = recorder_->numbers();
  if (!*place || !numbers) return;
  if (!is_flag(*place)) return settle_inside(*place, seen, depth);
  numbers->read(put_plain_flag(numbers, place));
}

// One that C code has made of a tuple: __annotations__.
void Flags::settle_entry(PyObject* dict, PyObject* key, PyObject* value) {
  if (!is_flag(value) || !recorder_->numbers()) return;
  py::object plain = py::reinterpret_borrow<py::object>(value);
  settle(&plain.ptr(), nullptr, 0);
  if (has_silent_keys(dict) && PyDict_SetItem(dict, key, plain.ptr()) < 0) throw py::error_already_set();
}

void Flags::settle_inside(PyObject* object, AddressSet* seen, int depth) {
  if (!object || is_tensor(object) || is_immutable(object) || !recorder_->numbers()) return;
  if (PyObject* carried = carried_entries(object)) return settle_inside(carried, seen, depth);
  bool items = PyList_Check(object) || PyTuple_Check(object), dict = PyDict_Check(object);
  PyObject* self = self_of(object);
  if (!items && !dict && !self && !PyFunction_Check(object) && !is_gone_through_in_c(object)) return;
  // What was there before the call holds none: where it is written to, they are read.
  if (provenance_->known(object) >= 0 || !seen->insert(object)) return;
  if (depth > kDeepestFlag) return recorder_->fail(say(reason::SizesTooDeep));
  if (PyMethod_Check(object)) settle_inside(PyMethod_GET_FUNCTION(object), seen, depth + 1);
  if (self) return settle_inside(self, seen, depth + 1);
  if (PyFunction_Check(object)) return settle_function(object, seen, depth + 1);
  if (PyGen_CheckExact(object)) looked_at_.insert(Frame::of_generator(object).address());
  if (handing_ && (PyList_Check(object) || dict)) provenance_->note_handed(object);
  if (items) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i)
      settle(PySequence_Fast_ITEMS(object) + i, seen, depth + 1);
  } else if (dict) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(object, &at, &key, &value);) {
      settle_inside(key, seen, depth + 1);
      settle_inside(value, seen, depth + 1);
      settle_entry(object, key, value);
    }
  } else {
    struct Visit {
      Flags* flags;
      AddressSet* seen;
      int depth;
    } visit{this, seen, depth};
    auto enter = [](PyObject* part, void* with) {
      auto* one = static_cast<Visit*>(with);
      one->flags->settle_inside(part, one->seen, one->depth + 1);
      return 0;
    };
    Py_TYPE(object)->tp_traverse(object, enter, &visit);
  }
}

// Whoever calls it may do so where its instructions are not seen.
void Flags::settle_function(PyObject* function, AddressSet* seen, int depth) {
  PyObject* closure = PyFunction_GET_CLOSURE(function);
  for (Py_ssize_t i = 0; closure && i < PyTuple_GET_SIZE(closure); ++i)
    settle_inside(PyCell_GET(PyTuple_GET_ITEM(closure, i)), seen, depth);
  settle_inside(PyFunction_GET_DEFAULTS(function), seen, depth);
  settle_inside(PyFunction_GET_KW_DEFAULTS(function), seen, depth);
}

void Flags::settle_inside(PyObject* object) {
  AddressSet seen;
  settle_inside(object, &seen, 0);
}

// What keeps it may look at it later: to a list in it no carrier is added any more.
void Flags::hand(PyObject* object) {
  handing_ = true;
  settle_inside(object);
  handing_ = false;
}

bool Flags::can_append(PyObject* list) const {
  return provenance_->is_fresh(list) && !provenance_->is_handed(list);
}

// ---------------------------------------------------------------- frames
void Flags::enter(Frame f, bool watched) {
  // A generator that goes on has what it had.
  if (any() && goes_on_at(bytes_of(f), static_cast<size_t>(f.lasti()))) return;
  forget_all(f);
  if (!any()) return;
  arrive(f);
  if (watched) return;
  read_all(f);
  if (stands_for_code(f.code())) return;
  for (PyObject** place : f.places(false)) settle_inside(*place);
}

// A traceback has the variables of what raised.
void Flags::leave(Frame f, PyObject* result) {
  if (choice_.frame == f.address()) choice_ = Choice();
  if (held_.empty() || (result && yields(f.code_object(), f.instruction()))) return;
  if (!result) read_all(f);
  forget_all(f);
}

void Flags::before(Frame f, const Operation& operation, PyObject* keywords) {
  take_choice(f);
  drop_stale(f);
  arrive(f);
  if (recorder_->stopped()) return;
  if (!held_.empty()) move(f, operation);
  if (!operation.harmless() && !recorder_->stopped()) look(f, operation, keywords);
}

const std::vector<uint8_t>& Flags::bytes_of(Frame f) {
  if (code_.ptr() != f.code()) {
    code_ = py::reinterpret_borrow<py::object>(f.code());
    bytes_ = bytecode_of(f.code_object());
  }
  return bytes_;
}

// ---------------------------------------------------------------- variables and the stack
void Flags::move(Frame f, const Operation& operation) {
  if (std::none_of(held_.begin(), held_.end(), [&](const Held& one) { return f.owns(one.place); })) return;
  const StackMove move = stack_move(bytes_of(f), static_cast<size_t>(f.lasti()));
  PyObject** top = f.place(1);
  switch (move.kind) {
    case StackMove::Kind::Nothing:
      return;
    case StackMove::Kind::Loads:
      return copy(f.local(move.argument), top + 1);
    case StackMove::Kind::Copies:
      return copy(f.place(move.argument), top + 1);
    case StackMove::Kind::Stores:
      copy(top, f.local(move.argument));
      return forget(top);
    case StackMove::Kind::Deletes:
      return forget(f.local(move.argument));
    case StackMove::Kind::BindsToCell:
      return read(f.local(move.argument));
    case StackMove::Kind::Drops:
      return forget(top);
    case StackMove::Kind::Swaps: {
      PyObject** below = f.place(move.argument);
      auto upper = take(top), lower = take(below);
      if (upper) note({below, upper->value, upper->number, upper->flag});
      return lower ? note({top, lower->value, lower->number, lower->flag}) : void();
    }
    case StackMove::Kind::Inverts:
      return invert(f);
    case StackMove::Kind::Gives:
      return goes_on(f) ? put_carriers(f, 1) : read_stack(f, 1);
    case StackMove::Kind::Builds:
    case StackMove::Kind::Appends:
      return put_carriers(f, move.takes);
    default:
      if (!follow(f, move, operation)) read_stack(f, move.takes < 0 ? f.height() : move.takes);
  }
}

// Whether a generator of ours stands in for what goes through a container in C: what it gives is looked at by
// who gets it, and by nobody before.
bool Flags::goes_on(Frame f) const {
  bool generator = f.code_object()->co_flags & CO_GENERATOR;
  return generator && stands_for_code(f.code()) && !looked_at_.count(f.address());
}

void Flags::copy(PyObject** from, PyObject** to) {
  auto found = held(from) ? std::make_optional(*held(from)) : std::nullopt;
  forget(to);
  if (found) note({to, found->value, found->number, found->flag});
}

// False where the instruction learns which it is.
bool Flags::follow(Frame f, const StackMove& move, const Operation& operation) {
  switch (move.kind) {
    case StackMove::Kind::Jumps:
    case StackMove::Kind::JumpsUnless:
      return choose(f, move.kind == StackMove::Kind::Jumps);
    case StackMove::Kind::Operates:
      return operate(f, operation);
    case StackMove::Kind::Calls:
      return call(f, operation);
    case StackMove::Kind::ComparesIdentities:
      // It is not None, whatever it says.
      if (f.peek(1) != Py_None && f.peek(2) != Py_None) return false;
      forget(f.place(1)), forget(f.place(2));
      return true;
    default:
      return false;
  }
}

// The list or tuple that is made of them holds carriers again.
void Flags::put_carriers(Frame f, int count) {
  for (int depth = 1; depth <= count; ++depth) {
    PyObject** place = f.place(depth);
    const Held* found = held(place);
    if (!found || found->flag >= 0 || !recorder_->numbers()) {
      read(place);
      continue;
    }
    Py_SETREF(*place, recorder_->numbers()->flag(found->number, *place == Py_True));
    forget(place);
  }
}

// Arithmetic takes True for 1, whatever number stands beside it, and an int for a float beside a float.
bool Flags::operate(Frame f, const Operation& operation) {
  PyObject** both[] = {f.place(operation.first), f.place(operation.second)};
  NumberRecorder* numbers = recorder_->numbers();
  auto is_float = [&](PyObject* v) {
    return PyFloat_CheckExact(v) || (is_real_carrier(v) && !is_scalar_carrier(v));
  };
  auto is_number = [&](PyObject** place, PyObject** other) {
    const Held* found = held(place);
    if (found) return found->flag < 0 || (is_float(*other) && !held(other));
    return PyLong_CheckExact(*place) || PyFloat_CheckExact(*place) || is_carrier(*place);
  };
  if (!is_arithmetic(operation.name) || recorder_->inside_operator()) return false;
  if (!is_number(both[0], both[1]) || !is_number(both[1], both[0])) return false;
  for (PyObject** place : both)
    if (auto taken = take(place)) Py_SETREF(*place, numbers->carrier(taken->number));
  return true;
}

// `not flag`: what it gives lies where the flag has lain.
void Flags::invert(Frame f) {
  NumberRecorder* numbers = recorder_->numbers();
  PyObject** top = f.place(1);
  const Held* found = held(top);
  if (!found || found->flag >= 0) return read(top);
  int inverse = numbers->apply(Number::Kind::Equal, found->number, numbers->constant(0));
  note({top, *top == Py_True ? Py_False : Py_True, inverse});
}

// The number of `a if flag else b`, of numbers of one type.
int Flags::chosen(int flag, int if_set, int if_clear) {
  NumberRecorder* numbers = recorder_->numbers();
  int set = numbers->apply(Number::Kind::IfSet, flag, if_set);
  return numbers->apply(Number::Kind::Either, set, numbers->apply(Number::Kind::IfClear, flag, if_clear));
}

namespace {
bool is_choosable(PyObject* v) {
  int overflow = 0;
  return PyFloat_CheckExact(v) ||
         (PyLong_CheckExact(v) && (PyLong_AsLongLongAndOverflow(v, &overflow), !overflow));
}
}  // namespace

// `a if flag else b` of two constant numbers of one type, and what is one of two assignments.
bool Flags::choose(Frame f, bool jumps_if) {
  const Held* top = held(f.place(1));
  TwoConstants two;
  // Where a value that is overwritten dies, code of the user's runs between a choice and its end.
  if (choice_.frame && choice_.frame != f.address()) return false;
  if (!top || top->flag >= 0 || !find_two_constants(bytes_of(f), f.instruction(), &two)) return false;
  if (two.jumps < 0) return choose_or_keep(f, *top, two, jumps_if);
  PyObject *falls = f.constant(two.falls), *jumps = f.constant(two.jumps);
  if (!is_choosable(falls) || !is_choosable(jumps) || Py_TYPE(falls) != Py_TYPE(jumps)) return false;
  NumberRecorder* numbers = recorder_->numbers();
  int first = numbers->number_of(jumps_if ? jumps : falls),
      second = numbers->number_of(jumps_if ? falls : jumps);
  choice_ = {f.address(), two.end, two.local, chosen(top->number, first, second), -1};
  forget(f.place(1));
  return true;
}

// `if flag: total = 0`: where total was a float it is an int now, maybe, which is the same to floats alone.
bool Flags::choose_or_keep(Frame f, Held flag, const TwoConstants& two, bool jumps_if) {
  constexpr int64_t kExact = int64_t{1} << 53;  // up to here each whole number is a float
  NumberRecorder* numbers = recorder_->numbers();
  PyObject **local = f.local(two.local), *constant = f.constant(two.falls);
  if (!is_choosable(constant)) return false;
  read(local);
  if (!*local || !(is_choosable(*local) || is_carrier(*local)) || is_scalar_carrier(*local)) return false;
  int before = numbers->number_of(*local), after = numbers->number_of(constant);
  if (before < 0) return false;
  bool real = (*numbers)[before].real, same = real == (*numbers)[after].real;
  if (!same && !(real && std::llabs(numbers->value(after).whole) < kExact)) return false;
  if (!same) after = numbers->apply(Number::Kind::Float, after, -1);
  int number = jumps_if ? chosen(flag.number, before, after) : chosen(flag.number, after, before);
  choice_ = {f.address(), two.end, two.local, number, same ? -1 : flag.number};
  forget(f.place(1));
  return true;
}

void Flags::take_choice(Frame f) {
  if (choice_.frame != f.address() || f.instruction() != choice_.at) return;
  Choice choice = std::exchange(choice_, Choice());
  PyObject** place = choice.local < 0 ? f.place(1) : f.local(choice.local);
  NumberRecorder* numbers = recorder_->numbers();
  if (!numbers) return;
  if (choice.flag >= 0) return note({place, *place, choice.number, choice.flag});
  Py_SETREF(*place, numbers->carrier_of(choice.number, *place));
}

// `float(flag)` and `int(flag)`, or what puts it into a list of the call's own.
bool Flags::call(Frame f, const Operation& operation) {
  PyObject** top = f.place(1);
  const Held* found = held(top);
  bool method = f.peek(operation.first);
  if (!found || found->flag >= 0 || operation.third != 1 || recorder_->inside_operator()) return false;
  PyObject* callee = *callee_of(f, operation);
  if (method && is_append(callee) && can_append(f.peek(operation.second))) return put_carriers(f, 1), true;
  bool converts = callee == reinterpret_cast<PyObject*>(&PyFloat_Type) ||
                  callee == reinterpret_cast<PyObject*>(&PyLong_Type);
  if (method || !converts) return false;
  Py_SETREF(*top, recorder_->numbers()->carrier(found->number));
  forget(top);
  return true;
}

// ---------------------------------------------------------------- operands
void Flags::look(Frame f, const Operation& operation, PyObject* keywords) {
  switch (operation.action) {
    case Action::Shows:
    case Action::ReadsGlobal:
    case Action::ReadsName:
    case Action::ReadsVariable:
    case Action::ReadsBuildClass:
    case Action::ReadsAttribute:
    case Action::TestsTruth:
    case Action::AsksLength:
    case Action::Iterates:
    case Action::Unpacks:
    case Action::Advances:
    case Action::ComparesIdentity:
    case Action::MakesFunction:
    case Action::NamesKeywords:
      return;
    case Action::GetsItem:
      if (!is_list_or_tuple(f.peek(operation.first))) settle_inside(f.peek(operation.first));
      return settle_inside(f.peek(operation.second));
    case Action::Operates: {
      PyObject *left = f.peek(operation.first), *right = f.peek(operation.second);
      bool handed = provenance_->is_handed(left);  // += adds to it
      if (!handed && is_list_or_tuple(left) && (is_list_or_tuple(right) || PyLong_CheckExact(right))) return;
      return settle_inside(left), settle_inside(right);
    }
    case Action::Calls:
    case Action::CallsWith:
      return look_at_call(f, operation, keywords);
    case Action::SetsAttribute:
    case Action::SetsGlobal:
    case Action::SetsName:
    case Action::SetsVariable:
      for (int depth : {operation.first, operation.second})
        if (depth) hand(f.peek(depth));
      return;
    case Action::SetsItem: {
      if (!operation.third) return settle_inside(f.peek(operation.second));
      PyObject* into = f.peek(operation.first);
      bool kept = !(PyDict_CheckExact(into) || PyList_CheckExact(into)) || provenance_->is_handed(into);
      for (int depth : {operation.second, operation.third})
        kept ? hand(f.peek(depth)) : settle_inside(f.peek(depth));
      return settle_inside(into);
    }
    case Action::UsesKeys:
      for (int i = 0; i < operation.third; ++i) settle_inside(f.peek(operation.first + i * operation.name));
      return;
    case Action::JoinsTexts:
      for (int i = 0; i < operation.third; ++i) settle_inside(f.peek(i + 1));
      return;
    default:
      for (int depth : {operation.first, operation.second, operation.third})
        if (depth) settle_inside(f.peek(depth));
  }
}

void Flags::look_at_call(Frame f, const Operation& operation, PyObject* keywords) {
  PyObject* callee = *callee_of(f, operation);
  if (looks_at_nothing(callee) || comes_to_seen_code(callee)) return;
  if (operation.action == Action::CallsWith) {
    for (int depth : {operation.second, operation.third})
      if (depth) hand(f.peek(depth));
    return hand(callee);
  }
  bool method = f.peek(operation.first);
  int count = operation.third;
  if (method && is_append(callee) && can_append(f.peek(operation.second))) return;
  Py_ssize_t named = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  PyObject* type = named_argument(f.place(1), keywords, "dtype");
  if (!method && count > named && (type || count == 1) &&
      put_numbers(callee_of(f, operation), f.place(count), type))
    return;
  for (int depth = 1; depth <= count + method; ++depth) hand(f.peek(depth));
  hand(callee);
}

// A list of lists of flags, as one of numbers; `all`: whether it holds nothing else.
py::object Flags::numbers_in(PyObject* data, bool* all) {
  NumberRecorder* numbers = recorder_->numbers();
  if (is_flag(data))
    return py::reinterpret_steal<py::object>(numbers->carrier(numbers->number_of_flag(data)));
  *all &= is_list_or_tuple(data);
  py::list made;
  for (Py_ssize_t i = 0; *all && i < PySequence_Fast_GET_SIZE(data); ++i)
    made.append(numbers_in(PySequence_Fast_GET_ITEM(data, i), all));
  provenance_->note_made(made.ptr());
  return std::move(made);
}

// What makes a tensor or an array of another type than bool takes True for 1.
bool Flags::put_numbers(PyObject** callee, PyObject** data, PyObject* type) {
  Makes makes = made_by(*callee);
  bool all = is_list_or_tuple(*data);
  if (makes == Makes::Nothing || !all || recorder_->inside_operator()) return false;
  if (type && (makes == Makes::Stack || !is_type_of_numbers(type))) return false;
  bool typed = makes == Makes::TypedTensor || type;
  py::object made = numbers_in(*data, &all);
  if (!all || !PyList_GET_SIZE(made.ptr())) return false;
  static PyObject* const array = from_module("lazytrace.stand_ins", "array_of_flags").release().ptr();
  static PyObject* const tensor = from_module("lazytrace.stand_ins", "tensor_of_flags").release().ptr();
  PyObject* instead = typed ? nullptr : PyMethod_New(makes == Makes::Tensor ? tensor : array, *callee);
  if (!typed && !instead) throw py::error_already_set();
  if (instead) Py_SETREF(*callee, instead);
  Py_SETREF(*data, made.release().ptr());
  return true;
}

}  // namespace lazytrace
