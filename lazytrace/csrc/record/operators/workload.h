// How large the tensors of a program are, and of what kind.
#pragma once

#include <ATen/core/ivalue.h>

namespace lazytrace {

class Workload {
 public:
  // An argument or a result.
  void add(const c10::IValue& value);
  // Whether they hold few elements, on the CPU.
  bool is_small() const;
  // Whether no tensor is of a subclass that runs Python code.
  bool is_plain() const { return only_plain_; }

 private:
  void add(const at::Tensor& tensor);

  size_t elements_ = 0;
  bool only_cpu_ = true;
  bool only_plain_ = true;
};

}  // namespace lazytrace
