// Ints that Python is given in place of a size, so that what it does with them can be followed.
#pragma once

#include <Python.h>

#include <cstdint>

namespace lazytrace {

// An int to isinstance(), but none to C code, which cannot take its value without
// calling one of its methods. In memory it is an int, so it can be made one at any time.

// Makes the class, once: `methods` are its attributes, `symbolic` is what torch's parser shall take it for
// (torch.SymInt). New reference, or null with an exception set.
PyObject* make_carrier_class(PyObject* methods, PyObject* symbolic);
bool is_carrier(PyObject* object);
// New reference, or null with an exception set.
PyObject* new_carrier(int64_t value);
// The value, as no method of the carrier gives it.
int64_t carrier_value(PyObject* carrier);
// From now on it is a plain int, whoever holds it.
void retire_carrier(PyObject* carrier);

}  // namespace lazytrace
