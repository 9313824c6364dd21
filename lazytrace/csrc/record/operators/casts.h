// Leaves that autocast has cast and keeps in a region of the function's own: in the call, and in a replay.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/stack.h>

#include <unordered_set>

namespace lazytrace {

// Torch keeps them until the outermost region ends. A replay knows no regions but the modes of its steps: it
// keeps them until autocast is off at one. Each use of what is kept adds to one gradient in the lower
// precision, so how often a leaf is cast shows in its gradient.
class Casts {
 public:
  void end_region() { in_call_.clear(); }
  void switch_off() { in_replay_.clear(); }

  // Before an operator under autocast: whether a replay would cast one of its arguments and the call does
  // not, or the other way around.
  bool differ(const torch::jit::Stack& stack, size_t count) {
    bool found = false;
    for (size_t i = stack.size() - count; i < stack.size(); ++i) {
      if (stack[i].isTensor()) found |= differs(stack[i].toTensor());
      if (!stack[i].isTensorList()) continue;
      for (const at::Tensor& tensor : stack[i].toTensorVector()) found |= differs(tensor);
    }
    return found;
  }

 private:
  bool differs(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.scalar_type() != at::kFloat || !tensor.requires_grad() ||
        !tensor.is_leaf() || tensor.is_view())
      return false;
    return in_call_.insert(tensor.unsafeGetTensorImpl()).second !=
           in_replay_.insert(tensor.unsafeGetTensorImpl()).second;
  }

  std::unordered_set<const c10::TensorImpl*> in_call_, in_replay_;
};

}  // namespace lazytrace
