#include "cpython/text_carrier.h"

#include <torch/csrc/utils/pybind.h>

#include <cstring>
#include <unordered_set>

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

namespace {

// Looks for one. What lies in containers of containers is looked at once: it may be reached in many ways.
class Search {
 public:
  bool finds(PyObject* object, int depth) {
    constexpr int kDeepest = 16;
    if (!object) return false;
    if (is_followed(object)) return true;
    if (depth > kDeepest || !is_walked(object)) return false;  // which is refused when it is handed over
    if (depth > 1 && !seen_.insert(object).second) return false;
    if (PyDict_Check(object)) return finds_in_dict(object, depth);
    if (!is_deque(object)) return finds_in_sequence(object, depth);
    py::object items = py::reinterpret_steal<py::object>(PySequence_List(object));
    if (!items) throw py::error_already_set();
    return finds_in_sequence(items.ptr(), depth);
  }

 private:
  static bool is_walked(PyObject* object) {
    return PyTuple_Check(object) || PyList_Check(object) || PyDict_Check(object) || is_deque(object);
  }
  bool finds_in_dict(PyObject* dict, int depth) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value);)
      if (finds(value, depth + 1)) return true;
    return false;
  }
  bool finds_in_sequence(PyObject* sequence, int depth) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence); ++i)
      if (finds(PySequence_Fast_GET_ITEM(sequence, i), depth + 1)) return true;
    return false;
  }

  std::unordered_set<PyObject*> seen_;
};

}  // namespace

bool holds_followed(PyObject* object, int depth) { return Search().finds(object, depth); }

}  // namespace lazytrace
