// Which registers of a dynamic run look as they did in the recording.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "torch/tensor_meta.h"

namespace lazytrace {

// Most results of a program have the same sizes at every call (those of one token, say), and what follows
// from them alone has, too. Each register is looked at once, when somebody asks. Belongs to one run.
class Looks {
 public:
  using Recorded = std::vector<std::shared_ptr<const TensorMeta>>;  // by register

  void begin(const Recorded& recorded) {
    recorded_ = &recorded;
    known_.assign(recorded.size(), Known::Nothing);
  }
  bool are_same(int reg, const at::Tensor& tensor) {
    Known& known = known_[static_cast<size_t>(reg)];
    if (known != Known::Nothing) return known == Known::Same;
    const auto& recorded = (*recorded_)[static_cast<size_t>(reg)];
    known = recorded && tensor.defined() && recorded->matches(tensor) ? Known::Same : Known::Other;
    return known == Known::Same;
  }
  // What was put there looks so.
  void set_same(int reg) { known_[static_cast<size_t>(reg)] = Known::Same; }
  bool is_known_same(int reg) const { return known_[static_cast<size_t>(reg)] == Known::Same; }
  // Python code has run, which may change the look of any tensor.
  void forget() { std::fill(known_.begin(), known_.end(), Known::Nothing); }

 private:
  enum class Known : uint8_t { Nothing, Same, Other };
  const Recorded* recorded_ = nullptr;
  std::vector<Known> known_;
};

}  // namespace lazytrace
