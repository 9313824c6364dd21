// Moves what exits of a flat form look at ahead of what the form writes.
#pragma once

#include <vector>

#include "flat/kernels.h"

namespace lazytrace {

// An optimizer counts its steps in a tensor for each parameter, and whether a power of the count can be
// worked out is an exit, between the writes to one parameter and to the next: all that is written before has
// to be put back there. Steps that share neither memory nor registers nor numbers with those before them may
// run first. Moves such reads, with what they hang on, to where the writing begins; `begin`: of the steps
// that may be moved.
void write_later(const Kernels& kernels, const Numbers& numbers, size_t begin, std::vector<Step>* steps);

}  // namespace lazytrace
