// Puts back what a flat form has changed when it stops on its way.
#pragma once

#include <utility>
#include <vector>

#include "flat/form.h"

namespace lazytrace {

at::Tensor random_state();
void set_random_state(const at::Tensor& state);

// Made before the form runs, of what its steps up to `program.undoable` change: gradients that are set, and
// the stream of random numbers. Holds the gradients alive for as long as it lives. Needs no GIL.
class Undo {
 public:
  Undo(const FlatForm& form, const std::vector<at::Tensor>& registers);
  void roll_back() const;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_;  // of which tensor
  at::Tensor random_;
};

}  // namespace lazytrace
