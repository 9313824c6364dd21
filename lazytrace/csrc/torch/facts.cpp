#include "torch/facts.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace lazytrace {

namespace {

using Names = std::unordered_set<std::string>;

const Names kBlank = {"aten::empty",          "aten::empty_like",     "aten::new_empty",
                      "aten::empty_strided",  "aten::empty_permuted", "aten::new_empty_strided",
                      "aten::empty_quantized"};
const Names kOverwriting = {"aten::copy_",    "aten::fill_",      "aten::zero_",       "aten::normal_",
                            "aten::uniform_", "aten::random_",    "aten::bernoulli_",  "aten::exponential_",
                            "aten::cauchy_",  "aten::geometric_", "aten::log_normal_", "aten::set_",
                            "aten::eye_",     "aten::resize_"};
// Composite operators carry no tag of their own.
const Names kDataDependent = {
    "aten::argwhere", "aten::nonzero_numpy", "aten::masked_select", "aten::unique_dim", "aten::_unique",
    "aten::_unique2", "aten::bincount", "aten::repeat_interleave", "aten::unique_consecutive",
    "aten::tensor_split", "aten::_pack_padded_sequence", "aten::_pad_packed_sequence",
    // How many elements of a sparse tensor are stored, and in which way.
    "aten::coalesce", "aten::values", "aten::_values", "aten::indices", "aten::_indices",
    "aten::crow_indices", "aten::col_indices", "aten::ccol_indices", "aten::row_indices", "aten::values_copy",
    "aten::_values_copy", "aten::indices_copy", "aten::_indices_copy", "aten::crow_indices_copy",
    "aten::col_indices_copy", "aten::ccol_indices_copy", "aten::row_indices_copy"};
const Names kHidden = {"aten::batch_norm",
                       "aten::native_batch_norm",
                       "aten::_batch_norm_impl_index",
                       "aten::instance_norm",
                       "aten::cudnn_batch_norm",
                       "aten::miopen_batch_norm",
                       "aten::rrelu_with_noise",
                       "aten::_batch_norm_with_update",
                       "aten::batch_norm_update_stats",
                       "aten::batch_norm_gather_stats",
                       "aten::batch_norm_gather_stats_with_counts"};

// Those that give back what they were given where p is 0 (_dropout_impl in ATen/native/Dropout.cpp).
const Names kDropouts = {"aten::dropout",
                         "aten::dropout_",
                         "aten::feature_dropout",
                         "aten::alpha_dropout",
                         "aten::alpha_dropout_",
                         "aten::feature_dropout_",
                         "aten::feature_alpha_dropout",
                         "aten::feature_alpha_dropout_"};

// Composite operators that give views whatever they are given; others may copy (reshape, contiguous, to).
const Names kViews = {"aten::narrow",   "aten::view_as",  "aten::expand_as", "aten::chunk",
                      "aten::swapaxes", "aten::swapdims", "aten::movedim",   "aten::moveaxis",
                      "aten::numpy_T",  "aten::mT",       "aten::unflatten", "aten::split"};

// Composite ones that leave the whole numbers of tensors to kernels, or hand them on as they are. Others may
// look at them in code of their own (one_hot, lstm of packed sequences).
const Names kLeaveNumbers = {"aten::cross_entropy_loss",
                             "aten::nll_loss",
                             "aten::nll_loss_nd",
                             "aten::scaled_dot_product_attention",
                             "aten::to",
                             "aten::type_as",
                             "aten::contiguous",
                             "aten::reshape",
                             "aten::reshape_as",
                             "aten::view_as",
                             "aten::expand_as",
                             "aten::flatten",
                             "aten::unflatten",
                             "aten::movedim",
                             "aten::chunk",
                             "aten::matmul",
                             "aten::__and__",
                             "aten::__or__"};

// Composite ones that compute something at all sizes, so that none gives back what it was given.
const Names kComputing = {"aten::linear",
                          "aten::matmul",
                          "aten::conv1d",
                          "aten::conv2d",
                          "aten::conv3d",
                          "aten::conv_transpose1d",
                          "aten::conv_transpose2d",
                          "aten::conv_transpose3d",
                          "aten::batch_norm",
                          "aten::layer_norm",
                          "aten::group_norm",
                          "aten::instance_norm",
                          "aten::softmax",
                          "aten::log_softmax",
                          "aten::max_pool1d",
                          "aten::max_pool2d",
                          "aten::max_pool3d",
                          "aten::cross_entropy_loss",
                          "aten::scaled_dot_product_attention",
                          "aten::outer",
                          "aten::square",
                          "aten::std",
                          "aten::var",
                          "aten::cdist",
                          "aten::one_hot",
                          "aten::relu6",
                          "aten::subtract",
                          "aten::multiply",
                          "aten::divide",
                          "aten::true_divide",
                          "aten::concat",
                          "aten::concatenate"};

// Composite ones whose replay is shorter in parts, as it was measured; others have a way of their own, or
// parts that are no shorter than the whole.
const Names kInParts = {"aten::lstm_cell",
                        "aten::gru_cell",
                        "aten::rnn_tanh_cell",
                        "aten::rnn_relu_cell",
                        "aten::lstm",
                        "aten::gru",
                        "aten::rnn_tanh",
                        "aten::rnn_relu",
                        "aten::unsafe_chunk",
                        "aten::einsum",
                        "aten::outer",
                        "aten::diff",
                        "aten::hstack",
                        "aten::vstack",
                        "aten::linalg_multi_dot",
                        "aten::kron",
                        "aten::cosine_similarity",
                        "aten::cross_entropy_loss",
                        "aten::nll_loss_nd",
                        "aten::nll_loss",
                        "aten::nll_loss2d"};

bool has_out(const c10::FunctionSchema& schema) {
  for (auto& argument : schema.arguments())
    if (argument.is_out()) return true;
  return false;
}

OperatorFacts work_out(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const std::string& name = schema.name();
  OperatorFacts facts;
  for (auto& result : schema.returns()) facts.view |= result.alias_info() && !result.alias_info()->isWrite();
  for (auto& result : schema.returns()) {
    auto kind = result.type()->kind();
    facts.reads |= kind == c10::TypeKind::NumberType || kind == c10::TypeKind::BoolType ||
                   kind == c10::TypeKind::IntType || kind == c10::TypeKind::FloatType;
  }
  facts.lift = name == "aten::lift_fresh" || name == "aten::lift_fresh_copy" || name == "aten::lift";
  facts.blank_factory = kBlank.count(name) && !has_out(schema);
  facts.overwrites_outputs = kOverwriting.count(name) || has_out(schema);
  facts.data_dependent_shape = op.hasTag(at::Tag::dynamic_output_shape) ||
                               op.hasTag(at::Tag::data_dependent_output) || kDataDependent.count(name) ||
                               (name == "aten::where" && schema.arguments().size() == 1) ||
                               (name == "aten::sparse_coo_tensor" && schema.overload_name() == "indices");
  facts.index = name == "aten::index";
  facts.gives_either = name == "aten::coalesce";  // a flag of the tensor tells, which values may set
  facts.hidden_writes = kHidden.count(name);
  static const Names kChanging = {"aten::resize_", "aten::resize_as_", "aten::set_",
                                  "aten::resize_as_sparse_"};
  // detach_ changes nothing but whether gradients are required, which is looked at by itself; torch.tensor
  // calls it.
  facts.changes_metadata =
      (op.hasTag(at::Tag::inplace_view) && name != "aten::detach_") || kChanging.count(name);
  // What torch.autograd.grad(is_grads_batched=True) hides a dimension with: the step is the backward pass.
  // And what code of composite operators asks, of dtypes and devices, and of switches that the key holds.
  static const Names kOfLooks = {"aten::_has_compatible_shallow_copy_type",
                                 "aten::_add_batch_dim",
                                 "aten::cudnn_is_acceptable",
                                 "aten::result_type",
                                 "aten::promote_types",
                                 "aten::can_cast"};
  facts.asks_looks = kOfLooks.count(name) > 0;
  static const Names kTurning = {"aten::squeeze_", "aten::unsqueeze_", "aten::transpose_",
                                 "aten::t_",       "aten::swapaxes_",  "aten::swapdims_"};
  facts.turns = kTurning.count(name) > 0;
  facts.leaves_unfilled = name.rfind("aten::resize", 0) == 0;
  facts.seeded = op.hasTag(at::Tag::nondeterministic_seeded);
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const std::string& argument = schema.arguments()[i].name();
    if (argument == "dropout_p" || (argument == "p" && kDropouts.count(name)))
      facts.dropout = static_cast<int>(i);
    if (argument == "train" || argument == "training") facts.training = static_cast<int>(i);
  }
  facts.forward_mode =
      name == "aten::_make_dual" || name == "aten::_unpack_dual" || name == "aten::_fw_primal";
  // Composite operators may give back what they were given (contiguous, dropout), and so does lift.
  bool composite = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  facts.makes_new = !facts.lift && (!composite || kComputing.count(name)) &&
                    std::none_of(schema.returns().begin(), schema.returns().end(),
                                 [](const c10::Argument& one) { return one.alias_info() != nullptr; });
  facts.always_view =
      facts.view && !facts.lift && !facts.changes_metadata && (!composite || kViews.count(name));
  facts.leaves_numbers = !composite || kLeaveNumbers.count(name);
  facts.in_parts = composite && kInParts.count(name) && !has_out(schema);
  facts.profiling = name.rfind("profiler::", 0) == 0;
  return facts;
}

}  // namespace

const OperatorFacts& facts_of(const c10::OperatorHandle& op) {
  static thread_local std::unordered_map<const c10::FunctionSchema*, OperatorFacts> known;
  auto [at, missing] = known.try_emplace(&op.schema());
  if (missing) at->second = work_out(op);
  return at->second;
}

bool hidden_write(const c10::OperatorHandle& op, size_t argument, const torch::jit::Stack& arguments) {
  const std::string& name = op.schema().arguments()[argument].name();
  if (name == "noise") return true;
  if (name != "running_mean" && name != "running_var") return false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& flag = op.schema().arguments()[i].name();
    if ((flag == "training" || flag == "use_input_stats") && arguments[i].isBool())
      return arguments[i].toBool();
  }
  return true;
}

bool may_draw(const OperatorFacts& facts, const torch::jit::Stack& arguments) {
  if (!facts.seeded) return false;
  auto is_zero = [&](int i) { return i >= 0 && arguments[i].isDouble() && arguments[i].toDouble() == 0; };
  auto is_false = [&](int i) { return i >= 0 && arguments[i].isBool() && !arguments[i].toBool(); };
  return !is_zero(facts.dropout) && !is_false(facts.training);
}

bool shape_depends_on_values(const OperatorFacts& facts, const torch::jit::Stack& arguments) {
  if (!facts.index || arguments.size() < 2) return facts.data_dependent_shape;
  for (const c10::IValue& item : arguments[1].toListRef())
    if (item.isTensor() && item.toTensor().defined() &&
        (item.toTensor().scalar_type() == at::kBool || item.toTensor().scalar_type() == at::kByte))
      return true;
  return false;
}

}  // namespace lazytrace
