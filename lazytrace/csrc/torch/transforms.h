// Tensors that belong to transforms of torch.func.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <vector>

namespace lazytrace {

// Whether a transform is at work in this thread.
bool is_transforming();

// Whether it stands for another tensor, to which operators on it come.
bool belongs_to_transform(const at::Tensor& tensor);

// Those among the arguments on the stack.
std::vector<at::Tensor> transformed_arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

}  // namespace lazytrace
