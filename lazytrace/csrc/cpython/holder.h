// An object that stands for another one of which one attribute is read.
#pragma once

#include <Python.h>

namespace lazytrace {

// Has `value` under `name`, and nothing else; keeps `owner`, so that it is dropped when it would have been.
// New reference, or null with an exception set.
PyObject* new_holder(PyObject* owner, PyObject* name, PyObject* value);

}  // namespace lazytrace
