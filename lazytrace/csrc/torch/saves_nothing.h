// What autograd saves is dropped: of a graph that nobody passes through.
#pragma once

#include <ATen/SavedTensorHooks.h>
#include <torch/csrc/PyInterpreter.h>

#include "cpython/objects.h"

namespace lazytrace {

// While it lives, the nodes that this thread makes keep no tensors of theirs, by torch's hooks for that;
// under torch's own ban of these it does nothing. Needs the GIL.
class SavesNothing {
 public:
  SavesNothing() : pushed_(at::SavedTensorDefaultHooks::is_enabled()) {
    if (!pushed_) return;
    py::cpp_function none([](const py::object&) { return py::none(); });
    c10::SafePyObject hook(none.inc_ref().ptr(), getPyInterpreter());
    at::SavedTensorDefaultHooks::lazy_initialize();
    at::SavedTensorDefaultHooks::push_hooks(hook, hook);
  }
  ~SavesNothing() {
    if (pushed_) at::SavedTensorDefaultHooks::pop_hooks();
  }
  SavesNothing(const SavesNothing&) = delete;
  SavesNothing& operator=(const SavesNothing&) = delete;

 private:
  bool pushed_;
};

}  // namespace lazytrace
