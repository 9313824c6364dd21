// Regions of autocast: at the end of the outermost one torch clears what was cast inside.
#pragma once

#include <ATen/autocast_mode.h>

namespace lazytrace {

// Whether this thread is in a region. Autocast that is switched on outside of one keeps what it has cast.
inline bool is_in_autocast_region() {
  at::autocast::increment_nesting();
  return at::autocast::decrement_nesting() > 0;
}

}  // namespace lazytrace
