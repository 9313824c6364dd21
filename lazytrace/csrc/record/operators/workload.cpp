#include "record/operators/workload.h"

#include <ATen/ATen.h>

namespace lazytrace {

void Workload::add(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  elements_ += tensor.is_nested() ? SIZE_MAX / 2 : static_cast<size_t>(tensor.numel());
  only_cpu_ &= tensor.device().is_cpu();
  only_plain_ &= !tensor.key_set().has_any(c10::python_ks);
}

void Workload::add(const c10::IValue& value) {
  if (value.isTensor()) add(value.toTensor());
  if (value.isTensorList())
    for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
}

bool Workload::is_small() const {
  constexpr size_t kMostElements = 2048;
  return elements_ <= kMostElements && only_cpu_;
}

}  // namespace lazytrace
