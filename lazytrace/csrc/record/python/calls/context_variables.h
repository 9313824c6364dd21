// Calls of contextvars, and of switches of torch, which are other variables of the thread or the process: a
// set that is undone before the end leaves nothing behind.
#pragma once

#include <algorithm>
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
  // A function of torch._C gives a switch of torch/switches.def, or sets it.
  void ask_switch(const std::string& name, PyObject* const* args, Py_ssize_t count);
  void set_switch(const std::string& name, PyObject* const* args, Py_ssize_t count);
  // Whether the function has set a variable that is not back yet.
  bool sets_any() const {
    return std::any_of(sets_.begin(), sets_.end(), [](const auto& one) { return one.second > 0; });
  }
  // At the end of the call.
  void finish();

 private:
  // Its value in this thread or task; `has_default`: where it was set.
  void read(PyObject* variable, bool has_default);
  // What a switch is before anything sets it; false where that is not known.
  bool read_switch(size_t row);

  Recorder* recorder_;
  Provenance* provenance_;
  std::unordered_map<PyObject*, int> sets_;  // context variable -> sets that no reset has undone yet
  Switches found_;                           // as the call found those that it asked for or set
};

}  // namespace lazytrace
