// A proxy of a dict tells which one it shows to C code alone: where guards and reads find it.
#pragma once
#include <Python.h>

#include "cpython/objects.h"

namespace lazytrace {

// The name under which guards ask a mappingproxy, or a view of a dict, for what it shows.
constexpr const char* kProxied = "mapping";

// The dict that a mappingproxy shows, as nothing can put another one in its place; null of a proxy of
// anything else. The proxy begins as every object does, with its mapping behind. Borrowed. Needs the GIL.
inline PyObject* dict_behind(PyObject* proxy) {
  struct Layout {
    PyObject_HEAD PyObject* mapping;
  };
  PyObject* mapping = reinterpret_cast<Layout*>(proxy)->mapping;
  bool plain = PyDict_CheckExact(mapping) || Py_IS_TYPE(mapping, &PyODict_Type);
  return plain ? mapping : nullptr;
}

}  // namespace lazytrace
