#include "cpython/contents.h"

#include "cpython/objects.h"

namespace lazytrace {

py::object contents_of(PyObject* part) {
  bool cell = PyCell_Check(part);
  bool plain = cell || PyList_CheckExact(part) || PySet_CheckExact(part) || PyDict_CheckExact(part);
  if (!plain && !is_rebuildable(part)) return {};
  py::list all;
  auto add = [&](PyObject* dict) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value);)
      all.append(py::handle(key)), all.append(py::handle(value));
  };
  if (PyList_Check(part))  // an overridden __iter__ is user code
    all = py::reinterpret_steal<py::list>(PyList_GetSlice(part, 0, PyList_GET_SIZE(part)));
  else if (PySet_Check(part))
    all = py::reinterpret_steal<py::list>(PySequence_List(part));
  else if (PyDict_CheckExact(part))
    add(part);
  else if (PyDict_Check(part))
    add(py::reinterpret_steal<py::object>(ordered_items(part)).ptr());
  if (cell && PyCell_GET(part)) all.append(py::handle(PyCell_GET(part)));
  if (plain) return std::move(all);
  bool single = true;
  py::object state = py::reinterpret_steal<py::object>(instance_state(part, &single));
  if (!state) throw py::error_already_set();
  if (!single) return {};
  add(state.ptr());
  all.append(py::handle(reinterpret_cast<PyObject*>(Py_TYPE(part))));
  return std::move(all);
}

// Neither is known of an object that was given another class.
bool same_contents(const py::object& a, const py::object& b) {
  if (!a || !b) return false;
  Py_ssize_t size = PyList_GET_SIZE(a.ptr());
  if (size != PyList_GET_SIZE(b.ptr())) return false;
  for (Py_ssize_t i = 0; i < size; ++i)
    if (PyList_GET_ITEM(a.ptr(), i) != PyList_GET_ITEM(b.ptr(), i)) return false;
  return true;
}

Py_ssize_t holders_of(PyObject* part) {
  PyObject** attributes = _PyObject_GetDictPtr(part);
  return Py_REFCNT(part) + (attributes && *attributes ? Py_REFCNT(*attributes) - 1 : 0);
}

}  // namespace lazytrace
