// Memory that a program makes and writes to in part, or not at all.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "program/program.h"
#include "replay/witness.h"

namespace lazytrace {

bool makes_blanks(const Program& program);

// Fills what `empty` and the like have made, so that what hangs on it shows: two runs with other values
// differ there. Nothing else does, as no other operator gives memory that nothing has written to.
class FillBlanks final : public Witness {
 public:
  // Refers to both for as long as it lives.
  FillBlanks(const Program& program, const std::vector<at::Tensor>& registers, bool ones)
      : program_(program), registers_(registers), ones_(ones) {}
  void before(size_t step) override;
  void after(size_t step) override;
  void passes(int number, const at::Tensor& tensor) override;
  // Whether something was made whose memory cannot be filled: what it holds is not known at all.
  bool left_any() const { return left_any_; }

 private:
  const Program& program_;
  const std::vector<at::Tensor>& registers_;
  bool ones_, left_any_ = false;
};

}  // namespace lazytrace
