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
  // As much as malloc keeps of its own accord; the operators on larger tensors do not feel the difference,
  // and memory that waits here for the next backward pass is not in the processor's cache by then.
  static constexpr size_t kMostBytes = size_t{256} << 10;
  static constexpr size_t kMostTensors = 96;

  // Tensors of one size in bytes; the newest last: its memory is in the processor's cache.
  struct Bin {
    size_t bytes;
    std::vector<at::Tensor> free;
  };
  Bin& bin_of(size_t bytes);
  // There was no place for a tensor: what lies here may be of programs that run no more.
  void refuse();

  std::vector<Bin> bins_;
  size_t bytes_ = 0, tensors_ = 0, refused_ = 0;
};

}  // namespace lazytrace
