// What backward passes asked of the results of a call.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "flat/roots.h"
#include "torch/tensor_meta.h"

namespace lazytrace {

// Looks on as passes begin at the results. Any thread may run these.
class Asked {
 public:
  // `ends`: of all that a pass for all gradients comes to. Null where the roots have no graph that ends
  // there. Needs the GIL.
  static std::shared_ptr<Asked> of(const Roots& roots, const std::vector<at::Tensor>& registers,
                                   const torch::autograd::edge_list& ends);

  // Whether there was a pass, and whether all that was asked for were gradients, all of them, once.
  bool anything() const;
  bool gradients_alone() const;
  // How the gradients of the roots looked that the caller gave them; undefined of those that had none.
  std::vector<TensorMeta> looks() const;

 private:
  struct Look;
  void note(size_t root, const at::Tensor& gradient);
  bool from_outside(size_t root) const;

  mutable std::mutex mutex_;
  std::vector<TensorMeta> looks_;
  // Nodes are compared only, and while a pass goes through them.
  std::vector<torch::autograd::Node*> ends_;
  std::unordered_set<torch::autograd::Node*> inside_;
  // By root that other roots are made of: where gradients come to it and to its views, and whether it has
  // any.
  std::vector<std::unordered_set<torch::autograd::Node*>> gates_;
  std::vector<char> has_views_;
  int task_ = -1;
  bool more_ = false;
};

}  // namespace lazytrace
