// Calls of C code that reach into tensors, or make them, out of the dispatcher's sight.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <vector>

#include "cpython/frame.h"
#include "cpython/operations.h"
#include "record/operators/recorder.h"
#include "record/python/provenance.h"

namespace lazytrace {

namespace py = pybind11;

// Puts Python functions of ours in the place of such callables, on the stack of the frame that is about to
// call them: what these do is seen. Knows the numpy arrays that the call was given, of which each has a
// tensor of the same memory, and those that it makes of tensors.
//
// Needs the GIL. Borrows the others; keeps what arrays it knows, and their tensors.
class Unseen {
 public:
  Unseen(Recorder* recorder, Provenance* provenance) : recorder_(recorder), provenance_(provenance) {}

  // The call was given an array, whose memory is the tensor's.
  void add_given(PyObject* array, PyObject* tensor);
  bool is_given(PyObject* array) const { return given(array) != nullptr; }
  // The call has made an array of a tensor. `own`: nobody but the array has the tensor.
  void add_made(py::object array, const at::Tensor& tensor, bool own);
  bool is_made(PyObject* array) const;
  // Of a recording that has failed: they go when they are due.
  void let_go() { made_.clear(); }
  // Python code comes that may set the `.data` of any tensor: arrays that were made so far show the memory of
  // before it.
  void settle_made();
  // Whether the call was given arrays, has found some in state, or has made some.
  bool has_arrays() const { return !made_.empty() || !given_.empty() || provenance_->has_memories(); }
  // The tensor that the array shows; undefined of one that nobody here has made. Throws std::runtime_error
  // where the tensor has come to show something else.
  at::Tensor shown_by(PyObject* array) const;

  // Whether the array may be written to from now on: it has a tensor that Python has not, as changes of that
  // are counted.
  bool may_write(PyObject* array);
  // Whether it has one by now.
  bool is_own(PyObject* array) const;
  // The tensor of an array that was given or made, as it is; null of any other.
  py::object tensor_of(PyObject* array) const;
  // The tensor of an array that was given, or made. `itself`: Python gets one of its memory; None, and the
  // recording has failed, where that would be another one than torch makes.
  py::object take(PyObject* array, bool itself);
  // Whether the look of an array that was given says what the attribute is.
  static bool is_said_by_look(PyObject* name);
  // Whether arrays have a method of this name that can be a step.
  static bool is_method(PyObject* name);
  // The shape of an array that was given, or made, with sizes that are followed.
  py::object shape_of_array(PyObject* array) const;

  // Before an instruction is judged.
  void exchange(Frame f, const Operation& operation);
  // The same of an array that the call has made: its tensor gives the same list.
  void exchange_made(Frame f, const Operation& operation);
  // The same of the operands of an instruction: an array is exchanged for an object that does what is asked
  // of it by steps. Whether that has happened, so that there is nothing to judge.
  bool exchange_operands(Frame f, const Operation& operation);
  // Once it is judged: a shape that is read.
  void exchange_shape(Frame f, const Operation& operation);

 private:
  struct Given {
    py::object array, tensor;
  };
  struct Made {
    py::object array;
    at::Tensor tensor;
    TensorMeta look;
    const void* data;
    bool own;
    bool settled = false;  // the tensor is nobody's but ours, though it shows another's memory
  };
  // Gives it a tensor of the same memory that nobody else has; whether it has one then.
  bool settle(Made& made);
  const Given* given(PyObject* array) const;
  const Made* made(PyObject* array) const;
  bool shows_still(PyObject* array) const;
  // Whether what is asked of the array can be a step.
  bool follows(PyObject* array) const;
  bool follows_any(PyObject* value, int depth = 0) const;
  void exchange_function(Frame f, const Operation& operation, PyObject** callee);
  void read_methods(PyObject* callee);
  void exchange_operand(PyObject** place);
  void exchange_rows(PyObject** place, PyObject* rows);
  bool exchange_attribute(Frame f, const Operation& operation);
  void exchange_method(PyObject** callee);
  bool exchange_item(Frame f, const Operation& operation);
  bool exchange_pair(Frame f, const Operation& operation);

  Recorder* recorder_;
  Provenance* provenance_;
  mutable std::vector<Given> given_;  // few; those of state from when they are asked for
  std::vector<Made> made_;
};

// Told by Python once: what is called in place of what. `lists`: of methods of tensors that give all values.
// `arrays`: of those that give arrays. `tensors`: of functions that make tensors of arrays, and of others
// that look at them.
void configure_unseen(const py::dict& lists, const py::dict& arrays, const py::dict& tensors,
                      const py::dict& rows);
// Likewise: the class of what arrays are exchanged for as operands, what of its attributes are methods and
// what are values, the functions that a call is handed over to with its arguments, by which function that
// does it, and what makes an index of tensors of one of arrays.
struct ArrayCalls {
  py::object operand, index;
  py::set methods, values;
  py::dict functions, makers;
  py::set lists;
};
void configure_arrays(ArrayCalls calls);
// Whether it is a function of numpy, or of torch, that makes another array or tensor of a list of arrays.
bool makes_arrays(PyObject* function);
// Whether it is a function of numpy that takes a list of numbers for an array.
bool takes_list_for_array(PyObject* function);
// A function that such a step calls, which is there for as long as the process.
void keep_array_step(PyObject* step);
bool is_array_step(PyObject* function);
// Whether a function is one of those that are called in the place of others.
bool is_unseen_step(PyObject* function);
// The function that such a step is called in the place of; anything else as it is. Borrowed.
PyObject* called_for(PyObject* callee);

}  // namespace lazytrace
