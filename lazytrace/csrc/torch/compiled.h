// Functions that TorchScript has compiled for a program.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace lazytrace {

// From now on the function does what its source does in Python, operator by operator. By itself TorchScript
// has casts of its own under autocast, which give other dtypes, and derivatives of its own, which multiply by
// 0 where those of the operators choose. Not for one that somebody else may call as well.
void run_as_written(const py::object& function);

}  // namespace lazytrace
