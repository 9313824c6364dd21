// A tensor of numbers, as one operator: a program has it among its steps, with numbers that are followed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <vector>

namespace lazytrace {

// What `torch.tensor()` makes of a list of numbers, or of lists of these, on the CPU, of these sizes: of
// float64 if they are `real`, else of int64. Scalars, as no size hangs on them. Needs no GIL, if the numbers
// are plain ones.
at::Tensor pack_numbers(const std::vector<at::Scalar>& values, at::IntArrayRef sizes, bool real);

}  // namespace lazytrace
