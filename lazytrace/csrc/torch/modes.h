// The dispatcher modes that decide what an operator does beyond its arguments, observed and switched.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <optional>

#include "torch/autocast.h"

namespace lazytrace {

struct Modes {
  bool grad = true;
  bool inference = false;
  bool autocast_cache = true;
  bool autocast[kAutocastCount] = {};
  c10::ScalarType autocast_dtype[kAutocastCount] = {};

  static Modes current();
  bool operator==(const Modes& other) const;
  bool operator!=(const Modes& other) const { return !(*this == other); }
  bool any_autocast() const;
  // "no_grad, autocast(cpu, BFloat16)" or "" for the default modes.
  std::string text() const;
};

// Switches this thread's modes, and puts back what it found when it goes out of scope. No GIL needed.
class ModeSwitch {
 public:
  ModeSwitch() = default;
  ~ModeSwitch();
  ModeSwitch(const ModeSwitch&) = delete;
  ModeSwitch& operator=(const ModeSwitch&) = delete;

  void to(const Modes& modes);

 private:
  void apply_autocast(const Modes& modes);
  void leave_autocast();

  // Looked up at the first switch: most programs stay in the modes that they start in.
  std::optional<Modes> base_;
  Modes now_;
  bool nested_ = false;  // whether this switch entered autocast, whose cache it must then clear
  std::optional<c10::InferenceMode> inference_;
};

}  // namespace lazytrace
