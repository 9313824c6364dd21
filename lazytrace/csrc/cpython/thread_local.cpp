#include "cpython/thread_local.h"

#include "cpython/imports.h"

namespace lazytrace {

namespace {
PyTypeObject* local_type() {
  static auto* const type = reinterpret_cast<PyTypeObject*>(from_module("_thread", "_local").release().ptr());
  return type;
}
}  // namespace

bool is_thread_local(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  return type->tp_getattro == local_type()->tp_getattro && type->tp_setattro == local_type()->tp_setattro &&
         PyType_IsSubtype(type, local_type());
}

py::object attributes_in_thread(PyObject* object) {
  static PyObject* const name = PyUnicode_InternFromString("__dict__");
  // CPython keeps it in the thread under this key.
  auto key = py::reinterpret_steal<py::object>(PyUnicode_FromFormat("thread.local.%p", object));
  if (!key) throw py::error_already_set();
  PyObject* thread = PyThreadState_GetDict();
  if (!thread || !PyDict_GetItemWithError(thread, key.ptr())) return {};
  auto dict = py::reinterpret_steal<py::object>(local_type()->tp_getattro(object, name));
  if (!dict) throw py::error_already_set();
  return dict;
}

}  // namespace lazytrace
