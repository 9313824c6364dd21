#include "flat/held.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <sstream>
#include <string_view>

#include "torch/memory.h"

namespace lazytrace {

Held Held::of(const at::Tensor& tensor, const at::Tensor& kept) {
  Held held;
  held.kept_ = kept;
  held.version_ = held.now();
  if (!tensor.defined()) return held;
  held.is_other_ = !tensor.is_same(kept);
  if (held.is_other_) held.owner_ = tensor.getIntrusivePtr();
  if (tensor.has_storage()) held.memory_ = tensor.storage().getWeakStorageImpl();
  if (tensor.has_storage()) held.offset_ = tensor.storage_offset();
  return held;
}

std::string operator_of_node(const std::string& name) {
  constexpr std::string_view kBackward = "Backward";
  size_t at = name.rfind(kBackward);
  if (at == std::string::npos) return name;
  std::string number = name.substr(at + kBackward.size());
  if (number.find_first_not_of("0123456789") != std::string::npos) return name;
  return name.substr(0, at) + (number == "0" ? "" : number);
}

Held Held::of_leaf(const at::Tensor& leaf) {
  Held held = of(leaf);
  held.adder_ = torch::autograd::impl::gradient_edge(leaf).function;
  if (dynamic_cast<torch::autograd::AccumulateGrad*>(held.adder_.get()))
    held.kept_ = at::Tensor();
  else
    held.adder_.reset();
  return held;
}

int64_t Held::now() const {
  at::Tensor tensor = adder_ ? owner() : kept_;
  return tensor.defined() ? version_of(tensor) : 0;
}

at::Tensor Held::owner() const {
  if (auto* adder = dynamic_cast<torch::autograd::AccumulateGrad*>(adder_.get())) return adder->variable;
  auto other = owner_.lock();
  return other ? at::Tensor(std::move(other)) : kept_;
}

bool Held::shows_the_same(const TensorMeta& look) const {
  at::Tensor tensor = owner();
  if (!tensor.defined() || !tensor.has_storage()) return true;
  return tensor.storage().unsafeGetStorageImpl() == memory_._unsafe_get_target() &&
         tensor.storage_offset() == offset_ && tensor.scalar_type() == look.dtype() &&
         tensor.sizes() == c10::IntArrayRef(look.sizes()) &&
         tensor.strides() == c10::IntArrayRef(look.strides());
}

std::string Held::description() const {
  at::Tensor tensor = owner();
  if (!tensor.defined() || (is_other_ && tensor.is_same(kept_))) return "";
  std::ostringstream text;
  text << '[' << tensor.toString() << ' ' << tensor.sizes() << ']';
  if (const auto& maker = tensor.grad_fn()) {
    text << ", which is output " << tensor.output_nr() << " of " << operator_of_node(maker->name()) << ',';
  }
  return text.str();
}

}  // namespace lazytrace
