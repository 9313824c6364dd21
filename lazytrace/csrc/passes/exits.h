// How long registers are kept for side exits.
#pragma once

#include "passes/plan.h"

namespace lazytrace {

// Finds the first step that must not be done again, and the last exit that can be resumed.
void place_exits(Plan* plan);

}  // namespace lazytrace
