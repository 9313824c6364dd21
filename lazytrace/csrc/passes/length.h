// Whether a program is worth letting go of the GIL.
#pragma once

#include "passes/plan.h"

namespace lazytrace {

// Finds out whether it is brief, and whether its arguments can be lent to it. Needs the GIL.
void judge_length(Plan* plan);

}  // namespace lazytrace
