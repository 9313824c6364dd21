#include "record/python/reads/consumption.h"

#include <algorithm>
#include <cstring>

#include "cpython/callee.h"
#include "cpython/carrier.h"
#include "cpython/dict_proxy.h"
#include "cpython/dict_view.h"
#include "cpython/ends.h"
#include "cpython/numpy_arithmetic.h"
#include "cpython/objects.h"
#include "cpython/text_carrier.h"
#include "cpython/values.h"
#include "record/python/code_facts.h"
#include "signature/ambient.h"
#include "support/reasons.h"

namespace lazytrace {

namespace {

// Classes of C that hold no Python object which C code could take for a value, or whose contents never
// change.
bool is_steady(PyObject* v) {
  static const char* const kNames[] = {"re.Pattern",
                                       "code",
                                       "traceback",
                                       "types.GenericAlias",
                                       "types.UnionType",
                                       "frame",
                                       "weakref.ReferenceType",
                                       "weakref",
                                       "NotImplementedType",
                                       "torch._C.Generator",
                                       "torch._C.ScriptFunction",
                                       "torch._C.ScriptMethod",
                                       "torch._C.DisableTorchFunction",
                                       "torch._C.DisableTorchFunctionSubclass",
                                       "torch.qscheme",
                                       "torch.finfo",
                                       "torch.iinfo"};
  PyTypeObject* base = c_base(Py_TYPE(v));
  for (const char* name : kNames)
    if (std::strcmp(base->tp_name, name) == 0) return true;
  return false;
}

// Callables of C, which are judged as what they are called for.
bool is_c_callable(PyObject* v) {
  return PyCFunction_Check(v) || Py_IS_TYPE(v, &PyMethodDescr_Type) || Py_IS_TYPE(v, &PyWrapperDescr_Type) ||
         Py_IS_TYPE(v, &PyClassMethodDescr_Type) || Py_IS_TYPE(v, &_PyMethodWrapper_Type) ||
         std::strcmp(c_name(Py_TYPE(v)), "functools.partial") == 0 ||
         std::strncmp(c_name(Py_TYPE(v)), "operator.", 9) == 0;
}

// Python has a limit for the texts of ints, which can be set to this many digits and more.
constexpr Py_ssize_t kDigits = 640;

// A text that holds the digits of one, with underscores between them or not.
bool has_many_in_a_row(PyObject* text) {
  Py_ssize_t digits = 0;
  auto is_over = [&](Py_UCS4 letter) {
    if (letter != '_') digits = Py_UNICODE_TODECIMAL(letter) < 0 ? 0 : digits + 1;
    return digits > kDigits;
  };
  if (PyBytes_Check(text)) {
    const char* letters = PyBytes_AS_STRING(text);
    return PyBytes_GET_SIZE(text) > kDigits &&
           std::any_of(letters, letters + PyBytes_GET_SIZE(text),
                       [&](char letter) { return is_over(static_cast<unsigned char>(letter)); });
  }
  for (Py_ssize_t i = 0; PyUnicode_GET_LENGTH(text) > kDigits && i < PyUnicode_GET_LENGTH(text); ++i)
    if (is_over(PyUnicode_READ_CHAR(text, i))) return true;
  return false;
}

bool has_many_digits(PyObject* v) {
  constexpr size_t kBits = 2126;  // of as many digits
  if (PyLong_Check(v)) return _PyLong_NumBits(v) > kBits;
  if (PyUnicode_Check(v) || PyBytes_Check(v)) return has_many_in_a_row(v);
  if (PyFrozenSet_CheckExact(v)) {
    PyObject* member;
    Py_hash_t hash;
    for (Py_ssize_t at = 0; _PySet_NextEntry(v, &at, &member, &hash);)
      if (has_many_digits(member)) return true;
  }
  if (PySlice_Check(v) || PyRange_Check(v))
    for (const char* name : {"start", "stop", "step"})
      if (has_many_digits(py::handle(v).attr(name).ptr())) return true;
  if (!PyTuple_Check(v)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(v); ++i)
    if (has_many_digits(PyTuple_GET_ITEM(v, i))) return true;
  return false;
}

}  // namespace

void Consumption::hand_over(PyObject* const* args, Py_ssize_t count, Consumer how) {
  // What a function of C that is among them does with the others.
  for (Py_ssize_t i = 0; i < count && count > 1; ++i)
    if (args[i] && is_c_callable(args[i])) judge_(args[i]);
  for (Py_ssize_t i = 0; i < count && count > 1; ++i) refuse_type(args[i]);
  for (Py_ssize_t i = 0; i < count; ++i)
    if (args[i]) consume(args[i], how);
}

void Consumption::refuse_type(PyObject* object) {
  if (object == reinterpret_cast<PyObject*>(&PyType_Type) && exchange_->follows())
    recorder_->fail(say(reason::HandsToC, "type"));
}

// The special methods of a value and of what it holds: members of enums and named tuples, whose classes can
// change.
void Consumption::read_specials_of(PyObject* value) {
  if (is_followed(value) || is_flag(value)) return;
  classes_->read_specials(Py_TYPE(value));
  if (PyTuple_Check(value)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) read_specials_of(PyTuple_GET_ITEM(value, i));
  } else if (PySlice_Check(value)) {
    auto* slice = reinterpret_cast<PySliceObject*>(value);
    for (PyObject* end : {slice->start, slice->stop, slice->step}) read_specials_of(end);
  } else if (PyFrozenSet_CheckExact(value)) {
    PyObject* member;
    Py_hash_t hash;
    for (Py_ssize_t at = 0; _PySet_NextEntry(value, &at, &member, &hash);) read_specials_of(member);
  }
}

// Values that cannot change.
void Consumption::consume_value(PyObject* object, Consumer how) {
  read_specials_of(object);
  // C code may make the text of an int, or the other way round, whatever it is asked for.
  if (has_many_digits(object)) recorder_->fail(say(reason::ManyDigits));
  // How numpy writes its scalars is set for a thread, and so is what it does about a division by zero.
  if ((reads_text(how) || expects_arithmetic_) && holds_numpy_scalar(object))
    recorder_->fail(say(reason::ComputesWithScalar, type_name(object)));
}

void Consumption::consume(PyObject* object, Consumer how, int depth) {
  if (!object || recorder_->stopped()) return;
  if (hands_on_ && is_numpy_array(object)) return;
  if (exchange_->follows() && depth == 0) exchange_->hand_over(object);
  // The name of an attribute, mostly.
  if (PyUnicode_CheckExact(object) && !reads_text(how))
    return has_many_digits(object) ? recorder_->fail(say(reason::ManyDigits)) : void();
  if (is_followed(object) || is_flag(object)) return;  // the latter C code hands on
  classes_->read_specials(Py_TYPE(object));
  if (reads_text(how)) read_names(object);
  if (is_tensor(object)) {
    if (reads_text(how) || how == Consumer::Trusted) recorder_->saw_gradients(THPVariable_Unpack(object));
    // By itself it is an operand; in a container it is equal first of all to itself.
    if (how == Consumer::Compares && depth > 0) provenance_->compare_as_itself(object);
    return;
  }
  if (is_immutable(object) || is_device_context(object)) return consume_value(object, how);
  if (depth > 50) return recorder_->fail("reads a container that is nested too deeply");
  bool compares = asks_for_members_ || how == Consumer::Compares;
  if (provenance_->touched(object) && is_container(object) && !compares)
    return containers_->read_whole(object);
  // What its attributes are is nothing to whoever asks which object it is.
  bool as_itself = how == Consumer::Compares && !reads_text(how) && is_key_by_identity(object);
  bool for_attributes =
      reads_text(how) || how == Consumer::Trusted || c_base(Py_TYPE(object)) != &PyBaseObject_Type;
  bool touched = for_attributes ? provenance_->touched(object) : provenance_->touched_beyond_names(object);
  if (touched && !as_itself)
    recorder_->fail("reads a " + type_name(object) + " that an opaque function has changed");
  static const char kHow[40] = {};
  bool for_members = asks_for_members_ && depth == 0;
  // A container that the call has made may have grown since.
  bool steady = !is_container(object) || PyTuple_Check(object) || provenance_->known(object) >= 0;
  // These must end when they are due: a generator may be closed then, a destructor may run.
  bool passes_by = provenance_->known(object) < 0 && (goes_through(object) || shows_its_end(object));
  if (steady && !passes_by && log_->empty() && provenance_->untouched() &&
      provenance_->asked(object, &kHow[(for_members ? 4 : static_cast<size_t>(how)) +
                                       (expects_text_ ? 5 : 0) + (hands_on_ ? 10 : 0) + (keeps_ ? 20 : 0)]))
    return;
  if (!passes_by) provenance_->hold(object);
  if (is_numpy_array(object)) return recorder_->fail("hands a numpy array to C code");
  if (is_container(object)) return consume_container(object, how, depth);
  if (is_c_callable(object)) {
    keeps_ ? void(provenance_->owner(object)) : judge_(object);  // which finds what it holds
    return reads_text(how) ? read_callable_as_text(object, how, depth) : void();
  }
  if (is_generator(object)) return containers_->advance(object);
  consume_object(object, how, depth);
}

namespace {
bool stands_in(PyObject* function) {
  return PyFunction_Check(function) && (code_flags(PyFunction_GET_CODE(function)) & kStandsIn);
}

bool is_watched(PyObject* callable) {
  PyObject* function = PyMethod_Check(callable) ? PyMethod_GET_FUNCTION(callable) : callable;
  return PyFunction_Check(function) && !stands_in(function);
}
}  // namespace

void Consumption::consume_object(PyObject* object, Consumer how, int depth) {
  if (PyModule_Check(object)) {
    if (reads_text(how)) recorder_->fail("writes the address of a " + type_name(object) + " as text");
    return provenance_->module_node(object), void();
  }
  provenance_->owner(object);
  if (how == Consumer::Trusted && is_trusted_callable(object)) {
    if (int node = provenance_->known(object); node >= 0 && provenance_->by_path(node))
      provenance_->read_trusted(node, object);
    return;
  }
  if (how == Consumer::Compares) provenance_->compare_as_itself(object);
  if (reads_text(how)) name_by_address(object);
  if (reads_text(how) && PyExceptionInstance_Check(object)) provenance_->read_names_in_errors();
  if (PyMethod_Check(object) && stands_in(PyMethod_GET_FUNCTION(object))) return judge_(object);
  if (PyMethod_Check(object)) {
    Consumer parts = how == Consumer::Text ? how : Consumer::Reads;
    consume(PyMethod_GET_FUNCTION(object), parts, depth + 1);
    return consume(PyMethod_GET_SELF(object), parts, depth + 1);
  }
  if (PyFunction_Check(object) && reads_text(how)) read_function_name(object);
  // Equal to one that refers to an equal object.
  if (PyWeakref_CheckRef(object)) return consume_reference(object, how, depth);
  // list[K] is written with the names of what it holds.
  if (reads_text(how) && is_alias_of_types(object))
    return recorder_->fail("writes the address of a " + type_name(object) + " as text");
  if (PyFunction_Check(object) || PyType_Check(object) || is_steady(object)) return;
  if (PyCell_Check(object)) return consume_parts(object, how, depth);
  if (c_base(Py_TYPE(object)) != &PyBaseObject_Type) return consume_c_object(object, how, depth);
  if (how == Consumer::Trusted && !is_torch_module(object)) consume_instance(object, how, depth);
}

void Consumption::consume_operand(PyObject* operand, Consumer how) {
  bool text = is_alias_of_types(operand) ? std::exchange(expects_text_, false) : expects_text_;
  consume(operand, how);
  expects_text_ = text;
}

void Consumption::consume_reference(PyObject* reference, Consumer how, int depth) {
  PyObject* object = PyWeakref_GET_OBJECT(reference);
  int node = provenance_->is_fresh(reference) ? -1 : provenance_->known(reference);
  if (node >= 0) provenance_->read_child(node, Access::Deref, nullptr, -1, object);
  consume(object, how, depth + 1);
}

// What was matched is looked up in the text that was searched, which may be bytes that can be written to.
void Consumption::consume_match(PyObject* match, Consumer how, int depth) {
  static PyObject* const name = PyUnicode_InternFromString("string");
  py::object text = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(match, name));
  if (!text) throw py::error_already_set();
  if (is_immutable(text.ptr())) return;
  if (int node = provenance_->known(match); node >= 0)
    provenance_->read_child(node, Access::Attribute, name, -1, text.ptr());
  consume(text.ptr(), how, depth + 1);
}

namespace {
// The dict that an object shows and keeps for good, or null. The namespace of a class is read as that of a
// class.
PyObject* dict_shown_by(PyObject* object) {
  if (!Py_IS_TYPE(object, &PyDictProxy_Type)) return nullptr;
  PyObject* dict = dict_behind(object);
  static PyObject* const documentation = PyUnicode_InternFromString("__doc__");
  return dict && !PyDict_Contains(dict, documentation) ? dict : nullptr;
}
}  // namespace

// They look no key up.
void Consumption::consume_values(PyObject* dict, Consumer how, int depth) {
  containers_->read_in_order(dict);
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value);) consume(value, how, depth + 1);
}

void Consumption::consume_c_object(PyObject* object, Consumer how, int depth) {
  if (is_dict_view(object)) provenance_->meet_viewed(object, dict_of_view(object));
  if (PyDictValues_Check(object) && PyDict_CheckExact(dict_of_view(object)))
    return consume_values(dict_of_view(object), how, depth);
  PyTypeObject* base = c_base(Py_TYPE(object));
  // Is compared and written with its attributes.
  if (std::strcmp(base->tp_name, "types.SimpleNamespace") == 0)
    return how == Consumer::Reads && !reads_text(how) ? void() : consume_instance(object, how, depth);
  // Text, numbers and bytes of a class of their own, whose value a guard compares.
  if (PyUnicode_Check(object) || PyLong_Check(object) || PyFloat_Check(object) || PyBytes_Check(object) ||
      PyComplex_Check(object))
    return;
  if (std::strcmp(base->tp_name, "re.Match") == 0) return consume_match(object, how, depth);
  // What such an object holds now, and how far it is, no guard sees; one that was made by this call follows
  // from what it was made of.
  int node = provenance_->known(object);
  if (is_deque(object) && containers_->read_deque(object)) return consume_entries(object, how, depth);
  if (node >= 0 && is_deque(object)) provenance_->note_varying(node);  // the next recording may follow it
  if (Py_IS_TYPE(object, &PyMap_Type)) return consume_map(object, how, depth);
  // The parameters of a signature, which torchmetrics keeps of each metric.
  if (PyObject* dict = node >= 0 ? dict_shown_by(object) : nullptr) {
    static PyObject* const name = PyUnicode_InternFromString(kProxied);
    provenance_->read_child(node, Access::Attribute, name, -1, dict);
    return consume(dict, how, depth + 1);
  }
  if (node >= 0 && provenance_->by_path(node)) return recorder_->fail("reads a " + type_name(object));
  consume_parts(object, how, depth);
}

void Consumption::consume_entries(PyObject* deque, Consumer how, int depth) {
  py::object items = py::reinterpret_steal<py::object>(PySequence_List(deque));
  if (!items) throw py::error_already_set();
  for (py::handle item : items) consume(item.ptr(), how, depth + 1);
}

namespace {
// Whether whoever goes through it gets its entries, and nothing looks at them on the way.
bool gives_as_they_are(PyObject* object) {
  return PyTuple_CheckExact(object) || PyList_CheckExact(object) || Py_IS_TYPE(object, &PyTupleIter_Type) ||
         Py_IS_TYPE(object, &PyListIter_Type) || Py_IS_TYPE(object, &PyDictIterValue_Type);
}
// Of a tuple of iterators.
bool give_as_they_are(PyObject* iterators) {
  if (!PyTuple_CheckExact(iterators)) return false;
  PyObject** first = &PyTuple_GET_ITEM(iterators, 0);
  return std::all_of(first, first + PyTuple_GET_SIZE(iterators), gives_as_they_are);
}
}  // namespace

// Python code that is handed what an iterator gives is watched.
void Consumption::consume_map(PyObject* map, Consumer how, int depth) {
  std::vector<PyObject*> parts = parts_of(map);
  // What stands for a function of C reads what that reads.
  auto is_own = [](PyObject* part) {
    return PyFunction_Check(part) && is_own_code(PyFunction_GET_CODE(part));
  };
  parts.erase(std::remove_if(parts.begin(), parts.end(), is_own), parts.end());
  bool python = std::any_of(parts.begin(), parts.end(), is_watched);
  for (PyObject* part : parts) {
    bool before = std::exchange(hands_on_, python && give_as_they_are(part));
    refuse_type(part), consume(part, how, depth + 1);
    hands_on_ = before;
  }
}

void Consumption::consume_defaults(PyObject* values) {
  bool before = std::exchange(keeps_, true);
  consume(values, Consumer::Reads);
  keeps_ = before;
}

void Consumption::hand_on(PyObject* const* args, Py_ssize_t count) {
  bool python = count && is_watched(args[0]);
  if (!python) return hand_over(args, count, Consumer::Reads);
  for (Py_ssize_t i = 1; i < count; ++i) {
    bool before = std::exchange(hands_on_, gives_as_they_are(args[i]));
    refuse_type(args[i]), consume(args[i], Consumer::Reads);
    hands_on_ = before;
  }
  consume(args[0], Consumer::Reads);
}

void Consumption::keep_entries(PyObject* const* args, Py_ssize_t count, Consumer how) {
  for (Py_ssize_t i = 0; i < count; ++i) {
    refuse_type(args[i]);
    bool plain = PyTuple_CheckExact(args[i]) || PyList_CheckExact(args[i]) || PyDict_CheckExact(args[i]);
    plain ? keep_entries_of(args[i]) : consume(args[i], how);
  }
}

// Nothing looks at the values: what they hold is read where it is looked at.
void Consumption::keep_entries_of(PyObject* container) {
  if (recorder_->stopped()) return;
  if (exchange_->follows()) exchange_->hand_over(container);
  containers_->read_whole(container);
  containers_->read_order(container);
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Check(container) && PyDict_Next(container, &at, &key, &value);)
    consume(key, Consumer::Compares, 1);
}

void Consumption::consume_parts(PyObject* object, Consumer how, int depth) {
  // What these have copied of their function is read as attributes only.
  bool wrapper = Py_IS_TYPE(object, &PyStaticMethod_Type) || Py_IS_TYPE(object, &PyClassMethod_Type);
  PyObject** copied = wrapper ? _PyObject_GetDictPtr(object) : nullptr;
  for (PyObject* part : parts_of(object))
    if (part != reinterpret_cast<PyObject*>(Py_TYPE(object)) && !(copied && part == *copied))
      refuse_type(part), consume(part, how, depth + 1);
}

// A method of Python code shows itself when it is called; that there is none, or another one by now, shows
// nowhere.
void Consumption::look_up(PyObject* object, const char* name) {
  PyTypeObject* type = Py_TYPE(object);
  if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && !PyODict_CheckExact(object)) return;
  if (is_tensor(object) || is_followed(object) || is_numpy_array(object)) return;
  classes_->read_special(object, name);
  py::object key = py::str(name);
  attributes_->read_attribute(object, key.ptr());
  PyObject** dict = PyType_Check(object) ? nullptr : _PyObject_GetDictPtr(object);
  PyObject* own = dict && *dict ? PyDict_GetItemWithError(*dict, key.ptr()) : nullptr;
  if (own && PyCallable_Check(own) && !is_watched(own))
    recorder_->fail("looks up " + text_of(key.ptr()) + " of a " + type_name(object) + ", which is a " +
                    type_name(own));
}

void Consumption::look_up_entries(PyObject* mapping) {
  if (PyDict_Check(mapping)) return;  // asked where it is consumed
  for (const char* name : {"keys", "items"}) look_up(mapping, name);
}

void Consumption::consume_container(PyObject* object, Consumer how, int depth) {
  containers_->read_whole(object);
  // What C code calls of a mapping that is derived from dict: copies and json items(), counters and patterns
  // get().
  if (PyDict_Check(object) && !PyDict_CheckExact(object))
    for (const char* name : {"keys", "items", "get"}) look_up(object, name);
  if (depth > 0 || !asks_for_members_) containers_->read_order(object);
  // A defaultdict has its factory beside its entries.
  static PyObject* factory = PyUnicode_InternFromString("default_factory");
  if (PyDict_Check(object) && !PyDict_CheckExact(object) &&
      _PyType_Lookup(c_base(Py_TYPE(object)), factory)) {
    attributes_->read_attribute(object, factory);
    py::object held = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(object, factory));
    if (!held) throw py::error_already_set();
    if (reads_text(how)) consume(held.ptr(), how, depth + 1);
  }
  if (PyList_Check(object) || PyTuple_Check(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i)
      consume(PySequence_Fast_GET_ITEM(object, i), how, depth + 1);
    return;
  }
  PyObject *key, *value = nullptr;
  Py_ssize_t position = 0;
  while (next_entry(object, &position, &key, &value)) {
    consume(key, Consumer::Compares, depth + 1);
    if (reads_text(how)) consume(key, how, depth + 1);
    if (value) consume(value, how, depth + 1);
  }
}

// Code of torch that is not watched reads attributes by name, C code compares and writes all of them.
void Consumption::consume_instance(PyObject* object, Consumer how, int depth) {
  PyObject** dict = _PyObject_GetDictPtr(object);
  if (!dict || !*dict) return;
  int node = provenance_->owner(object);
  if (node >= 0) provenance_->read_child(node, Access::Namespace, nullptr, -1, *dict);
  consume(*dict, how, depth + 1);
}

// C code writes a method that is bound with the class of its object, a partial or a getter with all that it
// holds.
void Consumption::read_callable_as_text(PyObject* callable, Consumer how, int depth) {
  const MethodWrapper* wrapper = MethodWrapper::of(callable);
  PyObject* self = wrapper                       ? wrapper->self
                   : PyCFunction_Check(callable) ? PyCFunction_GET_SELF(callable)
                                                 : nullptr;
  if (self && !PyModule_Check(self)) return read_names(self);
  bool slot = Py_IS_TYPE(callable, &PyMethodDescr_Type) || Py_IS_TYPE(callable, &PyWrapperDescr_Type) ||
              Py_IS_TYPE(callable, &PyClassMethodDescr_Type);
  if (!slot && !PyCFunction_Check(callable)) consume_parts(callable, how, depth);
}

// C code writes a class by its names, and some instances with the name of their class; they can be set.
void Consumption::read_names(PyObject* object) {
  static PyObject* const kNames[] = {PyUnicode_InternFromString("__name__"),
                                     PyUnicode_InternFromString("__qualname__"),
                                     PyUnicode_InternFromString("__module__")};
  PyObject* type = PyType_Check(object) ? object : reinterpret_cast<PyObject*>(Py_TYPE(object));
  if (!is_python_class(reinterpret_cast<PyTypeObject*>(type))) return;
  provenance_->class_node(reinterpret_cast<PyTypeObject*>(type));
  for (PyObject* name : kNames) attributes_->read_attribute(type, name);
}

// As Python writes a function, and a method of it.
void Consumption::read_function_name(PyObject* function) {
  static PyObject* const name = PyUnicode_InternFromString("__qualname__");
  attributes_->read_attribute(function, name);
}

void Consumption::name_by_address(PyObject* object) {
  static PyObject *repr = PyUnicode_InternFromString("__repr__"),
                  *str = PyUnicode_InternFromString("__str__");
  PyTypeObject* type = Py_TYPE(object);
  PyObject *own = _PyType_Lookup(type, repr), *text = _PyType_Lookup(type, str);
  if ((own && PyFunction_Check(own)) || (text && PyFunction_Check(text))) return;
  write_address(object);
}

void Consumption::write_address(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  int node = provenance_->known(object);
  if (node < 0 || provenance_->is_fresh(object)) return;
  if (!PyType_SUPPORTS_WEAKREFS(type))
    return recorder_->fail("writes the address of a " + type_name(object) + " as text");
  if ((*tree_)[node].expect == Expect::Type || (*tree_)[node].expect == Expect::Code)
    provenance_->read_self(node, object);
}

}  // namespace lazytrace
