#include "replay/emptied.h"

#include <algorithm>

namespace lazytrace {

// Whether its register alone refers to it.
bool Emptied::is_alone(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && !tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
}

void Emptied::let_go(c10::StorageImpl* memory, const std::vector<at::Tensor>& all) {
  const at::Tensor* one = nullptr;
  size_t count = 0;
  for (int reg : waiting_[memory]) {
    if (storage_of(all[reg]) != memory || !is_alone(all[reg])) continue;
    one = &all[reg];
    ++count;
  }
  if (!one || one->storage().use_count() != count) return;
  gone_.emplace(memory, one->storage().getWeakStorageImpl());
  memory->set_data_ptr_noswap(c10::DataPtr(nullptr, memory->device()));
  waiting_.erase(memory);
}

void Emptied::add(const std::vector<int>& registers, const std::vector<at::Tensor>& all) {
  for (int reg : registers) {
    c10::StorageImpl* memory = storage_of(all[reg]);
    if (!memory || memory->nbytes() < kLeastBytes || has(all[reg])) continue;
    waiting_[memory].push_back(reg);
    let_go(memory, all);
  }
}

void Emptied::sweep(const std::vector<at::Tensor>& all) {
  std::vector<c10::StorageImpl*> memories;
  memories.reserve(waiting_.size());
  for (auto& [memory, registers] : waiting_) memories.push_back(memory);
  for (c10::StorageImpl* memory : memories) let_go(memory, all);
}

void Emptied::fill() {
  for (auto& [memory, weak] : gone_) {
    auto held = weak.lock();
    if (!held) continue;
    at::Tensor bytes = at::empty({static_cast<int64_t>(held->nbytes())},
                                 at::TensorOptions().dtype(at::kByte).device(held->device()));
    held->set_data_ptr_noswap(bytes.storage().set_data_ptr(c10::DataPtr(nullptr, held->device())));
  }
  clear();
}

}  // namespace lazytrace
