// Which Python values can never change, and when two of them are interchangeable.
#pragma once

#include <Python.h>

#include <cmath>

#include "cpython/carrier.h"

namespace lazytrace {

// All need the GIL; none runs Python code of the user.

// Whether `value` can never change and holds nothing that can: numbers, strings, dtypes, tuples of these.
bool is_immutable(PyObject* value);
// What a guard may use as a dictionary key: hashing and comparing it runs no user code.
bool is_key(PyObject* value);
// Whether both are such keys, or one object, and a dict takes one for the other: 1, True and 1.0 are one key.
bool is_equal_key(PyObject* a, PyObject* b);
// Whether it is a str, an int or None, of no subclass, or a tuple of these: nothing but another of its type
// is equal to one of them, if it is no number.
bool is_plain_key(PyObject* value);
// Whether it is a float that is not equal to itself.
inline bool is_nan(PyObject* value) { return is_float_of_any_kind(value) && std::isnan(float_value(value)); }
// Whether two immutable values are interchangeable: True is not 1, 0.0 is not -0.0, and a nan is no other
// nan: which object it is shows in containers that hold it.
bool same_immutable(PyObject* a, PyObject* b);

}  // namespace lazytrace
