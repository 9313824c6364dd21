// Calls of contextvars, and of switches of torch, which are other variables of the thread or the process: a
// set that is undone before the end leaves nothing behind.
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

  // `argument`: the first, or null. That of get() is what it gives where nothing was set.
  void call(const std::string& name, PyObject* variable, PyObject* argument);
  // What torch's compiler does with frames is set to `value`.
  void set_frame_evaluator(PyObject* value);
  // A function of torch._C gives a switch of torch/switches.def, or sets it.
  void ask_switch(const std::string& name, PyObject* const* args, Py_ssize_t count);
  void set_switch(const std::string& name, PyObject* const* args, Py_ssize_t count);
  // Whether the function has set a variable that is not back yet.
  bool sets_any() const;
  // Whether the function has set the variable, and `value` is what it was before; null where nothing was set.
  bool was(PyObject* variable, PyObject* value) const;
  // At the end of the call.
  void finish();

 private:
  // Its value in this thread or task; `has_default`: where it was set.
  void read(PyObject* variable, bool has_default);
  // What a switch is before anything sets it; false where that is not known.
  bool read_switch(size_t row);

  Recorder* recorder_;
  Provenance* provenance_;
  // Context variables that were set in the call -> what each was before; null where nothing was set.
  std::unordered_map<PyObject*, py::object> set_;
  Switches found_;  // as the call found those that it asked for or set
};

}  // namespace lazytrace
