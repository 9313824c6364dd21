// Tensors without memory, kept for the views that a program makes at each run.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "torch/tensor_meta.h"

namespace lazytrace {

// Making and destroying a tensor takes longer than anything else about a view. So the tensor of each register
// that shows another one stays, and lets go of the memory with the register: nobody but the program has seen
// it. Belongs to one thread; needs no GIL, as no tensor in it has a Python object.
class Shells {
 public:
  // Another look at the memory of a tensor for this register. Shares its version, as views do, but is no view
  // to autograd: only for registers that never leave the program and that nothing writes to.
  at::Tensor show(int reg, const at::Tensor& base, const TensorMeta& meta, int64_t offset);
  // What a register held that is needed no more. False where it is no shell.
  bool take_back(int reg, at::Tensor* held) {
    auto at = static_cast<size_t>(reg);
    if (at >= shells_.size() || !shells_[at].defined()) return false;
    return empty(at, held);
  }
  // Lets go of all memory, once the registers are empty.
  void clear() {
    if (out_) empty_all();
  }

 private:
  bool empty(size_t at, at::Tensor* held);
  void empty_all();
  void let_go(at::Tensor* shell);

  std::vector<at::Tensor> shells_;  // by register, of whatever program has used it last
  size_t out_ = 0;                  // how many hold memory
};

}  // namespace lazytrace
