// What a tensor looks like from outside: everything that Python code could have read from it.
#pragma once

#include <ATen/ATen.h>

#include <string>

namespace lazytrace {

class TensorMeta {
 public:
  TensorMeta() = default;
  static TensorMeta of(const at::Tensor& tensor);

  // Exact comparison without allocating; neither needs nor takes the GIL.
  bool matches(const at::Tensor& tensor) const;
  // "float32[2, 3]"
  std::string text() const;
  // The first property in which `tensor` differs, as "shape[0] 64 -> 13"; empty where it matches.
  std::string difference(const at::Tensor& tensor) const;

  bool defined() const { return defined_; }
  size_t bytes() const;  // at most: views count as much as what they show
  bool requires_grad() const { return requires_grad_; }
  c10::ScalarType dtype() const { return dtype_; }
  const c10::SmallVector<int64_t, 5>& sizes() const { return sizes_; }

 private:
  bool defined_ = false;
  bool strided_ = true;
  bool requires_grad_ = false;
  c10::ScalarType dtype_ = c10::ScalarType::Undefined;
  c10::Device device_ = c10::kCPU;
  uint64_t keys_ = 0;
  c10::SmallVector<int64_t, 5> sizes_;
  c10::SmallVector<int64_t, 5> strides_;
};

}  // namespace lazytrace
