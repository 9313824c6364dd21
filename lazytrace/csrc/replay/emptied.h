// Tensors that nobody but a function that runs again would come to: their memory is let go of early.
#pragma once

#include <ATen/ATen.h>

#include <unordered_map>
#include <vector>

#include "torch/storage.h"

namespace lazytrace {

// A replay keeps what its steps gave until its last side exit, as a function that runs again is handed all of
// it, though it has forgotten most by then. Of such a tensor everything stays but what lies in its memory:
// its look, its history, and which others show the same memory.
//
// Belongs to one run of a thread. Needs no GIL: no tensor in it has a Python object. Holds no memory.
class Emptied {
 public:
  // The registers are held for their looks alone from now on. Lets go of memory that only such ones show.
  void add(const std::vector<int>& registers, const std::vector<at::Tensor>& all);
  // The same of what has been kept by others until now, such as the graph of a backward pass.
  void sweep(const std::vector<at::Tensor>& all);
  // Whether it has let go of the memory of this tensor.
  bool has(const at::Tensor& tensor) const { return !gone_.empty() && gone_.count(storage_of(tensor)) > 0; }
  // Gives all of them memory again, of any contents: code that runs again may look for where they are.
  void fill();
  void clear() {
    waiting_.clear();
    gone_.clear();
  }

 private:
  // Smaller ones are not worth it.
  static constexpr size_t kLeastBytes = size_t{64} << 10;

  static bool is_alone(const at::Tensor& tensor);
  void let_go(c10::StorageImpl* memory, const std::vector<at::Tensor>& all);

  std::unordered_map<c10::StorageImpl*, std::vector<int>> waiting_;  // registers, by what they show
  std::unordered_map<c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> gone_;
};

}  // namespace lazytrace
