// Replays a Program: the operators in order, the GIL released, each result compared with the recording.
#pragma once

#include <string>
#include <vector>

#include "program.h"

namespace lazytrace {

// How a replay ended. A mismatch leaves the registers as they were after the step that differed.
struct Outcome {
  int step = -1;  // the step that differed, or -1
  int result = -1;
  bool effects = false;         // whether a step with effects ran before the difference
  std::string found;            // what was found instead, as text
  std::vector<py::object> fed;  // results of the opaque steps so far, for the function that runs again
  bool ok() const { return step < 0; }
};

class Runner {
 public:
  // `state`: values of the guard nodes for opaque steps, borrowed for the length of the run.
  Runner(const Program& program, std::vector<at::Tensor>& registers, const std::vector<PyObject*>& state)
      : program_(program), registers_(registers), state_(state) {}

  // Call with the GIL held; it is released while operators run. Exceptions of operators pass through.
  Outcome run();

 private:
  bool changed_before(size_t step) const;  // or by it: whether running the function again would do it twice
  bool step(const Step& step);
  bool call(const Step& step);
  bool opaque(const Step& step);
  void push(const Argument& argument);
  bool accept(const Result& result, c10::IValue&& value);
  bool accept_tensor(const Result& result, at::Tensor tensor);
  bool accept_read(const Result& result, const c10::IValue& value);

  const Program& program_;
  std::vector<at::Tensor>& registers_;
  const std::vector<PyObject*>& state_;
  torch::jit::Stack stack_;
  std::string found_;
  int result_ = -1;
  std::vector<py::object> fed_;
};

// Equality of values that Python can see: nan is nan, 0.0 is not -0.0.
bool same_value(const c10::IValue& a, const c10::IValue& b);

}  // namespace lazytrace
