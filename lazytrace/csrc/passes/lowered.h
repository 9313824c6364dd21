// A shorter way to do what a step does, where nobody can tell the difference.
#pragma once

#include <memory>
#include <vector>

#include "passes/looks.h"
#include "program/program.h"
#include "torch/recycler.h"
#include "torch/shells.h"

namespace lazytrace {

// What the steps of a run work on. Belongs to one thread.
struct Desk {
  std::vector<at::Tensor>& registers;
  const Numbers& numbers;
  NumberValues& values;
  Recycler& recycler;
  Shells& shells;
  at::Tensor& scalar;  // memory for a number that an operator takes as a tensor
  Looks& looks;        // of a dynamic program
};

// How one step runs where nobody watches the dispatcher. It gives exactly the tensors that the operator would
// give, so that nothing has to be compared, and does not warn where it changes anything. Immutable; needs no
// GIL.
class Lowered {
 public:
  virtual ~Lowered() = default;
  // False where it cannot be done with what is in the registers: then the operator is called. Raises what the
  // operator would raise.
  virtual bool run(const Step& step, const Desk& desk) const = 0;
};

using Way = std::unique_ptr<Lowered>;

}  // namespace lazytrace
