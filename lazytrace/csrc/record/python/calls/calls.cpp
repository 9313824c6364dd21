#include "record/python/calls/calls.h"

#include <structmember.h>
#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstring>
#include <iterator>
#include <unordered_set>

#include "cpython/callee.h"
#include "cpython/carrier.h"
#include "cpython/dict_view.h"
#include "cpython/imports.h"
#include "cpython/lru_cache.h"
#include "cpython/objects.h"
#include "cpython/text_carrier.h"
#include "cpython/values.h"
#include "record/python/asked.h"
#include "record/python/callables.h"
#include "record/python/code_facts.h"
#include "record/python/escapes.h"
#include "record/python/unseen.h"
#include "record/python/whole_calls.h"
#include "support/reasons.h"
#include "torch/autocast_regions.h"

namespace lazytrace {

namespace {

using Names = std::unordered_set<std::string>;

const Names kDequeWriters = {"append",      "appendleft",  "extend",   "extendleft", "insert",
                             "pop",         "popleft",     "remove",   "rotate",     "clear",
                             "reverse",     "__init__",    "__iadd__", "__imul__",   "__setitem__",
                             "__delitem__", "__setstate__"};
const Names kListWriters = {"append",   "extend",   "insert",  "remove",      "pop",
                            "clear",    "sort",     "reverse", "__setitem__", "__delitem__",
                            "__iadd__", "__imul__", "__init__"};
const Names kViews = {"values", "items", "keys"};
const Names kDictWriters = {"update",      "pop",         "popitem", "clear",   "__setitem__",
                            "__delitem__", "move_to_end", "__ior__", "__init__"};
const Names kSetWriters = {"add",
                           "remove",
                           "discard",
                           "pop",
                           "clear",
                           "update",
                           "intersection_update",
                           "difference_update",
                           "symmetric_difference_update",
                           "__ior__",
                           "__iand__",
                           "__isub__",
                           "__ixor__",
                           "__init__"};

const Names* writers_of(PyObject* v) {
  if (PyDict_Check(v)) return &kDictWriters;
  if (PyAnySet_Check(v)) return &kSetWriters;
  return PyList_Check(v) ? &kListWriters : nullptr;
}

// A set that has what is added to it, or lacks what is discarded, stays as it is.
bool changes_nothing(PyObject* set, const std::string& name, PyObject* const* args, Py_ssize_t count) {
  bool adds = name == "add";
  if (!PySet_CheckExact(set) || count != 1 || (!adds && name != "discard")) return false;
  if (!can_ask_for_member(set, args[0])) return false;
  int held = PySet_Contains(set, args[0]);
  if (held < 0) PyErr_Clear();
  return held >= 0 && (held == 1) == adds;
}

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

bool is_flat_value(PyObject* v, std::unordered_set<std::string>* texts) {
  if (PyUnicode_CheckExact(v)) return texts->insert(text_of(v)).second;
  return v == Py_None || PyBool_Check(v) || PyLong_CheckExact(v) || PyFloat_CheckExact(v);
}

// Whether pickle writes it without asking which of the objects in it are one: a dict or list of texts that
// differ, and of numbers.
bool is_flat(PyObject* v) {
  std::unordered_set<std::string> texts;
  if (PyList_CheckExact(v)) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(v); ++i)
      if (!is_flat_value(PyList_GET_ITEM(v, i), &texts)) return false;
    return true;
  }
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_CheckExact(v) && PyDict_Next(v, &at, &key, &value);)
    if (!is_flat_value(key, &texts) || !is_flat_value(value, &texts)) return false;
  return PyDict_CheckExact(v);
}

Consumer consumer_of(Does does) {
  if (does == Does::Compares || does == Does::Computes || does == Does::AsksContains || does == Does::Changes)
    return Consumer::Compares;
  return does == Does::Text || does == Does::Formats ? Consumer::Text : Consumer::Reads;
}

bool takes_from_base(PyTypeObject* type, const char* name) {
  py::str key(name);
  return _PyType_Lookup(type, key.ptr()) == _PyType_Lookup(c_base(type), key.ptr());
}

// functools.partial, or a class that calls as it does.
bool is_partial(PyTypeObject* type) {
  return std::strcmp(c_base(type)->tp_name, "functools.partial") == 0 && takes_from_base(type, "__call__");
}

// A function of a module, or one that belongs to a class: bound to no object that it would read. What pybind
// makes is bound to its own record.
bool is_free(PyCFunctionObject* f) {
  PyObject* self = f->m_self;
  return !self || PyModule_Check(self) || PyType_Check(self) || (f->m_module && PyUnicode_Check(f->m_module));
}

std::string name_of(PyCFunctionObject* f) {
  std::string module = f->m_module && PyUnicode_Check(f->m_module) ? text_of(f->m_module) : "";
  if (module.empty() && f->m_self && PyModule_Check(f->m_self) && PyModule_GetName(f->m_self))
    module = PyModule_GetName(f->m_self);
  PyErr_Clear();
  return (module.empty() || module == "builtins" ? "" : module + ".") + f->m_ml->ml_name;
}

// Python has a limit for the texts of ints, which can be set to this many digits and more.
bool is_long_text(PyObject* v) {
  constexpr Py_ssize_t kDigits = 640;
  if (PyUnicode_Check(v)) return PyUnicode_GET_LENGTH(v) > kDigits;
  return (PyBytes_Check(v) || PyByteArray_Check(v)) && Py_SIZE(v) > kDigits;
}

// `self` and the other arguments as one row.
std::vector<PyObject*> with_self(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  std::vector<PyObject*> all = {self};
  all.insert(all.end(), args, args + count);
  return all;
}

}  // namespace

Calls::Calls(Recorder* recorder, GuardTree* tree, Provenance* provenance, NewObjects* new_objects,
             Asides* asides, ClassReads* classes, ContainerReads* containers, AttributeReads* attributes,
             Consumption* consumption, StateWrites* writes, Protocols* protocols,
             ContextVariables* context_variables, WarningReads* warnings)
    : recorder_(recorder),
      tree_(tree),
      provenance_(provenance),
      new_objects_(new_objects),
      asides_(asides),
      classes_(classes),
      containers_(containers),
      attributes_(attributes),
      consumption_(consumption),
      writes_(writes),
      protocols_(protocols),
      context_variables_(context_variables),
      warnings_(warnings) {
  consumption_->judge_with([this](PyObject* callable) { judge_callback(callable); });
}

void Calls::read_attribute(PyObject* object, PyObject* name) {
  call_fallback(attributes_->read_attribute(object, name), object, name);
}

void Calls::read_attribute_again(PyObject* object, PyObject* name) {
  call_fallback(attributes_->read_attribute_again(object, name), object, name);
}

void Calls::read_on_stack(PyObject** object, PyObject* name) {
  LateReads::Stack stack(attributes_->late(), object);
  read_attribute_again(*object, name);
}

void Calls::ask_for_none(PyObject* object, PyObject* name) {
  AttributeReads::AskedForNone here(attributes_);
  read_attribute(object, name);
}

void Calls::call_fallback(PyObject* getter, PyObject* object, PyObject* name) {
  if (getter) call(getter, std::array<PyObject*, 2>{object, name}.data(), 2);
}

// C code may call what it is handed, with arguments that nobody sees. Python functions show themselves; C
// functions do not.
void Calls::judge_callback(PyObject* v) {
  bool outer = std::exchange(judges_callback_, true);
  judge_one(v);
  judges_callback_ = outer;
}

void Calls::judge_one(PyObject* v) {
  provenance_->owner(v);
  PyTypeObject* type = Py_TYPE(v);
  if (PyCFunction_Check(v)) {
    auto* f = reinterpret_cast<PyCFunctionObject*>(v);
    PyObject* self = f->m_self;
    if (is_free(f))
      return computes_alone(function_does(f)) ? expect_of(function_does(f))
                                              : recorder_->fail("hands " + name_of(f) + "() to C code");
    read_bound_self(v, self);
    return judge_method_callback(c_base(Py_TYPE(self)), f->m_ml->ml_name, self);
  }
  if (type == &PyMethodDescr_Type || type == &PyWrapperDescr_Type || type == &PyClassMethodDescr_Type) {
    auto* descriptor = reinterpret_cast<PyDescrObject*>(v);
    return judge_method_callback(descriptor->d_type, text_of(descriptor->d_name), nullptr);
  }
  if (starts_with(c_name(type), "operator."))
    return recorder_->fail("hands an " + std::string(type->tp_name) + " to C code");
  if (const MethodWrapper* wrapper = MethodWrapper::of(v)) {
    PyTypeObject* base = c_base(Py_TYPE(wrapper->self));
    std::string name = text_of(wrapper->name());
    // Which items it will be asked for is not seen.
    if (method_does(base, name) == Does::GetsItem) {
      read_wrapped_slot(v);
      return judge_method_callback(base, name, wrapper->self);
    }
  }
  call(v, nullptr, 0);  // a partial or the wrapper of a slot
}

// map(str, ...), sorted(..., key=str).
void Calls::expect_texts(const char* callee, PyObject* const* args, Py_ssize_t count) {
  auto* const text = reinterpret_cast<PyObject*>(&PyUnicode_Type);
  if (std::find(args, args + count, text) == args + count) return;
  static const Names kCallers = {"map", "filter", "sorted", "min", "max", "reduce", "sort"};
  if (!kCallers.count(callee) && !starts_with(callee, "itertools.")) return;
  for (Py_ssize_t i = 0; i < count; ++i)
    if (args[i] == text) consumption_->expect_text();
}

// What it does with what it will be handed.
void Calls::expect_of(Does does) {
  if (does == Does::Computes) consumption_->expect_arithmetic();
  if (does == Does::Text || does == Does::Formats) consumption_->expect_text();
}

namespace {
// Whether the fields of a text name whole arguments by their places, no attributes and entries of them.
bool formats_whole(PyObject* text) {
  if (!text || !PyUnicode_CheckExact(text)) return false;
  std::string all = text_of(text);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] != '{') continue;
    if (i + 1 < all.size() && all[i + 1] == '{' && ++i) continue;
    size_t end = all.find_first_not_of("0123456789", i + 1);
    if (end == std::string::npos || !std::strchr("!:}", all[end])) return false;
  }
  return true;
}
}  // namespace

void Calls::judge_method_callback(PyTypeObject* type, const std::string& name, PyObject* self) {
  bool tensor = starts_with(c_name(type), "torch._C.") && (!self || is_tensor(self));
  bool dict = PyType_IsSubtype(type, &PyDict_Type), missing = dict && type != &PyDict_Type;
  const Names* writers = dict                                   ? &kDictWriters
                         : PyType_IsSubtype(type, &PySet_Type)  ? &kSetWriters
                         : PyType_IsSubtype(type, &PyList_Type) ? &kListWriters
                                                                : nullptr;
  // A missing key is entered by the one, and by a defaultdict.
  bool enters = dict && (name == "setdefault" || (missing && type != &PyODict_Type && name == "__getitem__"));
  Does does = tensor ? tensor_method_does(name) : method_does(type, name);
  // The keys that it is asked for are not seen, so all entries count as read.
  bool known = tensor ? does != Does::Unknown : computes_alone(does) || (self && does == Does::GetsItem);
  known |= does == Does::Formats && name == "format" && formats_whole(self);
  // One of another type, or that is not followed, fails or is the call's own.
  bool followed = self ? containers_->follows(self) : provenance_->has_live();
  if (followed && starts_with(c_name(type), "collections.deque")) writers = &kDequeWriters;
  if (!known || enters || (writers && writers->count(name)))
    return recorder_->fail("hands ." + name + "() to C code");
  expect_of(does);
  // What it gives back may be asked which object it is; of an entry that is only handed on it is not.
  if (self) consumption_->consume(self, does == Does::GetsItem ? Consumer::Reads : Consumer::Compares);
}

// ---------------------------------------------------------------- by kind of callable
void Calls::call(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  PyTypeObject* type = Py_TYPE(callable);
  // The frame of a Python function shows itself, or is entered as trusted code.
  if (PyFunction_Check(callable)) {
    // A method of a text that is followed, which makes another one of it.
    if (count && is_text(args[0]) && is_own_code(PyFunction_GET_CODE(callable))) return;
    if (!is_unseen_step(callable) && !is_step_of_ours(callable)) provenance_->owner(callable);
    return;
  }
  if (PyMethod_Check(callable)) {
    PyObject* function = PyMethod_GET_FUNCTION(callable);
    if (is_text(PyMethod_GET_SELF(callable)) && is_own_code(PyFunction_GET_CODE(function))) return;
    if (is_step_of_ours(function) || is_unseen_step(function))
      return call_stand_in(PyMethod_GET_SELF(callable), args, count);
    provenance_->owner(callable);
    if (PyFunction_Check(function)) return provenance_->owner(function), void();
    auto all = with_self(PyMethod_GET_SELF(callable), args, count);
    return call(function, all.data(), static_cast<Py_ssize_t>(all.size()));
  }
  if (PyType_Check(callable)) return call_type(reinterpret_cast<PyTypeObject*>(callable), args, count);
  bool descriptor = Py_IS_TYPE(callable, &PyMethodDescr_Type) || Py_IS_TYPE(callable, &PyWrapperDescr_Type) ||
                    Py_IS_TYPE(callable, &PyClassMethodDescr_Type);
  // Behind a partial.
  if (judges_callback_ && (descriptor || PyCFunction_Check(callable))) return judge_one(callable);
  if (PyCFunction_Check(callable)) return call_builtin(callable, args, count);
  if (descriptor) return call_descriptor(callable, args, count);
  if (Py_IS_TYPE(callable, &_PyMethodWrapper_Type)) return call_slot_wrapper(callable, args, count);
  if (PyWeakref_CheckRef(callable)) {
    int node = provenance_->owner(callable);
    PyObject* object = PyWeakref_GET_OBJECT(callable);
    if (writes_->lets_go(object)) return;
    if (node >= 0) return provenance_->read_child(node, Access::Deref, nullptr, -1, object);
    // One that the call has made leads to what it was made of, until that goes: nothing collects cycles while
    // a call is recorded.
    bool made = object != Py_None || provenance_->is_fresh(callable);
    return made ? void() : recorder_->fail(say(reason::ReadsUnknown, type_name(callable)));
  }
  if (is_partial(type)) return call_partial(callable, args, count);
  if (starts_with(c_name(type), "operator.")) return call_operator_object(callable, args, count);
  if (is_lru_cache(callable)) return call_cache(callable, args, count);
  call_instance(callable, args, count);
}

namespace {
bool is_list_of_numbers(PyObject* value) {
  if (!PyList_CheckExact(value)) return false;
  PyObject** items = PySequence_Fast_ITEMS(value);
  return std::all_of(items, items + PyList_GET_SIZE(value), [](PyObject* item) {
    return PyLong_CheckExact(item) || PyBool_Check(item) || is_float_of_any_kind(item) || is_int64(item) ||
           is_carrier(item);
  });
}
}  // namespace

// What it stands for, if it is told of that, has a closure, or names attributes.
void Calls::call_stand_in(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  const char* type = c_name(Py_TYPE(self));
  // Functions of numpy are objects, which the name of another one may come to stand for.
  bool of_numpy = starts_with(type, "numpy.") && PyCallable_Check(self) && !is_numpy_array(self);
  bool of_operator = starts_with(type, "operator.");
  bool holds = PyFunction_Check(self) || of_numpy || of_operator;
  int node = holds ? provenance_->owner(self) : -1;
  if (node >= 0) provenance_->read_self(node, self);
  // A stand-in for a function of numpy makes an array of such a list, and none of its reads is seen.
  bool first =
      !of_operator && count && args[0] && is_list_of_numbers(args[0]) && provenance_->known(args[0]) >= 0;
  if (first) consumption_->consume(args[0], Consumer::Reads);
}

bool Calls::asks_for_number(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  if (!recorder_->numbers() || recorder_->inside_operator()) return false;
  AskedCall call = asked_call(callable, args, count);
  if (!call.asked) return false;
  for (PyObject* method : methods_drawn_by(*call.asked))
    read_attribute(call.self ? call.self : args[0], method);  // what it calls itself
  // What led to the function itself was seen, and is guarded.
  if (!call.self) return true;
  provenance_->owner(callable);
  read_bound_self(callable, call.self);
  return true;
}

namespace {
// Whether going through it runs no Python code: a container, a view of one or an iterator over one.
bool is_gone_through_by_c(PyObject* v) {
  PyTypeObject* const kTypes[] = {&PyDict_Type,
                                  &PySet_Type,
                                  &PyFrozenSet_Type,
                                  &PyUnicode_Type,
                                  &PyBytes_Type,
                                  &PyRange_Type,
                                  &PyDictKeys_Type,
                                  &PyDictValues_Type,
                                  &PyDictItems_Type,
                                  &PyListIter_Type,
                                  &PyTupleIter_Type,
                                  &PySetIter_Type,
                                  &PyUnicodeIter_Type,
                                  &PyDictIterKey_Type,
                                  &PyDictIterValue_Type,
                                  &PyDictIterItem_Type,
                                  &PyListRevIter_Type,
                                  &PyDictRevIterKey_Type,
                                  &PyDictRevIterValue_Type,
                                  &PyDictRevIterItem_Type};
  bool known = std::find(std::begin(kTypes), std::end(kTypes), Py_TYPE(v)) != std::end(kTypes);
  return known || is_deque(v);
}

// Whether its items are what the call passes.
bool is_passed_as_it_is(PyObject* arguments) {
  PyTypeObject* type = Py_TYPE(arguments);
  return (PyTuple_Check(arguments) && type->tp_iter == PyTuple_Type.tp_iter) ||
         (PyList_Check(arguments) && type->tp_iter == PyList_Type.tp_iter);
}
}  // namespace

void Calls::spread(PyObject** arguments) {
  if (!is_gone_through_by_c(*arguments)) return;
  protocols_->read_iteration(*arguments);
  if (recorder_->stopped()) return;
  PyObject* items = PySequence_Tuple(*arguments);
  if (!items) return PyErr_Clear();
  Py_SETREF(*arguments, items);
}

void Calls::call_extended(PyObject* callable, PyObject* args, PyObject* kwargs) {
  protocols_->read_iteration(args);
  if (kwargs) containers_->read_whole(kwargs);
  c10::SmallVector<PyObject*, 16> all;
  if (is_passed_as_it_is(args))
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(args); ++i)
      all.push_back(PySequence_Fast_GET_ITEM(args, i));
  Py_ssize_t positional = static_cast<Py_ssize_t>(all.size());
  if (kwargs && PyDict_Check(kwargs) && is_lru_cache(callable))
    return call_cache_by_name(callable, all, kwargs);
  PyObject* called = PyMethod_Check(callable) ? PyMethod_GET_FUNCTION(callable) : callable;
  if (kwargs && PyDict_Check(kwargs) && !PyFunction_Check(called)) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(kwargs, &position, &key, &value)) consumption_->consume(value, Consumer::Reads);
  }
  PyObject* outer = std::exchange(keywords_, kwargs);
  bool passed = is_passed_as_it_is(args);
  // What Python code gives is seen when the call goes through it, by which time C code has it.
  if (!passed) consumption_->consume(args, Consumer::Compares);
  passed || comes_to_python(callable) ? call(callable, all.data(), positional) : judge_callback(callable);
  keywords_ = outer;
}

// What stands behind `**` is formatted like the rest.
void Calls::read_format(PyObject* const* args, Py_ssize_t count) {
  std::vector<PyObject*> all(args, args + count);
  PyObject *key, *value;
  for (Py_ssize_t at = 0; keywords_ && PyDict_Check(keywords_) && PyDict_Next(keywords_, &at, &key, &value);)
    all.push_back(value);
  protocols_->read_format(all.data(), static_cast<Py_ssize_t>(all.size()));
}

void Calls::call_descriptor(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  auto* descriptor = reinterpret_cast<PyDescrObject*>(callable);
  if (count < 1) return;
  // Operators as methods: judged once per descriptor, which lives as long as the class.
  static auto* operators = new AddressSet();
  if (is_tensor(args[0]) && operators->count(callable)) return call_torch("Tensor", args, count);
  std::string name = text_of(descriptor->d_name);
  if (is_tensor(args[0]) && name.rfind("__", 0) != 0 && tensor_method_does(name) == Does::Reads &&
      descriptor->d_type->tp_name == std::string("torch._C.TensorBase"))
    operators->insert(callable);
  call_method(descriptor->d_type, name, args[0], args + 1, count - 1);
}

void Calls::read_wrapped_slot(PyObject* callable) {
  const MethodWrapper* wrapper = MethodWrapper::of(callable);
  int node = provenance_->owner(callable);
  if (node < 0) return;
  provenance_->read_child(node, Access::Attribute, py::str("__self__").ptr(), -1, wrapper->self);
  provenance_->read_child(node, Access::Attribute, py::str("__name__").ptr(), -1, wrapper->name());
}

void Calls::call_slot_wrapper(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  const MethodWrapper* wrapper = MethodWrapper::of(callable);
  // One that only the stack holds was made for this call, and goes with it.
  if (Py_REFCNT(callable) > 1) read_wrapped_slot(callable);
  static PyObject* const asks = PyUnicode_InternFromString("__getattribute__");
  PyTypeObject* base = c_base(Py_TYPE(wrapper->self));
  if (count == 1 && wrapper->name() == asks && base == &PyBaseObject_Type)
    return call_fallback(attributes_->read_plainly(wrapper->self, args[0]), wrapper->self, args[0]);
  call_method(base, text_of(wrapper->name()), wrapper->self, args, count);
}

// Which object it is, and those in a tuple.
void Calls::read_in_key(PyObject* part, int depth) {
  constexpr int kDeepest = 4;
  if (is_key(part)) return;
  if (int node = provenance_->owner(part); node >= 0) return provenance_->read_self(node, part);
  for (Py_ssize_t i = 0; PyTuple_CheckExact(part) && depth < kDeepest && i < PyTuple_GET_SIZE(part); ++i)
    read_in_key(PyTuple_GET_ITEM(part, i), depth + 1);
}

namespace {
// Whether a functools cache is of a function of torch's or of Python's library.
bool is_of_library(PyObject* cache) {
  static PyObject* const name = PyUnicode_InternFromString("__wrapped__");
  auto function = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(cache, name));
  if (!function) PyErr_Clear();
  return function && PyFunction_Check(function.ptr()) &&
         !(code_flags(PyFunction_GET_CODE(function.ptr())) & kUser);
}
}  // namespace

// What a functools cache holds is what the plain call would be given, whatever it was made of: an entry that
// is there is a read of state. One that the call makes shows itself the next time.
void Calls::call_cache(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  int node = provenance_->owner(callable);
  for (Py_ssize_t i = 0; i < count; ++i) read_in_key(args[i]);
  py::object key = node < 0
                       ? py::object()
                       : py::reinterpret_steal<py::object>(cache_key(callable, args, count, keyword_names_));
  // No call makes an entry that the next one finds, as it would where there is none yet.
  if (node >= 0 && !key && key_runs_code(args, count))
    return recorder_->fail("calls a function with a functools cache, with a key whose hash is Python code");
  PyObject* result = key ? cached_result(callable, key.ptr()) : nullptr;
  if (!result || provenance_->was_filled(callable))
    return recorder_->fail("calls a function with a functools cache, which has no entry for the call");
  if (provenance_->known(callable) >= 0 && (*tree_)[node].expect != Expect::Identity)
    provenance_->read_self(node, callable);
  provenance_->read_child(node, Access::Cached, key.ptr(), -1, result);
  int entry = tree_->find(node, Access::Cached, key.ptr(), -1);
  if (entry < 0) return;
  // A replay that runs the block would count it once more, and one that goes without must count it. How
  // often torch and Python's library find theirs is nothing that a function asks for.
  if (recorder_->in_block() && is_of_library(callable)) return;
  recorder_->refuse_in_block();
  (*tree_)[entry].turn = ++cache_uses_;
  ++(*tree_)[entry].uses;
}

// With the keywords of a dict.
void Calls::call_cache_by_name(PyObject* callable, c10::ArrayRef<PyObject*> args, PyObject* kwargs) {
  std::vector<PyObject*> all(args.begin(), args.end());
  py::tuple names(static_cast<size_t>(PyDict_GET_SIZE(kwargs)));
  PyObject *key, *value;
  Py_ssize_t position = 0;
  for (size_t i = 0; PyDict_Next(kwargs, &position, &key, &value); ++i) {
    names[i] = py::handle(key);
    all.push_back(value);
  }
  PyObject* outer = std::exchange(keyword_names_, names.ptr());
  call_cache(callable, all.data(), static_cast<Py_ssize_t>(all.size()));
  keyword_names_ = outer;
}

void Calls::call_partial(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  int node = provenance_->owner(callable);
  PyTypeObject* type = Py_TYPE(callable);
  bool shows = true;
  auto part = [&](const char* name) {
    // What it calls, even where its class shows something else under that name.
    PyObject* member = _PyType_Lookup(c_base(type), py::str(name).ptr());
    auto value = py::reinterpret_steal<py::object>(
        Py_TYPE(member)->tp_descr_get(member, callable, reinterpret_cast<PyObject*>(type)));
    if (!value) PyErr_Clear();
    shows &= takes_from_base(type, name);
    if (value && shows && node >= 0)
      provenance_->read_child(node, Access::Attribute, py::str(name).ptr(), -1, value.ptr());
    return value;
  };
  py::object function = part("func"), fixed = part("args"), named = part("keywords");
  if (!function || !fixed || !named) return;
  if (!shows && node >= 0)
    return recorder_->fail("calls a " + type_name(callable) + ", which lazytrace cannot see into");
  consumption_->consume(fixed.ptr(), Consumer::Reads);
  consumption_->consume(named.ptr(), Consumer::Reads);
  std::vector<PyObject*> all;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(fixed.ptr()); ++i)
    all.push_back(PyTuple_GET_ITEM(fixed.ptr(), i));
  all.insert(all.end(), args, args + count);
  if (is_lru_cache(function.ptr()) && (keyword_names_ || PyDict_GET_SIZE(named.ptr())))
    return recorder_->fail("calls a function with a functools cache, which has no entry for the call");
  PyObject* both = keyword_names_ || keywords_ ? Py_None : named.ptr();
  PyObject* outer = std::exchange(keywords_, PyDict_GET_SIZE(named.ptr()) ? both : keywords_);
  call(function.ptr(), all.data(), static_cast<Py_ssize_t>(all.size()));
  keywords_ = outer;
}

void Calls::call_operator_object(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  std::string kind = Py_TYPE(callable)->tp_name;
  if (int node = provenance_->owner(callable); node >= 0) provenance_->read_self(node, callable);
  py::object parts = py::reinterpret_steal<py::object>(PyObject_CallMethod(callable, "__reduce__", nullptr));
  if (!parts || count != 1 || kind == "operator.methodcaller") {
    PyErr_Clear();
    return recorder_->fail("calls an " + kind);
  }
  PyObject* names = PyTuple_GET_ITEM(parts.ptr(), 1);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
    PyObject* name = PyTuple_GET_ITEM(names, i);
    if (kind == "operator.itemgetter")
      protocols_->read_item(args[0], name);
    else if (text_of(name).find('.') != std::string::npos)
      return recorder_->fail("calls an operator.attrgetter with a dotted name");
    else
      read_attribute(args[0], name);
  }
}

void Calls::call_instance(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  PyTypeObject* type = Py_TYPE(callable);
  static PyObject *key = PyUnicode_InternFromString("__call__"),
                  *wrapped = PyUnicode_InternFromString("__wrapped__");
  PyObject* target = _PyType_Lookup(type, key);
  bool heap = PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE);
  if (target && heap && PyFunction_Check(target)) {
    classes_->read_class(type, key, target);
    // Its frame is not watched, so which object it is counts as read.
    bool trusted = is_trusted_callable(callable);
    if (int node = provenance_->owner(callable); trusted && node >= 0 && !is_torch_module(callable))
      return provenance_->read_trusted(node, callable);
    // A traced function that is called by another one: its own wrapper is not watched, what it wraps is.
    PyObject* slot = _PyType_Lookup(type, wrapped);
    if (slot && !PyFunction_Check(slot) && Py_TYPE(slot)->tp_descr_get) {
      int node = provenance_->owner(callable);
      py::object inner = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(callable, wrapped));
      if (inner && node >= 0) provenance_->read_child(node, Access::Attribute, wrapped, -1, inner.ptr());
      PyErr_Clear();
    }
    return;
  }
  if (target && heap && !Py_TYPE(target)->tp_descr_set && !Py_IS_TYPE(target, &PyWrapperDescr_Type) &&
      PyCallable_Check(target)) {
    classes_->read_class(type, key, target);  // __call__ = another_callable
    // Which may be of the same class: Python raises a RecursionError by then.
    constexpr int kDeepest = 64;
    if (nested_ == kDeepest)
      return recorder_->fail("calls a " + type_name(callable) + ", which lazytrace cannot see into");
    struct Nested {
      int& count;
      explicit Nested(int* c) : count(*c) { ++count; }
      ~Nested() { --count; }
    } nested(&nested_);
    if (!Py_IS_TYPE(target, &PyMethodDescr_Type) && !is_lru_cache(target)) return call(target, args, count);
    auto all = with_self(callable, args, count);  // dict.get, say, which is bound to the object
    return call(target, all.data(), static_cast<Py_ssize_t>(all.size()));
  }
  if (method_does(type, "__call__") == Does::Reads) return call_holder(callable, args, count);
  if (!computes(object_does(callable), args, count))
    return recorder_->fail("calls a " + type_name(callable) + ", which lazytrace cannot see into");
  if (int node = provenance_->owner(callable); node >= 0) provenance_->read_self(node, callable);
}

// An object of C that computes with its arguments and what its members hold.
void Calls::call_holder(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  int node = provenance_->owner(callable);
  for (PyMemberDef* member = Py_TYPE(callable)->tp_members; member && member->name; ++member) {
    py::object held = py::reinterpret_steal<py::object>(PyObject_GetAttrString(callable, member->name));
    if (!held) throw py::error_already_set();
    if (node >= 0)
      provenance_->read_child(node, Access::Attribute, py::str(member->name).ptr(), -1, held.ptr());
    if (PyCallable_Check(held.ptr())) judge_callback(held.ptr());
  }
  consumption_->hand_over(args, count, Consumer::Reads);
}

namespace {
// Of such numbers numpy makes a mean without a warning.
bool are_ordinary(PyObject* const* all, Py_ssize_t count) {
  constexpr double kLargest = 1e15;
  return count && std::all_of(all, all + count, [](PyObject* item) {
           if (is_carrier(item)) return true;
           if (PyFloat_CheckExact(item)) return std::fabs(PyFloat_AS_DOUBLE(item)) < kLargest;
           int overflow = 0;
           long long whole = PyLong_CheckExact(item) ? PyLong_AsLongLongAndOverflow(item, &overflow) : 0;
           return PyLong_CheckExact(item) && !overflow && std::fabs(static_cast<double>(whole)) < kLargest;
         });
}
bool are_ordinary(PyObject* items) {
  if (!PyList_CheckExact(items) && !PyTuple_CheckExact(items) && !THPSize_Check(items)) return false;
  return are_ordinary(PySequence_Fast_ITEMS(items), PySequence_Fast_GET_SIZE(items));
}
// Whether none of these numbers is a float; of carriers that is asked by what is called instead.
bool are_whole(PyObject* items) {
  PyObject** all = PySequence_Fast_ITEMS(items);
  return std::none_of(all, all + PySequence_Fast_GET_SIZE(items),
                      [](PyObject* item) { return PyFloat_CheckExact(item); });
}

bool has_ordinary_power(PyObject* const* args, Py_ssize_t count) {
  constexpr double kLargest = 280;  // digits
  if (count != 2 || !are_ordinary(args, count)) return false;
  if (is_carrier(args[0]) || is_carrier(args[1])) return true;
  double base = PyFloat_AsDouble(args[0]), exponent = PyFloat_AsDouble(args[1]);
  // Of ints it makes an int.
  return PyFloat_CheckExact(args[0]) && base > 0 && std::fabs(exponent * std::log10(base)) < kLargest;
}
}  // namespace

// Whether it is a function of numbers, of which numpy cannot warn: the same number gives the same one
// again.
bool Calls::computes(Does does, PyObject* const* args, Py_ssize_t count) {
  if ((does == Does::OfNumbers || does == Does::OfWholes) && count == 1 && !keyword_names_ && !keywords_) {
    consumption_->hand_over(args, count, Consumer::Reads);
    return are_ordinary(args[0]) && (does == Does::OfNumbers || are_whole(args[0]));
  }
  if ((does == Does::OfSeveral || does == Does::OfPower) && !keyword_names_ && !keywords_) {
    consumption_->hand_over(args, count, Consumer::Reads);
    return does == Does::OfPower ? has_ordinary_power(args, count) : are_ordinary(args, count);
  }
  bool of_number = does == Does::OfNumber || does == Does::OfPositive || does == Does::OfExponent;
  if ((!of_number && does != Does::OfAnyNumber) || count != 1) return false;
  consumption_->hand_over(args, count, Consumer::Reads);
  if (is_carrier(args[0])) return true;  // what is called instead asks for ordinary numbers
  bool number = PyLong_CheckExact(args[0]) || PyFloat_CheckExact(args[0]) ||
                (is_immutable(args[0]) && PyFloat_Check(args[0]));
  double value = number ? PyFloat_AsDouble(args[0]) : 0;
  if (PyErr_Occurred()) PyErr_Clear(), number = false;
  if (does == Does::OfAnyNumber) return number;
  constexpr double kSmallest = 1e-300, kLargest = 1e15, kPower = 700;
  if (!number || !(std::fabs(value) < kLargest)) return false;
  if (does == Does::OfPositive) return value > kSmallest;
  return does == Does::OfExponent ? std::fabs(value) < kPower : value == 0 || std::fabs(value) > kSmallest;
}

namespace {
// Its C base is given nothing but what that code hands on.
bool is_made_by_python(PyTypeObject* type) {
  static PyObject* const name = PyUnicode_InternFromString("__new__");
  PyObject* found = _PyType_Lookup(type, name);
  if (found && Py_IS_TYPE(found, &PyStaticMethod_Type)) {
    py::object function = py::handle(found).attr("__func__");
    return PyFunction_Check(function.ptr());
  }
  return found && PyFunction_Check(found);
}
}  // namespace

void Calls::call_type(PyTypeObject* type, PyObject* const* args, Py_ssize_t count) {
  PyTypeObject* meta = Py_TYPE(reinterpret_cast<PyObject*>(type));
  // What a replay has made for a function that runs again is there for longer than the function has it.
  bool to_tensor = judges_callback_ || (count && is_tensor(args[0]) && provenance_->known(args[0]) < 0);
  if (to_tensor && PyType_IsSubtype(type, &_PyWeakref_RefType))
    recorder_->end_resuming("it makes a weak reference to a tensor");
  if (is_python_class(type)) {
    provenance_->owner(reinterpret_cast<PyObject*>(type));
    // A Python class shows its __new__ and __init__. What its C base takes of the arguments counts as read.
    classes_->read_hook(type, "__new__");
    classes_->read_hook(type, "__init__");
    read_abstractness(type);
    if (PyType_HasFeature(meta, Py_TPFLAGS_HEAPTYPE))
      classes_->read_special(reinterpret_cast<PyObject*>(type), "__call__");
    PyTypeObject* base = c_base(type);
    if (base == &PyBaseObject_Type) return;
    // A metaclass makes a class; an exception keeps its arguments.
    if (type_does(base) == Does::Unknown && base != &PyType_Type && !starts_with(base->tp_name, "torch."))
      return recorder_->fail("makes a " + class_text(type) + ", which lazytrace cannot see into");
    if (base == &PyType_Type && count > 2) read_bases_in(args[1]);
    if (PyType_IsSubtype(base, &PyDict_Type)) look_up_entries(args, count);
    if (base == &PyTuple_Type && is_made_by_python(type)) return keep_items(args, count);
    return consumption_->hand_over(args, count, Consumer::Compares);
  }
  // One of an object that is not held elsewhere calls back in the middle of the call.
  if (type == &_PyWeakref_RefType && count > 1 && args[1] != Py_None && provenance_->known(args[0]) < 0)
    return recorder_->fail(say(reason::Makes, "weak reference with a callback"));
  if (type == &PyLong_Type && count && is_long_text(args[0])) return recorder_->fail(say(reason::ManyDigits));
  Does does = type_does(type);
  if (judges_callback_ || does == Does::Computes) expect_of(does);
  expect_texts(type->tp_name, args, count);
  if (judges_callback_) consumption_->refuse_type(reinterpret_cast<PyObject*>(type));
  if (does == Does::AsksType) return call_type_itself(args, count);
  if (does == Does::AsksTruth) return count ? protocols_->read_length(args[0]) : void();
  if (type == &PyUnicode_Type || type == &PyBytes_Type) read_codec(args + 1, count - 1);
  if (does == Does::Unknown || (does == Does::OfNumber && !computes(does, args, count)))
    return recorder_->fail("makes a " + std::string(type->tp_name) + ", which lazytrace cannot see into");
  // What these hand on is seen when Python uses it, as in a loop over the argument itself.
  if (does == Does::Iterates) {
    for (Py_ssize_t i = 0; i < count; ++i) {
      bool plain = PyList_CheckExact(args[i]) || PyTuple_CheckExact(args[i]) || PyDict_CheckExact(args[i]) ||
                   PyAnySet_CheckExact(args[i]) || is_dict_view(args[i]);
      plain ? protocols_->read_iteration(args[i]) : consumption_->consume(args[i], Consumer::Reads);
    }
    return;
  }
  if (type == &PyMap_Type) return consumption_->hand_on(args, count);
  bool copies = type == &PyStaticMethod_Type || type == &PyClassMethod_Type || type == &PyProperty_Type;
  for (Py_ssize_t i = 0; copies && i < count; ++i) attributes_->read_copied_attributes(args[i]);
  if (PyType_IsSubtype(type, &PyDict_Type)) look_up_entries(args, count);
  Py_ssize_t named = keyword_names_ && !keywords_ ? PyTuple_GET_SIZE(keyword_names_) : 0;
  if (type == &PyDict_Type && 0 < named && named <= count) {
    consumption_->hand_over(args, count - named, Consumer::Compares);
    return keep_items(args + count - named, named);
  }
  if (does != Does::Nothing) consumption_->hand_over(args, count, consumer_of(does));
}

// Of a named tuple, and of a dict: nothing looks at an array on the way into it, alone or in a list.
void Calls::keep_items(PyObject* const* args, Py_ssize_t count) {
  std::vector<PyObject*> others;
  std::copy_if(args, args + count, std::back_inserter(others),
               [](PyObject* one) { return !is_plain_array(one); });
  consumption_->keep_entries(others.data(), static_cast<Py_ssize_t>(others.size()), Consumer::Compares);
}

// Of `dict.update`: one that goes through another dict, or through pairs, which may be arrays.
void Calls::keep_update(PyObject* const* args, Py_ssize_t count) {
  Py_ssize_t named = keyword_names_ && !keywords_ ? PyTuple_GET_SIZE(keyword_names_) : 0;
  Py_ssize_t positional = count - named;
  if (positional == 1 && PyDict_CheckExact(args[0]))
    consumption_->keep_entries(args, 1, Consumer::Compares);
  else
    consumption_->hand_over(args, positional, Consumer::Compares);
  keep_items(args + positional, named);
}

void Calls::look_up_entries(PyObject* const* args, Py_ssize_t count) {
  std::for_each(args, args + count, [this](PyObject* of) { consumption_->look_up_entries(of); });
}

// A class of which nobody may make an instance can come to be another one, and the other way round.
void Calls::read_abstractness(PyTypeObject* type) {
  static PyObject* const name = PyUnicode_InternFromString("__abstractmethods__");
  if (is_python_class(type)) classes_->read_class(type, name, _PyType_Lookup(type, name));
}

// Of a class that is made: of what stands in its body.
void Calls::read_abstractness_within(PyObject* type) {
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(reinterpret_cast<PyTypeObject*>(type)->tp_dict, &at, &key, &value);)
    attributes_->read_abstractness(value);
}

void Calls::call_type_itself(PyObject* const* args, Py_ssize_t count) {
  if (count != 1) {
    if (count == 3) read_bases_in(args[1]);
    return consumption_->hand_over(args, count, Consumer::Reads);
  }
  auto* of = reinterpret_cast<PyObject*>(Py_TYPE(args[0]));
  int node = provenance_->known(args[0]);
  if (node >= 0 && !is_tensor(args[0])) return provenance_->read_child(node, Access::Type, nullptr, -1, of);
  provenance_->class_node(Py_TYPE(args[0]));  // of a new object or a value: guarded with it
}

namespace {
// Whether Tensor._make_subclass() is called as by the class of parameters.
bool makes_parameter(PyObject* const* args, Py_ssize_t count) {
  static PyObject* const parameter = from_module("torch.nn", "Parameter").release().ptr();
  return count == 3 && args[0] == parameter && PyBool_Check(args[2]) &&
         (THPVariable_CheckExact(args[1]) || reinterpret_cast<PyObject*>(Py_TYPE(args[1])) == parameter);
}
}  // namespace

void Calls::call_builtin(PyObject* function, PyObject* const* args, Py_ssize_t count) {
  auto* f = reinterpret_cast<PyCFunctionObject*>(function);
  std::string name = f->m_ml->ml_name;
  PyObject* self = f->m_self;
  provenance_->owner(function);
  if (!is_free(f)) {
    read_bound_self(function, self);
    if (is_tensor(self)) {
      auto all = with_self(self, args, count);
      return call_tensor_method(name, all.data(), static_cast<Py_ssize_t>(all.size()));
    }
    return call_method(c_base(Py_TYPE(self)), name, self, args, count);
  }
  Does does = function_does(f);
  if (does == Does::Unknown && self && PyType_Check(self)) {
    auto* of = reinterpret_cast<PyTypeObject*>(self);
    PyObject* of_type = PyDict_GetItemString(PyType_Type.tp_dict, name.c_str());
    if (of_type && Py_IS_TYPE(of_type, &PyMethodDescr_Type) &&
        reinterpret_cast<PyMethodDescrObject*>(of_type)->d_method == f->m_ml)
      return call_object_method(name, self, args, count);
    // An alias of its own, as any detach() gives, which is a leaf.
    if (name == "_make_subclass" && makes_parameter(args, count)) return call_torch("detach", args + 1, 1);
    if (starts_with(c_base(of)->tp_name, "torch.") && name != "__new__")
      return recorder_->fail("calls torch.Tensor." + name + "()");
    return call_method(c_base(of), name, self, args, count);
  }
  if (does == Does::Unknown && escapes_from_torch(name))
    return recorder_->fail("calls torch." + name + "(), whose memory lazytrace does not know");
  if (does == Does::Unknown)
    return recorder_->fail("calls " + name_of(f) + "(), which lazytrace cannot see into");
  if (self && PyType_Check(self) && does == Does::Reads &&
      starts_with(c_name(reinterpret_cast<PyTypeObject*>(self)), "torch."))
    return call_torch(name.c_str(), args, count);
  perform(does, name, args, count);
}

// The object that a builtin method is bound to.
void Calls::read_bound_self(PyObject* function, PyObject* self) {
  static PyObject* name = PyUnicode_InternFromString("__self__");
  int node = provenance_->known(function);
  if (node >= 0 && provenance_->by_path(node))
    provenance_->read_child(node, Access::Attribute, name, -1, self);
}

namespace {
// Whether what is read meanwhile is asked for being there alone.
class AskingPresence {
 public:
  AskingPresence(Provenance* provenance, bool asks)
      : provenance_(provenance), before_(provenance->ask_presence(asks)) {}
  ~AskingPresence() { provenance_->ask_presence(before_); }
  AskingPresence(const AskingPresence&) = delete;
  AskingPresence& operator=(const AskingPresence&) = delete;

 private:
  Provenance* provenance_;
  bool before_;
};
}  // namespace

// ---------------------------------------------------------------- by what the table says
void Calls::perform(Does does, const std::string& name, PyObject* const* args, Py_ssize_t count) {
  PyObject *first = count > 0 ? args[0] : nullptr, *second = count > 1 ? args[1] : nullptr;
  if (judges_callback_) expect_of(does);
  switch (does) {
    case Does::Nothing:
      return;
    case Does::GetsAttribute:
      if (second) {
        AskingPresence asking(provenance_, name == "hasattr");
        read_attribute(first, second);
      }
      if (count > 2) consumption_->hand_over(args + 2, count - 2, Consumer::Reads);
      return;
    case Does::GetsDescribed:
      return get_described(first, second);
    case Does::SetsAttribute:
      return count == 3 ? writes_->write_attribute(first, second, args[2]) : void();
    case Does::DeletesAttribute:
      return count == 2 ? writes_->write_attribute(first, second, nullptr) : void();
    case Does::GetsNamespace:
      return count == 1 ? read_attribute(first, py::str("__dict__").ptr()) : recorder_->fail("calls vars()");
    case Does::GetsLocals:
      return get_locals();
    case Does::Advances:
      if (first) containers_->advance(first);
      return;
    case Does::Iterates:
      return count == 1 ? protocols_->read_iteration(first) : recorder_->fail("calls iter()");
    case Does::AsksLength:
      return first ? protocols_->read_length(first) : void();
    case Does::AsksTruth:
      return first ? protocols_->read_length(first) : void();
    case Does::AsksCall:
      return first ? classes_->read_special(first, "__call__") : void();
    case Does::AsksInstance:
    case Does::AsksSubclass:
      return count == 2 ? protocols_->read_classes(first, second, does == Does::AsksSubclass) : void();
    case Does::Hashes:
      return first ? protocols_->hash_object(first) : void();
    case Does::Identifies:
      return first ? protocols_->identify(first, calling_ && is_copying(calling_.globals()), calling_)
                   : void();
    case Does::Prints:
      return asides_->ignore_print(calling_) ? void() : recorder_->fail("calls print()");
    case Does::Warns:
      return warnings_->warn(calling_, args, count, keyword_names_, keywords_ != nullptr);
    case Does::GivesFrame:
      return get_frame(count ? first : nullptr);
    case Does::AsksRecursionLimit:
      return provenance_->read_child(-1, Access::RecursionLimit, nullptr, -1,
                                     py::int_(Py_GetRecursionLimit()).ptr());
    case Does::ClearsCasts:
      // Outside of all regions a replay does so by itself.
      if (is_in_autocast_region()) recorder_->fail("calls " + name + "(), which lazytrace cannot see into");
      return recorder_->regions().clear();
    case Does::LeavesAutocast:
      return recorder_->regions().leave_level();
    case Does::SetsFrameEvaluator:
      return context_variables_->set_frame_evaluator(first);
    case Does::AsksSwitch:
      return context_variables_->ask_switch(name, args, count);
    case Does::SetsSwitch:
      return context_variables_->set_switch(name, args, count);
    case Does::AsksHandled:
      return provenance_->read_handled_now();
    case Does::AsksFolder:
      // A new file need not be noticed before importlib.invalidate_caches(), which changes the list that is
      // read next.
      if (calling_ && calling_.previous() && (code_flags(calling_.previous().code()) & kFinds)) return;
      return recorder_->fail("calls " + name + "(), which lazytrace cannot see into");
    case Does::Pickles:
      if (count != 1 || !is_flat(first))
        return recorder_->fail("calls " + name + "(), which lazytrace cannot see into");
      return consumption_->hand_over(args, count, Consumer::Reads);
    case Does::AsksAbc:
      if (name == "_abc_init" && first && PyType_Check(first)) read_abstractness_within(first);
      return ask_abstract_classes(args, count);
    case Does::Imports:
      return import_module(args, count);
    default:
      return perform_on_objects(does, name, args, count);
  }
}

namespace {
// What it asks eval() for shows itself: a function of texts that it has seen to be names, in a dict of its
// own.
PyObject* code_of_named_tuples() {
  static PyObject* const code =
      py::object(from_module("collections", "namedtuple").attr("__code__")).release().ptr();
  return code;
}
}  // namespace

void Calls::perform_on_objects(Does does, const std::string& name, PyObject* const* args, Py_ssize_t count) {
  PyObject *first = count > 0 ? args[0] : nullptr, *second = count > 1 ? args[1] : nullptr;
  switch (does) {
    case Does::Changes:
      if (!first) return;
      consumption_->hand_over(args + 1, count - 1, Consumer::Compares);
      if (is_tensor(first)) return consumption_->hand_over(args, 1, Consumer::Reads);
      consumption_->hand_over(args, 1, Consumer::Compares);
      if (is_immutable(first)) return protocols_->read_arithmetic(args, count);
      return writes_->write(first, [&] { return "calls " + name + "() on a " + type_name(first); });
    case Does::Calls:
      return first ? call(first, args + 1, count - 1) : void();
    case Does::GetsItem:
      if (!second) return;
      protocols_->read_item(first, second);
      return consumption_->hand_over(args + 2, count - 2, Consumer::Reads);
    case Does::AsksContains:
      return second ? protocols_->read_contains(first, second) : void();
    case Does::ComparesIdentity:
      return second ? protocols_->read_identity(first, second) : void();
    case Does::Formats:
      return read_format(args, count);
    case Does::Codes:
      read_codec(args + 1, count - 1);
      return consumption_->hand_over(args, count, Consumer::Reads);
    case Does::Computes:
      protocols_->read_arithmetic(args, count);
      // `%` of a text.
      return consumption_->hand_over(args, count,
                                     first && PyUnicode_Check(first) ? Consumer::Text : Consumer::Compares);
    case Does::MakesClass:
      new_objects_->expect_class(calling_, true);
      read_bases_of_class(args + 2, count - 2);
      return consumption_->hand_over(args, count, Consumer::Reads);
    case Does::MakesNamedTuple:
      if (calling_ && calling_.code() == code_of_named_tuples() && second)
        return provenance_->note_made(second);
      return recorder_->fail("calls " + name + "(), which lazytrace cannot see into");
    case Does::Copies:
      if (!first) return;
      // What is done with a view is seen as if it were done with the dict.
      kViews.count(name) ? containers_->read_in_order(first) : containers_->read_whole(first);
      return containers_->read_order(first);
    default:
      expect_texts(name.c_str(), args, count);
      return consumption_->hand_over(args, count, consumer_of(does));
  }
}

// `Tensor.device.__get__(x)`: how a mode of torch's functions is told of `x.device`.
void Calls::get_described(PyObject* descriptor, PyObject* object) {
  PyObject* name = reinterpret_cast<PyDescrObject*>(descriptor)->d_name;
  if (!object || object == Py_None || _PyType_Lookup(Py_TYPE(object), name) != descriptor)
    return recorder_->fail("calls .__get__() of a " + type_name(descriptor));
  is_tensor(object) ? attributes_->read_tensor_attribute(object, name)
                    : void(attributes_->read_plainly(object, name));
}

// Codecs, and what is done about errors, are registered by name; these are answered by C code that asks
// nobody.
void Calls::read_codec(PyObject* const* names, Py_ssize_t count) {
  static const Names kKnown = {"utf-8",         "utf8",
                               "utf_8",         "ascii",
                               "us-ascii",      "latin-1",
                               "latin1",        "latin_1",
                               "strict",        "ignore",
                               "replace",       "surrogateescape",
                               "iso-8859-1",    "backslashreplace",
                               "surrogatepass", "xmlcharrefreplace"};
  auto is_known = [](PyObject* name) {
    std::string text = text_of(name);
    for (char& letter : text) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    return !PyUnicode_Check(name) || kKnown.count(text);
  };
  bool known = std::all_of(names, names + std::max<Py_ssize_t>(count, 0), is_known);
  PyObject *key, *value;
  for (Py_ssize_t at = 0; keywords_ && PyDict_Check(keywords_) && PyDict_Next(keywords_, &at, &key, &value);)
    known &= is_known(value);
  if (!known) recorder_->fail(say(reason::OddCodec));
}

// `__import__(name)`. A level above 0 leaves out the first names of what is imported.
void Calls::import_module(PyObject* const* args, Py_ssize_t count) {
  Py_ssize_t named = keyword_names_ ? PyTuple_GET_SIZE(keyword_names_) : 0, positional = count - named;
  bool whole = positional >= 1 && positional < 5 && PyUnicode_CheckExact(args[0]) && !keywords_;
  for (Py_ssize_t i = 0; i < named; ++i) whole &= text_of(PyTuple_GET_ITEM(keyword_names_, i)) != "level";
  if (!whole) return recorder_->fail(say(reason::OddPackage));
  provenance_->read_imported(text_of(args[0]));
  consumption_->hand_over(args, count, Consumer::Reads);
}

// What making a class asks of those that it is derived from, and of its metaclass.
void Calls::read_bases_of_class(PyObject* const* args, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!PyType_Check(args[i])) {
      classes_->read_special(args[i], "__mro_entries__");
      continue;
    }
    auto* base = reinterpret_cast<PyTypeObject*>(args[i]);
    if (count > 1) containers_->read_bases(args[i]);  // which of them has a name first
    if (is_python_class(base)) classes_->read_hook(base, "__init_subclass__");
    if (is_python_class(base) && PyType_IsSubtype(base, &PyType_Type))  // metaclass=
      for (const char* name : {"__prepare__", "__new__", "__init__"}) classes_->read_hook(base, name);
    if (is_python_class(Py_TYPE(args[i]))) classes_->read_hook(Py_TYPE(args[i]), "__prepare__");
  }
}

// The same for those in the tuple that a metaclass is given.
void Calls::read_bases_in(PyObject* bases) {
  if (PyTuple_Check(bases)) read_bases_of_class(&PyTuple_GET_ITEM(bases, 0), PyTuple_GET_SIZE(bases));
}

void Calls::ask_abstract_classes(PyObject* const* args, Py_ssize_t count) {
  static PyObject* const ask = from_module("abc", "get_cache_token").release().ptr();
  py::object token = py::handle(ask)();
  provenance_->read_child(-1, Access::AbcToken, nullptr, -1, token.ptr());
  for (Py_ssize_t i = 0; i < count; ++i) {
    containers_->read_bases(args[i]);
    if (PyType_Check(args[i]))  // of one that is made, it follows from these what is abstract
      each_base(reinterpret_cast<PyTypeObject*>(args[i]),
                [&](PyTypeObject* base) { read_abstractness(base); });
  }
}

// A class that Python code has made becomes one when somebody registers it as one.
void Calls::ask_whether_collection(PyObject* object) {
  if (is_python_class(Py_TYPE(object))) ask_abstract_classes(nullptr, 0);
  protocols_->read_length(object);
}

// Those of a function follow from the call, but for what it shares with others. A signature leaves out the
// parameters that code does not read, and it knows of a call of locals() by its name alone.
void Calls::get_locals() {
  static PyObject* const name = PyUnicode_InternFromString("locals");
  PyCodeObject* code = calling_ ? calling_.code_object() : nullptr;
  bool own = code && (code->co_flags & CO_OPTIMIZED) && !code->co_nfreevars && !code->co_ncellvars;
  if (!own) return recorder_->fail("calls locals() where it shares variables");
  if (PySequence_Contains(code->co_names, name) != 1) recorder_->fail("calls locals() by another name");
}

// What a frame says of itself follows from the call, if it belongs to it.
void Calls::get_frame(PyObject* depth) {
  int overflow = 0;
  long up = depth && PyLong_CheckExact(depth) ? PyLong_AsLongAndOverflow(depth, &overflow) : 0;
  if (overflow || !frame_above(calling_, up))
    recorder_->fail("calls sys._getframe() for a frame around the call");
}

// ---------------------------------------------------------------- methods
void Calls::call_torch(const char* name, PyObject* const* args, Py_ssize_t count) {
  consumption_->hand_over(args, count, Consumer::Reads);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* v = args[i];
    if (!v || is_tensor(v) || is_immutable(v)) continue;
    if (PyList_Check(v) || PyTuple_Check(v) || PyDict_Check(v) || PyFunction_Check(v) || PyType_Check(v) ||
        PyAnySet_Check(v) || PySlice_Check(v) || is_deque(v))
      continue;
    // `self` of a static function is its class or module.
    if (PyModule_Check(v) || starts_with(c_name(Py_TYPE(v)), "torch.")) continue;
    return recorder_->fail("hands a " + type_name(v) + " to torch." + std::string(name));
  }
}

namespace {
// Whether `x.new(...)` is the operator sparse_coo_tensor, or empty; else it may take any memory, or look at a
// sequence.
bool makes_new(PyObject* const* args, Py_ssize_t count) {
  const at::Tensor& like = THPVariable_Unpack(args[0]);
  if (like.is_sparse()) return count >= 3 && is_tensor(args[1]) && is_tensor(args[2]);
  if (like.layout() != at::kStrided) return false;
  auto is_size = [](PyObject* arg) {
    return PyLong_CheckExact(arg) || (is_carrier(arg) && !is_real_carrier(arg));
  };
  return (count == 2 && THPSize_Check(args[1])) || std::all_of(args + 1, args + count, is_size);
}

// Whether `x.as_subclass(torch.Tensor)` of a tensor or a parameter is asked for.
bool is_plain_alias(const std::string& name, PyObject* const* args, Py_ssize_t count) {
  return name == "as_subclass" && count == 2 && args[1] == THPVariableClass &&
         THPVariable_CheckTypeExact(Py_TYPE(args[0]));
}
}  // namespace

void Calls::call_tensor_method(const std::string& name, PyObject* const* args, Py_ssize_t count) {
  if (name == "__setattr__" || name == "__delattr__") return recorder_->fail("sets an attribute of a tensor");
  if ((name == "__getattribute__" || name == "__getattr__") && count == 2)
    return attributes_->read_tensor_attribute(args[0], args[1]);
  if (name == "requires_grad_" && count != 1 && args[1] != Py_True)
    recorder_->saw_gradients(THPVariable_Unpack(args[0]));
  if (name == "requires_grad_" && (count == 1 || args[1] == Py_True || args[1] == Py_False) &&
      writes_->write_requires_grad(args[0], count == 1 || args[1] == Py_True))
    return;
  if (is_plain_alias(name, args, count)) return call_torch("alias", args, 1);
  if (tensor_method_does(name) == Does::Unknown &&
      !(name == "new" && !keyword_names_ && !keywords_ && makes_new(args, count)))
    return recorder_->fail("calls ." + name + "() of a tensor");
  call_torch(name.c_str(), args, count);
}

namespace {
// Whether a class of C has the method from `object`, or looks attributes up as that does.
bool is_method_of_objects(PyTypeObject* type, const std::string& name) {
  // All that object has is named so.
  if (name.compare(0, 2, "__") != 0 || PyType_IsSubtype(type, &PyModule_Type)) return false;
  if (name == "__getattribute__") return type->tp_getattro == PyObject_GenericGetAttr;
  PyObject* found = PyDict_GetItemString(PyBaseObject_Type.tp_dict, name.c_str());
  py::str key(name);
  return found && found == _PyType_Lookup(type, key.ptr());
}

// Methods of classes of C that give away the attributes which Python code has set on an instance.
bool may_read_namespace(const std::string& name) { return name == "__reduce__" || name == "__getstate__"; }

// Of a deque: whether it lets go of its first entry for a new one.
bool has_limit(PyObject* deque) {
  static PyObject* const name = PyUnicode_InternFromString("maxlen");
  auto limit = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(deque, name));
  if (!limit) throw py::error_already_set();
  return !limit.is_none();
}

// Where a list or a deque does not hold what it is asked for, the error holds the text of that.
bool may_name_in_error(PyObject* self, PyObject* value) {
  if ((!PyList_Check(self) && !is_deque(self)) || is_immutable(value) || is_followed(value) ||
      is_tensor(value))
    return false;
  for (Py_ssize_t i = 0; PyList_Check(self) && i < PyList_GET_SIZE(self); ++i)
    if (PyList_GET_ITEM(self, i) == value) return false;
  return true;
}
}  // namespace

namespace {
// The function of `re` that its C code calls for what replaces a match, which it looks up in the module; null
// where it calls none.
PyObject* helper_of_re(PyTypeObject* type, const std::string& name) {
  static PyObject* const substitutes = PyUnicode_InternFromString("_subx");
  static PyObject* const expands = PyUnicode_InternFromString("_expand");
  if (std::strcmp(type->tp_name, "re.Pattern") == 0 && (name == "sub" || name == "subn")) return substitutes;
  return std::strcmp(type->tp_name, "re.Match") == 0 && name == "expand" ? expands : nullptr;
}
}  // namespace

void Calls::call_method(PyTypeObject* type, const std::string& name, PyObject* self, PyObject* const* args,
                        Py_ssize_t count) {
  if (is_tensor(self)) {
    auto all = with_self(self, args, count);
    return call_tensor_method(name, all.data(), static_cast<Py_ssize_t>(all.size()));
  }
  if (name == "__new__") {
    if (type == &PyType_Type) new_objects_->expect_class(calling_);
    if (type == &PyType_Type && count > 2) read_bases_in(args[2]);
    if (count && PyType_Check(args[0])) read_abstractness(reinterpret_cast<PyTypeObject*>(args[0]));
    if (count && PyType_Check(args[0]) && type == &PyBaseObject_Type)
      new_objects_->expect(calling_, reinterpret_cast<PyTypeObject*>(args[0]));
    // Of a named tuple.
    if (type == &PyTuple_Type) return consumption_->keep_entries(args, count, Consumer::Compares);
    return consumption_->hand_over(args, count, Consumer::Compares);
  }
  // That of an object, a set or a partial writes the name of a class that could be asked otherwise, too.
  if (name == "__repr__") consumption_->read_names(self);
  if (name == "index" && count && may_name_in_error(self, args[0]))
    consumption_->consume(args[0], Consumer::Text);
  if (type == &PyBaseObject_Type || type == &PyType_Type || type == &PySuper_Type ||
      is_method_of_objects(type, name))
    return call_object_method(name, self, args, count);
  if (may_read_namespace(name) && _PyObject_GetDictPtr(self) && !take_apart(self))
    return recorder_->fail("calls ." + name + "()");
  // torch.backends hands on what a module is asked for. One of Python's own class looks nowhere else.
  if (PyModule_CheckExact(self) && name == "__getattribute__" && count == 1 && PyUnicode_Check(args[0]))
    return attributes_->read_module_attribute(self, args[0]);
  // Of the lock of a cached_property, which nobody else takes.
  if (name == "__exit__" && std::strcmp(c_name(Py_TYPE(self)), "_thread.RLock") == 0 && calling_ &&
      is_caching(calling_.globals()))
    return;
  if (PyContextVar_CheckExact(self)) return context_variables_->call(name, self, count ? args[0] : nullptr);
  if (PyDict_Check(self) || PyList_Check(self) || PyAnySet_Check(self) || PyTuple_Check(self))
    return call_container_method(type, name, self, args, count);
  if (PyIter_Check(self) &&
      (name == "__next__" || name == "send" || name == "throw" || name == "close" || name == "__iter__")) {
    containers_->advance(self);
    return consumption_->hand_over(args, count, Consumer::Reads);
  }
  if (is_deque(self) && name == "append" && count == 1)
    return writes_->write_again(Effect::Kind::Append, self, self, nullptr, -1, args[0],
                                [&] { return "calls .append() of a " + type_name(self); });
  if (is_deque(self) && name == "extend" && count == 1 && !has_limit(self) &&
      writes_->extend(self, args[0], [&] { return "calls .extend() of a " + type_name(self); }))
    return;
  if (is_deque(self) && name == "clear" && !count &&
      writes_->clear(self, [&] { return "calls .clear() of a " + type_name(self); }))
    return;
  if (is_deque(self) && (name == "popleft" || name == "pop") && !count)
    return writes_->take_out(self, name == "pop",
                             [&] { return "calls ." + name + "() of a " + type_name(self); });
  if (is_deque(self) && containers_->follows(self) && kDequeWriters.count(name))
    return writes_->rewrite(self, [&] { return "calls ." + name + "() of a " + type_name(self); });
  Does does = method_does(type, name);
  if (does == Does::Unknown && PyExceptionInstance_Check(self))
    does = method_does(reinterpret_cast<PyTypeObject*>(PyExc_BaseException), name);
  if (does == Does::Unknown) return recorder_->fail("calls ." + name + "() of a " + type_name(self));
  if (PyObject* helper = count ? helper_of_re(type, name) : nullptr)
    attributes_->read_module_attribute(PyImport_AddModule("re"), helper);
  auto all = with_self(self, args, count);
  if (does == Does::Binds && binds_its_own(self)) return;
  if (does == Does::Binds) does = Does::Reads;
  for (Py_ssize_t i = 0; type == &PyProperty_Type && i < count; ++i)
    attributes_->read_copied_attributes(args[i]);
  perform(does, name, all.data(), static_cast<Py_ssize_t>(all.size()));
}

// Whether what comes of binding it shows as a function that the recording knows.
bool Calls::binds_its_own(PyObject* descriptor) {
  static PyObject* const wrapped = PyUnicode_InternFromString("__func__");
  provenance_->owner(descriptor);
  if (!Py_IS_TYPE(descriptor, &PyStaticMethod_Type) && !Py_IS_TYPE(descriptor, &PyClassMethod_Type))
    return true;
  py::object function = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(descriptor, wrapped));
  if (!function) throw py::error_already_set();
  if (!PyFunction_Check(function.ptr())) return false;
  attributes_->read_attribute(descriptor, wrapped);
  return true;
}

void Calls::call_object_method(const std::string& name, PyObject* self, PyObject* const* args,
                               Py_ssize_t count) {
  if (name == "__setattr__" && count == 2) return writes_->write_plainly(self, args[0], args[1]);
  if (name == "__delattr__" && count == 1) return writes_->write_plainly(self, args[0], nullptr);
  if (name == "__getattribute__" && count == 1)
    return call_fallback(attributes_->read_plainly(self, args[0]), self, args[0]);
  static const Names kAsked = {"__init__", "__call__", "__eq__", "__ne__"};
  static const Names kNothing = {"__init_subclass__", "__subclasshook__", "__prepare__", "__or__", "__ror__"};
  static const Names kText = {"__str__", "__format__"};
  if (kNothing.count(name)) return;
  if (name == "__repr__") return consumption_->write_address(self);
  // These ask for the repr(), which the class may have from a container.
  if (kText.count(name)) return consumption_->consume(self, Consumer::Text);
  if (name == "__eq__" || name == "__ne__") provenance_->compare_as_itself(self);
  if (kAsked.count(name)) return consumption_->hand_over(args, count, Consumer::Compares);
  if (name == "__instancecheck__" || name == "__subclasscheck__") {
    containers_->read_bases(self);
    if (count)
      containers_->read_bases(PyType_Check(args[0]) ? args[0]
                                                    : reinterpret_cast<PyObject*>(Py_TYPE(args[0])));
    return;
  }
  if (name == "mro" && PyType_Check(self)) return containers_->read_bases(self);
  if (name == "__reduce_ex__" && take_apart(self)) return;
  recorder_->fail("calls ." + name + "()");
}

// object.__reduce_ex__(), which copies and pickles: the class, the special methods that say what an object
// consists of, its __dict__, and what it holds as a container or a value.
bool Calls::take_apart(PyObject* object) {
  PyTypeObject *type = Py_TYPE(object), *base = c_base(type);
  static PyObject* slots = PyUnicode_InternFromString("__slotnames__");
  static PyObject* const getstate = PyUnicode_InternFromString("__getstate__");
  // A method of Python gives the state, as that of a module does, and shows itself.
  PyObject* getter = _PyType_Lookup(type, getstate);
  bool shows = getter && PyFunction_Check(getter);
  bool value = is_container(object) || is_immutable(object) || PyUnicode_Check(object) ||
               PyLong_Check(object) || PyFloat_Check(object) || PyBytes_Check(object);
  if (base != &PyBaseObject_Type && !value) return false;
  if (value) consumption_->consume(object, Consumer::Reads);
  if (is_python_class(type)) {
    PyObject* names = PyDict_GetItemWithError(type->tp_dict, slots);
    if (!shows && (!names || !PyList_CheckExact(names) || PyList_GET_SIZE(names))) return false;
    for (const char* asked :
         {"__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs_ex__", "__getnewargs__"})
      classes_->read_special(object, asked);
    int node = shows ? -1 : provenance_->class_node(type);
    if (node >= 0) provenance_->read_child(node, Access::Own, slots, -1, names);
    if (!shows) containers_->read_length(names);
  } else if (!value) {
    return false;
  }
  if (!_PyObject_GetDictPtr(object)) return value;
  // The C code asks the module, and what it finds there is called with the parts.
  static PyObject* const makers = PyImport_ImportModule("copyreg");
  static PyObject* const name_of_maker = PyUnicode_InternFromString("__newobj__");
  provenance_->weak_node(makers);
  attributes_->read_module_attribute(makers, name_of_maker);
  if (PyObject* maker = PyDict_GetItemWithError(PyModule_GetDict(makers), name_of_maker))
    provenance_->weak_node(maker);
  if (shows) return true;
  static PyObject* dict = PyUnicode_InternFromString("__dict__");
  attributes_->read_plainly(object, dict);  // no __getattribute__ of the class is asked
  // What is there is read when the copy is given it; where nothing is, that is never done.
  py::object own = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(object, nullptr));
  if (own && PyDict_GET_SIZE(own.ptr()) == 0) containers_->read_length(own.ptr());
  return true;
}

// dict.update(), as one write for each entry; false where it is not that simple.
bool Calls::update_dict(PyObject* dict, PyObject* const* args, Py_ssize_t count) {
  Py_ssize_t named = keyword_names_ ? PyTuple_GET_SIZE(keyword_names_) : 0, positional = count - named;
  bool known = !provenance_->is_fresh(dict) && positional <= 1 &&
               (!positional || PyDict_CheckExact(args[0])) && (!keywords_ || PyDict_CheckExact(keywords_));
  if (!known) return false;
  std::vector<std::pair<PyObject*, PyObject*>> entries;
  PyObject *key, *value;
  auto add = [&](PyObject* from) {
    for (Py_ssize_t at = 0; from && PyDict_Next(from, &at, &key, &value);) entries.emplace_back(key, value);
  };
  add(positional ? args[0] : nullptr);
  for (Py_ssize_t i = 0; i < named; ++i)
    entries.emplace_back(PyTuple_GET_ITEM(keyword_names_, i), args[positional + i]);
  add(keywords_);
  for (auto& entry : entries)
    if (!PyUnicode_CheckExact(entry.first) && !PyLong_CheckExact(entry.first)) return false;
  if (positional) containers_->read_whole(args[0]);
  for (auto& entry : entries) writes_->write_item(dict, entry.first, entry.second);
  return true;
}

void Calls::call_container_method(PyTypeObject* type, const std::string& name, PyObject* self,
                                  PyObject* const* args, Py_ssize_t count) {
  const Names* writers = writers_of(self);
  auto what = [&] { return "calls ." + name + "() of a " + type_name(self); };
  if (PyList_CheckExact(self) && name == "append" && count == 1)
    return writes_->write_again(Effect::Kind::Append, self, self, nullptr, -1, args[0], what);
  if (PyList_CheckExact(self) && name == "extend" && count == 1 && writes_->extend(self, args[0], what))
    return;
  bool first = count == 1 && PyLong_CheckExact(args[0]) && Py_SIZE(args[0]) == 0;  // a 0
  if (PyList_CheckExact(self) && name == "pop" && (first || !count))
    return writes_->take_out(self, !first, what);
  if (PyList_CheckExact(self) && name == "clear" && !count && writes_->clear(self, what)) return;
  if (PyDict_CheckExact(self) && name == "__setitem__" && count == 2) {
    consumption_->use_as_key(args[0]);
    return writes_->write_item(self, args[0], args[1]);
  }
  if (PyDict_CheckExact(self) && name == "update" && update_dict(self, args, count)) return;
  if (name == "pop" && (count == 1 || count == 2) && writes_->pop_name(self, args[0], what))
    return consumption_->hand_over(args + 1, count - 1, Consumer::Reads);
  if (changes_nothing(self, name, args, count)) return containers_->read_member(self, args[0]);
  if (writers && writers->count(name)) {
    if (name == "__init__" && is_default_dict(self)) return recorder_->fail(what());  // sets the factory, too
    // A list looks at nothing that it is given to keep.
    if (PyList_CheckExact(self) && name == "extend")
      consumption_->keep_entries(args, count, Consumer::Compares);
    else if (PyList_CheckExact(self) && name == "insert" && count == 2)
      consumption_->hand_over(args, 1, Consumer::Compares), keep_items(args + 1, 1);
    else if (PyDict_CheckExact(self) && name == "update")
      keep_update(args, count);
    else
      consumption_->hand_over(args, count, Consumer::Compares);
    if (PyDict_Check(self) && name == "pop" && count) consumption_->use_as_key(args[0]);
    if (PyDict_Check(self)) look_up_entries(args, count);
    expect_texts(name.c_str(), args, count);
    if (name == "sort" || name == "remove") consumption_->consume(self, Consumer::Compares);
    if (name == "pop") containers_->read_order(self);
    return writes_->rewrite(self, what, name == "clear");
  }
  if (PyDict_Check(self) && count >= 1 && name == "setdefault") {
    consumption_->use_as_key(args[0]);
    if (!containers_->can_look_up(self, args[0])) return;
    int present = is_key(args[0]) ? PyDict_Contains(self, args[0]) : -1;
    return present == 1 ? containers_->read_dict_item(self, args[0]) : writes_->rewrite(self, what);
  }
  Does does = method_does(type, name);
  if (does == Does::Unknown) return recorder_->fail(what());
  if (does == Does::GetsItem && count >= 1) {
    consumption_->use_as_key(args[0]);
    if (PyDict_Check(self) && name == "__getitem__") classes_->read_special(self, "__missing__");
    PyDict_Check(self) ? containers_->read_dict_item(self, args[0]) : protocols_->read_item(self, args[0]);
    return consumption_->hand_over(args + 1, count - 1, Consumer::Reads);
  }
  if (PyDict_Check(self) && provenance_->touched(self) && kViews.count(name))
    return containers_->read_whole(self);
  auto all = with_self(self, args, count);
  perform(does, name, all.data(), static_cast<Py_ssize_t>(all.size()));
}

}  // namespace lazytrace
