// Shorter ways to do what a step does, where the recording proves that nobody can tell the difference.
#pragma once

#include <memory>
#include <vector>

#include "program.h"
#include "recycler.h"

namespace lazytrace {

// How one step runs where nobody watches the dispatcher. It gives exactly the tensors that the operator would
// give, so that nothing has to be compared. Immutable; needs no GIL.
class Lowered {
 public:
  virtual ~Lowered() = default;
  // False where it cannot be done with what is in the registers: then the operator is called. Raises what the
  // operator would raise.
  virtual bool run(const Step& step, std::vector<at::Tensor>& registers, Recycler& recycler) const = 0;
};

// Finds the shorter ways of a finished program. `outputs`: the registers that leave it.
void lower(Program* program, const std::vector<int>& outputs);

// Whether somebody sees each operator that runs, or what it does beside its result: a profiler, forward-mode
// differentiation.
bool operators_are_watched();

}  // namespace lazytrace
