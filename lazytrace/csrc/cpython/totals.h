// What sum(), max() and min() give for a list of numbers.
#pragma once

#include <pybind11/pybind11.h>

namespace lazytrace {

namespace py = pybind11;

// "sum", "max" or "min" for that builtin function, borrowed; null for anything else.
PyObject* name_of_total(PyObject* function);
// What the builtin function `name` ("sum", "max", "min") gives for the entries of a list or a deque from this
// one on. Null where one of them is no int or float of Python's own class, and where there is none that is
// largest: so no code of the user's runs. Needs the GIL.
py::object total_of(PyObject* name, PyObject* list, Py_ssize_t from);

}  // namespace lazytrace
