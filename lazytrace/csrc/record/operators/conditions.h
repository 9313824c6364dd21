// What torch stood in when a recording began.
#pragma once

#include <ATen/Context.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

#include "torch/overrides.h"

namespace lazytrace {

inline bool is_below_autograd() {
  return c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView);
}

struct Conditions {
  const SavedHooks hooks = saved_hooks();
  const bool overridden = aten_is_overridden();
  const uint64_t registrations = kernel_registrations();
  const bool below = is_below_autograd();  // whether the function itself was called below autograd
  // Whether torch checks sparse tensors.
  const std::optional<bool> invariants = at::globalContext().checkSparseTensorInvariants();
};

}  // namespace lazytrace
