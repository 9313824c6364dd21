// Copies of tensors that share memory with each other as those do.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace lazytrace {

// Of tensors, and of their gradients where they are leaves. Needs the GIL.
class Twins {
 public:
  struct Pair {
    at::Tensor real, copy;
  };

  // Undefined, and obstacle() says why, where there can be none.
  at::Tensor of(const at::Tensor& tensor);
  const std::string& obstacle() const { return obstacle_; }

  const std::vector<Pair>& pairs() const { return pairs_; }
  // That of a tensor that was copied, or null.
  const Pair* find(const at::Tensor& real) const;

 private:
  std::unordered_map<c10::StorageImpl*, c10::Storage> memory_;
  std::unordered_map<c10::TensorImpl*, size_t> known_;
  std::unordered_map<const void*, c10::VariableVersion> counters_;  // by those of the tensors
  std::vector<Pair> pairs_;
  std::string obstacle_;
  size_t bytes_ = 0;
};

}  // namespace lazytrace
