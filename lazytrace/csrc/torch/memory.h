// The memory of tensors, byte by byte, wherever it lies.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace lazytrace {

// A copy, on the same device. What is copied here and below, no recording sees. Needs no GIL.
c10::Storage copy_of_memory(const c10::Storage& memory);
// Writes to the memory what the other holds, which is as large.
void put_memory(const c10::Storage& memory, const c10::Storage& from);
// Whether both hold the same. Waits for a GPU.
bool same_memory(const c10::Storage& a, const c10::Storage& b);
// The first entry of each dimension along which it holds the same again, as an expanded tensor does: without
// these it is no larger than its memory.
at::Tensor without_repeats(const at::Tensor& tensor);
// Whether two tensors of one dtype, size and device hold the same bits.
bool same_bits(const at::Tensor& a, const at::Tensor& b);
// Whether some of these storages, of which one may be there more than once, show the same memory, as those of
// arrays of numpy and of dlpack do.
bool any_overlap(std::vector<const c10::StorageImpl*> storages);
// Whether torch has not got it for this storage alone.
bool is_foreign(const c10::StorageImpl* storage);
// How often its memory was written to, as far as torch counts that: tensors of inference mode have no count.
int64_t version_of(const at::Tensor& tensor);

}  // namespace lazytrace
