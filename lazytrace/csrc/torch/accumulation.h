// The lock under which autograd adds to the gradient of a leaf.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>

#include <mutex>

namespace lazytrace {

// Holds the lock of the node that accumulates the gradient of a leaf, for as long as it lives. May be made
// with the GIL or without: who holds the lock never waits for a thread that waits for it with the GIL.
class AccumulationLock {
 public:
  explicit AccumulationLock(const at::Tensor& leaf);

 private:
  c10::intrusive_ptr<torch::autograd::Node> node_;
  std::unique_lock<std::mutex> lock_;
};

// Whether this is the only thread of Python. Needs the GIL; holds until it is let go of by other code than
// ours.
bool is_only_thread();

}  // namespace lazytrace
