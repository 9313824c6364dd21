// Tensors with a dimension that torch.autograd.grad(is_grads_batched=True) hides: those of torch's older
// vmap.
#pragma once

#include <ATen/ATen.h>
#include <ATen/LegacyVmapMode.h>

#include <optional>

namespace lazytrace {

// A level of that vmap for as long as it lives.
class VmapLevel {
 public:
  VmapLevel() : level_(at::impl::VmapMode::increment_nesting()) {}
  ~VmapLevel() { at::impl::VmapMode::decrement_nesting(); }
  VmapLevel(const VmapLevel&) = delete;
  VmapLevel& operator=(const VmapLevel&) = delete;
  int64_t level() const { return level_; }

 private:
  int64_t level_;
};

// The level of a tensor whose first dimension is hidden, and no other one.
std::optional<int64_t> level_of(const at::Tensor& tensor);

// The first dimension of the tensor, hidden.
at::Tensor hide_dimension(const at::Tensor& tensor, int64_t level);

// The tensor with the dimension that this level has hidden as its first one; itself where there is none.
at::Tensor show_dimension(const at::Tensor& tensor, int64_t level);

}  // namespace lazytrace
