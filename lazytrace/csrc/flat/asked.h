// What backward passes asked of the results of a call.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <mutex>
#include <vector>

#include "torch/tensor_meta.h"

namespace lazytrace {

// Looks on as passes begin at the results. Any thread may run these.
class Asked {
 public:
  // `roots`: the results, each of which has a node. `ends`: of all that a pass for all gradients comes to.
  static std::shared_ptr<Asked> of(const std::vector<at::Tensor>& roots,
                                   const torch::autograd::edge_list& ends);

  // Whether there was a pass, and whether all that was asked for were gradients, all of them, once.
  bool anything() const;
  bool gradients_alone() const;
  // How the gradients of the roots looked; undefined of those that had none.
  std::vector<TensorMeta> looks() const;

 private:
  struct Look;
  void note(size_t root, const at::Tensor& gradient);

  mutable std::mutex mutex_;
  std::vector<TensorMeta> looks_;
  std::vector<torch::autograd::Node*> ends_;  // compared only
  int task_ = -1;
  bool more_ = false;
};

}  // namespace lazytrace
