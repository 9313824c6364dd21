#include "record/operators/blanks.h"

#include "torch/storage.h"

namespace lazytrace {

void Blanks::add(const at::Tensor& tensor, int step) {
  auto* storage = storage_of(tensor);
  if (!storage) return;
  steps_[storage] = step;
  keep_.push_back(tensor.storage());
}

bool Blanks::holds(const at::Tensor& tensor) const { return steps_.count(storage_of(tensor)); }

int Blanks::take(const at::Tensor& tensor) {
  auto found = steps_.find(storage_of(tensor));
  if (found == steps_.end()) return -1;
  int step = found->second;
  steps_.erase(found);
  return step;
}

void Blanks::clear() {
  steps_.clear();
  keep_.clear();
}

at::Tensor whole_of(const at::Tensor& tensor, c10::IntArrayRef sizes) {
  at::Tensor whole = tensor.detach();
  if (whole.sizes() == sizes && whole.is_non_overlapping_and_dense()) return whole;
  if (whole.storage().nbytes() / whole.element_size() == 0) return {};
  return at::empty({0}, whole.options()).set_(whole.storage(), 0, sizes, c10::contiguous_strides(sizes));
}

}  // namespace lazytrace
