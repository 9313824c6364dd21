// Arithmetic with scalars of numpy, which may warn, raise or call somebody, as numpy's error state says.
#pragma once

#include <Python.h>

namespace lazytrace {

// Whether numpy has a part in it. Texts and tensors take a scalar of numpy for a number or a text.
bool is_numpy_arithmetic(PyObject* left, PyObject* right);
// Whether it can raise none of numpy's flags: ordinary numbers, with an ordinary result. `operation`: the
// argument of BINARY_OP.
extern const int kAddition, kPower;
bool computes_quietly(int operation, PyObject* left, PyObject* right);
bool holds_numpy_scalar(PyObject* value);

}  // namespace lazytrace
