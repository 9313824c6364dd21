#include "torch/batched.h"

#include <ATen/LegacyBatchedTensorImpl.h>

namespace lazytrace {

std::optional<int64_t> level_of(const at::Tensor& tensor) {
  auto* batched = tensor.defined() ? at::maybeGetBatchedImpl(tensor) : nullptr;
  if (!batched || batched->bdims().size() != 1 || batched->bdims()[0].dim() != 0) return {};
  return batched->bdims()[0].level();
}

at::Tensor hide_dimension(const at::Tensor& tensor, int64_t level) {
  return at::makeBatched(tensor, {{level, 0}});
}

at::Tensor show_dimension(const at::Tensor& tensor, int64_t level) {
  auto* batched = at::maybeGetBatchedImpl(tensor);
  if (!batched) return tensor;
  TORCH_CHECK(batched->bdims().size() == 1 && batched->bdims()[0].level() == level,
              "a gradient is batched otherwise than lazytrace knows");
  int64_t dim = batched->bdims()[0].dim();
  return dim ? batched->value().movedim(dim, 0) : batched->value();
}

}  // namespace lazytrace
