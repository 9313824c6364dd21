// Functions of torch whose calls become one step each, wherever Python calls them.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "cpython/frame.h"
#include "cpython/operations.h"
#include "record/operators/recorder.h"

namespace lazytrace {

namespace py = pybind11;

// Puts what makes the step in the place of the function, on the stack of the frame that is about to call it.
// So the step can be fed: a function that runs again is given what the call gave the first time.
//
// Needs the GIL. Borrows the recorder.
class WholeCalls {
 public:
  explicit WholeCalls(const Recorder* recorder) : recorder_(recorder) {}

  // Once an instruction is judged.
  void exchange(Frame f, const Operation& operation);

 private:
  const Recorder* recorder_;
};

// Told by Python once: functions, and what is called in the place of each.
void configure_whole_calls(const py::dict& steps);

}  // namespace lazytrace
