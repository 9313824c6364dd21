// Steps that nobody needs.
#pragma once

#include <vector>

#include "program/program.h"

namespace lazytrace {

// Drops the `empty` behind a literal, and literals that nobody uses any more. A function that runs again asks
// for all of them up to the last exit. `outputs`: the registers that leave the program.
void drop_unused(Program* program, const std::vector<int>& outputs);

}  // namespace lazytrace
