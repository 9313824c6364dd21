// What many steps of one program have in common, held once.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "torch/tensor_meta.h"

namespace lazytrace {

class SharedValues {
 public:
  // Many results of one program look the same: they share what is known of them.
  std::shared_ptr<const TensorMeta> meta_of(const at::Tensor& tensor);
  // Python numbers that are written again and again in a function are one constant of the program: no
  // operator writes to it, and none gives it back.
  at::Tensor number_of(const at::Tensor& tensor);
  void clear();

 private:
  std::vector<std::shared_ptr<const TensorMeta>> metas_;
  std::vector<at::Tensor> numbers_;
};

}  // namespace lazytrace
