// The callable that an instruction is about to call.
#pragma once

#include <descrobject.h>

#include "cpython/frame.h"
#include "cpython/imports.h"
#include "cpython/operations.h"

namespace lazytrace {

// Its place on the stack of the frame; null of an instruction that is no call.
inline PyObject** callee_of(Frame f, const Operation& operation) {
  if (operation.action == Action::CallsWith) return f.place(operation.first);
  if (operation.action != Action::Calls) return nullptr;
  return f.place(f.peek(operation.first) ? operation.first : operation.second);
}

// A slot of C that is bound to an object, as Objects/descrobject.c of CPython 3.11 lays it out.
struct MethodWrapper {
  PyObject_HEAD PyWrapperDescrObject* descriptor;
  PyObject* self;

  static const MethodWrapper* of(PyObject* object) {
    return Py_IS_TYPE(object, &_PyMethodWrapper_Type) ? reinterpret_cast<MethodWrapper*>(object) : nullptr;
  }
  PyObject* name() const { return PyDescr_NAME(descriptor); }
};

// What a functools.partial calls, borrowed; null of anything else.
inline PyObject* function_of_partial(PyObject* callable) {
  static PyObject* const partial = from_module("functools", "partial").release().ptr();
  if (reinterpret_cast<PyObject*>(Py_TYPE(callable)) != partial) return nullptr;
  py::object function = py::reinterpret_steal<py::object>(PyObject_GetAttrString(callable, "func"));
  return function.ptr();  // which the partial holds
}

// Whether a call comes to nothing but Python code, which is given what the callable is given.
inline bool comes_to_python(PyObject* callable) {
  static PyObject* const call = PyUnicode_InternFromString("__call__");
  if (PyFunction_Check(callable)) return true;
  if (PyMethod_Check(callable)) return comes_to_python(PyMethod_GET_FUNCTION(callable));
  if (PyObject* function = function_of_partial(callable)) return comes_to_python(function);
  PyObject* found = _PyType_Lookup(Py_TYPE(callable), call);
  return found && PyFunction_Check(found);
}

}  // namespace lazytrace
