// The regions of autocast that are a function's own, counted from 1 while it is recorded.
#pragma once

#include <utility>

#include "program/program.h"
#include "torch/autocast_regions.h"

namespace lazytrace {

class OwnRegions {
 public:
  // Inside a region of the caller's, or under autocast that the caller has switched on, what is cast is the
  // caller's.
  explicit OwnRegions(const Program* program) : program_(program) {}

  bool in_callers() const { return in_callers_; }
  // Which one the function is in, for the modes of a step; 0 where it is in none, or autocast was never on
  // there, so that there are no casts to keep.
  int number(const Modes& now) {
    if (in_callers_ || program_->modes[0].any_autocast() || !is_in_autocast_region()) return 0;
    keeps_casts_ |= now.any_autocast();
    return keeps_casts_ ? ended_ + 1 : 0;
  }
  // The function leaves a level. Behind the outermost one torch lets go of what was cast there, but not while
  // the region of a replay is kept.
  void leave_level() {
    left_ = autocast_depth() == 1;
    if (left_ && KeptRegion::count()) end();
  }
  // torch lets go of what was cast, outside of all regions. Whether that is for a region that has just ended.
  bool clear() {
    end();
    return std::exchange(left_, false);
  }
  // The steps that have run are fed: the function goes on with what they have cast, if it is in that region.
  void go_on_in(KeptRegion region) const {
    region.end(is_in_autocast_region() && ended_ + 1 == region.number());
  }

 private:
  void end() {
    ++ended_;
    keeps_casts_ = false;
  }

  const Program* program_;
  const bool in_callers_ = is_in_autocast_region();
  int ended_ = 0;
  bool left_ = false;         // the outermost one, just now
  bool keeps_casts_ = false;  // whether autocast was on in the one that it is in
};

}  // namespace lazytrace
