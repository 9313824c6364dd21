// Ints and floats that Python is given in place of a number, so that what it does with them can be followed.
#pragma once

#include <Python.h>

#include <cstdint>

namespace lazytrace {

// An int or a float to isinstance(), but neither to C code, which cannot take its value without calling one
// of its methods. In memory it is one, so it can be made one at any time.

// Makes the class of ints, or that of floats, once each: `methods` are its attributes, `symbolic` is what
// torch's parser shall take it for (torch.SymInt, torch.SymFloat). New reference, or null with an exception
// set.
PyObject* make_carrier_class(bool real, PyObject* methods, PyObject* symbolic);
// Numbers of numpy's that are followed: float64, which is a float of Python's, too, and has its layout;
// float32, which is none, and holds its value as a double while it is followed; int64, whose value stands
// where that of a float stands.
enum class ScalarKind : uint8_t { Double, Single, Long };
PyObject* make_scalar_class(PyTypeObject* scalar, ScalarKind kind, PyObject* methods, PyObject* symbolic);
// Gives a class these attributes. False with an exception set.
bool add_methods(PyObject* made, PyObject* methods);
bool is_carrier(PyObject* object);
// Of a float, be it Python's or numpy's.
bool is_real_carrier(PyObject* object);
// Of a number of numpy's.
bool is_scalar_carrier(PyObject* object);
bool is_single_carrier(PyObject* object);
bool is_long_carrier(PyObject* object);
// Of a truth value. None of the kinds above: which object True and False are is asked everywhere, so one lies
// in tuples and lists alone, and True or False lies in its place once it is on the stack of Python code.
bool is_flag(PyObject* object);
PyObject* flag_class();  // borrowed
PyObject* new_flag(bool value);
// Told once: who is told of one whose value C code comes to.
void read_flags_by(void (*reader)(PyObject*));
// From now on it is a bool, and stays for as long as the process: of one that somebody holds still.
void retire_flag(PyObject* flag);
// New references, or null with an exception set.
PyObject* new_carrier(int64_t value);
PyObject* new_real_carrier(double value);
PyObject* new_scalar_carrier(double value, bool single);
PyObject* new_long_carrier(int64_t value);
// Whether it is a plain float64 of numpy's; of none before there is a class of carriers for them.
bool is_float64(PyObject* object);
// The same of a float32.
bool is_float32(PyObject* object);
// Whether it is a plain float, of Python's or of one of these kinds, and its value.
bool is_float_of_any_kind(PyObject* object);
double float_value(PyObject* object);
// The same of an int64, and the value of one.
bool is_int64(PyObject* object);
int64_t int64_value(PyObject* object);
// Of one of these, or of an int of up to 64 bits.
int64_t whole_value(PyObject* object);
// Whether it is a plain number of any of these kinds.
bool is_followable_scalar(PyObject* object);
// A plain float64 or float32 of numpy's, or an int64, once there is a class of carriers for them.
PyObject* new_scalar(double value, bool single);
PyObject* new_int64(int64_t value);
// The value of one or the other, as no method of the carrier gives it.
int64_t carrier_value(PyObject* carrier);
double real_carrier_value(PyObject* carrier);
// The plain number of the same value: a new reference, or null with an exception set.
PyObject* plain_of_carrier(PyObject* carrier);
// From now on it is a plain number, whoever holds it.
void retire_carrier(PyObject* carrier);

}  // namespace lazytrace
