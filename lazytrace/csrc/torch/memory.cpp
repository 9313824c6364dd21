#include "torch/memory.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstring>

#include "torch/record_key.h"
#include "torch/storage.h"

namespace lazytrace {

namespace {

// Operators that it lives among are neither recorded nor seen as kernels.
class Unseen {
 public:
  Unseen() : record_(kRecordKey), kernels_(kKernelKey) {}

 private:
  at::AutoDispatchBelowADInplaceOrView below_;
  c10::impl::ExcludeDispatchKeyGuard record_, kernels_;
};

at::Tensor bytes_of(const c10::Storage& memory) {
  at::Tensor bytes = at::empty({0}, at::TensorOptions(memory.device()).dtype(at::kByte));
  return bytes.set_(memory, 0, {static_cast<int64_t>(memory.nbytes())}, {1});
}

bool is_cpu(const c10::Storage& memory) { return memory.device().is_cpu(); }

}  // namespace

c10::Storage copy_of_memory(const c10::Storage& memory) {
  Unseen unseen;
  if (!is_cpu(memory)) return bytes_of(memory).clone().storage();
  at::Tensor copy = at::empty({static_cast<int64_t>(memory.nbytes())}, at::kByte);
  if (memory.nbytes() > 0) std::memcpy(copy.mutable_data_ptr(), memory.data(), memory.nbytes());
  return copy.storage();
}

void put_memory(const c10::Storage& memory, const c10::Storage& from) {
  if (memory.nbytes() == 0) return;
  Unseen unseen;
  if (is_cpu(memory))
    std::memcpy(memory.mutable_data(), from.data(), memory.nbytes());
  else
    bytes_of(memory).copy_(bytes_of(from));
}

bool same_memory(const c10::Storage& a, const c10::Storage& b) {
  if (a.nbytes() != b.nbytes() || a.device() != b.device()) return false;
  if (a.nbytes() == 0) return true;
  if (is_cpu(a)) return std::memcmp(a.data(), b.data(), a.nbytes()) == 0;
  Unseen unseen;
  return at::equal(bytes_of(a), bytes_of(b));
}

at::Tensor without_repeats(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided) return tensor;
  at::Tensor made = tensor;
  for (int64_t i = 0; i < tensor.dim(); ++i)
    if (tensor.stride(i) == 0 && tensor.size(i) > 1) made = made.narrow(i, 0, 1);
  return made;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type() || a.device() != b.device()) return false;
  Unseen unseen;
  bool alike = a.layout() == b.layout() && (a.layout() != at::kStrided || a.strides() == b.strides());
  at::Tensor x = (alike ? without_repeats(a) : a).contiguous();
  at::Tensor y = (alike ? without_repeats(b) : b).contiguous();
  if (x.numel() == 0) return true;
  if (x.device().is_cpu()) return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
  return at::equal(x.reshape(-1).view(at::kByte), y.reshape(-1).view(at::kByte));
}

bool is_foreign(const c10::StorageImpl* storage) {
  static const c10::DeleterFnPtr cpu = c10::GetAllocator(c10::kCPU)->raw_deleter();
  c10::DeleterFnPtr deleter = storage->data_ptr().get_deleter();
  c10::DeviceType device = storage->device_type();
  if (device == c10::kCPU) return deleter != cpu;
  return device == c10::kCUDA && deleter != c10::GetAllocator(device)->raw_deleter();
}

bool any_overlap(std::vector<const c10::StorageImpl*> storages) {
  std::sort(storages.begin(), storages.end());
  storages.erase(std::unique(storages.begin(), storages.end()), storages.end());
  std::vector<MemoryRange> ranges;
  for (const c10::StorageImpl* storage : storages)
    if (MemoryRange range = range_of(storage); range.first < range.second) ranges.push_back(range);
  std::sort(ranges.begin(), ranges.end());
  // If any two overlap, two do that lie side by side in this order.
  return std::adjacent_find(ranges.begin(), ranges.end(), overlap) != ranges.end();
}

int64_t version_of(const at::Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

}  // namespace lazytrace
