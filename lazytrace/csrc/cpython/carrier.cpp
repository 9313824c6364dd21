#include "cpython/carrier.h"

#include <cstring>

namespace lazytrace {

namespace {

PyTypeObject *carrier_type = nullptr, *real_type = nullptr;

// Of numpy's: those of each kind.
struct Scalars {
  PyTypeObject *carrier = nullptr, *plain = nullptr;

  bool carries(PyObject* object) const { return carrier && Py_IS_TYPE(object, carrier); }
  bool are(PyObject* object) const { return plain && Py_IS_TYPE(object, plain); }
} scalars[3];
Scalars &doubles = scalars[0], &singles = scalars[1], &longs = scalars[2];

// The values of all stand where that of a float of Python's stands.
void* place_of(PyObject* scalar) { return &reinterpret_cast<PyFloatObject*>(scalar)->ob_fval; }

void put_single(PyObject* scalar, double value) {
  auto single = static_cast<float>(value);
  std::memcpy(place_of(scalar), &single, sizeof single);
}

// C code asks a flag before it reads an int's digits, so int may stay among the bases. For a float it asks
// whether float is among them: there it must not be, and isinstance() asks for the attribute __class__.
PyObject* bases_of(bool real, PyObject* made, PyObject* symbolic) {
  return real ? PyTuple_Pack(3, made, symbolic, &PyBaseObject_Type)
              : PyTuple_Pack(4, made, &PyLong_Type, symbolic, &PyBaseObject_Type);
}

// In C: what a function of Python gives back is watched.
PyObject* float_class(PyObject*, void*) {
  Py_INCREF(&PyFloat_Type);
  return reinterpret_cast<PyObject*>(&PyFloat_Type);
}

PyObject* scalar_class(PyObject*, void* kind) {
  return Py_NewRef(reinterpret_cast<PyObject*>(static_cast<Scalars*>(kind)->plain));
}

void (*flag_reader)(PyObject*) = nullptr;  // set once

// What C code that has come to one finds, once it has been read; borrowed.
PyObject* plain_of(PyObject* object) {
  if (!is_flag(object)) return object;
  if (flag_reader) flag_reader(object);
  return Py_SIZE(object) ? Py_True : Py_False;
}

template <PyObject* (*operate)(PyObject*)>
PyObject* on_plain(PyObject* a) {
  return operate(plain_of(a));
}
template <PyObject* (*operate)(PyObject*, PyObject*)>
PyObject* on_plain(PyObject* a, PyObject* b) {
  return operate(plain_of(a), plain_of(b));
}
PyObject* power_of_plain(PyObject* a, PyObject* b, PyObject* c) {
  return PyNumber_Power(plain_of(a), plain_of(b), plain_of(c));
}
int truth_of_plain(PyObject* a) { return plain_of(a) == Py_True; }
Py_hash_t hash_of_plain(PyObject* a) { return PyObject_Hash(plain_of(a)); }
PyObject* compare_plain(PyObject* a, PyObject* b, int how) {
  return PyObject_RichCompare(plain_of(a), plain_of(b), how);
}
// The class of a truth value says nothing of it.
PyObject* attribute_of_plain(PyObject* a, PyObject* name) {
  if (PyUnicode_CompareWithASCIIString(name, "__class__") == 0)
    return Py_NewRef(reinterpret_cast<PyObject*>(&PyBool_Type));
  return PyObject_GetAttr(plain_of(a), name);
}
// What round(), format() and the module math look up on the class, where the methods of int would lie.
template <const char* name>
PyObject* call_on_plain(PyObject* a, PyObject* args) {
  PyObject* method = PyObject_GetAttrString(plain_of(a), name);
  PyObject* result = method ? PyObject_Call(method, args, nullptr) : nullptr;
  Py_XDECREF(method);
  return result;
}
constexpr char kRound[] = "__round__", kTrunc[] = "__trunc__", kFloor[] = "__floor__", kCeil[] = "__ceil__",
               kFormat[] = "__format__";
template <const char* name>
constexpr PyMethodDef method_on_plain() {
  return {name, call_on_plain<name>, METH_VARARGS, nullptr};
}

template <typename F>
PyType_Slot slot(int which, F* function) {
  return {which, reinterpret_cast<void*>(function)};
}
template <PyObject* (*operate)(PyObject*)>
PyType_Slot unary(int which) {
  return slot<PyObject*(PyObject*)>(which, on_plain<operate>);
}
template <PyObject* (*operate)(PyObject*, PyObject*)>
PyType_Slot binary(int which) {
  return slot<PyObject*(PyObject*, PyObject*)>(which, on_plain<operate>);
}

// Made once. Its class is no int to C code, which would take its digits. C code is given none; where it comes
// to one all the same, it reads it.
PyTypeObject* flag_type() {
  static PyTypeObject* const made = [] {
    static PyMethodDef methods[] = {method_on_plain<kRound>(),  method_on_plain<kTrunc>(),
                                    method_on_plain<kFloor>(),  method_on_plain<kCeil>(),
                                    method_on_plain<kFormat>(), {nullptr, nullptr, 0, nullptr}};
    PyType_Slot slots[] = {{Py_tp_methods, methods},
                           slot(Py_tp_getattro, attribute_of_plain),
                           unary<PyNumber_Negative>(Py_nb_negative),
                           unary<PyNumber_Positive>(Py_nb_positive),
                           unary<PyNumber_Absolute>(Py_nb_absolute),
                           unary<PyNumber_Invert>(Py_nb_invert),
                           unary<PyNumber_Long>(Py_nb_int),
                           unary<PyNumber_Index>(Py_nb_index),
                           unary<PyNumber_Float>(Py_nb_float),
                           unary<PyObject_Repr>(Py_tp_repr),
                           unary<PyObject_Str>(Py_tp_str),
                           binary<PyNumber_Add>(Py_nb_add),
                           binary<PyNumber_Subtract>(Py_nb_subtract),
                           binary<PyNumber_Multiply>(Py_nb_multiply),
                           binary<PyNumber_Remainder>(Py_nb_remainder),
                           binary<PyNumber_Divmod>(Py_nb_divmod),
                           binary<PyNumber_Lshift>(Py_nb_lshift),
                           binary<PyNumber_Rshift>(Py_nb_rshift),
                           binary<PyNumber_And>(Py_nb_and),
                           binary<PyNumber_Xor>(Py_nb_xor),
                           binary<PyNumber_Or>(Py_nb_or),
                           binary<PyNumber_FloorDivide>(Py_nb_floor_divide),
                           binary<PyNumber_TrueDivide>(Py_nb_true_divide),
                           slot(Py_nb_power, power_of_plain),
                           slot(Py_nb_bool, truth_of_plain),
                           slot(Py_tp_hash, hash_of_plain),
                           slot(Py_tp_richcompare, compare_plain),
                           {0, nullptr}};
    PyType_Spec spec = {"lazytrace.carriers.Flag", 0, 0, Py_TPFLAGS_DEFAULT, slots};
    auto* type = reinterpret_cast<PyTypeObject*>(
        PyType_FromSpecWithBases(&spec, reinterpret_cast<PyObject*>(&PyLong_Type)));
    if (type) type->tp_flags &= ~Py_TPFLAGS_LONG_SUBCLASS;
    return type;
  }();
  return made;
}

}  // namespace

void read_flags_by(void (*reader)(PyObject*)) { flag_reader = reader; }

PyObject* flag_class() { return reinterpret_cast<PyObject*>(flag_type()); }

bool is_flag(PyObject* object) { return Py_IS_TYPE(object, flag_type()); }

// CPython lets none of these go.
void retire_flag(PyObject* flag) {
  Py_INCREF(flag);
  Py_SET_TYPE(flag, &PyBool_Type);
}

PyObject* new_flag(bool value) {
  PyObject* plain = PyLong_FromLong(value);
  PyObject* args = plain ? PyTuple_Pack(1, plain) : nullptr;
  PyObject* made = args ? PyLong_Type.tp_new(flag_type(), args, nullptr) : nullptr;
  Py_XDECREF(args);
  Py_XDECREF(plain);
  return made;
}

bool add_methods(PyObject* made, PyObject* methods) {
  PyObject *name, *value;
  for (Py_ssize_t at = 0; PyDict_Next(methods, &at, &name, &value);)
    if (PyObject_SetAttr(made, name, value) < 0) return false;
  return true;
}

PyObject* make_carrier_class(bool real, PyObject* methods, PyObject* symbolic) {
  // Not by a class statement: instances of such classes have room for the collector, which a number has not.
  static PyGetSetDef getset[] = {{"__class__", float_class, nullptr, nullptr, nullptr},
                                 {nullptr, nullptr, nullptr, nullptr, nullptr}};
  PyType_Slot none[] = {{0, nullptr}}, with_class[] = {{Py_tp_getset, getset}, {0, nullptr}};
  PyType_Spec spec = {real ? "lazytrace.carriers.Real" : "lazytrace.carriers.Dim", 0, 0, Py_TPFLAGS_DEFAULT,
                      real ? with_class : none};
  PyTypeObject* base = real ? &PyFloat_Type : &PyLong_Type;
  PyObject* made = PyType_FromSpecWithBases(&spec, reinterpret_cast<PyObject*>(base));
  PyObject* order = made && add_methods(made, methods) ? bases_of(real, made, symbolic) : nullptr;
  if (!order) {
    Py_XDECREF(made);
    return nullptr;
  }
  auto* type = reinterpret_cast<PyTypeObject*>(made);
  // A base that isinstance() finds, with nothing of its layout.
  Py_SETREF(type->tp_mro, order);
  type->tp_flags &= ~Py_TPFLAGS_LONG_SUBCLASS;
  PyType_Modified(type);
  (real ? real_type : carrier_type) = type;
  Py_INCREF(made);
  return made;
}

PyObject* make_scalar_class(PyTypeObject* scalar, ScalarKind kind, PyObject* methods, PyObject* symbolic) {
  static const char* const names[] = {"lazytrace.carriers.Scalar", "lazytrace.carriers.Single",
                                      "lazytrace.carriers.Long"};
  static PyGetSetDef getsets[3][2] = {{{"__class__", scalar_class, nullptr, nullptr, &doubles}, {}},
                                      {{"__class__", scalar_class, nullptr, nullptr, &singles}, {}},
                                      {{"__class__", scalar_class, nullptr, nullptr, &longs}, {}}};
  auto which = static_cast<size_t>(kind);
  PyType_Slot slots[] = {{Py_tp_getset, getsets[which]}, {0, nullptr}};
  PyType_Spec spec = {names[which], 0, 0, Py_TPFLAGS_DEFAULT, slots};
  PyObject* made = PyType_FromSpecWithBases(&spec, reinterpret_cast<PyObject*>(&PyFloat_Type));
  PyObject* order = made && add_methods(made, methods) ? bases_of(true, made, symbolic) : nullptr;
  if (!order) {
    Py_XDECREF(made);
    return nullptr;
  }
  auto* type = reinterpret_cast<PyTypeObject*>(made);
  Py_SETREF(type->tp_mro, order);
  PyType_Modified(type);
  scalars[which] = {type, reinterpret_cast<PyTypeObject*>(Py_NewRef(reinterpret_cast<PyObject*>(scalar)))};
  return Py_NewRef(made);
}

bool is_scalar_carrier(PyObject* object) {
  return doubles.carries(object) || singles.carries(object) || longs.carries(object);
}

bool is_single_carrier(PyObject* object) { return singles.carries(object); }

bool is_long_carrier(PyObject* object) { return longs.carries(object); }

bool is_float64(PyObject* object) { return doubles.are(object); }

bool is_float32(PyObject* object) { return singles.are(object); }

bool is_float_of_any_kind(PyObject* object) {
  return PyFloat_CheckExact(object) || is_float64(object) || is_float32(object);
}

double float_value(PyObject* object) {
  if (!is_float32(object)) return PyFloat_AS_DOUBLE(object);
  float value;
  std::memcpy(&value, place_of(object), sizeof value);
  return value;
}

bool is_int64(PyObject* object) { return longs.are(object); }

int64_t int64_value(PyObject* object) {
  int64_t value;
  std::memcpy(&value, place_of(object), sizeof value);
  return value;
}

int64_t whole_value(PyObject* object) {
  return is_int64(object) ? int64_value(object) : PyLong_AsLongLong(object);
}

bool is_followable_scalar(PyObject* object) {
  return is_float64(object) || is_float32(object) || is_int64(object);
}

bool is_real_carrier(PyObject* object) {
  return (real_type && Py_IS_TYPE(object, real_type)) || doubles.carries(object) || singles.carries(object);
}

bool is_carrier(PyObject* object) {
  return (carrier_type && Py_IS_TYPE(object, carrier_type)) || is_real_carrier(object) ||
         longs.carries(object);
}

PyObject* new_carrier(int64_t value) {
  PyObject* plain = PyLong_FromLongLong(value);
  PyObject* args = plain ? PyTuple_Pack(1, plain) : nullptr;
  PyObject* made = args ? PyLong_Type.tp_new(carrier_type, args, nullptr) : nullptr;
  Py_XDECREF(args);
  Py_XDECREF(plain);
  return made;
}

PyObject* new_real_carrier(double value) {
  PyObject* made = real_type->tp_alloc(real_type, 0);
  if (made) reinterpret_cast<PyFloatObject*>(made)->ob_fval = value;
  return made;
}

PyObject* new_scalar(double value, bool single) {
  PyTypeObject* type = (single ? singles : doubles).plain;
  PyObject* made = type->tp_alloc(type, 0);
  if (made && single) put_single(made, value);
  if (made && !single) reinterpret_cast<PyFloatObject*>(made)->ob_fval = value;
  return made;
}

PyObject* new_int64(int64_t value) {
  PyObject* made = longs.plain->tp_alloc(longs.plain, 0);
  if (made) std::memcpy(place_of(made), &value, sizeof value);
  return made;
}

namespace {
// With numpy's own memory, as it is numpy's in the end.
PyObject* carrier_made_of(PyObject* scalar, const Scalars& kind) {
  if (!scalar) return nullptr;
  Py_INCREF(reinterpret_cast<PyObject*>(kind.carrier));
  Py_SET_TYPE(scalar, kind.carrier);
  return scalar;
}
}  // namespace

PyObject* new_scalar_carrier(double value, bool single) {
  PyObject* made = carrier_made_of(new_scalar(value, single), single ? singles : doubles);
  if (made) reinterpret_cast<PyFloatObject*>(made)->ob_fval = value;
  return made;
}

PyObject* new_long_carrier(int64_t value) { return carrier_made_of(new_int64(value), longs); }

int64_t carrier_value(PyObject* carrier) {
  if (is_long_carrier(carrier)) return int64_value(carrier);
  // CPython's own structure: PyLong_AsLongLong() would call the method that counts as a read.
  auto* number = reinterpret_cast<PyLongObject*>(carrier);
  Py_ssize_t size = Py_SIZE(number), digits = size < 0 ? -size : size;
  uint64_t value = 0;
  for (Py_ssize_t i = digits; i-- > 0;) value = value << PyLong_SHIFT | number->ob_digit[i];
  return static_cast<int64_t>(size < 0 ? -value : value);
}

double real_carrier_value(PyObject* carrier) { return reinterpret_cast<PyFloatObject*>(carrier)->ob_fval; }

PyObject* plain_of_carrier(PyObject* carrier) {
  // It has been retired, as by a read that ended the recording.
  if (PyLong_CheckExact(carrier) || PyFloat_CheckExact(carrier)) return Py_NewRef(carrier);
  if (is_followable_scalar(carrier)) return Py_NewRef(carrier);
  if (is_long_carrier(carrier)) return new_int64(int64_value(carrier));
  if (is_scalar_carrier(carrier)) return new_scalar(real_carrier_value(carrier), is_single_carrier(carrier));
  return is_real_carrier(carrier) ? PyFloat_FromDouble(real_carrier_value(carrier))
                                  : PyLong_FromLongLong(carrier_value(carrier));
}

void retire_carrier(PyObject* carrier) {
  if (!is_carrier(carrier)) return;
  // An object of a class made at run time holds its class, a plain number does not.
  PyTypeObject* type = Py_TYPE(carrier);
  PyTypeObject* plain = type == real_type         ? &PyFloat_Type
                        : type == doubles.carrier ? doubles.plain
                        : type == singles.carrier ? singles.plain
                        : type == longs.carrier   ? longs.plain
                                                  : &PyLong_Type;
  if (type == singles.carrier) put_single(carrier, real_carrier_value(carrier));
  Py_SET_TYPE(carrier, plain);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

}  // namespace lazytrace
