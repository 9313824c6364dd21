#include "flat/twins.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "flat/usual.h"
#include "torch/autograd_graph.h"
#include "torch/memory.h"

namespace lazytrace {

namespace {

// A step of a larger model gains little: its kernels take the time.
constexpr size_t kMostBytes = size_t{1} << 30;

// What stands for all that a tensor was made by. Passes end before it.
struct Before final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return std::move(gradients);
  }
};

// A leaf or none, as the tensor is: autocast keeps what it has cast of leaves alone, so of another one each
// use has a gradient of its own.
void require_gradients_like(const at::Tensor& tensor, const at::Tensor& copy) {
  if (!tensor.requires_grad()) return;
  if (tensor.is_leaf())
    copy.set_requires_grad(true);
  else
    torch::autograd::set_history(copy, c10::make_intrusive<Before>());
}

}  // namespace

const Twins::Pair* Twins::find(const at::Tensor& real) const {
  auto known = known_.find(real.unsafeGetTensorImpl());
  return known == known_.end() ? nullptr : &pairs_[known->second];
}

at::Tensor Twins::of(const at::Tensor& tensor) {
  at::NoGradGuard no_grad;
  if (!tensor.defined() || !obstacle_.empty()) return {};
  auto [at, missing] = known_.try_emplace(tensor.unsafeGetTensorImpl(), pairs_.size());
  if (!missing) return pairs_[at->second].copy;
  if (!shows_plain_memory(tensor)) {
    obstacle_ = "state that cannot be copied";
    return {};
  }
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  auto memory = memory_.find(storage);
  if (memory == memory_.end()) {
    bytes_ += tensor.storage().nbytes();
    if (bytes_ > kMostBytes) {
      obstacle_ = "more than 1 GiB would have to be copied for its proof";
      return {};
    }
    memory = memory_.emplace(storage, copy_of_memory(tensor.storage())).first;
  }
  c10::InferenceMode as_made(tensor.is_inference());
  at::Tensor copy = at::empty({0}, tensor.options());
  copy.set_(memory->second, tensor.storage_offset(), tensor.sizes(), tensor.strides());
  copy._set_conj(tensor.is_conj());
  copy._set_neg(tensor.is_neg());
  // What shares the version counter of either counts alike: a view that is a result, what detach() gave.
  if (!tensor.is_inference()) {
    c10::VariableVersion as_it_is(version_of(tensor));
    auto counter = counters_.try_emplace(version_counter_of(tensor), as_it_is).first;
    copy.unsafeGetTensorImpl()->set_version_counter(counter->second);
  }
  require_gradients_like(tensor, copy);
  pairs_.push_back({tensor, copy});
  if (tensor.is_leaf() && tensor.grad().defined()) copy.mutable_grad() = of(tensor.grad());
  return copy;
}

}  // namespace lazytrace
