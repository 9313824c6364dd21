#include "record/python/pure_functions.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "cpython/imports.h"
#include "cpython/objects.h"
#include "cpython/values.h"
#include "record/python/escapes.h"

namespace lazytrace {

namespace {

// Kept for the life of the process.
PyObject*& asked() {
  static PyObject* reads_of = nullptr;
  return reads_of;
}

bool is_kind(PyObject* kind, const char* name) { return PyUnicode_CompareWithASCIIString(kind, name) == 0; }

// Bindings that lead out of the dispatcher's sight are not harmless wherever they are found.
bool leads_away(PyObject* kind, PyObject* name) {
  return (is_kind(kind, "tensor") && escapes_from_tensor(text_of(name))) ||
         (is_kind(kind, "module") && escapes_from_torch(text_of(name)));
}

}  // namespace

void configure_pure_functions(py::object reads_of) { asked() = reads_of.release().ptr(); }

py::object reads_of_function(PyObject* cls) { return py::handle(asked())(py::handle(cls)); }

bool PureFunctions::meet(PyObject* cls, const py::object& reads) {
  bool& pure = known_[cls];
  pure = false;
  // What code that is not watched has changed may be what this one finds.
  if (reads.is_none() || provenance_->touched_count() > 0) return false;
  py::list all(reads);
  auto part = [](py::handle read, Py_ssize_t at) { return PyTuple_GET_ITEM(read.ptr(), at); };
  for (py::handle one : all)
    if (leads_away(part(one, 0), part(one, 2))) return false;
  for (py::handle one : all)
    if (!read(part(one, 0), part(one, 1), part(one, 2))) return false;
  return pure = true;
}

bool PureFunctions::read(PyObject* kind, PyObject* owner, PyObject* name) {
  if (is_kind(kind, "class")) {
    auto* type = reinterpret_cast<PyTypeObject*>(owner);
    classes_->read_class(type, name, _PyType_Lookup(type, name));
  } else if (is_kind(kind, "function")) {
    functions_->read_function(owner);
  } else if (is_kind(kind, "holder")) {
    functions_->consume_function(owner);
  } else if (is_kind(kind, "global")) {
    return names_->read_global_of(owner, name);
  } else if (is_kind(kind, "module")) {
    if (log_->wrote(PyModule_GetDict(owner), name)) return false;
    attributes_->read_module_attribute(owner, name);
  } else {
    read_of_tensors(name);
  }
  return true;
}

void PureFunctions::read_of_tensors(PyObject* name) {
  for (PyTypeObject* type : {reinterpret_cast<PyTypeObject*>(THPVariableClass), parameter_class()})
    classes_->read_class(type, name, _PyType_Lookup(type, name));
}

bool PureFunctions::takes(PyObject* cls, const py::tuple& arguments) const {
  if (!is(cls) || provenance_->touched_count() > 0) return false;
  return std::all_of(arguments.begin(), arguments.end(), [](py::handle argument) {
    PyObject* v = argument.ptr();
    if (!is_tensor(v)) return is_immutable(v);
    bool usual =
        Py_IS_TYPE(v, reinterpret_cast<PyTypeObject*>(THPVariableClass)) || Py_IS_TYPE(v, parameter_class());
    return usual && !has_attributes(v);
  });
}

}  // namespace lazytrace
