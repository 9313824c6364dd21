// Memory that tensors show.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <utility>

namespace lazytrace {

inline c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

// Where its memory begins, and where it ends. Arrays of numpy that show the same memory have storages of
// their own.
using MemoryRange = std::pair<uintptr_t, uintptr_t>;
inline MemoryRange range_of(const c10::StorageImpl* storage) {
  auto begin = reinterpret_cast<uintptr_t>(storage->data());
  return {begin, begin ? begin + storage->nbytes() : begin};
}
inline bool overlap(const MemoryRange& a, const MemoryRange& b) {
  return a.first < b.second && b.first < a.second;
}

// Whether two tensors show the same elements of the same memory.
inline bool same_place(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_nested() || b.is_nested()) return false;  // they have no sizes
  return storage_of(a) && storage_of(a) == storage_of(b) && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.storage_offset() == b.storage_offset() && a.dtype() == b.dtype();
}

}  // namespace lazytrace
