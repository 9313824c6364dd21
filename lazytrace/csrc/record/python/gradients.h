// What Python code asks of autograd: `.grad`, and backward passes.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "cpython/frame.h"
#include "cpython/operations.h"
#include "record/operators/recorder.h"

namespace lazytrace {

// The gradient of a tensor may be another one, or none, at each place of a program, so reading and setting it
// are steps and no reads of state. A backward pass is one step, which runs autograd's engine.
//
// Needs the GIL. Borrows the recorder.
class Gradients {
 public:
  explicit Gradients(Recorder* recorder) : recorder_(recorder) {}

  void read(PyObject* tensor);
  // `value`: null where it is deleted.
  void write(PyObject* tensor, PyObject* value);
  // Once an instruction is judged: what it is to work on instead. A function that runs again is given what it
  // was given the first time, and what was done is not done again.
  void exchange(Frame f, const Operation& operation) {
    bool calls = operation.action == Action::Calls || operation.action == Action::CallsWith;
    if (touched_ || calls) exchange_now(f, operation);
  }

 private:
  void exchange_now(Frame f, const Operation& operation);
  static PyObject** owner_of(Frame f, const Operation& operation);

  Recorder* recorder_;
  bool touched_ = false;  // by the instruction that is judged
  py::object instead_;
};

// Told by Python once: `run` is torch's function that runs the engine, `step` what is called in its place,
// `batched` what runs it for many gradients at once.
// `level`: the method of loggers that the function asks, or None where somebody has replaced it.
void configure_gradients(py::object run, py::object step, py::object batched, py::object level);
// Borrowed.
PyObject* batched_engine();
PyObject* level_of_loggers();

}  // namespace lazytrace
