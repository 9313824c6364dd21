// What an object holds that code could change.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace lazytrace {

namespace py = pybind11;

// Its class and what it holds, as a list; null of what never changes. Needs the GIL; runs no Python code.
py::object contents_of(PyObject* part);
// Whether both are the same objects; not where one is unknown.
bool same_contents(const py::object& a, const py::object& b);

}  // namespace lazytrace
