#include "flat/saved.h"

#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <string>

namespace lazytrace {

namespace py = pybind11;

namespace {

// A number that was made a tensor can be changed by nobody.
bool is_number(const py::object& value) {
  return THPVariable_Check(value.ptr()) &&
         THPVariable_Unpack(value.ptr()).unsafeGetTensorImpl()->is_wrapped_number();
}

bool holds_tensors(const py::object& value) {
  if (py::isinstance<py::tuple>(value))
    return std::any_of(value.begin(), value.end(),
                       [](py::handle item) { return THPVariable_Check(item.ptr()); });
  return THPVariable_Check(value.ptr()) && !is_number(value);
}

// visit(value) of each attribute that shows what a node has saved; null where it raises. Until it returns
// false.
template <typename F>
void each_saved(torch::autograd::Node* node, F visit) {
  py::object shown = py::reinterpret_steal<py::object>(torch::autograd::functionToPyObject(node->getptr()));
  for (py::handle name : py::reinterpret_steal<py::list>(PyObject_Dir(shown.ptr()))) {
    if (std::string(py::str(name)).rfind("_saved_", 0) != 0) continue;
    if (!visit(py::reinterpret_steal<py::object>(PyObject_GetAttr(shown.ptr(), name.ptr())))) return;
  }
}

}  // namespace

Saved saved_by(torch::autograd::Node* node) {
  Saved saved = Saved::Nothing;
  each_saved(node, [&](const py::object& value) {
    if (value) {
      if (holds_tensors(value)) saved = Saved::Tensors;
      return true;
    }
    py::error_already_set error;
    bool gone = error.matches(PyExc_RuntimeError) &&
                std::string(py::str(error.value())).rfind(torch::autograd::ERR_BACKWARD_TWICE, 0) == 0;
    // What was written to since raises another error.
    saved = gone ? Saved::Gone : Saved::Tensors;
    return gone;
  });
  return saved;
}

std::vector<at::Tensor> saved_tensors(torch::autograd::Node* node) {
  std::vector<at::Tensor> tensors;
  auto add = [&](py::handle value) {
    if (THPVariable_Check(value.ptr())) tensors.push_back(THPVariable_Unpack(value.ptr()));
  };
  each_saved(node, [&](const py::object& value) {
    if (!value)
      PyErr_Clear();
    else if (py::isinstance<py::tuple>(value))
      for (py::handle item : value) add(item);
    else
      add(value);
    return true;
  });
  return tensors;
}

}  // namespace lazytrace
