#include "cpython/exhausted.h"

#include <torch/csrc/utils/pybind.h>

#include "cpython/imports.h"

namespace lazytrace {

namespace py = pybind11;

bool is_exhausted(PyObject* iterator) {
  static PyObject* const chain = from_module("itertools", "chain").release().ptr();
  constexpr int kCompleted = 1;  // of the states of frames, which are above it once they are cleared
  if (PyGen_CheckExact(iterator))
    return reinterpret_cast<PyGenObject*>(iterator)->gi_frame_state >= kCompleted;
  if (reinterpret_cast<PyObject*>(Py_TYPE(iterator)) != chain) return false;
  // The class, the arguments that make an empty one, and its iterators, if it has any left.
  auto parts = py::reinterpret_steal<py::object>(PyObject_CallMethod(iterator, "__reduce__", nullptr));
  if (!parts) PyErr_Clear();
  return parts && PyTuple_Check(parts.ptr()) && PyTuple_GET_SIZE(parts.ptr()) == 2;
}

}  // namespace lazytrace
