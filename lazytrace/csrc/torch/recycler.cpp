#include "torch/recycler.h"

#include <c10/core/CPUAllocator.h>

namespace lazytrace {

namespace {
bool is_nobodys(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (tensor.use_count() != 1 || tensor.weak_use_count() != 1) return false;
  if (impl->layout() != at::kStrided || !impl->is_cpu() || impl->is_sparse() || !impl->has_storage())
    return false;
  const c10::Storage& storage = impl->unsafe_storage();
  // Memory of numpy, of another process and the like has an allocator of its own, or none.
  return storage.use_count() == 1 && storage.allocator() == c10::GetCPUAllocator() && storage.resizable() &&
         !impl->autograd_meta() && !impl->pyobj_slot()->load_pyobj() && impl->storage_offset() == 0 &&
         (impl->is_inference() || impl->version_counter().current_version() == 0);
}
}  // namespace

at::Tensor Recycler::take(const TensorMeta& meta) {
  for (size_t i = free_.size(); i-- > 0;) {
    c10::TensorImpl* impl = free_[i].unsafeGetTensorImpl();
    if (!meta.fits_memory_of(*impl)) continue;
    at::Tensor found = std::move(free_[i]);
    free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
    bytes_ -= impl->unsafe_storage().nbytes();
    if (impl->sizes() != c10::IntArrayRef(meta.sizes()) ||
        impl->strides() != c10::IntArrayRef(meta.strides()))
      impl->set_sizes_and_strides(meta.sizes(), meta.strides());
    return found;
  }
  return {};
}

void Recycler::give(at::Tensor&& tensor) {
  at::Tensor given = std::move(tensor);
  if (!given.defined() || !is_nobodys(given)) return;
  size_t bytes = given.unsafeGetTensorImpl()->unsafe_storage().nbytes();
  if (bytes + bytes_ > kMostBytes || free_.size() >= kMostTensors) return;
  bytes_ += bytes;
  free_.push_back(std::move(given));
}

}  // namespace lazytrace
