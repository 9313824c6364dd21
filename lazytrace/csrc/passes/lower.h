// Shorter ways to do what a step does, where the recording proves that nobody can tell the difference.
#pragma once

#include <vector>

#include "passes/plan.h"

namespace lazytrace {

// Finds the shorter ways of a finished program, behind place_exits(). `outputs`: the registers that leave it.
// Needs the GIL.
void lower(Plan* plan, const std::vector<int>& outputs);

}  // namespace lazytrace
