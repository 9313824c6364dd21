// What a tensor looks like from outside: everything that Python code could have read from it.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <string>

namespace lazytrace {

class TensorMeta {
 public:
  TensorMeta() = default;
  static TensorMeta of(const at::Tensor& tensor);
  // What was said of one before: by a file, for example. `strides`: none of a tensor that has none.
  static TensorMeta made(c10::ScalarType dtype, c10::Device device, bool requires_grad, uint64_t keys,
                         c10::IntArrayRef sizes, std::optional<c10::IntArrayRef> strides);
  // That of no tensor.
  static const std::shared_ptr<const TensorMeta>& undefined();

  // Exact comparison without allocating; neither needs nor takes the GIL.
  bool matches(const at::Tensor& tensor) const;
  // The same but for sizes and strides.
  bool matches_loosely(const at::Tensor& tensor) const;
  // "float32[2, 3]"
  std::string text() const;
  // The first property in which `tensor` differs, as "shape[0] 64 -> 13"; empty where it matches.
  std::string difference(const at::Tensor& tensor) const;
  // The same of all but sizes and strides.
  std::string loose_difference(const at::Tensor& tensor) const;

  bool defined() const { return defined_; }
  size_t bytes() const;  // at most: views count as much as what they show
  bool requires_grad() const { return requires_grad_; }
  bool leads_nowhere() const { return leads_nowhere_; }
  void set_requires_grad(bool value) { requires_grad_ = value; }
  c10::ScalarType dtype() const { return dtype_; }
  const c10::SmallVector<int64_t, 5>& sizes() const { return sizes_; }
  const c10::SmallVector<int64_t, 5>& strides() const { return strides_; }
  uint64_t keys() const { return keys_; }
  // No conjugate, sparse, quantized or other special kind of tensor.
  bool plain_keys() const;
  // Whether its elements lie side by side, in whatever order.
  bool dense() const;
  bool strided() const { return defined_ && strided_; }
  c10::Device device() const { return device_; }
  // Whether a tensor of other sizes and strides, which begins where its memory begins, could look like this.
  bool fits_memory_of(const c10::TensorImpl& impl) const {
    return impl.key_set().raw_repr() == keys_ && impl.dtype() == c10::scalarTypeToTypeMeta(dtype_) &&
           impl.unsafe_storage().nbytes() == bytes();
  }

 private:
  bool defined_ = false;
  bool strided_ = true;
  bool requires_grad_ = false;
  bool leads_nowhere_ = false;
  c10::ScalarType dtype_ = c10::ScalarType::Undefined;
  c10::Device device_ = c10::kCPU;
  uint64_t keys_ = 0;
  c10::SmallVector<int64_t, 5> sizes_;
  c10::SmallVector<int64_t, 5> strides_;
};

}  // namespace lazytrace
