#include "torch/tensor_meta.h"

#include <algorithm>
#include <sstream>

#include "torch/autograd_graph.h"

namespace lazytrace {

TensorMeta TensorMeta::of(const at::Tensor& tensor) {
  TensorMeta meta;
  meta.defined_ = tensor.defined();
  if (!meta.defined_) return meta;
  meta.strided_ = tensor.layout() == at::kStrided && !tensor.is_nested();
  meta.requires_grad_ = tensor.requires_grad();
  meta.leads_nowhere_ = lazytrace::leads_nowhere(tensor);
  meta.dtype_ = tensor.scalar_type();
  meta.device_ = tensor.device();
  meta.keys_ = tensor.key_set().raw_repr();
  if (!tensor.is_nested()) meta.sizes_.assign(tensor.sizes().begin(), tensor.sizes().end());
  if (meta.strided_)
    meta.strides_.assign(tensor.strides().begin(), tensor.strides().end());
  else
    // In the place of strides. Sparse tensors by rows and by columns, with blocks and without, have the same
    // keys.
    meta.strides_.assign({static_cast<int64_t>(tensor.layout())});
  return meta;
}

TensorMeta TensorMeta::made(c10::ScalarType dtype, c10::Device device, bool requires_grad, uint64_t keys,
                            c10::IntArrayRef sizes, std::optional<c10::IntArrayRef> strides) {
  TensorMeta meta;
  meta.defined_ = true;
  meta.strided_ = strides.has_value();
  meta.requires_grad_ = requires_grad;
  meta.dtype_ = dtype;
  meta.device_ = device;
  meta.keys_ = keys;
  meta.sizes_.assign(sizes.begin(), sizes.end());
  if (strides) meta.strides_.assign(strides->begin(), strides->end());
  return meta;
}

const std::shared_ptr<const TensorMeta>& TensorMeta::undefined() {
  static const auto* none = new std::shared_ptr<const TensorMeta>(std::make_shared<const TensorMeta>());
  return *none;
}

namespace {
c10::Layout layout_of(const TensorMeta& meta) {
  return meta.strided() ? at::kStrided : static_cast<c10::Layout>(meta.strides()[0]);
}

bool same_kind(const TensorMeta& meta, const at::Tensor& tensor) {
  // The key set holds layout, backend, conjugation, negation, inference and autograd keys at once.
  return tensor.key_set().raw_repr() == meta.keys() && tensor.scalar_type() == meta.dtype() &&
         tensor.device() == meta.device() && tensor.requires_grad() == meta.requires_grad() &&
         lazytrace::leads_nowhere(tensor) == meta.leads_nowhere() &&
         (meta.strided() || meta.strides().empty() || tensor.layout() == layout_of(meta));
}
}  // namespace

bool TensorMeta::matches_loosely(const at::Tensor& tensor) const {
  if (tensor.defined() != defined_) return false;
  return !defined_ || (same_kind(*this, tensor) && tensor.dim() == static_cast<int64_t>(sizes_.size()));
}

bool TensorMeta::matches(const at::Tensor& tensor) const {
  if (tensor.defined() != defined_) return false;
  if (!defined_) return true;
  if (!same_kind(*this, tensor)) return false;
  if (strided_)
    return tensor.sizes() == c10::IntArrayRef(sizes_) && tensor.strides() == c10::IntArrayRef(strides_);
  return tensor.is_nested() || tensor.sizes() == c10::IntArrayRef(sizes_);
}

std::string TensorMeta::text() const {
  if (!defined_) return "undefined";
  std::ostringstream out;
  std::string name = c10::toString(dtype_);
  static const std::pair<const char*, const char*> kNames[] = {{"Float", "float32"},
                                                               {"Double", "float64"},
                                                               {"Half", "float16"},
                                                               {"BFloat16", "bfloat16"},
                                                               {"Long", "int64"},
                                                               {"Int", "int32"},
                                                               {"Short", "int16"},
                                                               {"Char", "int8"},
                                                               {"Byte", "uint8"},
                                                               {"Bool", "bool"},
                                                               {"ComplexFloat", "complex64"},
                                                               {"ComplexDouble", "complex128"}};
  for (auto& [torch_name, python_name] : kNames)
    if (name == torch_name) name = python_name;
  out << name << '[';
  for (size_t i = 0; i < sizes_.size(); ++i) out << (i ? ", " : "") << sizes_[i];
  out << ']';
  return out.str();
}

namespace {
template <typename A, typename B>
std::string changed(const std::string& what, const A& before, const B& after) {
  std::ostringstream out;
  out << what << ' ' << before << " -> " << after;
  return out.str();
}
}  // namespace

std::string TensorMeta::loose_difference(const at::Tensor& tensor) const {
  if (!tensor.defined() || !defined_ || tensor.dim() != static_cast<int64_t>(sizes_.size()))
    return difference(tensor);
  TensorMeta alike = *this;
  TensorMeta now = of(tensor);
  alike.sizes_ = now.sizes_;
  if (strided_) alike.strides_ = now.strides_;
  return alike.difference(tensor);
}

std::string TensorMeta::difference(const at::Tensor& tensor) const {
  TensorMeta now = of(tensor);
  if (now.defined_ != defined_) return changed("tensor", text(), now.text());
  if (now.dtype_ != dtype_) return changed("dtype", c10::toString(dtype_), c10::toString(now.dtype_));
  if (now.device_ != device_) return changed("device", device_, now.device_);
  if (now.sizes_.size() != sizes_.size()) return changed("ndim", sizes_.size(), now.sizes_.size());
  for (size_t i = 0; i < sizes_.size(); ++i)
    if (now.sizes_[i] != sizes_[i])
      return changed("shape[" + std::to_string(i) + "]", sizes_[i], now.sizes_[i]);
  bool says_layout = strided_ || !strides_.empty();
  if (says_layout && layout_of(now) != layout_of(*this))
    return changed("layout", layout_of(*this), layout_of(now));
  for (size_t i = 0; i < strides_.size() && i < now.strides_.size(); ++i)
    if (now.strides_[i] != strides_[i])
      return changed("stride(" + std::to_string(i) + ")", strides_[i], now.strides_[i]);
  if (now.requires_grad_ != requires_grad_)
    return changed("requires_grad", requires_grad_ ? "True" : "False", now.requires_grad_ ? "True" : "False");
  if (now.leads_nowhere_ != leads_nowhere_)
    return changed("gradients", leads_nowhere_ ? "lost" : "kept", now.leads_nowhere_ ? "lost" : "kept");
  if (now.keys_ != keys_)
    return changed("dispatch keys", c10::DispatchKeySet(c10::DispatchKeySet::RAW, keys_),
                   c10::DispatchKeySet(c10::DispatchKeySet::RAW, now.keys_));
  return "";
}

size_t TensorMeta::bytes() const {
  if (!defined_ || dtype_ == c10::ScalarType::Undefined) return 0;
  size_t count = c10::elementSize(dtype_);
  for (int64_t size : sizes_) count *= static_cast<size_t>(size);
  return count;
}

bool TensorMeta::plain_keys() const {
  c10::DispatchKeySet keys(c10::DispatchKeySet::RAW, keys_);
  return !keys.has_any(c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
                                            c10::DispatchKey::ZeroTensor, c10::DispatchKey::NestedTensor,
                                            c10::DispatchKey::Python})) &&
         !keys.has(c10::DispatchKey::QuantizedCPU) && !keys.has(c10::DispatchKey::SparseCPU) &&
         (keys.has(c10::DispatchKey::CPU) || keys.has(c10::DispatchKey::CUDA));
}

bool TensorMeta::dense() const {
  c10::SmallVector<std::pair<int64_t, int64_t>, 5> order;  // (stride, size)
  for (size_t i = 0; i < sizes_.size(); ++i)
    if (sizes_[i] != 1) order.emplace_back(strides_[i], sizes_[i]);
  std::sort(order.begin(), order.end());
  int64_t expected = 1;
  for (auto& [stride, size] : order) {
    if (stride != expected) return false;
    expected *= size;
  }
  return true;
}

}  // namespace lazytrace
