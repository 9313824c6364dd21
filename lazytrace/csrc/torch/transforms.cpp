#include "torch/transforms.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace lazytrace {

bool is_transforming() {
  constexpr auto kFront = c10::DispatchKey::FuncTorchDynamicLayerFrontMode;
  constexpr auto kBack = c10::DispatchKey::FuncTorchDynamicLayerBackMode;
  // torch.tensor() makes its memory outside of all transforms.
  bool outside =
      c10::impl::tls_is_dispatch_key_excluded(kFront) && c10::impl::tls_is_dispatch_key_excluded(kBack);
  return c10::impl::tls_is_dispatch_key_included(kFront) && !outside;
}

bool belongs_to_transform(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kWrappers({c10::DispatchKey::FuncTorchGradWrapper,
                                           c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::Batched});
  return tensor.defined() && tensor.key_set().has_any(kWrappers);
}

std::vector<at::Tensor> transformed_arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  std::vector<at::Tensor> found;
  auto look = [&](const c10::IValue& value) {
    if (value.isTensor() && belongs_to_transform(value.toTensor())) found.push_back(value.toTensor());
  };
  auto first = stack.end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  for (auto value = first; value != stack.end(); ++value) {
    look(*value);
    if (!value->isTensorList() && !value->isOptionalTensorList()) continue;
    for (const c10::IValue& item : value->toListRef()) look(item);
  }
  return found;
}

}  // namespace lazytrace
