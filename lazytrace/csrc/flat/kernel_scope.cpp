#include "flat/kernel_scope.h"

#include <torch/library.h>

#include "torch/record_key.h"

namespace lazytrace {

namespace {

thread_local KernelSink* current = nullptr;

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  current ? current->on_kernel(op, keys, stack) : run_kernel(op, keys, stack);
}

}  // namespace

void run_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard guard(kKernelKey);
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKernelKey), stack);
}

KernelScope::KernelScope(KernelSink* sink)
    : before_(current), included_(c10::impl::tls_is_dispatch_key_included(kKernelKey)) {
  current = sink;
  c10::impl::tls_set_dispatch_key_included(kKernelKey, true);
}

KernelScope::~KernelScope() {
  c10::impl::tls_set_dispatch_key_included(kKernelKey, included_);
  current = before_;
}

TORCH_LIBRARY_IMPL(_, Fake, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace lazytrace
