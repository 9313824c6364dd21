// What the code of a handler does for an exception that passes by.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <map>
#include <unordered_map>
#include <vector>

#include "cpython/frame.h"
#include "record/python/calls/context_variables.h"
#include "record/python/reads/attributes.h"
#include "record/python/reads/names.h"

namespace lazytrace {

namespace py = pybind11;

// Much of it does nothing by then (`if previous is not None: restore()`), is for what no operator raises that
// has run on tensors of the same look (`except NotImplementedError`), or puts a context variable back, which
// a replay does not set in the first place. So its code is gone through, with the variables as they are: a
// few kinds of instructions, that can only look at what they are given and call functions made of the same.
// What they find is read, with its guards. Lives as long as a recording, which keeps the code that it runs.
// Needs the GIL; runs no Python code.
class Unwinding {
 public:
  Unwinding(NameReads* names, AttributeReads* attributes, ContextVariables* context_variables)
      : names_(names), attributes_(attributes), context_variables_(context_variables) {}

  // From here on an exception is followed through its handlers, the nearest first. `torchs`: an operator of
  // torch's raises it.
  void begin(bool torchs) {
    put_back_.clear();
    torchs_ = torchs;
  }
  // The instruction at which the handler of the frame raises it again, having done nothing that shows; -1 if
  // it may do something. `handler`: where its code begins.
  int passes(Frame f, int handler);
  // Whether the context variables that the handlers put back are what they were before the call.
  bool puts_back_all() const;

 private:
  class Run;

  const std::vector<uint8_t>& bytes_of(PyCodeObject* code);

  NameReads* names_;
  AttributeReads* attributes_;
  ContextVariables* context_variables_;
  bool torchs_ = false;
  std::unordered_map<PyCodeObject*, std::vector<uint8_t>> bytes_;
  std::map<PyObject*, py::object>
      put_back_;  // a variable -> what the outermost token gives it; null: nothing
};

}  // namespace lazytrace
