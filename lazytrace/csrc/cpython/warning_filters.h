// The number that Python raises whenever somebody says that the filters of warnings have changed: what was
// given once is given again from then on.
#pragma once

namespace lazytrace {

// Needs the GIL.
long warning_filters_version();

}  // namespace lazytrace
