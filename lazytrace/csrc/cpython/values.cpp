#include "cpython/values.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/Size.h>

#include <cstring>

#include "cpython/imports.h"
#include "cpython/objects.h"
#include "cpython/text_carrier.h"

namespace lazytrace {

namespace {

// A kernel of attention, as torch.nn.attention names it.
bool is_sdp_backend(PyObject* v) {
  static PyTypeObject* type =
      reinterpret_cast<PyTypeObject*>(from_module("torch._C", "_SDPBackend").release().ptr());
  return Py_IS_TYPE(v, type);
}

bool is_plain_immutable(PyObject* v) {
  return v == Py_None || v == Py_Ellipsis || v == Py_NotImplemented || PyBool_Check(v) ||
         PyLong_CheckExact(v) || PyFloat_CheckExact(v) || PyComplex_CheckExact(v) ||
         PyUnicode_CheckExact(v) || PyBytes_CheckExact(v) || THPDtype_Check(v) || THPDevice_Check(v) ||
         THPLayout_Check(v) || THPMemoryFormat_Check(v) || PyRange_Check(v) || is_followed(v) ||
         is_sdp_backend(v);
}

// Bit for bit: Python can tell 0.0 from -0.0.
bool same_float(double a, double b) { return a == b && std::memcmp(&a, &b, sizeof a) == 0; }

bool is_equal(PyObject* a, PyObject* b) {
  PyObject* equal = PyObject_RichCompare(a, b, Py_EQ);
  int truth = equal ? PyObject_IsTrue(equal) : -1;
  Py_XDECREF(equal);
  if (truth < 0) PyErr_Clear();
  return truth == 1;
}

bool same_attribute(PyObject* a, PyObject* b, const char* name) {
  PyObject *x = PyObject_GetAttrString(a, name), *y = PyObject_GetAttrString(b, name);
  bool same = x && y && same_immutable(x, y);
  Py_XDECREF(x);
  Py_XDECREF(y);
  PyErr_Clear();
  return same;
}

// Sets that are equal can be iterated in another order, and hold 1 where the other holds 1.0 or True.
bool same_in_order(PyObject* a, PyObject* b) {
  if (PySet_GET_SIZE(a) != PySet_GET_SIZE(b)) return false;
  PyObject *x, *y;
  Py_hash_t hash;
  Py_ssize_t i = 0, j = 0;
  while (_PySet_NextEntry(a, &i, &x, &hash))
    if (!_PySet_NextEntry(b, &j, &y, &hash) || !same_immutable(x, y)) return false;
  return true;
}

}  // namespace

namespace {
// What most objects that are asked about are: Python instances, functions and the built-in containers.
bool surely_mutable(PyObject* v) {
  PyTypeObject* type = Py_TYPE(v);
  if (type == &PyFunction_Type || type == &PyList_Type || type == &PyDict_Type || type == &PyModule_Type ||
      type == &PyCFunction_Type || type == &PyMethodDescr_Type || type == &PyCell_Type ||
      type == &PyType_Type || type == &PyODict_Type || type == &PyMethod_Type)
    return true;
  // By the bases that give the layout: those of scalars of numpy, tuples and carriers do not end in object.
  for (; PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && Py_TYPE(type) == &PyType_Type; type = type->tp_base)
    if (type->tp_base == &PyBaseObject_Type) return !PyTuple_Check(v);
  return false;
}
}  // namespace

namespace {
// What is nested deeper is taken for something that can change: a walk must not exhaust the stack. So is what
// has more parts: a pair of one pair, and so on, has very many.
constexpr int kDeepest = 64, kMost = 1 << 16;

bool immutable_within(PyObject* v, int depth, int* left);

bool all_immutable(PyObject* const* items, Py_ssize_t n, int depth, int* left) {
  for (Py_ssize_t i = 0; i < n; ++i)
    if (!immutable_within(items[i], depth, left)) return false;
  return true;
}

// Most that are asked about: names, numbers and None.
bool is_simple_value(PyObject* v) {
  PyTypeObject* type = Py_TYPE(v);
  return type == &PyUnicode_Type || type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type ||
         v == Py_None;
}

bool immutable_within(PyObject* v, int depth, int* left) {
  if (is_simple_value(v)) return true;
  if (surely_mutable(v)) return false;
  if (PyTuple_CheckExact(v)) {
    if (depth == 0 || --*left < 0) return false;
    return all_immutable(&PyTuple_GET_ITEM(v, 0), PyTuple_GET_SIZE(v), depth - 1, left);
  }
  if (is_plain_immutable(v) || is_numpy_scalar(v) || is_builtin_dtype(v) || is_enum_member(v)) return true;
  if (depth == 0 || --*left < 0) return false;
  if (THPSize_Check(v) || is_named_tuple(v))
    return all_immutable(&PyTuple_GET_ITEM(v, 0), PyTuple_GET_SIZE(v), depth - 1, left);
  if (PySlice_Check(v)) {
    auto* s = reinterpret_cast<PySliceObject*>(v);
    PyObject* ends[] = {s->start, s->stop, s->step};
    return all_immutable(ends, 3, depth - 1, left);
  }
  if (PyFrozenSet_CheckExact(v)) {
    PyObject* key;
    Py_hash_t hash;
    Py_ssize_t pos = 0;
    while (_PySet_NextEntry(v, &pos, &key, &hash))
      if (!immutable_within(key, depth - 1, left)) return false;
    return true;
  }
  return false;
}

bool key_within(PyObject* v, int depth, int* left) {
  if (immutable_within(v, depth, left)) return true;
  if (PyType_Check(v) && Py_TYPE(v)->tp_hash == PyBaseObject_Type.tp_hash) return true;
  if (is_free_builtin(v)) return true;  // compared by what it is
  if (!PyTuple_CheckExact(v) || depth == 0 || *left < 0) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(v); ++i)
    if (!key_within(PyTuple_GET_ITEM(v, i), depth - 1, left)) return false;
  return true;
}
}  // namespace

bool is_immutable(PyObject* v) {
  int left = kMost;
  return immutable_within(v, kDeepest, &left);
}

bool is_key(PyObject* v) {
  int left = kMost;
  return key_within(v, kDeepest, &left);
}

bool is_equal_key(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (!a || !b || !is_key(a) || !is_key(b)) return false;
  int equal = PyObject_RichCompareBool(a, b, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

bool is_plain_key(PyObject* v) {
  if (!PyTuple_CheckExact(v)) return PyUnicode_CheckExact(v) || PyLong_CheckExact(v) || v == Py_None;
  if (!is_key(v)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(v); ++i)
    if (!is_plain_key(PyTuple_GET_ITEM(v, i))) return false;
  return true;
}

bool same_immutable(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyFloat_CheckExact(a)) return same_float(PyFloat_AS_DOUBLE(a), PyFloat_AS_DOUBLE(b));
  if (PyComplex_CheckExact(a)) {
    Py_complex x = PyComplex_AsCComplex(a), y = PyComplex_AsCComplex(b);
    return same_float(x.real, y.real) && same_float(x.imag, y.imag);
  }
  if (is_enum_member(a)) return false;  // members are singletons, and a == b was asked above
  if (PyTuple_Check(a)) {
    if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i)
      if (!same_immutable(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
    return true;
  }
  if (PySlice_Check(a)) {
    auto *s = reinterpret_cast<PySliceObject*>(a), *t = reinterpret_cast<PySliceObject*>(b);
    return same_immutable(s->start, t->start) && same_immutable(s->stop, t->stop) &&
           same_immutable(s->step, t->step);
  }
  if (PyFrozenSet_CheckExact(a)) return same_in_order(a, b);
  // Ranges are equal where they give the same numbers, whatever their stop is.
  if (PyRange_Check(a))
    return same_attribute(a, b, "start") && same_attribute(a, b, "stop") && same_attribute(a, b, "step");
  // The bytes of a date do not say its unit, and some values are not equal to themselves.
  if (is_numpy_scalar(a)) return numpy_bytes(a) == numpy_bytes(b) && is_equal(a, b);
  return is_equal(a, b);
}

}  // namespace lazytrace
