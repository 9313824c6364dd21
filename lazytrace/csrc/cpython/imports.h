// What a module has, asked in the middle of somebody else's frame.
#pragma once

#include <pybind11/pybind11.h>

namespace lazytrace {

namespace py = pybind11;

// The module, or what it has under the name. PyImport_Import(), and pybind with it, calls the `__import__` of
// the builtins of the frame that runs, which may be the user's, or missing: that of a named tuple's __new__
// has none. Throws what the import raises. Needs the GIL.
py::object module_of_name(const char* module);
py::object from_module(const char* module, const char* name);
// A builtin of Python's; borrowed, and never freed, as the module.
PyObject* builtin(const char* name);

}  // namespace lazytrace
