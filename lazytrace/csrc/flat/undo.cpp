#include "flat/undo.h"

#include <ATen/CPUGeneratorImpl.h>

namespace lazytrace {

at::Tensor random_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_random_state(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

Undo::Undo(const FlatForm& form, const std::vector<at::Tensor>& registers) {
  // Those that are not there yet, the form makes itself.
  for (int reg : form.sets)
    if (registers[reg].defined()) gradients_.emplace_back(registers[reg], registers[reg].grad());
  if (form.draws) random_ = random_state();
}

void Undo::roll_back() const {
  for (const auto& [tensor, gradient] : gradients_) tensor.mutable_grad() = gradient;
  if (random_.defined()) set_random_state(random_);
}

}  // namespace lazytrace
