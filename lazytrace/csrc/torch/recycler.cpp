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
         !impl->autograd_meta() && !impl->pyobj_slot()->load_pyobj() && impl->storage_offset() == 0;
}

// What was written in place counts from the start again. Views that are gone may have left its counter to
// somebody, so it gets one of its own.
void forget_writes(c10::TensorImpl* impl) {
  if (impl->is_inference() || impl->version_counter().current_version() == 0) return;
  impl->set_version_counter(c10::VariableVersion(0));
}
}  // namespace

Recycler::Bin& Recycler::bin_of(size_t bytes) {
  for (Bin& bin : bins_)
    if (bin.bytes == bytes) return bin;
  if (bins_.size() >= kMostTensors) *this = Recycler();
  bins_.push_back({bytes, {}});
  return bins_.back();
}

// One size after the other goes: those that are still asked for come back at once.
void Recycler::refuse() {
  std::vector<at::Tensor>& free = bins_[refused_++ % bins_.size()].free;
  for (const at::Tensor& tensor : free) bytes_ -= tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes();
  tensors_ -= free.size();
  free.clear();
}

at::Tensor Recycler::take(const TensorMeta& meta) {
  if (!tensors_) return {};
  std::vector<at::Tensor>& free = bin_of(meta.bytes()).free;
  const caffe2::TypeMeta dtype = c10::scalarTypeToTypeMeta(meta.dtype());
  for (size_t i = free.size(); i-- > 0;) {
    c10::TensorImpl* impl = free[i].unsafeGetTensorImpl();
    if (impl->key_set().raw_repr() != meta.keys() || impl->dtype() != dtype) continue;
    at::Tensor found = std::move(free[i]);
    free.erase(free.begin() + static_cast<std::ptrdiff_t>(i));
    bytes_ -= impl->unsafe_storage().nbytes();
    --tensors_;
    if (impl->sizes() != c10::IntArrayRef(meta.sizes()) ||
        impl->strides() != c10::IntArrayRef(meta.strides()))
      impl->set_sizes_and_strides(meta.sizes(), meta.strides());
    return found;
  }
  return {};
}

void Recycler::give(at::Tensor&& tensor) {
  if (!tensor.defined()) return;
  at::Tensor given = std::move(tensor);
  if (!is_nobodys(given)) return;
  size_t bytes = given.unsafeGetTensorImpl()->unsafe_storage().nbytes();
  if (bytes > kMostBytes) return;
  if (bytes + bytes_ > kMostBytes || tensors_ >= kMostTensors) return refuse();
  forget_writes(given.unsafeGetTensorImpl());
  bin_of(bytes).free.push_back(std::move(given));
  bytes_ += bytes;
  ++tensors_;
}

}  // namespace lazytrace
