#include "torch/frame_evaluator.h"

namespace lazytrace {

namespace py = pybind11;

py::object frame_evaluator() {
  static PyObject* ask =
      py::object(py::module_::import("torch._C._dynamo.eval_frame").attr("get_eval_frame_callback"))
          .release()
          .ptr();
  py::object callback = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(ask));
  if (!callback) throw py::error_already_set();
  return callback;
}

}  // namespace lazytrace
