// Calls of contextvars, and of the switch of torch's compiler, which is another variable of the thread: a set
// that is undone before the end leaves nothing behind.
#pragma once

#include <string>
#include <unordered_map>

#include "record/operators/recorder.h"
#include "record/python/provenance.h"

namespace lazytrace {

// Needs the GIL.
class ContextVariables {
 public:
  ContextVariables(Recorder* recorder, Provenance* provenance)
      : recorder_(recorder), provenance_(provenance) {}

  // `has_default`: of get(), whether the call says what it gives when nothing was set.
  void call(const std::string& name, PyObject* variable, bool has_default);
  // What torch's compiler does with frames is set to `value`.
  void set_frame_evaluator(PyObject* value);
  // At the end of the call.
  void finish();

 private:
  // Its value in this thread or task; `has_default`: where it was set.
  void read(PyObject* variable, bool has_default);

  Recorder* recorder_;
  Provenance* provenance_;
  std::unordered_map<PyObject*, int> sets_;  // context variable -> sets that no reset has undone yet
};

}  // namespace lazytrace
