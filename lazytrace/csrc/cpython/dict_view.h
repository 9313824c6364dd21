// Views of dicts tell which one they show to C code alone.
#pragma once
#include <Python.h>

namespace lazytrace {

// The dict that `d.keys()`, `d.values()` or `d.items()` of C shows, for good. Borrowed.
inline PyObject* dict_of_view(PyObject* view) {
  return reinterpret_cast<PyObject*>(reinterpret_cast<_PyDictViewObject*>(view)->dv_dict);
}

// Whether it is one of these.
inline bool is_dict_view(PyObject* object) {
  return PyDictViewSet_Check(object) || PyDictValues_Check(object);
}

}  // namespace lazytrace
