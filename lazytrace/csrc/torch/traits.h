// What Python code can see of a tensor that its look does not say.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace lazytrace {

// Its class if it is not torch.Tensor, whether it has attributes of its own, or a gradient that no graph
// leads to: "" of most. Needs the GIL.
std::string traits_of(const at::Tensor& tensor);

}  // namespace lazytrace
