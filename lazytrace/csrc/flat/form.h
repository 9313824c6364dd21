// The flat form of a program with backward passes: kernels in place of operators and graphs.
#pragma once

#include <memory>
#include <vector>

#include "program/program.h"

namespace lazytrace {

// Whether a tensor that requires gradients has no history, and nothing special about its gradient.
bool is_plain_leaf(const at::Tensor& tensor);

// Which of the tensors that a program begins with, and of their gradients, show the same memory, begin at the
// same place of it, and count their versions together: equal where all of them do so alike.
std::vector<int> sharing_of(const Program& program, const std::vector<at::Tensor>& registers);

// Computes what the program that it was made of computes, wherever the same tensors are leaves. Its registers
// are those of that program, and more; up to `begins` its steps are the same. Immutable once built.
struct FlatForm {
  Program program;
  size_t begins = 0;
  std::vector<int> leaves;   // registers of tensors that must have no history
  std::vector<int> sharing;  // sharing_of() when it was made
  // A register that leaves the program with a graph that a backward pass has used up.
  struct Spent {
    int reg;
    int kind;                 // of its node
    std::vector<int> leaves;  // what the graph led to
  };
  std::vector<Spent> spent;

  bool fits(const std::vector<at::Tensor>& registers) const;
  // Gives the results the history that they would have. Needs no GIL.
  void put_history(const std::vector<at::Tensor>& registers) const;
};

}  // namespace lazytrace
