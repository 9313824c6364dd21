// Somebody who looks on while a program runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "program/numbers.h"

namespace lazytrace {

// Told of each step before it runs, and once its results lie in the registers. Called without the GIL, unless
// the program is brief. Must not throw.
class Witness {
 public:
  virtual ~Witness() = default;
  // The program starts: what its numbers are, which step by step is worked out and brought.
  virtual void starts(const NumberValues&) {}
  virtual void before(size_t step) = 0;
  virtual void after(size_t step) = 0;
  // The step that is about to run is given this tensor of no dimensions for a number.
  virtual void passes(int number, const at::Tensor& tensor) = 0;
};

}  // namespace lazytrace
