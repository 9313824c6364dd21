#include "torch/frame_evaluator.h"

#include "cpython/imports.h"

namespace lazytrace {

namespace py = pybind11;

py::object frame_evaluator() {
  static PyObject* ask =
      from_module("torch._C._dynamo.eval_frame", "get_eval_frame_callback").release().ptr();
  py::object callback = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(ask));
  if (!callback) throw py::error_already_set();
  return callback;
}

}  // namespace lazytrace
