// Where the random stream is put back behind the dispatcher.
#pragma once

#include <utility>
#include <vector>

#include "flat/kernels.h"
#include "torch/random_mark.h"

namespace lazytrace {

// Activation checkpointing puts the CPU's stream back to where a block began, runs the block once more, and
// goes on where it was. No kernel shows that, but where the stream stands does: in a form, steps that ask for
// it and set it stand for that.
class Rewinds {
 public:
  explicit Rewinds(Kernels* kernels) : kernels_(kernels) {}

  bool any() const { return !places_.empty(); }
  // A block begins here, to which the stream may be put back.
  void begin_block();
  // Before each kernel, and at the end of what may put the stream back.
  void before_kernel();
  // `draws`: whether it may draw.
  void after_kernel(bool draws);
  // A step that is kept has run, which does the same again.
  void go_on();

 private:
  int ask();
  void set(int reg);

  Kernels* kernels_;
  std::vector<std::pair<RandomMark, int>> places_;  // where it was asked for, and the register of its state
  RandomMark now_ = RandomMark::now();              // where the steps so far leave it
};

}  // namespace lazytrace
