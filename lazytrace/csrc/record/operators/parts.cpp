#include "record/operators/parts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>

#include "torch/facts.h"
#include "torch/modes.h"

namespace lazytrace {

namespace {

// A sequence becomes some ten steps for each of its places, layers and directions.
constexpr int64_t kMostPlaces = 256;

// Of `gru.input` and the like: how often its cell is called. What has the batch first is turned in place when
// all is done, which is no step of a program that can go on behind a side exit.
int64_t places(const c10::FunctionSchema& schema, const c10::IValue* arguments) {
  int64_t layers = 1, directions = 1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const std::string& name = schema.arguments()[i].name();
    if (name == "num_layers") layers = arguments[i].toInt();
    if (name == "bidirectional" && arguments[i].toBool()) directions = 2;
    if (name == "batch_first" && arguments[i].toBool()) return kMostPlaces + 1;
  }
  const at::Tensor& input = arguments[0].toTensor();
  return input.dim() > 0 ? input.size(0) * layers * directions : 0;
}

// Whether all tensors are of the CPU, for which there are shorter ways of the parts.
bool on_cpu(const c10::IValue& value) {
  auto is_ours = [](const c10::IValue& one) {
    return !one.isTensor() || !one.toTensor().defined() ||
           (one.toTensor().device().is_cpu() && one.toTensor().layout() == at::kStrided);
  };
  if (!value.isTensorList()) return is_ours(value);
  auto list = value.toListRef();
  return std::all_of(list.begin(), list.end(), is_ours);
}

}  // namespace

bool comes_apart(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const OperatorFacts& facts = facts_of(op);
  if (!facts.in_parts || at::GradMode::is_enabled() || Modes::current().any_autocast()) return false;
  const auto& schema = op.schema();
  const c10::IValue* first = stack.data() + (stack.size() - schema.arguments().size());
  if (!std::all_of(first, stack.data() + stack.size(), on_cpu)) return false;
  // Of a packed sequence the lengths say how often a cell is called: they are values.
  const std::string& overload = schema.overload_name();
  return overload != "data" && (overload != "input" || places(schema, first) <= kMostPlaces);
}

}  // namespace lazytrace
