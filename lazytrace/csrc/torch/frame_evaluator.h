// What torch's compiler does with the frames of this thread.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace lazytrace {

// The callback that it compiles frames with; None while it does nothing. Needs the GIL.
pybind11::object frame_evaluator();

}  // namespace lazytrace
