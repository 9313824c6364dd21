// Where a replay stopped at a side exit: all that the function needs to run again without doing anything
// twice.
#pragma once

#include <memory>
#include <vector>

#include "guard/guards.h"
#include "replay/interpreter.h"
#include "torch/kept_region.h"

namespace lazytrace {

class Family;

// Owns the registers of the replay. Destroy it with the GIL.
struct Resume {
  std::shared_ptr<const Program> program;
  std::shared_ptr<Family> family;
  size_t step = 0;  // the last step that has run, which gave `given`
  std::vector<at::Tensor> registers;
  NumberValues numbers;
  Given given;
  OpaqueResults opaque;
  KeptRegion region;             // of autocast, in which the replay stopped
  KeyOrders orders;              // as they were behind the opaque steps
  std::vector<py::object> made;  // for the call, by the check of its guards, in its order (Access::Made)
  GuardTree::Paths paths;        // how the trace names what it has found, where it follows numbers in state
};

}  // namespace lazytrace
