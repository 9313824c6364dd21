// Calls of C code that reach into tensors, or make them, out of the dispatcher's sight.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <vector>

#include "cpython/frame.h"
#include "cpython/operations.h"
#include "record/operators/recorder.h"

namespace lazytrace {

namespace py = pybind11;

// Puts Python functions of ours in the place of such callables, on the stack of the frame that is about to
// call them: what these do is seen. Knows the numpy arrays that the call was given, of which each has a
// tensor of the same memory, and those that it makes of tensors.
//
// Needs the GIL. Borrows the recorder; keeps what arrays it knows, and their tensors.
class Unseen {
 public:
  explicit Unseen(Recorder* recorder) : recorder_(recorder) {}

  // The call was given an array, whose memory is the tensor's.
  void add_given(PyObject* array, PyObject* tensor);
  bool is_given(PyObject* array) const { return given(array) != nullptr; }
  // The call has made an array of a tensor.
  void add_made(py::object array, const at::Tensor& tensor);
  bool is_made(PyObject* array) const;
  // The tensor that the array shows; undefined of one that nobody here has made. Throws std::runtime_error
  // where the tensor has come to show something else.
  at::Tensor shown_by(PyObject* array) const;

  // The tensor of an array that was given. `itself`: Python gets that very tensor, which nobody can
  // get twice: None then, and the recording has failed.
  py::object take(PyObject* array, bool itself);
  // The shape of an array that was given, with sizes that are followed.
  py::object shape_of_given(PyObject* array) const;

  // Before an instruction is judged.
  void exchange(Frame f, const Operation& operation);
  // The same of an array that the call has made: its tensor gives the same list.
  void exchange_made(Frame f, const Operation& operation);
  // Once it is judged: a shape that is read.
  void exchange_shape(Frame f, const Operation& operation);

 private:
  struct Given {
    py::object array, tensor;
    bool taken = false;
  };
  struct Made {
    py::object array;
    at::Tensor tensor;
    TensorMeta look;
    const void* data;
  };
  const Given* given(PyObject* array) const;

  Recorder* recorder_;
  std::vector<Given> given_;  // few
  std::vector<Made> made_;
};

// Told by Python once: what is called in place of what. `lists`: of methods of tensors that give all values.
// `arrays`: of those that give arrays. `tensors`: of functions that make tensors of arrays, and of others
// that look at them.
void configure_unseen(const py::dict& lists, const py::dict& arrays, const py::dict& tensors);
// Whether a function is one of those that are called in the place of others.
bool is_unseen_step(PyObject* function);

}  // namespace lazytrace
