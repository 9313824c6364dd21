// Which of many addresses are the same, asked at each call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lazytrace {

// The numbers of the first ones that had the same address, in memory that is used again.
class Firsts {
 public:
  // `most`: how many addresses there are of all kinds.
  explicit Firsts(size_t most) : places_(of_thread()) {
    size_t size = 64;
    while (size < 2 * most) size *= 2;
    if (places_.size() < size) places_.assign(size, {});
    mask_ = places_.size() - 1;
    static thread_local uint64_t turns = 0;
    turn_ = ++turns;
  }
  // `kind`: what it is the address of; others may have the same.
  int of(const void* address, uint32_t kind, int number) {
    if (!address) return number;
    size_t at = (reinterpret_cast<uintptr_t>(address) >> 4) * 0x9e3779b97f4a7c15 >> 20;
    for (;; ++at) {
      Place& place = places_[at & mask_];
      if (place.turn != turn_) {
        place = {address, turn_, kind, number};
        return number;
      }
      if (place.address == address && place.kind == kind) return place.number;
    }
  }

 private:
  struct Place {
    const void* address = nullptr;
    uint64_t turn = 0;  // in which it was written
    uint32_t kind = 0;
    int number = 0;
  };
  static std::vector<Place>& of_thread() {
    static thread_local std::vector<Place> places;
    return places;
  }

  std::vector<Place>& places_;
  size_t mask_;
  uint64_t turn_;
};

}  // namespace lazytrace
