#include "cpython/numpy_arithmetic.h"

#include <opcode.h>

#include <cmath>
#include <cstring>
#include <initializer_list>

#include "cpython/objects.h"

namespace lazytrace {

const int kAddition = NB_ADD, kPower = NB_POWER;

namespace {

// The square of each is a normal number of single precision.
constexpr double kSmallest = 1e-15, kLargest = 1e15;
constexpr double kLargestWhole = 9e18;  // of 64 bits

struct Number {
  bool ordinary = false, whole = false;
  double value = 0;
};

bool is_one_of(PyObject* v, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (std::strcmp(c_name(Py_TYPE(v)), name) == 0) return true;
  return false;
}

Number number_of(PyObject* v) {
  Number found;
  found.whole = PyLong_CheckExact(v) || PyBool_Check(v) || is_one_of(v, {"numpy.int64"});
  if (!found.whole && !PyFloat_CheckExact(v) && !is_one_of(v, {"numpy.float32", "numpy.float64"}))
    return found;
  found.value = PyFloat_AsDouble(v);
  if (PyErr_Occurred()) return PyErr_Clear(), found;
  double size = std::fabs(found.value);
  found.ordinary = found.value == 0 || (size >= kSmallest && size <= kLargest);
  return found;
}

bool has_ordinary_power(const Number& base, const Number& exponent, bool whole) {
  if (base.value == 0) return exponent.value >= 0;
  if (base.value < 0 && exponent.value != std::floor(exponent.value)) return false;
  double power = std::pow(std::fabs(base.value), exponent.value);
  return whole ? exponent.value >= 0 && power < kLargestWhole : power >= 1e-30 && power <= 1e30;
}

bool is_bitwise(int operation) {
  return operation == NB_AND || operation == NB_OR || operation == NB_XOR || operation == NB_LSHIFT ||
         operation == NB_RSHIFT;
}

}  // namespace

bool is_numpy_arithmetic(PyObject* left, PyObject* right) {
  auto is_other = [](PyObject* v) {
    return is_tensor(v) || PyUnicode_Check(v) || PyBytes_Check(v) || PyList_CheckExact(v) ||
           PyTuple_CheckExact(v);
  };
  return (is_numpy_scalar(left) || is_numpy_scalar(right)) && !is_other(left) && !is_other(right);
}

bool computes_quietly(int operation, PyObject* left, PyObject* right) {
  if (operation >= NB_INPLACE_ADD) operation -= NB_INPLACE_ADD;
  if (is_bitwise(operation)) return true;
  Number a = number_of(left), b = number_of(right);
  if (!a.ordinary || !b.ordinary) return false;
  bool whole = a.whole && b.whole;
  switch (operation) {
    case NB_FLOOR_DIVIDE:
    case NB_REMAINDER:
    case NB_TRUE_DIVIDE:
      return b.value != 0;
    case NB_MULTIPLY:
      return !whole || std::fabs(a.value * b.value) < kLargestWhole;
    case NB_POWER:
      return has_ordinary_power(a, b, whole);
    default:
      return true;
  }
}

bool holds_numpy_scalar(PyObject* value) {
  if (is_numpy_scalar(value)) return true;
  if (PyFrozenSet_Check(value)) {
    PyObject* member;
    Py_hash_t hash;
    for (Py_ssize_t at = 0; _PySet_NextEntry(value, &at, &member, &hash);)
      if (holds_numpy_scalar(member)) return true;
  }
  if (!PyTuple_Check(value)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i)
    if (holds_numpy_scalar(PyTuple_GET_ITEM(value, i))) return true;
  return false;
}

}  // namespace lazytrace
