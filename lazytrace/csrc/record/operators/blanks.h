// Memory that `empty` and the like have made, until it shows who fills it.
#pragma once

#include <ATen/ATen.h>

#include <unordered_map>
#include <vector>

namespace lazytrace {

// What no recorded operator has written before it is read was written by Python: a literal. Holds the memory.
class Blanks {
 public:
  // The step that made the memory of `tensor`.
  void add(const at::Tensor& tensor, int step);
  bool holds(const at::Tensor& tensor) const;
  // The step that made the memory, which from now on is no blank any more; -1 where it is none.
  int take(const at::Tensor& tensor);
  void clear();

 private:
  std::unordered_map<c10::StorageImpl*, int> steps_;
  std::vector<c10::Storage> keep_;
};

// All that the memory behind `tensor` holds, in the given shape: an operator may have made a view of it
// first. Undefined where there is nothing.
at::Tensor whole_of(const at::Tensor& tensor, c10::IntArrayRef sizes);

}  // namespace lazytrace
