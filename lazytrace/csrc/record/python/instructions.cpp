#include "record/python/instructions.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "cpython/bytecode.h"
#include "cpython/callee.h"
#include "cpython/carrier.h"
#include "cpython/imports.h"
#include "cpython/inline_cache.h"
#include "cpython/objects.h"
#include "cpython/values.h"
#include "record/python/callables.h"
#include "record/python/code_facts.h"
#include "record/python/unseen.h"
#include "support/reasons.h"

namespace lazytrace {

namespace {

// Whether C code is given what an instance of a class of Python's is made with, as that of `str` and `dict`
// is, and asks it for its methods.
bool is_made_in_c(PyTypeObject* type) {
  PyTypeObject* base = c_base(type);
  static PyObject *const call = PyUnicode_InternFromString("__call__"),
                         *const make = PyUnicode_InternFromString("__new__"),
                         *const init = PyUnicode_InternFromString("__init__");
  if (base == &PyBaseObject_Type || PyType_IsSubtype(base, reinterpret_cast<PyTypeObject*>(THPVariableClass)))
    return false;
  PyObject* called = _PyType_Lookup(Py_TYPE(type), call);
  if (called && PyFunction_Check(called)) return false;
  PyObject *maker = _PyType_Lookup(type, make), *setup = _PyType_Lookup(type, init);
  bool of_object = base->tp_init == PyBaseObject_Type.tp_init;
  return !maker || !Py_IS_TYPE(maker, &PyStaticMethod_Type) ||
         !(of_object || (setup && PyFunction_Check(setup)));
}

// Whether it is an iterator whose class of Python's leaves it to C code what comes next, which may ask what
// it is given.
bool goes_on_in_c(PyTypeObject* type) {
  static PyObject* const next = PyUnicode_InternFromString("__next__");
  PyTypeObject* base = c_base(type);
  if (base != &PyFilter_Type && std::strncmp(base->tp_name, "itertools.", 10) != 0) return false;
  PyObject* found = _PyType_Lookup(type, next);
  return !found || !PyFunction_Check(found);
}

// Whether calling it, or iterating over it, gives Python what Python code gives back, as it is.
bool hands_on(PyObject* callee) {
  if (PyFunction_Check(callee) || PyGen_CheckExact(callee) || PyCoro_CheckExact(callee)) return true;
  if (PyMethod_Check(callee)) return hands_on(PyMethod_GET_FUNCTION(callee));
  if (PyType_Check(callee)) {
    auto* type = reinterpret_cast<PyTypeObject*>(callee);
    return is_python_class(type) && !is_made_in_c(type);
  }
  if (std::strcmp(c_name(Py_TYPE(callee)), "functools.partial") == 0) return true;
  return is_python_class(Py_TYPE(callee)) && !goes_on_in_c(Py_TYPE(callee));
}

// C code that gives what the Python code gives which it runs: next() and the methods of generators, getattr()
// and what a `__getattribute__` asks for the rest.
bool relays(PyObject* callee, PyObject* first) {
  static PyObject *const next = builtin("next"), *const getattr = builtin("getattr");
  static PyObject* const asks = PyUnicode_InternFromString("__getattribute__");
  if (callee == getattr) return true;
  if (const MethodWrapper* bound = MethodWrapper::of(callee)) return is_text(bound->name(), asks);
  if (Py_IS_TYPE(callee, &PyWrapperDescr_Type)) return is_text(PyDescr_NAME(callee), asks);
  if (!PyGen_CheckExact(first)) return false;
  return callee == next || (Py_IS_TYPE(callee, &PyMethodDescr_Type) && PyDescr_TYPE(callee) == &PyGen_Type);
}

// A method of object that object.__reduce_ex__() asks for, and compares or calls.
bool is_asked_by_reduction(PyObject* v) {
  if (!PyCFunction_Check(v)) return false;
  for (const char* name : {"__reduce__", "__getstate__"}) {
    PyObject* own = PyDict_GetItemString(PyBaseObject_Type.tp_dict, name);
    if (reinterpret_cast<PyMethodDescrObject*>(own)->d_method ==
        reinterpret_cast<PyCFunctionObject*>(v)->m_ml)
      return true;
  }
  return false;
}

// Whether a method of a context manager runs where it is seen what it reads.
bool is_watched(PyTypeObject* type, const char* name) {
  py::object text = py::str(name);
  PyObject* method = _PyType_Lookup(type, text.ptr());
  return method && PyFunction_Check(method) && !is_trusted_code(PyFunction_GET_CODE(method));
}

// `x.grad_fn is None`
bool asks_whether_history(Frame f, PyObject* object, PyObject* name) {
  static PyObject* const history = PyUnicode_InternFromString("grad_fn");
  return name == history && is_tensor(object) && is_asked_for_none(f.code_object(), f.instruction());
}

}  // namespace

void Instructions::dispatch(Frame f, const Operation& operation, CodeFacts* facts) {
  PyObject *first = f.peek(operation.first), *second = f.peek(operation.second);
  switch (operation.action) {
    case Action::Nothing:
    case Action::Shows:
    case Action::JoinsTexts:
      return;
    case Action::ReadsAttribute:
      if (asks_whether_history(f, first, f.name(operation.name)))
        return calls_->ask_for_none(first, f.name(operation.name));
      return calls_->read_on_stack(f.place(operation.first), f.name(operation.name));
    case Action::ImportsAttribute:
      return calls_->read_attribute(first, f.name(operation.name));
    case Action::SetsAttribute:
      return writes_->set_attribute(f.place(operation.first), f.name(operation.name),
                                    operation.second ? f.place(operation.second) : nullptr);
    case Action::GetsItem:
      return protocols_->read_item(first, second);
    case Action::SetsItem:
      return writes_->write_item(first, second, f.peek(operation.third));
    case Action::MakesFunction:
      return new_objects_->expect(f, &PyFunction_Type);
    case Action::NamesKeywords:
      return calls_->name_keywords(f.constant(operation.name));
    case Action::Calls:
      return call(f, operation);
    case Action::CallsWith:
      return call_extended(f, operation);
    case Action::MatchesClass:
      return match_class(first, second, f.peek(operation.third), operation.name);
    case Action::NotFollowed:
      return recorder_->fail("runs an instruction that lazytrace does not follow (opcode " +
                             std::to_string(operation.opcode) + ")");
    case Action::ReadsGlobal:
    case Action::ReadsName:
    case Action::ReadsVariable:
    case Action::ReadsBuildClass:
    case Action::ImportsModule:
    case Action::SetsGlobal:
    case Action::SetsName:
    case Action::SetsVariable:
      return dispatch_names(f, operation, facts);
    default:
      return dispatch_protocols(f, operation);
  }
}

namespace {
bool is_method_of_tensor(PyObject* callee, PyObject* first) {
  if (PyCFunction_Check(callee)) {
    PyObject* self = PyCFunction_GET_SELF(callee);
    return self && THPVariable_CheckExact(self);
  }
  return Py_IS_TYPE(callee, &PyMethodDescr_Type) && THPVariable_CheckExact(first) &&
         std::strncmp(PyDescr_TYPE(callee)->tp_name, "torch.", 6) == 0;
}

// Whether torch's binding takes the value out of it where it wants a number.
bool is_taken_as_number(PyObject* name, PyObject* value) {
  static PyObject* const alpha = PyUnicode_InternFromString("alpha");
  static PyObject* const scale = PyUnicode_InternFromString("value");
  if ((name != alpha && name != scale) || !THPVariable_CheckExact(value)) return false;
  const at::Tensor& tensor = THPVariable_Unpack(value);
  return tensor.dim() == 0 && tensor.is_floating_point() && !tensor.requires_grad() && tensor.is_cpu() &&
         tensor.layout() == at::kStrided;
}
}  // namespace

// x.add_(y, alpha=t), as an optimizer has it, which calls no operator that takes the number of a tensor.
void Instructions::take_scales(Frame f, const Operation& operation) {
  PyObject* names = calls_->keyword_names();
  PyObject** callee = callee_of(f, operation);
  if (!names || !callee || !operation.third || !recorder_->numbers() || recorder_->inside_operator()) return;
  bool method = f.peek(operation.first);
  PyObject* first = f.peek(method ? operation.second : operation.third);
  if (!is_method_of_tensor(*callee, first)) return;
  static PyObject* const ask = py::object(from_module("torch", "Tensor").attr("item")).release().ptr();
  Py_ssize_t count = PyTuple_GET_SIZE(names);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject** value = f.place(static_cast<int>(count - i));
    if (!is_taken_as_number(PyTuple_GET_ITEM(names, i), *value)) continue;
    py::object number = Exchange::exchanged(ask)(py::handle(*value));
    Py_SETREF(*value, number.release().ptr());
  }
}

namespace {
// Methods of dicts that take out an entry: what is left counts as a whole from then on.
bool takes_entry(PyObject* callee) {
  static PyObject* const pop = PyDict_GetItemString(PyDict_Type.tp_dict, "pop");
  static PyObject* const popitem = PyDict_GetItemString(PyDict_Type.tp_dict, "popitem");
  return callee == pop || callee == popitem;
}

// Where the dict stands of which the call copies all entries at once: among the arguments, as it counts from
// the last, or 0.
int copied_dict(Frame f, const Operation& operation, PyObject* callee, int named) {
  static PyObject* const copy = PyDict_GetItemString(PyDict_Type.tp_dict, "copy");
  static PyObject* const update = PyDict_GetItemString(PyDict_Type.tp_dict, "update");
  bool method = f.peek(operation.first);
  int count = operation.third + method;
  if (callee == copy && count == 1) return 1;
  bool made = callee == reinterpret_cast<PyObject*>(&PyDict_Type) && !method;
  return operation.third == 1 + named && (made || (callee == update && method)) ? 1 + named : 0;
}

// The method of dicts that gives their values, alone or with the keys.
bool gives_view(PyObject* callee) {
  static PyObject* const all[] = {PyDict_GetItemString(PyDict_Type.tp_dict, "items"),
                                  PyDict_GetItemString(PyDict_Type.tp_dict, "values"),
                                  PyDict_GetItemString(PyODict_Type.tp_dict, "items"),
                                  PyDict_GetItemString(PyODict_Type.tp_dict, "values")};
  return std::find(std::begin(all), std::end(all), callee) != std::end(all);
}
}  // namespace

// A dict in state whose numbers are to be seen as what they are: others at the next call.
void Instructions::put_viewed(PyObject* dict) {
  if (!PyDict_Check(dict)) return;
  for (auto& [key, carrier] : containers_->read_viewed(dict)) {
    writes_->write_item(dict, key.ptr(), carrier.ptr());
    if (PyDict_SetItem(dict, key.ptr(), carrier.ptr()) < 0) throw py::error_already_set();
  }
}

namespace {
// What looks at all entries at once, whatever holds them.
bool takes_all_entries(PyObject* callee) {
  static PyObject* const all[] = {builtin("sum"),    builtin("max"),  builtin("min"),
                                  builtin("sorted"), builtin("list"), builtin("tuple")};
  return std::find(std::begin(all), std::end(all), callee) != std::end(all);
}

// Whether a step of ours has taken the place of a function of numpy, which makes an array of a list.
bool stands_for_numpy(PyObject* callee) {
  PyObject* called = called_for(callee);
  return called != callee && takes_list_for_array(called);
}

// Whether it makes a tensor of the numbers in a list.
bool makes_tensor(PyObject* callee) {
  static const auto* all = [] {
    auto* made = new AddressSet();
    for (const char* name : {"tensor", "as_tensor", "Tensor", "FloatTensor", "DoubleTensor", "LongTensor"})
      made->insert(from_module("torch", name).release().ptr());
    return made;
  }();
  return all->count(callee);
}

// What goes through its arguments later, by iterators that nobody sees.
bool goes_through_later(PyObject* callee) {
  static PyObject* const all[] = {builtin("zip"), builtin("enumerate"), builtin("map"), builtin("filter")};
  return std::find(std::begin(all), std::end(all), callee) != std::end(all);
}

// Whether what the call of one argument gives is an argument of a call to zip() or the like, which is on the
// stack already, and seen by nobody else.
bool is_handed_on(Frame f) {
  static PyObject* const all[] = {builtin("zip"), builtin("enumerate"), builtin("list"), builtin("tuple")};
  constexpr int kOwn = 3;  // a null, the callable, its argument
  int at = kOwn + 1, deepest = static_cast<int>(f.places(true).size()) - f.code_object()->co_nlocalsplus;
  while (at < deepest && f.peek(at) && !PyCallable_Check(f.peek(at))) ++at;
  bool takes = at < deepest && std::find(std::begin(all), std::end(all), f.peek(at)) != std::end(all);
  if (!takes || f.peek(at + 1)) return false;
  return is_argument_alone(f.code_object(), f.instruction());
}
}  // namespace

// What gives the entries of a list of numbers one after the other, each as it is by then.
void Instructions::go_through(PyObject** list) {
  if (!containers_->may_vary(*list)) return;
  static PyObject* const entries = from_module("lazytrace.stand_ins", "entries").release().ptr();
  PyObject* instead = PyObject_CallOneArg(entries, *list);
  if (!instead) throw py::error_already_set();
  Py_SETREF(*list, instead);
}

void Instructions::read_arrays(Frame f, const Operation& operation) {
  PyObject** callee = callee_of(f, operation);
  if (operation.action != Action::Calls || !callee || !recorder_->numbers()) return;
  if (!makes_arrays(*callee)) return;
  for (int at = 1; at <= operation.third; ++at) containers_->read_arrays(f.place(at));
}

void Instructions::take_numbers(Frame f, const Operation& operation) {
  if (operation.action == Action::Iterates) return go_through(f.place(operation.first));
  if (operation.action == Action::Operates) {
    // The sum of two lists holds what is in them.
    PyObject **first = f.place(operation.first), **second = f.place(operation.second);
    if (!is_addition(operation.name) || !PyList_CheckExact(*first) || !PyList_CheckExact(*second)) return;
    if (!is_in_place(operation.name)) containers_->read_varying(first);
    return containers_->read_varying(second);
  }
  if (operation.action == Action::GetsItem) {
    if (PySlice_Check(f.peek(operation.second))) containers_->read_varying(f.place(operation.first));
    return;
  }
  if (operation.action == Action::Merges) return containers_->read_merged(f.place(operation.first));
  if (operation.action == Action::SetsItem && operation.third)
    return void(
        writes_->write_entry(f.peek(operation.first), f.place(operation.second), f.peek(operation.third)));
  PyObject** callee = callee_of(f, operation);
  if (callee && operation.action == Action::Calls && f.peek(operation.first) && takes_entry(*callee)) {
    PyObject* dict = f.peek(operation.third + 1);
    bool alone = operation.third && writes_->pops_entry_alone(dict, f.peek(operation.third));
    return alone ? void() : put_viewed(dict);
  }
  int named = names_keywords() ? static_cast<int>(PyTuple_GET_SIZE(calls_->keyword_names())) : 0;
  bool calls = callee && operation.action == Action::Calls;
  if (int at = calls ? copied_dict(f, operation, *callee, named) : 0)
    return containers_->read_merged(f.place(at));
  if (callee && operation.action == Action::Calls && !operation.third && f.peek(operation.first) &&
      gives_view(*callee))
    return put_viewed(f.peek(operation.second));
  if (!callee || !operation.third || operation.action != Action::Calls) return;
  take_scales(f, operation);
  if (operation.third == 1 && takes_all_entries(*callee)) containers_->read_varying(f.place(1));
  if (stands_for_numpy(*callee)) containers_->read_varying(f.place(operation.third));
  if (goes_through_later(*callee))
    for (int at = 1; at <= operation.third; ++at) go_through(f.place(at));
  static PyObject* const reversed = builtin("reversed");
  static PyObject* const from_end = from_module("lazytrace.stand_ins", "entries_from_end").release().ptr();
  bool turns = *callee == reversed && operation.third == 1 && !names_keywords();
  bool entries = turns && (containers_->may_vary(f.peek(1)) || containers_->holds_rows(f.peek(1)));
  if (entries && (is_gone_through(f) || is_handed_on(f))) Py_SETREF(*callee, Py_NewRef(from_end));
  if (makes_tensor(*callee)) containers_->read_numbers(f.place(operation.third));
}

void Instructions::dispatch_names(Frame f, const Operation& operation, CodeFacts* facts) {
  static PyObject* build_class = PyUnicode_InternFromString("__build_class__");
  PyObject* first = f.peek(operation.first);
  switch (operation.action) {
    case Action::ReadsGlobal:
      return operation.memo
                 ? names_->read_global_again(f, f.name(operation.name), &facts->memos[operation.memo])
                 : names_->read_global(f, f.name(operation.name));
    case Action::ReadsName:
      return names_->read_name(f, f.name(operation.name));
    case Action::ReadsVariable:
      return names_->read_cell(f, operation.name);
    case Action::ReadsBuildClass:
      return names_->read_global(f, build_class);
    case Action::ImportsModule:
      return names_->read_import(f, f.name(operation.name), first);
    case Action::SetsGlobal:
      return writes_->write_global(f, f.name(operation.name), first);
    case Action::SetsVariable:
      return writes_->write_cell(f, operation.name, first);
    default:
      if (f.locals() == f.globals()) return recorder_->fail("runs the body of a module");
      if (first) classes_->read_special(first, "__set_name__");  // which the class asks for in the end
  }
}

namespace {
// With a format, numpy's numbers are written as Python's: no setting of numpy's has a say.
bool writes_as_python(const Operation& operation, PyObject* value, PyObject* format) {
  return operation.second && !operation.name && is_followable_scalar(value) && PyUnicode_CheckExact(format) &&
         PyUnicode_GET_LENGTH(format) > 0;
}
}  // namespace

void Instructions::dispatch_protocols(Frame f, const Operation& operation) {
  PyObject *first = f.peek(operation.first), *second = f.peek(operation.second);
  if (operation.gives == Gives::ToCallee)
    note_callee(f, operation.action == Action::Sends || hands_on(first));
  switch (operation.action) {
    case Action::TestsTruth:
      return first == Py_True || first == Py_False || first == Py_None ? void()
                                                                       : protocols_->read_length(first);
    case Action::AsksLength:
      return protocols_->read_length(first);
    case Action::Merges:
      // Nothing looks at the values of a dict on their way into another one.
      PyDict_CheckExact(first) ? consumption_->keep_entries(&first, 1, Consumer::Compares)
                               : consumption_->consume(first, Consumer::Compares);
      consumption_->look_up_entries(first);
      return protocols_->read_iteration(first);
    case Action::Unpacks:
      if (containers_->read_unpacked(f.place(operation.first))) return;
      return protocols_->read_iteration(first);
    case Action::Iterates:
      return protocols_->read_iteration(first);
    case Action::Advances:
    case Action::Sends:
      return containers_->advance(first);
    case Action::Contains:
      return protocols_->read_contains(first, second);
    case Action::ComparesIdentity:
      if (is_immutable(first) && is_immutable(second) && is_copying(f.globals())) return;
      return protocols_->read_identity(first, second);
    case Action::Compares:
      return protocols_->read_comparison(first, second);
    case Action::Operates:
      return protocols_->read_binary(first, second, operation.name);
    case Action::OperatesAlone:
      return protocols_->read_unary(first);
    case Action::FormatsText:
      return consumption_->consume(
          first, writes_as_python(operation, first, second) ? Consumer::Reads : Consumer::Text);
    case Action::UsesKeys:
      for (int i = 0; i < operation.third; ++i)
        consumption_->use_as_key(f.peek(operation.first + i * operation.name));
      return;
    case Action::Raises:
      return first ? raise(f, first, second) : provenance_->read_handled_now();
    case Action::MatchesError:
      containers_->read_bases(reinterpret_cast<PyObject*>(Py_TYPE(second)));
      return consumption_->consume(first, Consumer::Reads);
    case Action::MatchesKind:
      return calls_->ask_whether_collection(first);
    case Action::MatchesKeys:
      consumption_->look_up(first, "get");
      return consumption_->consume(first, Consumer::Compares);
    default:
      return enter_context(first);
  }
}

// A class that is raised is called. An exception keeps where it was raised, each time that it is.
void Instructions::raise(Frame f, PyObject* error, PyObject* cause) {
  calls_->enter(f);
  for (PyObject* raised : {error, cause})
    if (raised && PyType_Check(raised)) calls_->call(raised, nullptr, 0);
  if (!PyExceptionInstance_Check(error) || provenance_->is_fresh(error)) return;
  int node = provenance_->known(error);
  if (node >= 0 && provenance_->by_path(node)) recorder_->fail(say(reason::RaisesKept, type_name(error)));
}

namespace {
// Whether Python code gives what comes next, and shows itself. That of torch's loaders advances others.
bool shows_what_is_next(PyTypeObject* type) {
  static PyObject* const name = PyUnicode_InternFromString("__next__");
  PyObject* next = _PyType_Lookup(type, name);
  if (!next || !PyFunction_Check(next)) return false;
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(next));
  bool of_loaders = text_of(code->co_filename).find("/torch/utils/data/") != std::string::npos;
  return !(of_loaders && code_flags(reinterpret_cast<PyObject*>(code)) & kTorchs);
}

// What calls next() as a step.
PyObject* advancing_step() {
  static PyObject* const step = from_module("lazytrace.library_calls", "advance").release().ptr();
  return step;
}
}  // namespace

// next(iterator) of one that was there before the call is a step: each replay moves it on.
bool Instructions::advances_older(PyObject* callee, PyObject* iterator) const {
  static PyObject* const next = builtin("next");
  if (callee != next || recorder_->inside_operator() || is_tensor(iterator)) return false;
  int node = provenance_->known(iterator);
  return node >= 0 && provenance_->by_path(node) && PyIter_Check(iterator) &&
         !shows_what_is_next(Py_TYPE(iterator));
}

namespace {
// object.__setattr__, bound to an object.
bool sets_plainly(PyObject* callee, int count) {
  static PyObject* const setter = PyDict_GetItemString(PyBaseObject_Type.tp_dict, "__setattr__");
  const MethodWrapper* bound = MethodWrapper::of(callee);
  return count == 2 && bound && reinterpret_cast<PyObject*>(bound->descriptor) == setter;
}
}  // namespace

void Instructions::call(Frame f, const Operation& operation) {
  calls_->enter(f);
  // A method stands below its object, which is the first argument.
  PyObject *method = f.peek(operation.first), *callee = method ? method : f.peek(operation.second);
  int count = method ? operation.third + 1 : operation.third;
  if (count == 1 && advances_older(callee, *f.top(count))) {
    provenance_->owner(*f.top(count));
    PyObject** place = callee_of(f, operation);
    Py_SETREF(*place, Py_NewRef(advancing_step()));
    return calls_->name_keywords(nullptr);
  }
  note_callee(f, hands_on(callee) || (count && relays(callee, *f.top(count))));
  if (PyCFunction_Check(callee) &&
      std::strcmp(reinterpret_cast<PyCFunctionObject*>(callee)->m_ml->ml_name, "__reduce_ex__") == 0)
    reducing_ = f.address();
  if (callee == reinterpret_cast<PyObject*>(&PySuper_Type) && !count) names_->read_class_cell(f);
  if (sets_plainly(callee, count)) {
    auto stack = writes_->while_called(callee_of(f, operation), f.place(1));
    calls_->call(callee, f.top(count), count);
  } else if (!calls_->asks_for_number(callee, f.top(count), count)) {
    calls_->call(callee, f.top(count), count);
  }
  calls_->name_keywords(nullptr);
  if (PyType_Check(callee)) new_objects_->expect(f, reinterpret_cast<PyTypeObject*>(callee));
}

// zip(*rows): the entries of each are taken as those of a row that is unpacked.
void Instructions::read_rows(PyObject** rows) {
  bool plain = PyList_CheckExact(*rows) || PyTuple_CheckExact(*rows);
  if (!plain || !recorder_->follows_state() || !recorder_->numbers() || recorder_->inside_operator()) return;
  protocols_->read_iteration(*rows);
  PyObject* all = PySequence_Tuple(*rows);
  if (!all) throw py::error_already_set();
  provenance_->note_made(all);
  Py_SETREF(*rows, all);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all) && !recorder_->stopped(); ++i)
    containers_->read_row(PySequence_Fast_ITEMS(all) + i);
}

void Instructions::call_extended(Frame f, const Operation& operation) {
  calls_->enter(f);
  PyObject* callee = f.peek(operation.first);
  note_callee(f, hands_on(callee));
  calls_->spread(f.place(operation.second));
  static PyObject* const zip = builtin("zip");
  if (callee == zip) read_rows(f.place(operation.second));
  if (PyType_Check(callee)) new_objects_->expect(f, reinterpret_cast<PyTypeObject*>(callee));
  calls_->call_extended(callee, f.peek(operation.second), f.peek(operation.third));
}

// Some of torch's own context managers run in code that is not watched; one that is kept in state is read
// whole.
void Instructions::enter_context(PyObject* object) {
  bool seen = is_watched(Py_TYPE(object), "__enter__") && is_watched(Py_TYPE(object), "__exit__");
  int node = !seen && is_python_class(Py_TYPE(object)) ? provenance_->known(object) : -1;
  if (node >= 0) {
    py::object dict = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(object, nullptr));
    if (!dict) PyErr_Clear();
    if (dict) provenance_->read_child(node, Access::Namespace, nullptr, -1, dict.ptr());
    if (dict) containers_->read_whole(dict.ptr());
  }
  classes_->read_special(object, "__enter__");
  classes_->read_special(object, "__exit__");
}

// isinstance(), and the attributes that the pattern names.
void Instructions::match_class(PyObject* subject, PyObject* cls, PyObject* names, int positional) {
  protocols_->read_classes(subject, cls, false);
  if (!PyType_Check(cls)) return;  // a TypeError
  auto* type = reinterpret_cast<PyTypeObject*>(cls);
  bool asks = positional || PyTuple_GET_SIZE(names);
  if (!PyType_IsSubtype(Py_TYPE(subject), type)) {
    bool plain = Py_TYPE(cls) == &PyType_Type;
    return plain || !asks
               ? void()
               : recorder_->fail("matches a " + type_name(subject) + " with a class that asks itself");
  }
  static PyObject* const by_place = PyUnicode_InternFromString("__match_args__");
  if (positional) calls_->read_attribute(cls, by_place);
  PyObject* places = positional ? _PyType_Lookup(type, by_place) : nullptr;
  // Without these, a number or a text is matched itself.
  for (Py_ssize_t i = 0; places && PyTuple_Check(places) && i < positional && i < PyTuple_GET_SIZE(places);
       ++i)
    calls_->read_attribute(subject, PyTuple_GET_ITEM(places, i));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i)
    calls_->read_attribute(subject, PyTuple_GET_ITEM(names, i));
}

namespace {
// Whether C code of the kind does no more than look at what it is handed.
bool looks(Does does, bool method) {
  switch (does) {
    case Does::Text:
    case Does::Copies:
    case Does::AsksLength:
    case Does::GetsItem:
      return true;
    case Does::Nothing:
    case Does::Reads:
    case Does::Iterates:
    case Does::Compares:
    case Does::Computes:
    case Does::Formats:
    case Does::GetsAttribute:
    case Does::AsksTruth:
    case Does::AsksContains:
    case Does::AsksInstance:
    case Does::AsksType:
    case Does::ComparesIdentity:
    case Does::Hashes:
    case Does::Identifies:
      return !method;  // a row for all methods of a class is one for those that write, too
    default:
      return false;
  }
}

bool only_looks(PyObject* callable, PyObject* first) {
  if (first && PyIter_Check(first)) return false;  // it would move on
  if (PyType_Check(callable)) return looks(type_does(reinterpret_cast<PyTypeObject*>(callable)), false);
  if (PyCFunction_Check(callable) && is_free_builtin(callable))
    return looks(function_does(reinterpret_cast<PyCFunctionObject*>(callable)), false);
  if (!Py_IS_TYPE(callable, &PyMethodDescr_Type)) return false;
  auto* descriptor = reinterpret_cast<PyDescrObject*>(callable);
  return looks(method_does(descriptor->d_type, text_of(descriptor->d_name)), true);
}

// That whose method of C is called. Null of what belongs to a module, and of what numpy computes with, which
// nothing changes.
PyObject* object_of(PyCFunctionObject* method) {
  PyObject* self = method->m_self;
  bool plain = self && !PyModule_Check(self) && std::strcmp(c_name(Py_TYPE(self)), "numpy.ufunc") != 0;
  return plain ? self : nullptr;
}

// What a call changes, as far as can be told without knowing it: the object of a method of C, or what a
// function of C is handed first.
PyObject* changed_by_call(Frame f, const Operation& operation) {
  PyObject *method = f.peek(operation.first), *second = f.peek(operation.second);
  PyObject* callable = method ? method : second;
  if (comes_to_python(callable)) return nullptr;
  PyObject* first = method ? second : f.peek(operation.third);
  if (only_looks(callable, first)) return nullptr;
  auto* builtin = PyCFunction_Check(callable) ? reinterpret_cast<PyCFunctionObject*>(callable) : nullptr;
  // What belongs to a module is bound to that, or to the record that pybind has made of it.
  PyObject* self = builtin && !builtin->m_module ? object_of(builtin) : nullptr;
  return self ? self : first;
}

constexpr int kDeepestRelay = 4;

template <typename Visit>
void each_part(PyObject* object, const Visit& visit) {
  traverseproc visit_all = Py_TYPE(object)->tp_traverse;
  if (!visit_all) return;
  auto call = [](PyObject* part, void* with) {
    (*static_cast<const Visit*>(with))(part);
    return 0;
  };
  visit_all(object, call, const_cast<void*>(static_cast<const void*>(&visit)));
}

// What calls a function of C when it is called or iterated over.
bool relays_calls(PyObject* v) {
  const char* name = c_name(Py_TYPE(v));
  return std::strcmp(name, "functools.partial") == 0 || std::strcmp(name, "map") == 0 ||
         std::strcmp(name, "filter") == 0 || (PyIter_Check(v) && std::strncmp(name, "itertools.", 10) == 0);
}

bool is_c_function(PyObject* v) {
  return PyCFunction_Check(v) || Py_IS_TYPE(v, &PyMethodDescr_Type) || Py_IS_TYPE(v, &PyWrapperDescr_Type) ||
         Py_IS_TYPE(v, &_PyMethodWrapper_Type);
}

// Whether C code that is handed the object, or iterates over it, may come to write through a function of C.
bool may_write(PyObject* v, int depth = 0) {
  if (is_c_function(v)) return !only_looks(v, nullptr);
  bool found = false;
  if (relays_calls(v) && depth < kDeepestRelay)
    each_part(v, [&](PyObject* part) { found |= !PyType_Check(part) && may_write(part, depth + 1); });
  return found;
}

// What such C code may write to.
void collect_reached(PyObject* v, std::vector<PyObject*>* found, int depth = 0) {
  if (is_tensor(v) || is_immutable(v) || PyType_Check(v) || PyModule_Check(v) || PyFunction_Check(v)) return;
  found->push_back(v);
  if (depth == kDeepestRelay) return;
  auto enter = [&](PyObject* part) { collect_reached(part, found, depth + 1); };
  if (PyCFunction_Check(v) && PyCFunction_GET_SELF(v)) return enter(PyCFunction_GET_SELF(v));
  bool holds = PyList_Check(v) || PyTuple_Check(v) || PyDict_Check(v) || PyIter_Check(v);
  if (holds || relays_calls(v) || Py_IS_TYPE(v, &_PyMethodWrapper_Type)) each_part(v, enter);
}

// What an instruction hands to C code.
std::vector<PyObject*> handed_on(Frame f, const Operation& operation) {
  std::vector<PyObject*> all;
  auto add = [&](PyObject* v) { v ? all.push_back(v) : void(); };
  if (operation.action == Action::Calls) {
    add(f.peek(operation.first)), add(f.peek(operation.second));
    for (int i = 0; i < operation.third; ++i) add(f.top(operation.third)[i]);
  } else if (operation.action == Action::CallsWith) {
    add(f.peek(operation.first));
    PyObject *args = f.peek(operation.second), *kwargs = f.peek(operation.third);
    bool plain = PyTuple_Check(args) || PyList_Check(args);
    for (Py_ssize_t i = 0; plain && i < PySequence_Fast_GET_SIZE(args); ++i)
      add(PySequence_Fast_GET_ITEM(args, i));
    if (!plain) each_part(args, add);
    if (kwargs) each_part(kwargs, add);
  } else if (operation.action == Action::Iterates || operation.action == Action::Advances ||
             operation.action == Action::Unpacks || operation.action == Action::Merges ||
             operation.action == Action::Contains) {
    add(f.peek(operation.first)), add(f.peek(operation.second));
  }
  return all;
}

// Whether it is a call of setattr(), or of what that calls.
bool sets_a_name(const std::vector<PyObject*>& call) {
  if (call.size() < 3 || !PyUnicode_Check(call[2])) return false;
  static const char* const kNames[] = {"setattr", "delattr", "__setattr__", "__delattr__"};
  PyObject* callable = call[0];
  bool free = PyCFunction_Check(callable) &&
              (!PyCFunction_GET_SELF(callable) || PyModule_Check(PyCFunction_GET_SELF(callable)));
  const char* name = free ? reinterpret_cast<PyCFunctionObject*>(callable)->m_ml->ml_name
                     : Py_IS_TYPE(callable, &PyWrapperDescr_Type)
                         ? reinterpret_cast<PyWrapperDescrObject*>(callable)->d_base->name
                         : "";
  return std::any_of(std::begin(kNames), std::end(kNames),
                     [&](const char* one) { return std::strcmp(one, name) == 0; });
}

// What a custom function of autograd keeps for its backward: made by the call, and read by nobody else. The
// engine has no state that could be read.
bool is_autograd_context(PyObject* v) {
  const char* name = c_base(Py_TYPE(v))->tp_name;
  return std::strcmp(name, "torch._C._FunctionBase") == 0 || std::strcmp(name, "torch._C._EngineBase") == 0;
}

PyObject* changed_by(Frame f, const Operation& operation) {
  switch (operation.action) {
    case Action::SetsAttribute:
    case Action::SetsItem:
      return f.peek(operation.first);
    case Action::Operates:
      return is_in_place(operation.name) ? f.peek(operation.first) : nullptr;
    case Action::SetsGlobal:
      return f.globals();
    case Action::SetsName:
    case Action::NotFollowed:  // `from m import *`, and an annotation of a module's variable
      return f.locals();
    case Action::SetsVariable:
      return f.slot(operation.name);
    case Action::Calls:
      return changed_by_call(f, operation);
    default:
      return nullptr;
  }
}
}  // namespace

namespace {
// Of a file of Python's own: nothing that a function reads of it changes.
bool writes_to_file(PyObject* callable) {
  bool method = Py_IS_TYPE(callable, &PyMethodDescr_Type);
  if (!method && !PyCFunction_Check(callable)) return false;
  PyObject* self = method ? nullptr : PyCFunction_GET_SELF(callable);
  PyTypeObject* type = method ? PyDescr_TYPE(callable) : self ? Py_TYPE(self) : nullptr;
  const char* name = method ? PyUnicode_AsUTF8(PyDescr_NAME(callable))
                            : reinterpret_cast<PyCFunctionObject*>(callable)->m_ml->ml_name;
  bool writes = std::strcmp(name, "write") == 0 || std::strcmp(name, "flush") == 0;
  return writes && type && std::strncmp(c_name(type), "_io.", 4) == 0;
}
}  // namespace

namespace {
// Whether setting it changes this entry of the __dict__, and nothing else that its code does not show.
bool is_kept_in_namespace(PyObject* object, PyObject* name) {
  if (PyModule_Check(object) || is_autograd_context(object)) return false;
  PyTypeObject* type = Py_TYPE(object);
  static PyObject* const setter = PyUnicode_InternFromString("__setattr__");
  PyObject* own = _PyType_Lookup(type, setter);
  bool shows = type->tp_setattro == PyObject_GenericSetAttr || (own && PyFunction_Check(own));
  PyObject* descriptor = _PyType_Lookup(type, name);
  if (!shows || (descriptor && Py_TYPE(descriptor)->tp_descr_set)) return false;
  if (is_tensor(object)) make_namespace(object);
  PyObject** dict = _PyObject_GetDictPtr(object);
  return dict && *dict;
}
}  // namespace

void Instructions::note_opaque_write(Frame f, const Operation& operation) {
  auto touch = [&](PyObject* target) {
    if (!is_tensor(target) && !is_immutable(target) && !is_autograd_context(target))
      provenance_->touch(target);
  };
  auto touch_name = [&](PyObject* target, PyObject* name) {
    if (PyType_Check(target)) return provenance_->touch(reinterpret_cast<PyTypeObject*>(target), name);
    is_kept_in_namespace(target, name) ? provenance_->touch_attribute(target, name) : touch(target);
  };
  if (operation.action == Action::SetsAttribute)
    return touch_name(f.peek(operation.first), f.name(operation.name));
  std::vector<PyObject*> handed = handed_on(f, operation);
  if (sets_a_name(handed)) return touch_name(handed[1], handed[2]);
  PyObject* target = changed_by(f, operation);
  if (target && !PyType_Check(target) && !PyModule_Check(target)) touch(target);
  if (handed.empty() || PyFunction_Check(handed[0]) || writes_to_file(handed[0])) return;
  PyObject* callable = handed[0];
  PyObject* first = handed.size() > 1 ? handed[1] : nullptr;
  bool direct = operation.action == Action::Calls || operation.action == Action::CallsWith;
  direct = direct && is_c_function(callable);
  if (operation.action == Action::CallsWith && direct && !only_looks(callable, first)) {
    auto* builtin = PyCFunction_Check(callable) ? reinterpret_cast<PyCFunctionObject*>(callable) : nullptr;
    PyObject* self = builtin ? object_of(builtin) : nullptr;
    PyObject* changed = self && !PyType_Check(self) ? self : first;
    if (changed && !PyType_Check(changed) && !PyModule_Check(changed)) touch(changed);
  }
  if (std::none_of(handed.begin() + direct, handed.end(), [](PyObject* v) { return may_write(v); })) return;
  std::vector<PyObject*> reached;
  for (PyObject* v : handed) collect_reached(v, &reached);
  for (PyObject* v : reached) touch(v);
}

bool Instructions::goes_to_c(Frame caller, const CodeFacts& facts, PyObject* result) const {
  const Operation& operation = facts.operations[static_cast<size_t>(std::max(caller.instruction(), 0))];
  if (operation.gives != Gives::ToCallee) return operation.gives == Gives::ToC;
  const bool* passes = passes_on_.find(caller.address());
  return passes && !*passes && !(caller.address() == reducing_ && is_asked_by_reduction(result));
}

}  // namespace lazytrace
