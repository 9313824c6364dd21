#include "record/python/unseen.h"

#include <c10/core/InferenceMode.h>
#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_set>

#include "cpython/array_memory.h"
#include "cpython/callee.h"
#include "cpython/carrier.h"
#include "cpython/holder.h"
#include "cpython/imports.h"
#include "cpython/inline_cache.h"
#include "cpython/objects.h"
#include "cpython/text_carrier.h"
#include "cpython/values.h"
#include "record/python/callables.h"
#include "record/python/code_facts.h"
#include "record/python/exchange.h"
#include "support/address_map.h"
#include "support/reasons.h"

namespace lazytrace {

namespace {
struct OwnSteps {
  // Callable -> step; both are kept for the life of the process.
  AddressMap<PyObject*> lists, arrays, tensors, rows;
  AddressSet steps;
};

OwnSteps& own_steps() {
  static auto* made = new OwnSteps();
  return *made;
}

void add_steps(AddressMap<PyObject*>* known, const py::dict& by_callable) {
  for (auto [callable, own] : by_callable) {
    (*known)[Py_NewRef(callable.ptr())] = Py_NewRef(own.ptr());
    own_steps().steps.insert(own.ptr());
  }
}

// Of more values, steps of their own would take longer than the call.
bool holds_few_values(const at::Tensor& tensor) {
  constexpr int64_t kMost = 64, kMostInOneStep = 4096;
  if (tensor.is_nested() || tensor.is_complex() || tensor.is_quantized()) return false;
  bool row = tensor.dim() == 1 && tensor.scalar_type() == at::kLong;
  return tensor.numel() <= (row ? kMostInOneStep : kMost);
}

bool is_ordinary(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_nested() && tensor.layout() == at::kStrided && tensor.is_cpu() &&
         !tensor._is_zerotensor();
}

// The descriptor of a method that is bound to a tensor; anything else as it is.
PyObject* descriptor_of(PyObject* callable) {
  PyObject* self = PyCFunction_Check(callable) ? PyCFunction_GET_SELF(callable) : nullptr;
  if (!self || !THPVariable_CheckExact(self)) return callable;
  auto name = py::reinterpret_steal<py::object>(
      PyUnicode_InternFromString(reinterpret_cast<PyCFunctionObject*>(callable)->m_ml->ml_name));
  PyObject* found = _PyType_Lookup(Py_TYPE(self), name.ptr());
  return found ? found : callable;
}
}  // namespace

void configure_unseen(const py::dict& lists, const py::dict& arrays, const py::dict& tensors,
                      const py::dict& rows) {
  add_steps(&own_steps().lists, lists);
  add_steps(&own_steps().arrays, arrays);
  add_steps(&own_steps().tensors, tensors);
  add_steps(&own_steps().rows, rows);
}

namespace {
struct OfArrays {
  PyObject *operand = nullptr, *index = nullptr, *methods = nullptr, *values = nullptr;
  PyObject *for_number = nullptr, *rows = nullptr, *parts = nullptr, *turned = nullptr;
  // Callable -> what is called instead. `makers`: whatever it is given.
  AddressMap<PyObject*> functions, makers;
  AddressSet steps, lists;
};

// Kept for the life of the process.
OfArrays& of_arrays() {
  static auto* made = new OfArrays();
  return *made;
}

// A text has an operator of its own (`"%s" % array`), and asks the other operand for its text.
bool is_plain_operand(PyObject* value) {
  if (PyUnicode_Check(value) || PyBytes_Check(value) || is_text(value)) return false;
  return is_immutable(value) || is_followed(value) || is_numpy_scalar(value);
}
}  // namespace

void configure_arrays(ArrayCalls calls) {
  OfArrays& all = of_arrays();
  all.for_number = py::object(calls.operand.attr("for_number")).release().ptr();
  all.rows = py::object(calls.operand.attr("rows")).release().ptr();
  all.parts = py::object(calls.operand.attr("parts")).release().ptr();
  all.turned = py::object(calls.operand.attr("turned")).release().ptr();
  own_steps().steps.insert(all.for_number);
  all.operand = calls.operand.release().ptr();
  all.index = calls.index.release().ptr();
  all.methods = calls.methods.release().ptr();
  all.values = calls.values.release().ptr();
  add_steps(&all.functions, calls.functions);
  add_steps(&all.makers, calls.makers);
  for (py::handle function : calls.lists) all.lists.insert(function.inc_ref().ptr());
  for (auto [name, method] : py::reinterpret_borrow<py::dict>(py::handle(all.operand).attr("methods")()))
    own_steps().steps.insert(Py_NewRef(method.ptr()));
}

namespace {
// Whether what the call gives is made a number of Python's at once, or handed to a function of numpy: nobody
// can tell an array without dimensions from a scalar then.
bool becomes_number(Frame f, const Operation& operation) {
  if (operation.action != Action::Calls) return false;
  const std::vector<Operation>& operations = decoded_facts_of(f.code())->operations;
  auto at = static_cast<size_t>(f.instruction()) + 1;
  while (at < operations.size() && (is_inline_cache(operations[at]) || prepares_call(operations[at]))) ++at;
  if (at == operations.size()) return false;
  static PyObject* const item = PyUnicode_InternFromString("item");
  if (loads_method(operations[at])) return f.name(operations[at].name) == item;
  if (operations[at].action != Action::Calls || operations[at].third != 1) return false;
  int below = operation.third + 2;  // what the call takes from the stack
  if (f.peek(below + 2)) return false;
  PyObject* next = f.peek(below + 1);
  bool number = next == reinterpret_cast<PyObject*>(&PyFloat_Type) ||
                next == reinterpret_cast<PyObject*>(&PyLong_Type) ||
                next == reinterpret_cast<PyObject*>(&PyBool_Type);
  return number || of_arrays().functions.find(next);
}
}  // namespace

bool makes_arrays(PyObject* function) {
  return of_arrays().makers.find(function) || of_arrays().functions.find(function) ||
         takes_list_for_array(function);
}

bool takes_list_for_array(PyObject* function) { return of_arrays().lists.count(function); }

void keep_array_step(PyObject* step) { of_arrays().steps.insert(Py_NewRef(step)); }

bool is_array_step(PyObject* function) { return of_arrays().steps.count(function); }

bool is_unseen_step(PyObject* function) { return own_steps().steps.count(function); }

PyObject* called_for(PyObject* callee) {
  bool stands_in = PyMethod_Check(callee) && is_unseen_step(PyMethod_GET_FUNCTION(callee));
  return stands_in ? PyMethod_GET_SELF(callee) : callee;
}

void Unseen::add_given(PyObject* array, PyObject* tensor) {
  if (is_given(array)) return;            // passed twice
  provenance_->compare_as_itself(array);  // with those in state
  given_.push_back({py::reinterpret_borrow<py::object>(array), py::reinterpret_borrow<py::object>(tensor)});
}

const Unseen::Given* Unseen::given(PyObject* array) const {
  for (const Given& one : given_)
    if (one.array.ptr() == array) return &one;
  py::object memory = provenance_->memory_of(array);
  if (!memory) return nullptr;
  given_.push_back({py::reinterpret_borrow<py::object>(array), std::move(memory)});
  return &given_.back();
}

void Unseen::add_made(py::object array, const at::Tensor& tensor, bool own) {
  if (recorder_->stopped()) return;
  // Weak references to both could be asked.
  provenance_->hold(array.ptr());
  if (!own) provenance_->hold(py::cast(tensor).ptr());
  made_.push_back({std::move(array), tensor, TensorMeta::of(tensor), tensor.const_data_ptr(), own});
}

const Unseen::Made* Unseen::made(PyObject* array) const {
  for (const Made& one : made_)
    if (one.array.ptr() == array) return &one;
  return nullptr;
}

bool Unseen::is_made(PyObject* array) const { return made(array) != nullptr; }

bool Unseen::is_own(PyObject* array) const {
  const Made* found = made(array);
  return found ? found->own : is_given(array);
}

bool Unseen::may_write(PyObject* array) {
  auto found =
      std::find_if(made_.begin(), made_.end(), [&](const Made& one) { return one.array.ptr() == array; });
  if (found == made_.end()) return is_given(array);
  return found->own || settle(*found);
}

py::object Unseen::tensor_of(PyObject* array) const {
  if (const Given* found = given(array)) return found->tensor;
  at::Tensor tensor = shown_by(array);
  return tensor.defined() ? py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(tensor)))
                          : py::object();
}

at::Tensor Unseen::shown_by(PyObject* array) const {
  for (const Made& one : made_) {
    if (one.array.ptr() != array) continue;
    if (!one.look.matches(one.tensor) || one.data != one.tensor.const_data_ptr())
      throw std::runtime_error(say(reason::ArrayLeftBehind));
    return one.tensor;
  }
  return {};
}

// Nobody is told of what is written through the array: from now on its tensor counts changes of its own.
bool Unseen::settle(Made& made) {
  bool shows = made.look.matches(made.tensor) && made.data == made.tensor.const_data_ptr();
  // The tensor of one that was drawn is made for it.
  if (provenance_->was_drawn(made.array.ptr())) return false;
  if (made.own || made.settled || !shows || recorder_->stopped()) return made.settled && shows;
  recorder_->saw_data(made.tensor);
  at::Tensor alone = made.tensor.variable_data();
  if (recorder_->output_register(alone) < 0) return false;
  made.tensor = std::move(alone);
  made.look = TensorMeta::of(made.tensor);
  return made.settled = true;
}

void Unseen::settle_made() {
  for (Made& one : made_) settle(one);
}

py::object Unseen::take(PyObject* array, bool itself) {
  py::object tensor = tensor_of(array);
  if (!tensor) throw py::type_error("an array that the call was not given");
  const at::Tensor& memory = THPVariable_Unpack(tensor.ptr());
  if (!itself) return tensor;
  if (!is_writable_array(array))  // of which torch warns
    return recorder_->fail(say(reason::HandsArrayToC)), py::none();
  if (memory.is_inference() != c10::InferenceMode::is_enabled())
    return recorder_->fail(say(reason::TakesArrayInMode)), py::none();
  // Each tensor that is made of an array counts its own changes, and none that numpy makes.
  recorder_->saw_data(memory);
  at::Tensor own = memory.variable_data();
  recorder_->output_register(own);
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(own)));
}

py::object Unseen::shape_of_array(PyObject* array) const {
  py::object tensor = tensor_of(array);
  if (!tensor) throw py::type_error("an array that the call was not given");
  // A torch.Size is a tuple to pybind, too.
  py::object size = shape_of(recorder_, THPVariable_Unpack(tensor.ptr()));
  PyObject* shape = PySequence_Tuple(size.ptr());
  if (!shape) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(shape);
}

namespace {
// Whether what is called goes through its arguments, and shows nobody by what.
bool goes_through_arguments(PyObject* callee) {
  static const PyTypeObject* all[] = {&PyZip_Type, &PyEnum_Type, &PyMap_Type, &PyList_Type, &PyTuple_Type};
  return std::any_of(std::begin(all), std::end(all), [&](const PyTypeObject* type) {
    return callee == reinterpret_cast<const PyObject*>(type);
  });
}

// The same of what takes them all at once, as a list would give them.
bool takes_all_items(PyObject* callee) {
  static const auto* all = [] {
    auto* made = new AddressSet();
    for (const char* name : {"sum", "min", "max", "sorted"}) made->insert(builtin(name));
    return made;
  }();
  return all->count(callee) || callee == PyDict_GetItemString(PyList_Type.tp_dict, "extend");
}
}  // namespace

namespace {
constexpr int kDeepest = 3;

bool holds_tensor(PyObject* value, int depth = 0) {
  if (THPVariable_CheckExact(value)) return is_ordinary(THPVariable_Unpack(value));
  if (depth == kDeepest || !(PyTuple_CheckExact(value) || PyList_CheckExact(value))) return false;
  PyObject** items = PySequence_Fast_ITEMS(value);
  return std::any_of(items, items + PySequence_Fast_GET_SIZE(value),
                     [depth](PyObject* item) { return holds_tensor(item, depth + 1); });
}

bool any_holds_tensor(PyObject* const* args, int count) {
  return std::any_of(args, args + count, [](PyObject* value) { return holds_tensor(value); });
}

// Whether numpy makes arrays of tensors here. abs() of a tensor is none of numpy's.
bool hands_tensors(PyObject* callee, PyObject* const* args, int count) {
  return !PyCFunction_Check(callee) && any_holds_tensor(args, count);
}
}  // namespace

// What numpy asks tensors for, where a replay does not ask: how they become arrays, and the method that does
// what the function is asked for.
void Unseen::read_methods(PyObject* callee) {
  if (recorder_->stopped()) return;
  auto* type = reinterpret_cast<PyTypeObject*>(THPVariableClass);
  auto read = [&](PyObject* name) {
    PyObject* found = PyUnicode_Check(name) ? _PyType_Lookup(type, name) : nullptr;
    if (found) provenance_->read_child(provenance_->class_node(type), Access::Class, name, -1, found);
  };
  static PyObject* const always[] = {PyUnicode_InternFromString("__array__"),
                                     PyUnicode_InternFromString("numpy")};
  for (PyObject* name : always) read(name);
  auto own = py::reinterpret_steal<py::object>(PyObject_GetAttrString(callee, "__name__"));
  if (!own) return PyErr_Clear();
  PyObject* name = own.release().ptr();
  PyUnicode_InternInPlace(&name);
  read(py::reinterpret_steal<py::object>(name).ptr());
}

void Unseen::exchange(Frame f, const Operation& operation) {
  if (operation.action != Action::Calls || recorder_->stopped()) return;
  PyObject** callee = callee_of(f, operation);
  if (!callee || !*callee) return;
  bool method = operation.first && *f.place(operation.first);
  PyObject* first = method            ? *f.place(operation.second)
                    : operation.third ? *f.place(operation.third)
                                      : nullptr;
  PyObject* self = PyCFunction_Check(*callee) ? PyCFunction_GET_SELF(*callee) : nullptr;
  bool bound = self && THPVariable_CheckExact(self);
  PyObject* object = bound ? self : first;
  if (object && reinterpret_cast<PyObject*>(Py_TYPE(object)) == of_arrays().operand) {
    if (becomes_number(f, operation) && PyObject_SetAttrString(object, "alone", Py_True) < 0)
      throw py::error_already_set();
    return;
  }
  if (PyObject* const* maker = of_arrays().makers.find(*callee); maker && recorder_->numbers()) {
    if (any_holds_tensor(f.top(operation.third), operation.third)) read_methods(*callee);
    PyObject* instead = PyMethod_New(*maker, *callee);
    if (!instead) throw py::error_already_set();
    Py_SETREF(*callee, instead);
    return;
  }
  if (!object) return;
  if (has_arrays() && recorder_->numbers() && goes_through_arguments(*callee)) {
    for (int at = 1; at <= operation.third; ++at) exchange_rows(f.place(at), of_arrays().rows);
    return;
  }
  if (has_arrays() && recorder_->numbers() && operation.third == 1 && takes_all_items(*callee))
    return exchange_rows(f.place(operation.third), of_arrays().parts);
  PyObject* const* own = nullptr;
  if (THPVariable_CheckExact(object)) {
    const at::Tensor& tensor = THPVariable_Unpack(object);
    if (!is_ordinary(tensor)) return;
    PyObject* asked = descriptor_of(*callee);
    if (recorder_->numbers() && holds_few_values(tensor)) own = own_steps().lists.find(asked);
    // Those of which an array shows the memory as it is.
    bool shows = !tensor.requires_grad() && !tensor.is_conj() && !tensor.is_neg();
    if (!own && shows) own = own_steps().arrays.find(asked);
  } else if (is_given(object) || (is_made(object) && shows_still(object))) {
    own = own_steps().tensors.find(*callee);
  } else if (recorder_->numbers() && (PyList_CheckExact(object) || PyTuple_CheckExact(object))) {
    own = own_steps().rows.find(*callee);
    if (own && !follows_any(object)) own = nullptr;  // which takes as long as there are items
  }
  if (!own) return exchange_function(f, operation, callee);
  PyObject* instead = bound ? PyMethod_New(*own, self) : Py_NewRef(*own);
  if (!instead) throw py::error_already_set();
  Py_SETREF(*callee, instead);
}

namespace {
// Numbers, or lists of these, of which numpy makes the same again, and what names a kind of these.
bool holds_plain_numbers(PyObject* value, bool inside = false) {
  if (is_followable_scalar(value) || (!inside && PyType_Check(value))) return true;
  if (PyLong_CheckExact(value) || PyFloat_CheckExact(value) || PyBool_Check(value)) return true;
  if (inside || !(PyTuple_CheckExact(value) || PyList_CheckExact(value) || THPSize_Check(value)))
    return false;
  PyObject** items = PySequence_Fast_ITEMS(value);
  return std::all_of(items, items + PySequence_Fast_GET_SIZE(value),
                     [](PyObject* item) { return holds_plain_numbers(item, true); });
}
}  // namespace

namespace {
// Whether the call that comes next is told names.
bool names_keywords(Frame f) {
  const std::vector<Operation>& operations = decoded_facts_of(f.code())->operations;
  int at = f.instruction() - 1;
  auto before = [&] { return operations[static_cast<size_t>(at)]; };
  while (at >= 0 && (is_inline_cache(before()) || prepares_call(before()))) --at;
  return at >= 0 && before().action == Action::NamesKeywords;
}
}  // namespace

namespace {
// Whether it is one list or tuple of numbers, none of which is a float.
bool are_wholes(PyObject* const* args, int count) {
  if (count != 1 || !(PyList_CheckExact(*args) || PyTuple_CheckExact(*args) || THPSize_Check(*args)))
    return false;
  PyObject** items = PySequence_Fast_ITEMS(*args);
  return std::none_of(items, items + PySequence_Fast_GET_SIZE(*args),
                      [](PyObject* item) { return is_float_of_any_kind(item) || is_real_carrier(item); });
}
}  // namespace

// A function of numpy that is handed arrays, which is handed on to be called as a step.
void Unseen::exchange_function(Frame f, const Operation& operation, PyObject** callee) {
  PyObject* const* own = recorder_->numbers() ? of_arrays().functions.find(*callee) : nullptr;
  if (!own) return;
  PyObject* const* args = f.top(operation.third);
  auto is_plain = [](PyObject* value) { return holds_plain_numbers(value); };
  Does does = object_does(*callee);
  // Numbers that are followed are told what they stand for by functions that know how.
  bool knows = is_exchanged(*callee) && (does != Does::OfWholes || are_wholes(args, operation.third));
  bool takes_numbers = !knows || names_keywords(f);
  // What takes many numbers is Python code of numpy's.
  bool of_many = does == Does::OfNumbers || does == Does::OfWholes;
  bool unknown = operation.third && (of_many || (takes_numbers && does == Does::Unknown));
  bool tensors = hands_tensors(*callee, args, operation.third);
  if (tensors) read_methods(*callee);
  bool any = tensors || (unknown && std::all_of(args, args + operation.third, is_plain)) ||
             std::any_of(args, args + operation.third, [&](PyObject* value) {
               return follows_any(value) || (takes_numbers && holds_followed(value));
             });
  if (!any) return;
  PyObject* instead = PyMethod_New(becomes_number(f, operation) ? of_arrays().for_number : *own, *callee);
  if (!instead) throw py::error_already_set();
  Py_SETREF(*callee, instead);
}

bool Unseen::shows_still(PyObject* array) const {
  try {
    return shown_by(array).defined();
  } catch (const std::runtime_error&) {
    return false;  // its tensor has other memory by now
  }
}

bool Unseen::follows(PyObject* array) const {
  return is_given(array) || (is_made(array) && shows_still(array));
}

bool Unseen::follows_any(PyObject* value, int depth) const {
  if (!depth && !has_arrays()) return false;
  if (follows(value)) return true;
  if (depth == kDeepest || !(PyTuple_CheckExact(value) || PyList_CheckExact(value))) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
    if (follows_any(PySequence_Fast_GET_ITEM(value, i), depth + 1)) return true;
  return false;
}

// An array that is gone through, for what gives its items: numpy would give Python others.
void Unseen::exchange_rows(PyObject** place, PyObject* rows) {
  if (!*place || !follows(*place)) return;
  PyObject* instead = PyObject_CallOneArg(rows, *place);
  if (!instead) throw py::error_already_set();
  Py_SETREF(*place, instead);
}

void Unseen::exchange_operand(PyObject** place) {
  PyObject* instead = PyObject_CallOneArg(of_arrays().operand, *place);
  if (!instead) throw py::error_already_set();
  Py_SETREF(*place, instead);
}

bool Unseen::is_method(PyObject* name) {
  int found = of_arrays().methods ? PySet_Contains(of_arrays().methods, name) : 0;
  if (found < 0) throw py::error_already_set();
  return found;
}

// `array.reshape(*shape)`: the method was loaded as an attribute, long before it is called.
void Unseen::exchange_method(PyObject** callee) {
  PyObject* self = *callee && PyCFunction_Check(*callee) ? PyCFunction_GET_SELF(*callee) : nullptr;
  if (!self || !is_numpy_array(self) || !follows(self)) return;
  auto name = py::reinterpret_steal<py::object>(
      PyUnicode_FromString(reinterpret_cast<PyCFunctionObject*>(*callee)->m_ml->ml_name));
  if (!name) throw py::error_already_set();
  if (!is_method(name.ptr())) return;
  auto operand = py::reinterpret_steal<py::object>(PyObject_CallOneArg(of_arrays().operand, self));
  PyObject* method = operand ? PyObject_GetAttr(operand.ptr(), name.ptr()) : nullptr;
  if (!method) throw py::error_already_set();
  Py_SETREF(*callee, method);
}

bool Unseen::exchange_operands(Frame f, const Operation& operation) {
  if (recorder_->stopped() || !recorder_->numbers() || !of_arrays().operand) return false;
  if (!has_arrays()) return false;
  switch (operation.action) {
    case Action::ReadsAttribute:
      return exchange_attribute(f, operation);
    case Action::GetsItem:
    case Action::SetsItem:
      return exchange_item(f, operation);
    case Action::Compares:
    case Action::Operates:
      return exchange_pair(f, operation);
    case Action::Iterates:
      return exchange_rows(f.place(operation.first), of_arrays().rows), false;
    case Action::CallsWith:
      exchange_method(f.place(operation.first));
      return exchange_rows(f.place(operation.second), of_arrays().parts), false;
    case Action::Contains:
      if (!follows(*f.place(operation.first))) return false;
      return exchange_operand(f.place(operation.first)), true;
    case Action::Unpacks:
      return exchange_rows(f.place(operation.first), of_arrays().parts), false;
    case Action::TestsTruth:
      if (keeps_tested(operation)) return false;  // it is the array itself
      [[fallthrough]];
    case Action::OperatesAlone:
      if (!follows(*f.place(operation.first))) return false;
      return exchange_operand(f.place(operation.first)), true;
    default:
      return false;
  }
}

bool Unseen::is_said_by_look(PyObject* name) {
  static const std::unordered_set<std::string> kKnown = {"shape", "ndim", "size"};
  return kKnown.count(text_of(name));
}

// A method that is not called at once could be kept.
bool Unseen::exchange_attribute(Frame f, const Operation& operation) {
  PyObject** place = f.place(operation.first);
  if (!follows(*place)) return false;
  PyObject* known = loads_method(operation) ? of_arrays().methods : of_arrays().values;
  // What its look says.
  if (is_given(*place) && is_said_by_look(f.name(operation.name))) return false;
  int found = PySet_Contains(known, f.name(operation.name));
  if (found < 0) throw py::error_already_set();
  if (found) exchange_operand(place);
  return found;
}

namespace {
// `[::-1]`, of which numpy makes a view that torch has none of.
bool turns_around(PyObject* key) {
  if (!PySlice_Check(key)) return false;
  auto* slice = reinterpret_cast<PySliceObject*>(key);
  int overflow = 0;
  return slice->start == Py_None && slice->stop == Py_None && PyLong_CheckExact(slice->step) &&
         PyLong_AsLongAndOverflow(slice->step, &overflow) == -1 && !overflow;
}
}  // namespace

bool Unseen::exchange_item(Frame f, const Operation& operation) {
  PyObject **container = f.place(operation.first), **key = f.place(operation.second);
  bool indexes = follows_any(*key);
  if (THPVariable_CheckExact(*container)) {
    if (!indexes) return false;
    PyObject* made = PyObject_CallOneArg(of_arrays().index, *key);
    if (!made) throw py::error_already_set();
    Py_SETREF(*key, made);
    return false;
  }
  bool sets = operation.action == Action::SetsItem;
  if (sets && !operation.third) return false;
  if (!follows(*container) && !(indexes && !sets && is_numpy_array(*container))) return false;
  if (!sets && turns_around(*key) && is_gone_through(f))
    return exchange_rows(container, of_arrays().turned), true;
  return exchange_operand(container), true;
}

bool Unseen::exchange_pair(Frame f, const Operation& operation) {
  PyObject **left = f.place(operation.first), **right = f.place(operation.second);
  bool one = follows(*left), other = follows(*right);
  if (!one && !other) return false;
  if (!(one || is_plain_operand(*left)) || !(other || is_plain_operand(*right))) return false;
  // A scalar of numpy would take the other operand for an object to compute with one by one.
  if (one || is_numpy_scalar(*left)) exchange_operand(left);
  if (other) exchange_operand(right);
  return true;
}

void Unseen::exchange_made(Frame f, const Operation& operation) {
  if (operation.action != Action::ReadsAttribute || made_.empty() || recorder_->stopped()) return;
  static PyObject* const list = PyUnicode_InternFromString("tolist");
  PyObject** array = f.place(operation.first);
  if (f.name(operation.name) != list || !is_made(*array) || !recorder_->numbers()) return;
  at::Tensor tensor;
  try {
    tensor = shown_by(*array);
  } catch (const std::runtime_error&) {
    return;  // it has other memory by now
  }
  if (!holds_few_values(tensor)) return;
  Py_SETREF(*array, THPVariable_Wrap(std::move(tensor)));
}

void Unseen::exchange_shape(Frame f, const Operation& operation) {
  if (operation.action != Action::ReadsAttribute || recorder_->stopped()) return;
  PyObject **object = f.place(operation.first), *name = f.name(operation.name);
  const Given* found = given(*object);
  if (!found || !recorder_->numbers() || !recorder_->follows_sizes()) return;
  static PyObject* shape = PyUnicode_InternFromString("shape");
  if (name != shape) return recorder_->pin(THPVariable_Unpack(found->tensor.ptr()));
  py::object sizes = shape_of_array(*object);
  PyObject* holder = new_holder(*object, name, sizes.ptr());
  if (!holder) throw py::error_already_set();
  Py_SETREF(*object, holder);
}

}  // namespace lazytrace
