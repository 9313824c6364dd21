// Which registers each step lets go of, and which arguments the program takes hold of.
#pragma once

#include <vector>

#include "passes/plan.h"

namespace lazytrace {

// Frees each register behind its last use, and no sooner than the last exit that can be resumed. `outputs`:
// the registers that leave the program.
void place_frees(Plan* plan, const std::vector<int>& outputs);

// Which of the inputs anything needs.
void place_inputs(Plan* plan, const std::vector<int>& outputs);

}  // namespace lazytrace
