// Shorter ways to do what a step does, where the recording proves that nobody can tell the difference.
#pragma once

#include <vector>

#include "program/program.h"

namespace lazytrace {

// Finds the shorter ways of a finished program. `outputs`: the registers that leave it. Needs the GIL.
void lower(Program* program, const std::vector<int>& outputs);

}  // namespace lazytrace
