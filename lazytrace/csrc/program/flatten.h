// Taking the result of an opaque Python step apart into tensors and values, the same way at each call.
#pragma once

#include <Python.h>

#include <string>
#include <vector>

#include "cpython/objects.h"

namespace lazytrace {

// Leaves in order (borrowed from `value`), and a text that is equal exactly for equal structures. Needs the
// GIL.
inline void flatten_value(PyObject* value, std::vector<PyObject*>* leaves, std::string* shape) {
  if (PyTuple_CheckExact(value) || PyList_CheckExact(value) || is_named_tuple(value)) {
    *shape += PyList_CheckExact(value) ? "[" : "(";
    *shape += Py_TYPE(value)->tp_name;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
      flatten_value(PySequence_Fast_GET_ITEM(value, i), leaves, shape);
    *shape += ")";
  } else if (PyDict_CheckExact(value)) {
    *shape += "{";
    PyObject *key, *item;
    Py_ssize_t pos = 0;
    while (PyDict_Next(value, &pos, &key, &item)) {
      *shape += short_repr(key);
      flatten_value(item, leaves, shape);
    }
    *shape += "}";
  } else {
    *shape += ".";
    leaves->push_back(value);
  }
}

}  // namespace lazytrace
