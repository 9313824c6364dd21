// What C code can get at through what it is handed: the part of the Observer that reads without being told
// what.
#include <cstring>

#include "cpython/carrier.h"
#include "cpython/objects.h"
#include "cpython/values.h"
#include "record/python/observer.h"

namespace lazytrace {

namespace {

// Objects whose parts a guard can reach by itself.
bool is_container(PyObject* v) {
  return PyDict_Check(v) || PyList_Check(v) || PyTuple_Check(v) || PyAnySet_Check(v);
}

// Classes of C that hold no Python object which C code could take for a value, or whose contents never
// change.
bool is_steady(PyObject* v) {
  static const char* const kNames[] = {
      "re.Pattern", "re.Match",           "Context",         "ContextVar", "Token", "code",
      "traceback",  "types.GenericAlias", "types.UnionType", "frame",      "super", "weakref.ReferenceType",
      "weakref",    "NotImplementedType"};
  PyTypeObject* base = c_base(Py_TYPE(v));
  for (const char* name : kNames)
    if (std::strcmp(base->tp_name, name) == 0) return true;
  return false;
}

// Callables of C, which are judged as what they are called for.
bool is_c_callable(PyObject* v) {
  return PyCFunction_Check(v) || Py_IS_TYPE(v, &PyMethodDescr_Type) || Py_IS_TYPE(v, &PyWrapperDescr_Type) ||
         Py_IS_TYPE(v, &PyClassMethodDescr_Type) || Py_IS_TYPE(v, &_PyMethodWrapper_Type) ||
         std::strcmp(Py_TYPE(v)->tp_name, "functools.partial") == 0 ||
         std::strncmp(Py_TYPE(v)->tp_name, "operator.", 9) == 0;
}

bool holds_nan(PyObject* v, bool inside) {
  if (PyFloat_Check(v)) return inside && PyFloat_AS_DOUBLE(v) != PyFloat_AS_DOUBLE(v);
  if (PyTuple_Check(v)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(v); ++i)
      if (holds_nan(PyTuple_GET_ITEM(v, i), true)) return true;
  } else if (PyFrozenSet_CheckExact(v)) {
    PyObject* member;
    Py_hash_t hash;
    for (Py_ssize_t at = 0; _PySet_NextEntry(v, &at, &member, &hash);)
      if (holds_nan(member, true)) return true;
  }
  return false;
}

// The mode behind torch.device(...) as a context: the key holds its device.
bool is_device_context(PyObject* v) {
  static PyTypeObject* type = nullptr;
  PyObject* module = type ? nullptr : PyDict_GetItemString(PyImport_GetModuleDict(), "torch.utils._device");
  if (module && PyModule_Check(module))
    type = reinterpret_cast<PyTypeObject*>(PyDict_GetItemString(PyModule_GetDict(module), "DeviceContext"));
  PyErr_Clear();
  return type && Py_IS_TYPE(v, type);
}

// Operators of torch.ops and the like: what they hold was put there when they were made.
bool is_trusted_callable(PyObject* v) {
  static PyObject* name = PyUnicode_InternFromString("__call__");
  PyObject* target = is_python_class(Py_TYPE(v)) ? _PyType_Lookup(Py_TYPE(v), name) : nullptr;
  return target && PyFunction_Check(target) &&
         (code_flags(PyFunction_GET_CODE(target)) & (kSkipped | kOwn)) == kSkipped;
}

}  // namespace

// Which special methods the class has, and which functions they are.
void Observer::read_specials(PyTypeObject* type) {
  if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return;
  static const char kAll = 0;
  if (asked(type, &kAll)) return;
  int node = class_node(type);
  if (node < 0) return;
  py::tuple names = special_names(type);
  read_child(node, Access::Specials, nullptr, -1, names.ptr());
  for (auto name : names) read_special(type, name.ptr());
}

void Observer::read_special(PyTypeObject* type, PyObject* name) {
  PyObject* found = _PyType_Lookup(type, name);
  read_class(type, name, found);
  if (!found || found == Py_None || PyFunction_Check(found) || !is_python_class(type)) return;
  // Slots of C classes show nothing of their own; anything else is called by C code without a frame of ours.
  bool plain = Py_IS_TYPE(found, &PyWrapperDescr_Type) || Py_IS_TYPE(found, &PyMemberDescr_Type) ||
               Py_IS_TYPE(found, &PyMethodDescr_Type) || Py_IS_TYPE(found, &PyGetSetDescr_Type) ||
               Py_IS_TYPE(found, &PyStaticMethod_Type) || Py_IS_TYPE(found, &PyClassMethod_Type) ||
               Py_IS_TYPE(found, &PyProperty_Type) || Py_IS_TYPE(found, &PyClassMethodDescr_Type) ||
               is_free_builtin(found);
  if (plain) return;
  // A wrapper made by Python code shows itself in its __get__ or __call__.
  if (is_python_class(Py_TYPE(found))) return read_specials(Py_TYPE(found));
  fail("looks up " + text_of(name) + " of a " + type_text(type) + ", which is a " + type_name(found));
}

// The objects that an object of C holds, as the garbage collector sees them: the list behind an iterator, the
// iterators behind a zip, the dict behind a view.
void Observer::consume_parts(PyObject* object, Consumer how, int depth) {
  traverseproc visit_all = Py_TYPE(object)->tp_traverse;
  if (!visit_all) return;
  std::vector<PyObject*> parts;
  visit_all(
      object,
      [](PyObject* part, void* into) {
        static_cast<std::vector<PyObject*>*>(into)->push_back(part);
        return 0;
      },
      &parts);
  for (PyObject* part : parts)
    if (part != reinterpret_cast<PyObject*>(Py_TYPE(object))) consume(part, how, depth + 1);
}

void Observer::consume_container(PyObject* object, Consumer how, int depth) {
  read_whole(object);
  // A defaultdict has its factory beside its entries.
  static PyObject* factory = PyUnicode_InternFromString("default_factory");
  if (PyDict_Check(object) && !PyDict_CheckExact(object) && _PyType_Lookup(c_base(Py_TYPE(object)), factory))
    read_attribute(object, factory);
  if (PyList_Check(object) || PyTuple_Check(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i)
      consume(PySequence_Fast_GET_ITEM(object, i), how, depth + 1);
    return;
  }
  PyObject *key, *value = nullptr;
  Py_ssize_t position = 0;
  Py_hash_t hash;
  bool dict = PyDict_Check(object);
  while (dict ? PyDict_Next(object, &position, &key, &value)
              : _PySet_NextEntry(object, &position, &key, &hash)) {
    consume(key, Consumer::Compares, depth + 1);
    if (value) consume(value, how, depth + 1);
  }
}

// Everything that C code could take from `object` without running Python code that is watched.
void Observer::consume(PyObject* object, Consumer how, int depth) {
  if (!object || recorder_->stopped()) return;
  if (exchange_ && depth == 0) exchange_->hand_over(object);
  if (is_carrier(object)) return;
  read_specials(Py_TYPE(object));
  if (is_tensor(object)) {
    // By itself it is an operand; in a container it is equal first of all to itself.
    if (how == Consumer::Compares && depth > 0) compare_as_itself(object);
    return;
  }
  if (is_immutable(object) || is_device_context(object)) {
    // In a container a nan is equal to itself alone, and its guard knows its value, not which object it is.
    if (how == Consumer::Compares && holds_nan(object, depth > 0))
      fail("compares the identity of two values of type float");
    return;
  }
  if (depth > 50) return fail("reads a container that is nested too deeply");
  if (touched_.count(object)) fail("reads a " + type_name(object) + " that an opaque function has changed");
  static const char kHow[4] = {};
  if (writes_.empty() && touched_.empty() && asked(object, &kHow[static_cast<size_t>(how)])) return;
  held_.push_back(py::reinterpret_borrow<py::object>(object));
  if (is_numpy_array(object)) return fail("hands a numpy array to C code");
  if (is_container(object)) return consume_container(object, how, depth);
  if (is_c_callable(object)) return judge_callback(object);
  if (PyGen_CheckExact(object) || PyCoro_CheckExact(object) || PyAsyncGen_CheckExact(object))
    return advance(object);
  owner(object);
  if (how == Consumer::Trusted && is_trusted_callable(object)) {
    if (int node = known(object); node >= 0 && by_path(node)) read_self(node, object);
    return;
  }
  if (how == Consumer::Compares) compare_as_itself(object);
  if (how == Consumer::Text) name_by_address(object);
  if (PyMethod_Check(object)) {
    consume(PyMethod_GET_FUNCTION(object), Consumer::Reads, depth + 1);
    return consume(PyMethod_GET_SELF(object), Consumer::Reads, depth + 1);
  }
  if (PyFunction_Check(object) || PyType_Check(object) || PyModule_Check(object) || is_steady(object)) return;
  if (PyCell_Check(object)) return consume_parts(object, how, depth);
  PyTypeObject* base = c_base(Py_TYPE(object));
  if (base == &PyBaseObject_Type) {
    if (how == Consumer::Trusted && !is_torch_module(object)) consume_instance(object, depth);
    return;
  }
  if (std::strcmp(base->tp_name, "types.SimpleNamespace") ==
      0)  // is compared and written with its attributes
    return how == Consumer::Reads ? void() : consume_instance(object, depth);
  // Text, numbers and bytes of a class of their own, whose value a guard compares.
  if (PyUnicode_Check(object) || PyLong_Check(object) || PyFloat_Check(object) || PyBytes_Check(object) ||
      PyComplex_Check(object))
    return;
  if (std::strncmp(base->tp_name, "torch.", 6) == 0) return;
  // What such an object holds now, and how far it is, no guard sees; one that was made by this call follows
  // from what it was made of.
  int node = known(object);
  if (node >= 0 && by_path(node)) return fail("reads a " + type_name(object));
  consume_parts(object, how, depth);
}

// Code of torch that is not watched reads attributes by name.
void Observer::consume_instance(PyObject* object, int depth) {
  PyObject** dict = _PyObject_GetDictPtr(object);
  if (!dict || !*dict) return;
  int node = owner(object);
  if (node >= 0) read_child(node, Access::Namespace, nullptr, -1, *dict);
  consume(*dict, Consumer::Trusted, depth + 1);
}

// Objects without an __eq__ of Python are equal where they are the same, and so are the keys of a dict and
// the members of a set. That two were different must be so again.
void Observer::compare_as_itself(PyObject* object) {
  if (is_immutable(object) || is_fresh(object)) return;
  int node = is_tensor(object) ? node_of_tensor(object) : owner(object);
  if (node >= 0) tree_->expect_distinct(node);
}

// The text of an object that has no __repr__ of its own tells where it lies.
void Observer::name_by_address(PyObject* object) {
  static PyObject *repr = PyUnicode_InternFromString("__repr__"),
                  *str = PyUnicode_InternFromString("__str__");
  PyTypeObject* type = Py_TYPE(object);
  PyObject *own = _PyType_Lookup(type, repr), *text = _PyType_Lookup(type, str);
  if ((own && PyFunction_Check(own)) || (text && PyFunction_Check(text))) return;
  int node = known(object);
  if (node < 0 || is_fresh(object)) return;
  if (!PyType_SUPPORTS_WEAKREFS(type))
    return fail("writes the address of a " + type_name(object) + " as text");
  if ((*tree_)[node].expect == Expect::Type || (*tree_)[node].expect == Expect::Code) read_self(node, object);
}

}  // namespace lazytrace
