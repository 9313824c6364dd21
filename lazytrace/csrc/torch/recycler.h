// Small tensors that nobody needs any more, used again as the results of later operators.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "torch/tensor_meta.h"

namespace lazytrace {

// Most of what a small operator takes is the making of its result. Only tensors that nothing else refers to
// come here: what leaves the program is as new. Belongs to one thread; needs no GIL, as no tensor in it has a
// Python object.
class Recycler {
 public:
  // A tensor that looks like this, of any contents; undefined where there is none.
  at::Tensor take(const TensorMeta& meta);
  // Keeps the tensor where it can be used again, and drops it otherwise.
  void give(at::Tensor&& tensor);

 private:
  // As much as malloc keeps of its own accord; the operators on larger tensors do not feel the difference.
  static constexpr size_t kMostBytes = size_t{256} << 10;
  static constexpr size_t kMostTensors = 24;

  std::vector<at::Tensor> free_;  // the newest last: its memory is in the processor's cache
  size_t bytes_ = 0;
};

}  // namespace lazytrace
