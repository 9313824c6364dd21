// How long registers are kept for side exits.
#pragma once

#include <vector>

#include "program/program.h"

namespace lazytrace {

// Finds the first step that must not be done again, and the last exit that can be resumed.
void place_exits(Program* program);

}  // namespace lazytrace
