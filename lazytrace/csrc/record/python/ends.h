// Whether it shows when an object goes.
#pragma once

#include "cpython/objects.h"

namespace lazytrace {

// Whether its class has a destructor in Python, and nothing else is told of its end.
inline bool has_destructor(PyObject* object) {
  static PyObject* const destructor = PyUnicode_InternFromString("__del__");
  if (!object || !is_python_class(Py_TYPE(object)) || !_PyType_Lookup(Py_TYPE(object), destructor))
    return false;
  return !PyType_SUPPORTS_WEAKREFS(Py_TYPE(object)) || !*PyObject_GET_WEAKREFS_LISTPTR(object);
}

// Whether Python code runs where the object goes, or where one goes that it holds: then nobody may hold it
// for longer than the program does. Looks two objects deep. Needs the GIL; runs no Python code.
inline bool shows_its_end(PyObject* object, int depth = 0) {
  static PyObject* const destructor = PyUnicode_InternFromString("__del__");
  if (!object || is_tensor(object) || is_immutable(object) || PyType_Check(object) || PyModule_Check(object))
    return false;
  bool made = is_python_class(Py_TYPE(object));
  if (made && _PyType_Lookup(Py_TYPE(object), destructor)) return true;
  if (PyType_SUPPORTS_WEAKREFS(Py_TYPE(object))) {
    auto* weak = *reinterpret_cast<PyWeakReference**>(PyObject_GET_WEAKREFS_LISTPTR(object));
    for (; weak; weak = weak->wr_next)
      if (weak->wr_callback) return true;
  }
  if (depth == 2) return false;
  if (PyList_Check(object) || PyTuple_Check(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i)
      if (shows_its_end(PySequence_Fast_GET_ITEM(object, i), depth + 1)) return true;
    return false;
  }
  PyObject** own = made ? _PyObject_GetDictPtr(object) : nullptr;
  PyObject* dict = PyDict_Check(object) ? object : own ? *own : nullptr;
  PyObject *key, *value;
  for (Py_ssize_t at = 0; dict && PyDict_Next(dict, &at, &key, &value);)
    if (shows_its_end(value, depth + 1)) return true;
  return false;
}

}  // namespace lazytrace
