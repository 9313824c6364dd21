#include "cpython/text_carrier.h"

#include <torch/csrc/utils/pybind.h>

#include <cstring>

#include "cpython/objects.h"

namespace lazytrace {

namespace py = pybind11;

namespace {

PyTypeObject* text_type = nullptr;

// CPython's own functions ask whether it is a str, which C code must not find a text to be.
PyObject* copy_of(PyObject* text) {
  Py_ssize_t length = PyUnicode_GET_LENGTH(text);
  PyObject* made = PyUnicode_New(length, PyUnicode_MAX_CHAR_VALUE(text));
  if (made)
    std::memcpy(PyUnicode_DATA(made), PyUnicode_DATA(text),
                static_cast<size_t>(length) * PyUnicode_KIND(text));
  return made;
}

}  // namespace

PyObject* make_text_class(PyObject* methods) {
  PyType_Slot none[] = {{0, nullptr}};
  PyType_Spec spec = {"lazytrace.texts.Text", 0, 0, Py_TPFLAGS_DEFAULT, none};
  PyObject* made = PyType_FromSpecWithBases(&spec, reinterpret_cast<PyObject*>(&PyUnicode_Type));
  if (!made || !add_methods(made, methods)) {
    Py_XDECREF(made);
    return nullptr;
  }
  text_type = reinterpret_cast<PyTypeObject*>(made);
  text_type->tp_flags &= ~Py_TPFLAGS_UNICODE_SUBCLASS;
  PyType_Modified(text_type);
  return Py_NewRef(made);
}

bool is_text(PyObject* object) { return text_type && Py_IS_TYPE(object, text_type); }

PyObject* new_text(PyObject* plain) {
  PyObject* made = copy_of(plain);
  if (!made) return nullptr;
  // An object of a class made at run time holds its class, a str does not.
  Py_INCREF(reinterpret_cast<PyObject*>(text_type));
  Py_SET_TYPE(made, text_type);
  return made;
}

void retire_text(PyObject* text) {
  if (!is_text(text)) return;
  Py_SET_TYPE(text, &PyUnicode_Type);
  Py_DECREF(reinterpret_cast<PyObject*>(text_type));
}

PyObject* plain_of_followed(PyObject* object) {
  if (is_text(object)) return copy_of(object);
  return is_carrier(object) ? plain_of_carrier(object) : Py_NewRef(object);
}

bool holds_followed(PyObject* object, int depth) {
  constexpr int kDeepest = 16;
  if (!object) return false;
  if (is_followed(object)) return true;
  if (depth > kDeepest) return false;  // which is refused when it is handed over
  if (PyDict_Check(object)) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(object, &at, &key, &value);)
      if (holds_followed(value, depth + 1)) return true;
    return false;
  }
  if (is_deque(object)) {
    py::object items = py::reinterpret_steal<py::object>(PySequence_List(object));
    if (!items) throw py::error_already_set();
    return holds_followed(items.ptr(), depth + 1);
  }
  if (!(PyTuple_Check(object) || PyList_Check(object))) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i)
    if (holds_followed(PySequence_Fast_GET_ITEM(object, i), depth + 1)) return true;
  return false;
}

}  // namespace lazytrace
