// The number of the next handle of a hook, where the function has counted it itself.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "record/python/observer.h"
#include "record/python/opaque_call.h"

namespace lazytrace {

// While torch makes a handle for a step: its own code counts them (RemovableHandle.next_id), and finds a
// plain number there. A number that is followed it would read, which a function that runs again would not do.
// Behind it, the count is one more, as the function's own write: a replay writes what that comes to. Where it
// is no number that is followed, the step has changed it: no guard says what the function would read then.
//
// Needs the GIL.
class HandleCount {
 public:
  // `step`: at whose turn a replay makes it, or null.
  HandleCount(Observer* observer, OpaqueCall* step);
  ~HandleCount();
  HandleCount(const HandleCount&) = delete;
  HandleCount& operator=(const HandleCount&) = delete;
  // The handle is made, or was made in a replay.
  void count();

 private:
  void follow();

  Observer* observer_;
  py::object followed_;  // null where the count is no number that is followed
};

}  // namespace lazytrace
