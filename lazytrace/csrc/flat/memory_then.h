// Tensors that torch's nodes would have saved themselves, where a graph that was built late has copies of
// them.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "flat/backward_form.h"
#include "flat/held.h"

namespace lazytrace {

// What memory they show. Torch's nodes show what such a tensor was given since (.data, set_()), the copies
// what it had: a pass that comes to them later asks here first. Holds no tensor; immutable, no GIL needed.
class MemoryThen {
 public:
  explicit MemoryThen(std::shared_ptr<const BackwardForm> form) : form_(std::move(form)) {}
  void add(const at::Tensor& tensor, const TensorMeta& look);
  // Raises where one of them shows other memory by now; the calls from then on build their graphs.
  void check() const;

  // The same of one tensor.
  static void check(const BackwardForm& form, const Held& held, const TensorMeta& look);

 private:
  struct One {
    Held held;
    TensorMeta look;
  };
  std::shared_ptr<const BackwardForm> form_;
  std::vector<One> all_;
};

}  // namespace lazytrace
