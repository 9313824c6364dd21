// The dispatcher modes that decide what an operator does beyond its arguments, observed and switched.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <optional>

#include "torch/autocast.h"
#include "torch/kept_region.h"
#include "torch/switches.h"

namespace lazytrace {

struct Modes {
  bool grad = true;
  bool inference = false;
  bool autocast_cache = true;
  bool autocast[kAutocastCount] = {};
  c10::ScalarType autocast_dtype[kAutocastCount] = {};
  // The region of the function's own whose casts autocast keeps, counted from 1; 0 outside of all. A part of
  // it may be switched off. Only a recorder and its programs know.
  int autocast_region = 0;
  Switches switches;  // that the function has set; all others are as they were before the call

  // Without switches, which any thread may set: only a recorder knows those that are of its function.
  static Modes current();
  bool operator==(const Modes& other) const;
  bool operator!=(const Modes& other) const { return !(*this == other); }
  bool any_autocast() const;
  // As kernels run, which have behind them what autocast does.
  void leave_autocast();
  // "no_grad, autocast(cpu, BFloat16)" or "" for the default modes.
  std::string text() const;
};

// Switches this thread's modes, and the switches of all threads, as the function does. Puts back what it
// found when it goes out of scope. No GIL needed.
class ModeSwitch {
 public:
  ModeSwitch() = default;
  ~ModeSwitch();
  ModeSwitch(const ModeSwitch&) = delete;
  ModeSwitch& operator=(const ModeSwitch&) = delete;

  void to(const Modes& modes);
  // Leaves the function's own region of this number open, where it is in that one.
  KeptRegion keep_region(int number);
  // Goes on in one that was left open.
  void go_on_in(KeptRegion region);

 private:
  void apply_autocast(const Modes& modes);
  void leave_autocast();
  void apply_switches(const Switches& switches);

  // Looked up at the first switch: most programs stay in the modes that they start in.
  std::optional<Modes> base_;
  Modes now_;
  Switches found_;       // those that it has set, as they were
  bool nested_ = false;  // whether this switch entered a region of autocast, whose cache it must then clear
  std::optional<c10::InferenceMode> inference_;
};

}  // namespace lazytrace
