#include "record/python/gradients.h"

#include <torch/csrc/autograd/python_variable.h>

#include "cpython/callee.h"
#include "cpython/imports.h"
#include "cpython/objects.h"
#include "support/reasons.h"

namespace lazytrace {

namespace {

// Kept for the life of the process.
struct Engine {
  PyObject* run = nullptr;
  PyObject* step = nullptr;
};

Engine& engine() {
  static Engine known;
  return known;
}

// An object with just this attribute.
py::object stand_in(const at::Tensor& gradient) {
  static PyObject* const plain = from_module("types", "SimpleNamespace").release().ptr();
  py::object made = py::handle(plain)();
  made.attr("grad") = py::reinterpret_steal<py::object>(THPVariable_Wrap(gradient));
  return made;
}

}  // namespace

void configure_gradients(py::object run, py::object step) {
  engine() = {run.release().ptr(), step.release().ptr()};
}

void Gradients::read(PyObject* tensor) {
  const at::Tensor& of = THPVariable_Unpack(tensor);
  // torch warns of this one, where it is called from.
  if (!of.is_leaf() && !of.retains_grad()) return recorder_->fail(say(reason::GradientOfResult));
  bool fed = recorder_->feeding();
  at::Tensor value = recorder_->read_gradient(of);
  if (fed) instead_ = stand_in(value);
}

void Gradients::write(PyObject* tensor, PyObject* value) {
  if (!value) return recorder_->fail(say(reason::DeletesGradient));
  if (value != Py_None && !is_tensor(value)) return;  // an error of the caller's, which torch raises
  at::Tensor gradient = value == Py_None ? at::Tensor() : THPVariable_Unpack(value);
  if (gradient.defined() && has_attributes(value) && recorder_->made(gradient))
    return recorder_->fail(say(reason::ReturnsDecorated));
  if (!recorder_->write_gradient(THPVariable_Unpack(tensor), gradient)) instead_ = stand_in({});
}

void Gradients::exchange(Frame f, const Operation& operation) {
  PyObject** callee = callee_of(f, operation);
  if (callee && *callee == engine().run && !recorder_->stopped())
    Py_SETREF(*callee, Py_NewRef(engine().step));
  if (!instead_) return;
  py::object made = std::move(instead_);
  if (operation.action != Action::ReadsAttribute && operation.action != Action::SetsAttribute)
    return recorder_->fail(say(reason::GradientInC));
  Py_SETREF(*f.place(operation.first), made.release().ptr());
}

}  // namespace lazytrace
