// A region of autocast that a replay has left open where it stopped.
#pragma once

#include <ATen/autocast_mode.h>

#include <utility>

namespace lazytrace {

// A function that runs again must find there what the replay has cast, for how often a leaf was cast shows in
// its gradient. Regions that the function enters and leaves meanwhile lie inside of this one, so torch clears
// nothing.
//
// Ownership: one level of nesting of the thread that made it, which must let go of it, too. No GIL needed.
class KeptRegion {
 public:
  KeptRegion() = default;
  // Takes over a level that this thread has entered. `number`: of the function's own regions, from 1.
  explicit KeptRegion(int number) : number_(number) { ++count_; }
  KeptRegion(KeptRegion&& other) noexcept : number_(std::exchange(other.number_, 0)) {}
  KeptRegion& operator=(KeptRegion&& other) noexcept {
    if (this == &other) return *this;
    end();
    number_ = std::exchange(other.number_, 0);
    return *this;
  }
  ~KeptRegion() { end(); }

  // 0 where there is none.
  int number() const { return number_; }
  // How many there are on this thread.
  static int count() { return count_; }
  // Lets go of it. `inside`: the function has come to the same region, and goes on with what was cast.
  void end(bool inside = false) noexcept {
    if (!number_) return;
    give_up();
    if (at::autocast::decrement_nesting() == 0 || !inside) at::autocast::clear_cache();
  }
  // The level is somebody else's from here on.
  void give_up() noexcept {
    if (std::exchange(number_, 0)) --count_;
  }

 private:
  inline static thread_local int count_ = 0;
  int number_ = 0;
};

}  // namespace lazytrace
