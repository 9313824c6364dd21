// The tensors of no dimensions that torch's bindings make of Python numbers.
#pragma once

#include <ATen/ATen.h>

namespace lazytrace {

// Whether it is one of the CPU, whose memory can be read.
bool is_wrapped_number(const at::Tensor& tensor);
// Another tensor of no dimensions of the CPU, with the same number: a node of autograd shows what it has
// saved, and who asks may write to it. Without an operator, which would be taken for one of the program's.
// Needs no GIL.
at::Tensor copy_of_number(const at::Tensor& tensor);

}  // namespace lazytrace
