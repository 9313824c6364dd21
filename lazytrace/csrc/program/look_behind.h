// How an argument of an opaque step looks behind it, where the step has changed that in the recording.
#pragma once

#include <string>

#include "torch/tensor_meta.h"

namespace lazytrace {

struct LookBehind {
  size_t argument;
  TensorMeta look;
  std::string traits;  // see traits_of()
};

}  // namespace lazytrace
