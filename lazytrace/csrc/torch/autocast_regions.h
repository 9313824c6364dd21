// Regions of autocast: at the end of the outermost one torch clears what was cast inside.
#pragma once

#include <ATen/autocast_mode.h>

#include "torch/autocast.h"
#include "torch/kept_region.h"

namespace lazytrace {

// How deep this thread is in regions; those that replays have left open for a function that runs again are
// not among them.
inline int autocast_depth() {
  at::autocast::increment_nesting();
  return at::autocast::decrement_nesting() - KeptRegion::count();
}

// Whether this thread is in a region. Autocast that is switched on outside of one keeps what it has cast.
inline bool is_in_autocast_region() { return autocast_depth() > 0; }

// Whether it is off in the one that this thread is in. What a region inside that one casts is kept beyond it.
inline bool is_in_region_without_autocast() {
  auto off = c10::impl::tls_local_dispatch_key_set().excluded_;
  for (c10::DispatchKey key : autocast_keys())
    if (!off.has(key)) return false;
  return is_in_autocast_region();
}

}  // namespace lazytrace
