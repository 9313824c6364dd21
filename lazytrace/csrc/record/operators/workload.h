// How much work a program is, and where: whether it is worth letting go of the GIL.
#pragma once

#include <ATen/core/ivalue.h>

#include "program/program.h"

namespace lazytrace {

class Workload {
 public:
  // An argument or a result.
  void add(const c10::IValue& value);
  // A few small operators of torch itself, on the CPU: none of them waits for anybody.
  bool is_brief(const Program& program) const;
  // Whether no tensor is of a subclass that runs Python code.
  bool is_plain() const { return only_plain_; }

 private:
  void add(const at::Tensor& tensor);

  size_t elements_ = 0;
  bool only_cpu_ = true;
  bool only_plain_ = true;
};

}  // namespace lazytrace
