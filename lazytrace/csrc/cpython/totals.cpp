#include "cpython/totals.h"

#include <algorithm>
#include <array>

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

struct TotalFunction {
  PyObject *name, *function;
};

const std::array<TotalFunction, 3>& total_functions() {
  auto one = [](const char* name) { return TotalFunction{PyUnicode_InternFromString(name), builtin(name)}; };
  static const std::array<TotalFunction, 3> all{one("sum"), one("max"), one("min")};
  return all;
}
}  // namespace

PyObject* name_of_total(PyObject* function) {
  for (const TotalFunction& one : total_functions())
    if (one.function == function) return one.name;
  return nullptr;
}

py::object total_of(PyObject* name, PyObject* list, Py_ssize_t from) {
  Py_ssize_t size = size_of_list(list);
  if (size < from) return {};
  auto entries = py::reinterpret_steal<py::object>(
      PyList_Check(list) ? (from ? PyList_GetSlice(list, from, size) : Py_NewRef(list))
                         : PySequence_List(list));
  if (!entries || (!PyList_Check(list) && PyList_SetSlice(entries.ptr(), 0, from, nullptr) < 0))
    throw py::error_already_set();
  if (!are_numbers(entries.ptr())) return {};
  const auto& all = total_functions();
  auto named = std::find_if(all.begin(), all.end(),
                            [&](const TotalFunction& one) { return PyUnicode_Compare(one.name, name) == 0; });
  if (named == all.end()) return {};
  auto total = py::reinterpret_steal<py::object>(PyObject_CallOneArg(named->function, entries.ptr()));
  if (!total) PyErr_Clear();
  return total;
}

}  // namespace lazytrace
