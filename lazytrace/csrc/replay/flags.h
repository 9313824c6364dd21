// Flags of tensors that a replay has set before its program is done.
#pragma once

#include <ATen/ATen.h>

#include <utility>
#include <vector>

namespace lazytrace {

// `requires_grad` of tensors that were there before the call. Where a replay stops and the function runs
// again, that sets the flags itself, and reads them before it does: they are as they were when the call
// began.
//
// Holds the tensors until it is cleared. Needs no GIL.
class Flags {
 public:
  void set(const at::Tensor& tensor, bool value) {
    made_.emplace_back(tensor, tensor.requires_grad());
    tensor.set_requires_grad(value);
  }
  void take_back() const {
    for (auto made = made_.rbegin(); made != made_.rend(); ++made)
      made->first.set_requires_grad(made->second);
  }
  // Another trace goes on where the replay stopped.
  void put_again() const {
    for (const auto& [tensor, before] : made_) tensor.set_requires_grad(!before);
  }
  void clear() { made_.clear(); }

 private:
  std::vector<std::pair<at::Tensor, bool>> made_;  // with what it was; only changes are steps
};

}  // namespace lazytrace
