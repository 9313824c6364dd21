#include "cpython/imports.h"

namespace lazytrace {

py::object module_of_name(const char* module) {
  py::str name(module);
  PyObject* found = PyImport_GetModule(name.ptr());
  if (!found && !PyErr_Occurred()) {
    // Gives the first part of a dotted name.
    py::object first =
        py::reinterpret_steal<py::object>(PyImport_ImportModuleLevel(module, nullptr, nullptr, nullptr, 0));
    if (first) found = PyImport_GetModule(name.ptr());
  }
  if (!found) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(found);
}

py::object from_module(const char* module, const char* name) { return module_of_name(module).attr(name); }

PyObject* builtin(const char* name) { return from_module("builtins", name).release().ptr(); }

}  // namespace lazytrace
