// What an opaque step leaves of the state that a program depends on.
#pragma once

#include <vector>

namespace lazytrace {

// Guard nodes, in order, that lead to something else once a step has run, as the step or one before it has
// changed that in the recording. What the function has read there later, it has read by steps.
struct Behind {
  std::vector<int> nodes;
  std::vector<int> contents;  // those that lead to the same object, which holds something else
  int first_late = 0;         // from this node on, all were read behind the step alone
  std::vector<int> tensors;   // registers of tensors in state that were read behind it alone
};

}  // namespace lazytrace
