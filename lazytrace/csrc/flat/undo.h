// Puts back what a flat form has changed when it stops on its way.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "flat/form.h"
#include "torch/random_streams.h"

namespace lazytrace {

// Made before the form runs, of what its steps up to `plan->undoable` change: gradients and flags that are
// set, memory that is written to, with the counts of writes, and the streams of random numbers. Holds the
// tensors alive for as long as it lives, and a copy of the memory. Needs the GIL to be made.
class Undo {
 public:
  // `nodes`: what the call has at guard nodes.
  Undo(const FlatForm& form, const std::vector<at::Tensor>& registers, const std::vector<PyObject*>& nodes);
  void roll_back() const;

 private:
  template <class Use>
  void each_memory(Use use) const;

  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_;   // of which tensor
  std::vector<std::pair<at::Tensor, bool>> flags_;             // whether it requires gradients
  std::vector<c10::Storage> memory_;                           // of the CPU
  std::unique_ptr<char[]> bytes_;                              // of all of it, one after the other
  std::vector<std::pair<c10::Storage, c10::Storage>> others_;  // memory of GPUs, and its copies
  std::vector<std::pair<at::Tensor, uint32_t>> versions_;
  RandomStreams random_;
};

}  // namespace lazytrace
