#include "cpython/totals.h"

#include "cpython/imports.h"
#include "cpython/objects.h"

namespace lazytrace {

namespace {
bool are_numbers(PyObject* list) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i)
    if (!PyFloat_CheckExact(PyList_GET_ITEM(list, i)) && !PyLong_CheckExact(PyList_GET_ITEM(list, i)))
      return false;
  return true;
}

PyObject* function_of(PyObject* name) {
  static PyObject* const functions[] = {from_module("builtins", "sum").release().ptr(),
                                        from_module("builtins", "max").release().ptr(),
                                        from_module("builtins", "min").release().ptr()};
  const char* text = PyUnicode_AsUTF8(name);
  return functions[!text || text[0] == 's' ? 0 : text[1] == 'a' ? 1 : 2];
}
}  // namespace

py::object total_of(PyObject* name, PyObject* list, Py_ssize_t from) {
  Py_ssize_t size = size_of_list(list);
  if (size < from) return {};
  auto entries = py::reinterpret_steal<py::object>(
      PyList_Check(list) ? (from ? PyList_GetSlice(list, from, size) : Py_NewRef(list))
                         : PySequence_List(list));
  if (!entries || (!PyList_Check(list) && PyList_SetSlice(entries.ptr(), 0, from, nullptr) < 0))
    throw py::error_already_set();
  if (!are_numbers(entries.ptr())) return {};
  auto total = py::reinterpret_steal<py::object>(PyObject_CallOneArg(function_of(name), entries.ptr()));
  if (!total) PyErr_Clear();
  return total;
}

}  // namespace lazytrace
