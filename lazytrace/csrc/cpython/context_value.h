// What a context variable is in this thread or task.
#pragma once

#include <torch/csrc/utils/pybind.h>

#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE
#endif
#include <internal/pycore_context.h>
#undef Py_BUILD_CORE

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

// What the variable was when the token was made; null where nothing was set.
inline py::object value_before(PyObject* token) {
  py::object missing = py::handle(reinterpret_cast<PyObject*>(&PyContextToken_Type)).attr("MISSING");
  py::object value = py::handle(token).attr("old_value");
  return value.is(missing) ? py::object() : value;
}

// Whether reset() takes the token: one of this variable that has not been used, in the context that it was
// made in.
inline bool is_good_for(PyObject* token, PyObject* variable) {
  auto* made = reinterpret_cast<PyContextToken*>(token);
  return reinterpret_cast<PyObject*>(made->tok_var) == variable && !made->tok_used &&
         reinterpret_cast<PyObject*>(made->tok_ctx) == PyThreadState_Get()->context;
}

}  // namespace lazytrace
