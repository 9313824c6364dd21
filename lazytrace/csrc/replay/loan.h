// Registers that show tensors which somebody else keeps alive for as long as a short replay runs.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace lazytrace {

// The first reference to a tensor of Python also takes and gives back one to its Python object, for which it
// needs the GIL: more than a small operator's share of a hit. So a replay that keeps the GIL all the time is
// lent its arguments and captured state; nothing can let go of these meanwhile. Another replay takes
// references at its start, while it has the GIL, so that no kernel has to wait for it. Nothing may be moved
// out of a lent register, or put into it, while the loan lasts.
class Loan {
 public:
  explicit Loan(std::vector<at::Tensor>* registers) : registers_(registers) {}
  ~Loan() { end(); }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  void lend(int reg, const at::Tensor& tensor) {
    at::Tensor& place = (*registers_)[reg];
    lent_.push_back(reg);
    place = at::Tensor(Pointer::reclaim(tensor.unsafeGetTensorImpl()));
  }
  // The registers are empty again.
  void end() {
    for (int reg : lent_) (*registers_)[reg].unsafeReleaseTensorImpl();
    lent_.clear();
  }
  // The registers own what was lent, and may outlive the call.
  void keep() {
    for (int reg : lent_) {
      at::Tensor owned = (*registers_)[reg];
      (*registers_)[reg].unsafeReleaseTensorImpl();
      (*registers_)[reg] = std::move(owned);
    }
    lent_.clear();
  }

 private:
  using Pointer = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  std::vector<at::Tensor>* registers_;
  c10::SmallVector<int, 32> lent_;
};

}  // namespace lazytrace
