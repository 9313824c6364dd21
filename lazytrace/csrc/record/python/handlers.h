// Whether Python code would run where an exception passes by.
#pragma once

#include <Python.h>

#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "cpython/exception_table.h"
#include "cpython/frame.h"
#include "record/python/unwinding.h"

namespace lazytrace {

// What an operator raises leaves a replay without running any Python. So it is asked at each operator what
// CPython's tables say of the instructions that wait for it, and what the context managers are that have been
// entered. Lives as long as a recording, which keeps the code that it runs.
class Handlers {
 public:
  explicit Handlers(const Unwinding& unwinding) : unwinding_(unwinding) {}

  // Whether an `except`, a `finally` or a context manager would do anything for what is raised now in the
  // innermost of these frames, up to `base`; `torchs`: by an operator of torch's. Needs the GIL.
  bool would_run(Frame innermost, Frame base, bool torchs);
  // A generator that waits for its next value is closed where what holds it is left for an exception, and
  // then its handlers run. Told of each frame that is entered or gone on with, and of each that is left.
  void enter(Frame f) { waiting_.erase(f.address()); }
  void leave(Frame f, bool raises);
  bool any_waits() const { return !waiting_.empty(); }

 private:
  bool would_run(Frame f, bool now);
  const ExceptionTable::Around& around(Frame f, int instruction);
  bool acts(PyObject* exit);
  bool any_of_stack_acts(PyObject* stack);

  struct CodePlace {
    size_t operator()(const std::pair<PyCodeObject*, int>& place) const {
      return reinterpret_cast<size_t>(place.first) * 31 + static_cast<size_t>(place.second);
    }
  };
  Unwinding unwinding_;
  std::unordered_map<std::pair<PyCodeObject*, int>, ExceptionTable::Around, CodePlace> known_;
  std::unordered_set<const void*> waiting_;  // frames of generators that have handlers where they wait
};

}  // namespace lazytrace
