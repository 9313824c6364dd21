// Tensors that Python was fed while a function runs again.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <utility>
#include <vector>

#include "record/operators/origins.h"

namespace lazytrace {

namespace py = pybind11;

// torch's Python factories (torch.zeros, torch.rand) give Python a copy of what their operator returned where
// somebody else holds that too, as a resumed replay does. The copy shares memory but no history: Python is
// given the tensor itself back as soon as the copy is seen.
class Lent {
 public:
  explicit Lent(Origins* origins) : origins_(origins) {}

  // One that is no view.
  void add(const at::Tensor& tensor, int reg) { lent_.emplace_back(tensor, reg); }
  bool empty() const { return lent_.empty(); }
  // The register of what `tensor` is a copy of, or -1. Takes the GIL.
  int find(const at::Tensor& tensor);
  // Puts the tensors themselves for their copies into the topmost `count` values.
  void restore(torch::jit::Stack* stack, size_t count);
  void clear() { lent_.clear(); }

 private:
  at::Tensor restored(const at::Tensor& tensor);

  Origins* origins_;
  std::vector<std::pair<at::Tensor, int>> lent_;
};

}  // namespace lazytrace
