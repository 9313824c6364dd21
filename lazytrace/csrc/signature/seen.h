// Which pointers were met before in one call.
#pragma once

#include <cstdint>
#include <vector>

namespace lazytrace {

// An open hash table that forgets everything in one step, without touching its memory.
class Seen {
 public:
  // The number that came with `pointer` first: `number` itself where it is new.
  int first(const void* pointer, int number) {
    if (__builtin_expect(2 * (count_ + 1) > slots_.size(), 0)) grow();
    Slot& slot = find(pointer);
    if (slot.round == round_) return slot.number;
    slot = {pointer, round_, number};
    ++count_;
    return number;
  }
  void clear() {
    ++round_;
    count_ = 0;
  }

 private:
  struct Slot {
    const void* pointer = nullptr;
    uint64_t round = 0;  // of the call that it belongs to
    int number = 0;
  };

  Slot& find(const void* pointer) {
    size_t mask = slots_.size() - 1;
    size_t at = (reinterpret_cast<uintptr_t>(pointer) >> 4) * 0x9E3779B97F4A7C15u >> 20 & mask;
    while (slots_[at].round == round_ && slots_[at].pointer != pointer) at = (at + 1) & mask;
    return slots_[at];
  }

  __attribute__((noinline)) void grow() {
    std::vector<Slot> old = std::move(slots_);
    slots_.assign(old.empty() ? 64 : 2 * old.size(), Slot());
    for (Slot& slot : old)
      if (slot.round == round_) find(slot.pointer) = slot;
  }

  std::vector<Slot> slots_;
  uint64_t round_ = 1;
  size_t count_ = 0;
};

}  // namespace lazytrace
