// Calls of Python's logging as steps.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace lazytrace {

namespace py = pybind11;

// A call of logging.Logger._log() as the arguments of a step:
// (frames, level, extra, stack_info, stacklevel, logger, msg, *args).
struct LogCall {
  enum { kFrames, kLevel, kExtra, kStackInfo, kStackLevel, kLogger, kMessage, kArguments };

  // Told by Python once: methods of loggers, and what is called in the place of each; `as_called_from` gives
  // `log`, which is logging.Logger._log(), for a caller that looks like these frames.
  static void configure(const py::dict& steps, const py::object& as_called_from, const py::object& log);
  // What is called in the place of a method of a logger, or null.
  static PyObject* step_of(PyObject* method);
  // The frames are those that run, but for ours.
  static py::object now(const py::args& call, const py::object& exc_info);
  // There are none of the function's.
  static py::object again(const py::args& call);
  // What the handlers do, as far as Python knows (logs.py): run code of the user's, keep what they are given,
  // or write it and forget it. A replay calls the same function under another name.
  enum Kind { kAnything, kKeeps, kAtOnce, kKinds };
  static PyObject* functions[kKinds];
  static bool logs(PyObject* function) {
    return function && (function == functions[kAnything] || looks_at_nothing(function));
  }
  static bool looks_at_nothing(PyObject* function) {
    return function && (function == functions[kKeeps] || function == functions[kAtOnce]);
  }
};

}  // namespace lazytrace
