// Sees what operators come to below autograd.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "torch/passes_here.h"

namespace lazytrace {

class KernelSink {
 public:
  virtual ~KernelSink() = default;
  // An operator that autograd and the counting of versions have handed on. Runs it with run_kernel().
  virtual void on_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                         torch::jit::Stack* stack) = 0;
};

// Hands the operator on to the kernel of its backend; nothing that this one calls is seen.
void run_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Tells `sink` of each kernel that this thread runs, for as long as it lives. RAII: also on exceptions.
class KernelScope {
 public:
  explicit KernelScope(KernelSink* sink);
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

 private:
  PassesHere here_;
  KernelSink* before_;
  bool included_;
};

}  // namespace lazytrace
