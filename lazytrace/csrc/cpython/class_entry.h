// What a class has under a name, as guards see it.
#pragma once

#include <Python.h>

namespace lazytrace {

// A class whose `__new__` was set and deleted finds its base's again, but goes on asking for it at each call,
// and so that of `object` takes no arguments (update_one_slot, Objects/typeobject.c).
inline bool asks_for_new(PyTypeObject* type, PyObject* found) {
  PyObject* of = found && PyCFunction_Check(found) ? PyCFunction_GET_SELF(found) : nullptr;
  return of && PyType_Check(of) && reinterpret_cast<PyTypeObject*>(of)->tp_new != type->tp_new;
}

// What stands for `found`, which the class and its bases have under the name; borrowed. Needs the GIL.
inline PyObject* class_entry(PyTypeObject* type, PyObject* name, PyObject* found) {
  static PyObject* const kNew = PyUnicode_InternFromString("__new__");
  static PyObject* const kAsked = PyUnicode_InternFromString("lazytrace: a __new__ that was deleted");
  return name == kNew && asks_for_new(type, found) ? kAsked : found;
}

}  // namespace lazytrace
