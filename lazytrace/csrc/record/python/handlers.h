// Whether Python code would run where an exception passes by.
#pragma once

#include <Python.h>

#include <unordered_map>
#include <utility>

#include "cpython/exception_table.h"
#include "cpython/frame.h"

namespace lazytrace {

// What an operator raises leaves a replay without running any Python. So it is asked at each operator what
// CPython's tables say of the instructions that wait for it, and what the context managers are that have been
// entered. Lives as long as a recording, which keeps the code that it runs.
class Handlers {
 public:
  // Whether an `except`, a `finally` or a context manager would run for what is raised in the frame. Needs
  // the GIL.
  bool would_run(Frame f);

 private:
  bool acts(PyObject* exit);
  bool any_of_stack_acts(PyObject* stack);

  struct CodePlace {
    size_t operator()(const std::pair<PyCodeObject*, int>& place) const {
      return reinterpret_cast<size_t>(place.first) * 31 + static_cast<size_t>(place.second);
    }
  };
  std::unordered_map<std::pair<PyCodeObject*, int>, ExceptionTable::Around, CodePlace> known_;
};

}  // namespace lazytrace
