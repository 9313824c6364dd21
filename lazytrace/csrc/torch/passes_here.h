// Backward passes that stay in the thread that asks for them.
#pragma once

#include <c10/core/AutogradState.h>

#include "torch/gpu.h"

namespace lazytrace {

// While it lives, this thread runs the backward passes that it begins, on tensors of GPUs as well: autograd
// hands those to threads of its own, where nobody would see their operators and hooks. RAII: also on
// exceptions.
class PassesHere {
 public:
  PassesHere() : off_(gpu_built() && c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
    if (off_) set(false);
  }
  ~PassesHere() {
    if (off_) set(true);
  }
  PassesHere(const PassesHere&) = delete;
  PassesHere& operator=(const PassesHere&) = delete;

 private:
  static void set(bool on) { c10::AutogradState::get_tls_state().set_multithreading_enabled(on); }

  bool off_;
};

}  // namespace lazytrace
