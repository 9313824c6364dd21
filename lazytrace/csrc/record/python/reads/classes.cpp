#include "record/python/reads/classes.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <unordered_map>

#include "cpython/class_entry.h"
#include "cpython/imports.h"
#include "cpython/objects.h"
#include "cpython/text_carrier.h"
#include "record/python/callables.h"
#include "support/reasons.h"

namespace lazytrace {

std::string class_text(PyTypeObject* type) {
  return text_of(reinterpret_cast<PyHeapTypeObject*>(type)->ht_qualname);
}

bool overrides_getattribute(PyTypeObject* type) {
  if (type->tp_getattro == PyObject_GenericGetAttr) return false;
  static PyObject* name = PyUnicode_InternFromString("__getattribute__");
  PyObject* found = _PyType_Lookup(type, name);
  return found && PyFunction_Check(found);
}

bool generic_lookup(PyTypeObject* type) {
  if (type->tp_getattro == PyObject_GenericGetAttr) return true;
  // A Python class with __getattr__ looks up generically first; its slot is the one that nn.Module has.
  static const getattrofunc hook = [] {
    py::object module = from_module("torch.nn", "Module");
    return reinterpret_cast<PyTypeObject*>(module.ptr())->tp_getattro;
  }();
  return type->tp_getattro == hook && c_base(type)->tp_getattro == PyObject_GenericGetAttr;
}

bool is_property(PyObject* value) {
  static PyObject* name = PyUnicode_InternFromString("fget");
  return PyObject_TypeCheck(value, &PyProperty_Type) &&
         Py_TYPE(value)->tp_descr_get == PyProperty_Type.tp_descr_get &&
         _PyType_Lookup(Py_TYPE(value), name) == _PyType_Lookup(&PyProperty_Type, name);
}

bool gets_by_python(PyObject* property) {
  static PyObject* const name = PyUnicode_InternFromString("fget");
  py::object getter = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(property, name));
  if (!getter) throw py::error_already_set();
  return PyFunction_Check(getter.ptr()) != 0;
}

bool ClassReads::is_made(PyTypeObject* type) const {
  return provenance_->is_fresh(reinterpret_cast<PyObject*>(type));
}

void ClassReads::read_class(PyTypeObject* type, PyObject* name, PyObject* value) {
  if (provenance_->touched(type, name)) return recorder_->fail(say(reason::ReadsTouched, type->tp_name));
  if (is_made(type)) return read_inherited(type, name);
  if (provenance_->seen(type, name)) return;
  int node = provenance_->class_node(type);
  if (node < 0) return;
  value = class_entry(type, name, value);
  // One that the call has set, and that another class gives as its own: which one has it would not show.
  py::object plain;
  if (value && is_followed(value) && recorder_->numbers()) {
    recorder_->numbers()->settle_inside(value);
    plain = py::reinterpret_steal<py::object>(plain_of_followed(value));
    value = plain.ptr();
  }
  auto [child, made] = provenance_->read_node(node, Access::Class, name, -1, value);
  if (made && value) read_behind(child, value);
}

// What a class that the call has made finds in those that it is derived from. Nothing is remembered by the
// address of such a class: it may be gone before the call ends.
void ClassReads::read_inherited(PyTypeObject* type, PyObject* name) {
  if (PyDict_GetItemWithError(type->tp_dict, name)) return;
  each_base(type, [&](PyTypeObject* base) {
    if (PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE)) read_class(base, name, _PyType_Lookup(base, name));
  });
}

void ClassReads::read_behind(int node, PyObject* value) {
  read_binding(value);
  // What hides behind a descriptor is reached through it.
  static PyObject *const getter = PyUnicode_InternFromString("fget"),
                         *const function = PyUnicode_InternFromString("__func__"),
                         *const wrapped = PyUnicode_InternFromString("__wrapped__");
  if (PyFunction_Check(value)) return;
  PyObject* key = is_property(value) ? getter : nullptr;
  if (Py_IS_TYPE(value, &PyClassMethod_Type) || Py_IS_TYPE(value, &PyStaticMethod_Type)) key = function;
  if (!key && !PyType_Check(value) && _PyType_Lookup(Py_TYPE(value), wrapped)) key = wrapped;
  if (!key) return;
  py::object target = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(value, key));
  if (!target) return PyErr_Clear();
  provenance_->read_child(node, Access::Attribute, key, -1, target.ptr());
  if (Py_IS_TYPE(value, &PyClassMethod_Type)) read_bound_to_class(target.ptr());
}

// A class method binds a descriptor to the class, as Python 3.11 does: C code calls its getter.
void ClassReads::read_bound_to_class(PyObject* descriptor) {
  if (PyFunction_Check(descriptor)) return;
  if (!is_property(descriptor)) return read_binding(descriptor);
  if (!gets_by_python(descriptor))
    recorder_->fail("looks up __func__ of a classmethod, which is a " + type_name(descriptor));
}

void ClassReads::read_setter(PyTypeObject* type, PyObject* name, PyObject* property, const char* part,
                             PyObject* setter) {
  if (is_made(type)) {
    // That of a class which the call has derived is found in those that were there.
    each_base(type, [&](PyTypeObject* base) {
      if (PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE) && _PyType_Lookup(base, name) == property)
        read_setter(base, name, property, part, setter);
    });
    return;
  }
  int node = provenance_->class_node(type);
  if (node < 0) return;
  int child = provenance_->read_node(node, Access::Class, name, -1, property).first;
  provenance_->read_child(child, Access::Attribute, py::str(part).ptr(), -1, setter);
}

void ClassReads::read_binding(PyObject* value) {
  PyTypeObject* type = Py_TYPE(value);
  if (!is_python_class(type)) return;
  static PyObject* const kNames[] = {PyUnicode_InternFromString("__get__"),
                                     PyUnicode_InternFromString("__set__"),
                                     PyUnicode_InternFromString("__delete__")};
  for (PyObject* name : kNames) read_special(type, name);
}

// Names are literals: interned once by address.
PyObject* ClassReads::interned(const char* name) {
  static auto* known = new std::unordered_map<const char*, PyObject*>();
  PyObject*& key = (*known)[name];
  if (!key) key = PyUnicode_InternFromString(name);
  return key;
}

void ClassReads::read_special(PyObject* object, const char* name) {
  PyTypeObject* type = Py_TYPE(object);
  if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return;
  if (!is_made(type) && provenance_->asked(type, name)) return;
  read_special(type, interned(name));
}

namespace {

// What a static or a class method calls, borrowed; anything else is what it is.
PyObject* inside_method(PyObject* found) {
  static PyObject* const name = PyUnicode_InternFromString("__func__");
  if (!Py_IS_TYPE(found, &PyStaticMethod_Type) && !Py_IS_TYPE(found, &PyClassMethod_Type)) return found;
  py::object inner = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(found, name));
  return inner.ptr();  // which the method holds
}

bool is_among(PyObject* name, std::initializer_list<PyObject*> names) {
  return std::any_of(names.begin(), names.end(), [&](PyObject* one) { return is_text(name, one); });
}

// These are called by Python code, or where an attribute is read or set, and judged there.
bool is_called_in_sight(PyObject* name) {
  static const auto named = [](const char* text) { return PyUnicode_InternFromString(text); };
  static PyObject *const made = named("__new__"), *const begun = named("__init__"),
                         *const got = named("__getattr__"), *const set = named("__setattr__"),
                         *const deleted = named("__delattr__"), *const copied = named("__copy__"),
                         *const copied_deeply = named("__deepcopy__"), *const put = named("__setstate__");
  return is_among(name, {made, begun, got, set, deleted, copied, copied_deeply, put});
}

// Asked for as an attribute, and not called: what gives it must show itself.
bool is_never_called(PyObject* name) {
  static PyObject *const own = PyUnicode_InternFromString("__dict__"), *const kind =
                                                                           PyUnicode_InternFromString(
                                                                               "__class__");
  return is_among(name, {kind, own});
}

bool gives_in_sight(PyObject* found) {
  static PyObject* const get = PyUnicode_InternFromString("__get__");
  if (Py_IS_TYPE(found, &PyGetSetDescr_Type)) return true;
  if (is_property(found)) return gets_by_python(found);
  PyObject* getter = is_python_class(Py_TYPE(found)) ? _PyType_Lookup(Py_TYPE(found), get) : nullptr;
  return getter && PyFunction_Check(getter);
}

// Whether objects of it hold nothing that its methods could change, or show in another way than by operators.
bool is_of_values(PyTypeObject* type) {
  PyTypeObject* const kTypes[] = {&PyBaseObject_Type, &PyType_Type,    &PyLong_Type,
                                  &PyFloat_Type,      &PyComplex_Type, &PyUnicode_Type,
                                  &PyBytes_Type,      &PyTuple_Type,   &PyFrozenSet_Type};
  return std::find(std::begin(kTypes), std::end(kTypes), type) != std::end(kTypes) ||
         std::strncmp(type->tp_name, "torch.", 6) == 0;
}

// A method of C under its own name does what the protocol is judged by; under another one, as `__sub__ =
// dict.pop`, it may do anything.
bool is_a_slot(PyObject* found, PyObject* name) {
  auto* descriptor = reinterpret_cast<PyDescrObject*>(found);
  return is_text(descriptor->d_name, name) || is_of_values(descriptor->d_type) || is_called_in_sight(name);
}

// What Python code makes shows itself. What a descriptor gives is called without anything of that being seen.
bool shows_itself(PyObject* found, PyObject* name) {
  if (is_never_called(name)) return gives_in_sight(found);
  if (PyFunction_Check(found)) return true;
  if (Py_IS_TYPE(found, &PyWrapperDescr_Type) || Py_IS_TYPE(found, &PyMethodDescr_Type) ||
      Py_IS_TYPE(found, &PyClassMethodDescr_Type))
    return is_a_slot(found, name);
  if (is_free_builtin(found)) {
    static PyObject *const maker = PyUnicode_InternFromString("__new__"), *const of_torch =
                                                                              PyUnicode_InternFromString(
                                                                                  "__torch_function__");
    return is_among(name, {maker, of_torch}) ||
           computes_alone(function_does(reinterpret_cast<PyCFunctionObject*>(found)));
  }
  return found == reinterpret_cast<PyObject*>(&PyDict_Type) ||  // TypedDict
         found == reinterpret_cast<PyObject*>(&Py_GenericAliasType);
}

// Whether an object of a class of Python's shows what it does where it is called: by a method of Python, and
// not by what C code, or another descriptor, makes of it.
bool shows_its_call(PyTypeObject* type) {
  static PyObject *const call = PyUnicode_InternFromString("__call__"),
                         *const get = PyUnicode_InternFromString("__get__"),
                         *const wrapped = PyUnicode_InternFromString("__wrapped__");
  bool method = PyType_IsSubtype(type, &PyStaticMethod_Type) || PyType_IsSubtype(type, &PyClassMethod_Type);
  if (!method && _PyType_Lookup(type, wrapped)) return true;  // a wrapper of ours, or one made like it
  PyObject* called = _PyType_Lookup(type, call);
  return called && PyFunction_Check(called) && !_PyType_Lookup(type, get);
}

}  // namespace

void ClassReads::read_special(PyTypeObject* type, PyObject* name) {
  PyObject* found = _PyType_Lookup(type, name);
  read_class(type, name, found);
  if (!found || found == Py_None || !is_python_class(type)) return;
  // Anything else is called by C code without a frame of ours.
  found = inside_method(found);
  if (!found || shows_itself(found, name)) return;
  if (PyType_Check(found) && is_python_class(reinterpret_cast<PyTypeObject*>(found))) {
    read_hook(reinterpret_cast<PyTypeObject*>(found), "__new__");
    return read_hook(reinterpret_cast<PyTypeObject*>(found), "__init__");
  }
  if (is_python_class(Py_TYPE(found)) && shows_its_call(Py_TYPE(found))) return read_specials(Py_TYPE(found));
  recorder_->fail("looks up " + text_of(name) + " of a " + class_text(type) + ", which is a " +
                  type_name(found));
}

void ClassReads::read_specials(PyTypeObject* type) {
  if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return;
  static const char kAll = 0;
  bool made = is_made(type);
  if (!made && provenance_->asked(type, &kAll)) return;
  int node = made ? -1 : provenance_->class_node(type);
  if (!made && node < 0) return;
  py::tuple names = special_names(type);
  if (made)
    each_base(type, [&](PyTypeObject* base) { read_specials(base); });
  else
    provenance_->read_child(node, Access::Specials, nullptr, -1, names.ptr());
  for (auto name : names) read_special(type, name.ptr());
}

void ClassReads::know_static(PyObject* value) {
  if (value && Py_IS_TYPE(value, &PyStaticMethod_Type)) {
    py::object inner = py::reinterpret_steal<py::object>(PyObject_GetAttrString(value, "__func__"));
    value = inner.ptr();  // the class keeps it
    PyErr_Clear();
  }
  if (value && is_free_builtin(value)) provenance_->weak_node(value);
}

}  // namespace lazytrace
