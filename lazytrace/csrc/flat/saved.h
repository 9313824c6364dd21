// What the nodes of a graph of autograd have saved.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <vector>

namespace lazytrace {

// As the Python object of a node shows it: tensors that somebody could write to, or that a backward pass
// before this one has let go of.
enum class Saved : uint8_t { Nothing, Tensors, Gone };

// Needs the GIL.
Saved saved_by(torch::autograd::Node* node);
// The tensors themselves. Needs the GIL.
std::vector<at::Tensor> saved_tensors(torch::autograd::Node* node);

}  // namespace lazytrace
