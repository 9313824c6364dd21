// Gives Python texts that are followed in place of what its instructions make of followed numbers.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <vector>

#include "cpython/frame.h"
#include "cpython/operations.h"
#include "record/operators/recorder.h"
#include "record/python/swaps.h"

namespace lazytrace {

// An instruction that makes a text runs on plain operands, and what it puts on the stack is exchanged when it
// has run. What is not followed is left to the caller: the numbers in it are read.
//
// Needs the GIL. Borrows the recorder, and the swaps of the instruction that is judged.
class TextExchange {
 public:
  TextExchange(Recorder* recorder, Swaps* swaps) : recorder_(recorder), swaps_(swaps) {}

  // A value of f"{value!r:spec}". Of a tensor Python formats the number in it, unless a mode is told of that.
  bool format(Frame f, const Operation& operation, bool told);
  // The pieces of an f-string. Where it cannot be followed, they are read.
  void join(Frame f, const Operation& operation);
  // text + text, and "%d" % number.
  bool operate(Frame f, const Operation& operation);

  // Whether a call is "{}".format() of tensors for which their values are written.
  static bool fills_with_value(PyObject* callable, PyObject* const* args, Py_ssize_t count);
  // What is called in the place of a callable that makes texts of what it is given; null of any other.
  static PyObject* const* in_place_of(PyObject* callable);

  // The instruction that is judged now puts a str on the stack that is to be this text.
  void expect(Frame f, py::object text) { due_.push_back({f, std::move(text)}); }
  // At the next instruction of the frame, and before anything else runs.
  void deliver(Frame f) {
    if (!due_.empty()) deliver_now(f);
  }

  // The object is taken for the str that it stands for.
  void settle(PyObject* object);

 private:
  struct Due {
    Frame frame;
    py::object text;
  };

  bool take(Frame f, py::object text, c10::ArrayRef<PyObject**> operands);
  void deliver_now(Frame f);

  Recorder* recorder_;
  Swaps* swaps_;
  std::vector<Due> due_;
};

// Told by Python once. `callables`: what makes texts of numbers, and what is called in its place where
// numbers or texts that are followed are among the arguments. `formatted(value, conversion, spec)`,
// `joined(*pieces)`, `added(left, right)` and `filled(left, right)` give the text that an instruction makes,
// or None where it is not followed; `number(value)` what is formatted for a tensor,
// and `number(value, text)` what takes its place, or that of a tuple of such, behind `text %`.
struct TextFunctions {
  py::object number, formatted, joined, added, filled;
};
void configure_texts(const py::dict& callables, TextFunctions functions);

}  // namespace lazytrace
