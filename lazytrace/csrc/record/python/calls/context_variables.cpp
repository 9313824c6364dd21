#include "record/python/calls/context_variables.h"

#include "torch/frame_evaluator.h"

namespace lazytrace {

void ContextVariables::call(const std::string& name, PyObject* variable, bool has_default) {
  if (name == "set") {
    // The token that it gives back shows the value of before.
    if (sets_[variable]++ == 0) read(variable, true);
  } else if (name == "reset") {
    sets_[variable]--;
  } else if (name != "get") {
    recorder_->fail("calls ." + name + "() of a ContextVar");
  } else if (!(sets_.count(variable) && sets_[variable] > 0)) {
    read(variable, has_default);
  }
}

void ContextVariables::read(PyObject* variable, bool has_default) {
  int node = provenance_->owner(variable);
  if (node < 0) return recorder_->fail("reads a context variable that cannot be reached again");
  py::list unset;
  PyObject* value = nullptr;
  if (PyContextVar_Get(variable, has_default ? unset.ptr() : nullptr, &value) < 0) PyErr_Clear();
  py::object held = py::reinterpret_steal<py::object>(value);
  PyObject* set = value == unset.ptr() ? nullptr : value;
  provenance_->read_child(node, Access::Context, nullptr, has_default ? 0 : -1, set);
}

void ContextVariables::set_frame_evaluator(PyObject* value) {
  if (value != Py_None || !frame_evaluator().is_none())
    return recorder_->fail("has torch's compiler watch its frames");
  provenance_->read_child(-1, Access::FrameEvaluator, nullptr, -1, Py_None);
}

void ContextVariables::finish() {
  for (auto& [variable, sets] : sets_)
    if (sets != 0) recorder_->fail("sets a context variable");
}

}  // namespace lazytrace
