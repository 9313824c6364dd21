// What an object holds that code could change.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace lazytrace {

namespace py = pybind11;

// Its class and what it holds, as a list; null of what never changes. Needs the GIL; runs no Python code.
py::object contents_of(PyObject* part);
// Whether both are the same objects; not where one is unknown.
bool same_contents(const py::object& a, const py::object& b);
// How many hold it, or the dict of its attributes. Needs the GIL.
Py_ssize_t holders_of(PyObject* part);

}  // namespace lazytrace
