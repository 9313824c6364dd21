#include "flat/rehearsal.h"

#include <cstring>

#include "flat/undo.h"

namespace lazytrace {

namespace {

// A step of a larger model gains little: its kernels take the time.
constexpr size_t kMostBytes = size_t{1} << 30;

bool same_bytes(const c10::Storage& a, const c10::Storage& b) {
  return a.nbytes() == b.nbytes() && (a.nbytes() == 0 || std::memcmp(a.data(), b.data(), a.nbytes()) == 0);
}

}  // namespace

Rehearsal::Rehearsal(const FlatForm& form, const std::vector<at::Tensor>& registers,
                     const std::vector<int>& outputs)
    : form_(form), outputs_(outputs), registers_(static_cast<size_t>(form.program.registers)) {
  at::NoGradGuard no_grad;
  for (int reg : form.program.used) registers_[reg] = copy_of(registers[reg]);
  for (int reg : form.program.captures) registers_[reg] = copy_of(registers[reg]);
}

at::Tensor Rehearsal::copy_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !obstacle_.empty()) return {};
  auto [at, missing] = known_.try_emplace(tensor.unsafeGetTensorImpl(), pairs_.size());
  if (!missing) return pairs_[at->second].copy;
  if (tensor.layout() != at::kStrided || !tensor.device().is_cpu() || !tensor.has_storage() ||
      !TensorMeta::of(tensor).plain_keys()) {
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
    auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
    at::Tensor whole = at::empty({bytes}, at::kByte);
    if (bytes > 0) std::memcpy(whole.mutable_data_ptr(), tensor.storage().data(), tensor.storage().nbytes());
    memory = memory_.emplace(storage, whole.storage()).first;
  }
  at::Tensor copy = at::empty({0}, tensor.options());
  copy.set_(memory->second, tensor.storage_offset(), tensor.sizes(), tensor.strides());
  if (tensor.requires_grad()) copy.set_requires_grad(true);
  pairs_.push_back({tensor, copy, tensor._version(), copy._version()});
  if (tensor.is_leaf() && tensor.grad().defined()) copy.mutable_grad() = copy_of(tensor.grad());
  return copy;
}

void Rehearsal::run(const std::vector<PyObject*>& state, const NumberValues& given) {
  if (!obstacle_.empty()) return;
  at::Tensor before = random_state();
  try {
    OpaqueResults opaque;
    EarlyWrites early;
    RunnerMemory memory;
    memory.numbers = given;
    Outcome outcome = Runner(form_.program, registers_, state, opaque, early, memory).run();
    if (!outcome.ok()) obstacle_ = "step " + std::to_string(outcome.step) + " gave " + outcome.found;
  } catch (...) {
    std::exception_ptr error = caught();  // the program itself will say so
    obstacle_ = "it raised";
  }
  if (obstacle_.empty()) form_.put_history(registers_);
  drawn_ = random_state();
  set_random_state(before);
}

std::string Rehearsal::compare(const Pair& pair) const {
  const auto& memory = memory_.at(pair.real.storage().unsafeGetStorageImpl());
  if (!same_bytes(pair.real.storage(), memory)) return "a tensor of the state";
  if (pair.real._version() - pair.real_version != pair.copy._version() - pair.copy_version)
    return "how often a tensor was written to";
  if (!pair.real.is_leaf()) return "";
  const at::Tensor &real = pair.real.grad(), &copy = pair.copy.grad();
  if (real.defined() != copy.defined()) return "whether there is a gradient";
  if (!real.defined()) return "";
  auto known = known_.find(real.unsafeGetTensorImpl());
  if (known != known_.end())
    return pairs_[known->second].copy.is_same(copy) ? "" : "which tensor is a gradient";
  return compare_results(real, copy);
}

std::string Rehearsal::compare_results(const at::Tensor& real, const at::Tensor& copy) {
  at::NoGradGuard no_grad;
  TensorMeta look = TensorMeta::of(real.detach());
  if (!look.matches(copy.detach())) return look.difference(copy.detach());
  if (real._version() != copy._version())
    return "a result of " + look.text() + " was written to " + std::to_string(real._version()) + " and " +
           std::to_string(copy._version()) + " times";
  if (real.requires_grad() != copy.requires_grad() || real.is_leaf() != copy.is_leaf())
    return "whether a result requires gradients";
  if (real.is_view() != copy.is_view()) return "whether a result is a view";
  at::Tensor a = real.detach().contiguous(), b = copy.detach().contiguous();
  if (a.numel() > 0 && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) != 0)
    return "a result in value";
  return "";
}

std::string Rehearsal::difference(const std::vector<at::Tensor>& registers) {
  if (!obstacle_.empty()) return obstacle_;
  if (!at::equal(drawn_, random_state())) return "the random numbers drawn";
  for (const Pair& pair : pairs_) {
    std::string found = compare(pair);
    if (!found.empty()) return found;
  }
  for (int reg : outputs_) {
    const at::Tensor &real = registers[reg], &copy = registers_[reg];
    if (real.defined() != copy.defined()) return "a result that is missing";
    if (!real.defined()) continue;
    auto known = known_.find(real.unsafeGetTensorImpl());
    std::string found = known == known_.end()                      ? compare_results(real, copy)
                        : pairs_[known->second].copy.is_same(copy) ? ""
                                                                   : "which tensor is returned";
    if (!found.empty()) return found;
  }
  return "";
}

}  // namespace lazytrace
