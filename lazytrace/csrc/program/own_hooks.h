// The hooks that a call has set on leaves of before it, while it is under way.
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <utility>
#include <vector>

#include "program/program.h"

namespace lazytrace {

// Takes them off for as long as it lives, so that the leaves are as the call has found them: guards say what
// they had then.
//
// They come last: whatever a leaf had before stays where it is. Needs the GIL.
class OwnHooks {
 public:
  // What the steps before this one have set.
  OwnHooks(const Program& program, size_t step, const std::vector<at::Tensor>& registers);
  ~OwnHooks();
  OwnHooks(const OwnHooks&) = delete;
  OwnHooks& operator=(const OwnHooks&) = delete;

  // How many of those that a leaf has.
  static size_t on(const Program& program, size_t step, const std::vector<at::Tensor>& registers,
                   const at::Tensor& leaf);

 private:
  struct Taken {
    py::object dict, key, hook;
  };
  void take(const at::Tensor& leaf, size_t count);

  std::vector<Taken> taken_;  // the last one first
};

}  // namespace lazytrace
