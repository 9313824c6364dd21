#include "torch/wrapped_numbers.h"

#include <ATen/EmptyTensor.h>

#include <cstring>

namespace lazytrace {

bool is_wrapped_number(const at::Tensor& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->is_wrapped_number() && tensor.has_storage() &&
         tensor.device().is_cpu();
}

at::Tensor copy_of_number(const at::Tensor& tensor) {
  at::Tensor copy =
      at::detail::empty_cpu({}, tensor.scalar_type(), at::kStrided, at::kCPU, false, std::nullopt);
  copy.unsafeGetTensorImpl()->set_wrapped_number(tensor.unsafeGetTensorImpl()->is_wrapped_number());
  std::memcpy(copy.unsafeGetTensorImpl()->mutable_data(), tensor.const_data_ptr(), tensor.element_size());
  return copy;
}

}  // namespace lazytrace
