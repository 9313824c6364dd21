#include "record/python/gradients.h"

#include <torch/csrc/autograd/python_variable.h>

#include <utility>

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
  PyObject* batched = nullptr;
  PyObject* level = nullptr;
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

void configure_gradients(py::object run, py::object step, py::object batched, py::object level) {
  engine() = {run.release().ptr(), step.release().ptr(), batched.release().ptr(), level.release().ptr()};
}

PyObject* batched_engine() { return engine().batched; }
PyObject* level_of_loggers() { return engine().level; }

void Gradients::read(PyObject* tensor) {
  const at::Tensor& of = THPVariable_Unpack(tensor);
  // torch warns of this one, where it is called from.
  if (!of.is_leaf() && !of.retains_grad()) return recorder_->fail(say(reason::GradientOfResult));
  bool fed = recorder_->feeding();
  at::Tensor value = recorder_->read_gradient(of);
  touched_ = true;
  if (fed) instead_ = stand_in(value);
}

void Gradients::write(PyObject* tensor, PyObject* value) {
  if (!value) return recorder_->fail(say(reason::DeletesGradient));
  if (value != Py_None && !is_tensor(value)) return;  // an error of the caller's, which torch raises
  at::Tensor gradient = value == Py_None ? at::Tensor() : THPVariable_Unpack(value);
  if (gradient.defined() && has_attributes(value) && recorder_->made(gradient))
    return recorder_->fail(say(reason::ReturnsDecorated));
  touched_ = true;
  if (!recorder_->write_gradient(THPVariable_Unpack(tensor), gradient)) instead_ = stand_in({});
}

// Where the tensor stands whose gradient the instruction reads or sets; null where C code goes on to it.
PyObject** Gradients::owner_of(Frame f, const Operation& operation) {
  if (operation.action == Action::ReadsAttribute || operation.action == Action::SetsAttribute)
    return f.place(operation.first);
  if (operation.action != Action::Calls) return nullptr;
  auto is = [&](const char* name) {
    PyObject* known = PyDict_GetItemString(PyEval_GetBuiltins(), name);
    return known && *callee_of(f, operation) == known;
  };
  return is("getattr") || is("setattr") ? f.place(operation.third) : nullptr;
}

void Gradients::exchange_now(Frame f, const Operation& operation) {
  PyObject** callee = callee_of(f, operation);
  if (callee && *callee == engine().run && !recorder_->stopped())
    Py_SETREF(*callee, Py_NewRef(engine().step));
  if (!std::exchange(touched_, false)) return;
  PyObject** owner = owner_of(f, operation);
  if (!owner) recorder_->gradient_in_c();
  if (!instead_) return;
  py::object made = std::move(instead_);
  if (!owner) return recorder_->fail(say(reason::GradientInC));
  Py_SETREF(*owner, made.release().ptr());
}

}  // namespace lazytrace
