// What a context variable is in this thread or task.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace lazytrace {

namespace py = pybind11;

// Null where nothing was set. For get(default), with `has_default`, only what was set counts: the default of
// the variable itself does not.
inline py::object value_of_context(PyObject* variable, bool has_default) {
  static PyObject* const unset = PyList_New(0);
  PyObject* value = nullptr;
  if (PyContextVar_Get(variable, has_default ? unset : nullptr, &value) < 0) throw py::error_already_set();
  auto held = py::reinterpret_steal<py::object>(value);
  return value == unset ? py::object() : held;
}

}  // namespace lazytrace
