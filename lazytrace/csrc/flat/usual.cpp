#include "flat/usual.h"

#include "torch/tensor_meta.h"

namespace lazytrace {

bool shows_plain_memory(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || !tensor.has_storage()) return false;
  if (!bits_of(tensor)) return TensorMeta::of(tensor).plain_keys();
  auto keys =
      tensor.key_set() - c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  return TensorMeta::made(tensor.scalar_type(), tensor.device(), false, keys.raw_repr(), tensor.sizes(),
                          tensor.strides())
      .plain_keys();
}

}  // namespace lazytrace
