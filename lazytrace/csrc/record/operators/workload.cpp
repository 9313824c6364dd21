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

bool Workload::is_brief(const Program& program) const {
  constexpr size_t kMostSteps = 4, kMostElements = 2048;
  if (program.dynamic) return false;  // the next call may bring more elements
  if (program.steps.size() > kMostSteps || elements_ > kMostElements || !only_cpu_) return false;
  return std::all_of(program.steps.begin(), program.steps.end(), [](const Step& step) {
    if (step.kind == Step::Kind::Numbers) return true;
    return step.kind == Step::Kind::Operator && step.op.schema().name().rfind("aten::", 0) == 0;
  });
}

}  // namespace lazytrace
