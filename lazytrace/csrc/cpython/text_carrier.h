// Texts that Python is given in place of what it makes of numbers that are followed.
#pragma once

#include <Python.h>

#include "cpython/carrier.h"

namespace lazytrace {

// A str to isinstance(), but not to C code, which cannot take its characters without calling one of its
// methods, or refuses it. In memory it is one, so it can be made one at any time.

// Makes the class, once: `methods` are its attributes. New reference, or null with an exception set.
PyObject* make_text_class(PyObject* methods);
bool is_text(PyObject* object);
// A new reference to one with the characters of a str, of which there is at least one; null with an exception
// set.
PyObject* new_text(PyObject* plain);
// From now on it is a str, whoever holds it.
void retire_text(PyObject* text);

// Whether it stands for a number or a text that is followed.
inline bool is_followed(PyObject* object) { return is_carrier(object) || is_text(object); }

// Whether one stands there, or inside of what Python code puts together: tuples, lists, dicts and deques.
bool holds_followed(PyObject* object, int depth = 0);

// A plain object in place of one of them; of anything else the object itself. New reference, or null with an
// exception set.
PyObject* plain_of_followed(PyObject* object);

}  // namespace lazytrace
