// Whether Python code is watched at all: the one switch that the parts of the observer share.
#pragma once

namespace lazytrace {

// Needs the GIL.
class Pause {
 public:
  // `watch_writes`: whether what runs meanwhile is Python code that may change state.
  void begin(bool watch_writes = false) {
    ++depth_;
    watches_writes_ = watch_writes;
  }
  void end() {
    --depth_;
    watches_writes_ = false;
  }
  bool active() const { return depth_ > 0; }
  // Whether nothing is looked at; otherwise writes are, if nothing else.
  bool blind() const { return active() && !watches_writes_; }

 private:
  int depth_ = 0;
  bool watches_writes_ = false;
};

}  // namespace lazytrace
