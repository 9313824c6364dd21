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
  // Which one the function is in; 0 in none.
  int current() const { return in_callers_ || !is_in_autocast_region() ? 0 : ended_ + 1; }
  // The same for the modes of a step; 0 where autocast was never on there, so that there are no casts to
  // keep.
  int number(const Modes& now) {
    if (program_->modes[0].any_autocast() || !current()) return 0;
    keeps_casts_ |= now.any_autocast();
    return keeps_casts_ ? current() : 0;
  }
  // The function leaves a level. Behind the outermost one torch lets go of what was cast there, but not while
  // the region of a replay is kept.
  void leave_level() {
    left_ = autocast_depth() == 1;
    if (left_ && KeptRegion::count()) end();
  }
  // torch lets go of what was cast, outside of all regions. A replay does so by itself where the number of
  // the region changes.
  void clear() {
    end();
    cleared_ |= !std::exchange(left_, false);
  }
  // Whether it was asked to do so, other than by a region that has ended.
  bool cleared() const { return cleared_; }
  // The steps that have run are fed: the function is in the region where the replay stopped.
  void go_on_in(KeptRegion region) {
    if (!region.number()) return;
    ended_ = region.number() - 1;
    keeps_casts_ = true;
    region.end(is_in_autocast_region());
  }

 private:
  void end() {
    ++ended_;
    keeps_casts_ = false;
  }

  const Program* program_;
  const bool in_callers_ = is_in_autocast_region();
  int ended_ = 0;
  bool left_ = false;  // the outermost one, just now
  bool cleared_ = false;
  bool keeps_casts_ = false;  // whether autocast was on in the one that it is in
};

}  // namespace lazytrace
