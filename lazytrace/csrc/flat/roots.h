// Where a backward pass begins that comes from outside.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace lazytrace {

// The results of a program that have a graph. A view has that of the tensor whose memory it shows, and itself
// on top: there a pass begins once for all views of one tensor.
struct Roots {
  Roots(const std::vector<int>& outputs, const std::vector<at::Tensor>& registers);

  // Sorted by when their nodes were made, the oldest first.
  std::vector<int> of;              // by root: a register that is it, or a view of it
  std::vector<at::Tensor> tensors;  // the roots
  std::vector<int> views;           // the registers of views

  static at::Tensor root_of(const at::Tensor& result);

 private:
  Roots() = default;
  void sort();
};

}  // namespace lazytrace
