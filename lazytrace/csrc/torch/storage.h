// Memory that tensors show.
#pragma once

#include <ATen/ATen.h>

namespace lazytrace {

inline c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

// Whether two tensors show the same elements of the same memory.
inline bool same_place(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_nested() || b.is_nested()) return false;  // they have no sizes
  return storage_of(a) && storage_of(a) == storage_of(b) && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.storage_offset() == b.storage_offset() && a.dtype() == b.dtype();
}

}  // namespace lazytrace
