// Attributes that objects of Python's classes keep in slots.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace lazytrace {

namespace py = pybind11;

// Whether an object keeps what it has under the name in a slot that its class has made, where nothing but
// object lies below that.
bool is_slot(PyObject* object, PyObject* name);
// Whether an object of C's has a number of C's under the name (`UnicodeEncodeError.start`).
bool is_kept_as_number(PyObject* object, PyObject* name);
// What the slot holds; null where it is empty. Needs the GIL.
py::object held_by_slot(PyObject* object, PyObject* name);

}  // namespace lazytrace
