#include "flat/undo.h"

#include <cstring>

#include "torch/memory.h"

namespace lazytrace {

Undo::Undo(const FlatForm& form, const std::vector<at::Tensor>& registers,
           const std::vector<PyObject*>& nodes) {
  // Those that are not there yet, the form makes itself.
  for (int reg : form.sets)
    if (registers[reg].defined()) gradients_.emplace_back(registers[reg], registers[reg].grad());
  for (int reg : form.flags)
    if (registers[reg].defined()) flags_.emplace_back(registers[reg], registers[reg].requires_grad());
  if (form.draws) random_ = RandomStreams::now(form.generators_of(nodes));
  if (form.written.empty()) return;
  size_t size = 0;
  memory_.reserve(form.written.size());
  for (const Shown& shown : form.written) {
    size_t known = versions_.size();
    auto note = [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      versions_.emplace_back(tensor, version_of(tensor));
    };
    for (int reg : shown.tensors) note(registers[reg]);
    for (int reg : shown.gradients) note(registers[reg].grad());
    if (versions_.size() == known) continue;
    const c10::Storage& memory = versions_[known].first.storage();
    if (!memory.device().is_cpu()) {
      others_.emplace_back(memory, copy_of_memory(memory));
      continue;
    }
    memory_.push_back(memory);
    size += memory.nbytes();
  }
  bytes_.reset(new char[size]);
  each_memory(
      [](const c10::Storage& memory, char* copy) { std::memcpy(copy, memory.data(), memory.nbytes()); });
}

template <class Use>
void Undo::each_memory(Use use) const {
  char* copy = bytes_.get();
  for (const c10::Storage& memory : memory_) {
    use(memory, copy);
    copy += memory.nbytes();
  }
}

void Undo::roll_back() const {
  for (const auto& [tensor, gradient] : gradients_) tensor.mutable_grad() = gradient;
  for (const auto& [tensor, flag] : flags_) tensor.set_requires_grad(flag);
  each_memory([](const c10::Storage& memory, char* copy) {
    std::memcpy(memory.mutable_data(), copy, memory.nbytes());
  });
  for (const auto& [memory, copy] : others_) put_memory(memory, copy);
  for (const auto& [tensor, version] : versions_) {
    c10::VariableVersion counter = tensor.unsafeGetTensorImpl()->version_counter();
    if (counter.enabled()) counter.set_version(version);
  }
  random_.put_back();
}

}  // namespace lazytrace
