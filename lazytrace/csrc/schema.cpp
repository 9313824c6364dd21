#include "schema.h"

#include <string>
#include <unordered_set>

namespace lazytrace {

namespace {

const std::string& name_of(const c10::OperatorHandle& op) { return op.schema().name(); }

using Names = std::unordered_set<std::string>;

}  // namespace

bool is_view(const c10::OperatorHandle& op) {
  for (auto& result : op.schema().returns())
    if (result.alias_info() && !result.alias_info()->isWrite()) return true;
  return false;
}

bool is_lift(const c10::OperatorHandle& op) {
  const std::string& name = name_of(op);
  return name == "aten::lift_fresh" || name == "aten::lift_fresh_copy" || name == "aten::lift";
}

bool is_blank_factory(const c10::OperatorHandle& op) {
  static const Names names = {"aten::empty",         "aten::empty_like",       "aten::new_empty", "aten::empty_strided",
                              "aten::empty_permuted", "aten::new_empty_strided", "aten::empty_quantized"};
  return names.count(name_of(op)) && op.schema().overload_name().find("out") == std::string::npos;
}

bool overwrites(const c10::OperatorHandle& op, size_t argument) {
  const auto& schema = op.schema();
  const auto* alias = schema.arguments()[argument].alias_info();
  if (!alias || !alias->isWrite()) return false;
  static const Names names = {"aten::copy_",        "aten::fill_",   "aten::zero_",      "aten::normal_",     "aten::uniform_",
                              "aten::random_",      "aten::bernoulli_", "aten::exponential_", "aten::cauchy_", "aten::geometric_",
                              "aten::log_normal_",  "aten::set_",    "aten::eye_",       "aten::resize_"};
  return names.count(name_of(op)) || schema.arguments()[argument].is_out();
}

bool has_data_dependent_shape(const c10::OperatorHandle& op) {
  // Composite operators carry no tag of their own.
  static const Names names = {"aten::argwhere",  "aten::nonzero_numpy",   "aten::masked_select", "aten::unique_dim",
                              "aten::_unique",   "aten::_unique2",        "aten::bincount",      "aten::combinations",
                              "aten::index",     "aten::repeat_interleave", "aten::unique_consecutive", "aten::tensor_split"};
  if (op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output)) return true;
  if (names.count(name_of(op)) && name_of(op) != "aten::index") return true;
  return name_of(op) == "aten::where" && op.schema().arguments().size() == 1;
}

bool hidden_write(const c10::OperatorHandle& op, size_t argument, const torch::jit::Stack& arguments) {
  static const Names names = {"aten::batch_norm",        "aten::native_batch_norm", "aten::_batch_norm_impl_index",
                              "aten::instance_norm",     "aten::cudnn_batch_norm",  "aten::miopen_batch_norm",
                              "aten::rrelu_with_noise",  "aten::_batch_norm_with_update"};
  if (!names.count(name_of(op))) return false;
  const std::string& name = op.schema().arguments()[argument].name();
  if (name == "noise") return true;
  if (name != "running_mean" && name != "running_var") return false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& flag = op.schema().arguments()[i].name();
    if ((flag == "training" || flag == "use_input_stats") && arguments[i].isBool()) return arguments[i].toBool();
  }
  return true;
}

}  // namespace lazytrace
