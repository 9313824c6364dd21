#include "cpython/carrier.h"

namespace lazytrace {

namespace {
PyTypeObject* carrier_type = nullptr;
}

PyObject* make_carrier_class(PyObject* methods, PyObject* symbolic) {
  // Not by a class statement: instances of such classes have room for the collector, which an int has not.
  PyType_Slot slots[] = {{0, nullptr}};
  PyType_Spec spec = {"lazytrace.carriers.Dim", 0, 0, Py_TPFLAGS_DEFAULT, slots};
  PyObject* made = PyType_FromSpecWithBases(&spec, reinterpret_cast<PyObject*>(&PyLong_Type));
  if (!made) return nullptr;
  PyObject *name, *value;
  for (Py_ssize_t at = 0; PyDict_Next(methods, &at, &name, &value);)
    if (PyObject_SetAttr(made, name, value) < 0) {
      Py_DECREF(made);
      return nullptr;
    }
  carrier_type = reinterpret_cast<PyTypeObject*>(made);
  // A base that isinstance() finds, with nothing of its layout.
  PyObject* order = PyTuple_Pack(4, made, &PyLong_Type, symbolic, &PyBaseObject_Type);
  if (!order) return nullptr;
  Py_SETREF(carrier_type->tp_mro, order);
  // C code asks this flag before it reads an int's digits.
  carrier_type->tp_flags &= ~Py_TPFLAGS_LONG_SUBCLASS;
  PyType_Modified(carrier_type);
  Py_INCREF(made);
  return made;
}

bool is_carrier(PyObject* object) { return carrier_type && Py_IS_TYPE(object, carrier_type); }

PyObject* new_carrier(int64_t value) {
  PyObject* plain = PyLong_FromLongLong(value);
  PyObject* args = plain ? PyTuple_Pack(1, plain) : nullptr;
  PyObject* made = args ? PyLong_Type.tp_new(carrier_type, args, nullptr) : nullptr;
  Py_XDECREF(args);
  Py_XDECREF(plain);
  return made;
}

int64_t carrier_value(PyObject* carrier) {
  // CPython's own structure: PyLong_AsLongLong() would call the method that counts as a read.
  auto* number = reinterpret_cast<PyLongObject*>(carrier);
  Py_ssize_t size = Py_SIZE(number), digits = size < 0 ? -size : size;
  uint64_t value = 0;
  for (Py_ssize_t i = digits; i-- > 0;) value = value << PyLong_SHIFT | number->ob_digit[i];
  return static_cast<int64_t>(size < 0 ? -value : value);
}

void retire_carrier(PyObject* carrier) {
  if (!is_carrier(carrier)) return;
  // An object of a class made at run time holds its class, a plain int does not.
  Py_SET_TYPE(carrier, &PyLong_Type);
  Py_DECREF(reinterpret_cast<PyObject*>(carrier_type));
}

}  // namespace lazytrace
