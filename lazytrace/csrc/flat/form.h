// The flat form of a program with backward passes: kernels in place of operators and graphs.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "flat/backward_form.h"
#include "passes/plan.h"

namespace lazytrace {

// Whether a tensor that requires gradients has no history, and nothing special about its gradient.
bool is_plain_leaf(const at::Tensor& tensor);

// All numbers that can be worked out, those too that nothing but the result needs. Needs the GIL.
void work_out_all(const Numbers& numbers, NumberValues* values);

// Which of the tensors that a program begins with, and of their gradients, show the same memory, begin at the
// same place of it, and count their versions together: equal where all of them do so alike.
std::vector<int> sharing_of(const Plan& plan, const std::vector<at::Tensor>& registers);

// Whether storages of some of these show the same memory. A form says by storages who shows it: which steps
// may change places, and what is copied for its proof.
bool storages_overlap(const Plan& plan, const std::vector<at::Tensor>& registers);

// Who shows one memory: registers of tensors that do, and of tensors whose `.grad` does.
struct Shown {
  std::vector<int> tensors, gradients;
};

// Computes what the program that it was made of computes, wherever the same tensors are leaves. Its registers
// are those of that program, and more; up to `begins` its steps are the same. Where it stops, up to
// `plan->undoable`, what it has changed is undone, and that program runs. Immutable once built.
struct FlatForm {
  std::shared_ptr<const Plan> plan;
  const Program& program() const { return plan->program(); }
  size_t begins = 0;
  std::vector<int> leaves;   // registers of tensors that must have no history
  std::vector<int> sharing;  // sharing_of() when it was made
  // Results of one node that leave the program with a graph that a backward pass has used up.
  struct Spent {
    std::vector<std::pair<uint32_t, int>> registers;  // and which result of the node each is, in that order
    int kind;                                         // of the node
    std::vector<int> leaves;                          // what the graph led to
    std::vector<int> results;                         // other results that it led to
  };
  std::vector<Spent> spent;

  // Where the caller is left with a graph: the pass through it.
  std::shared_ptr<const BackwardForm> backward;

  // Reads of numbers that the call and its guards bring: they are made before anything is changed.
  std::vector<size_t> reads;
  // What is changed up to `plan->undoable`.
  std::vector<int> sets;       // registers of tensors whose `.grad` is set
  std::vector<int> flags;      // of those whose `requires_grad` is
  std::vector<Shown> written;  // each a memory that is written to
  bool draws = false;          // random numbers are drawn
  // Guard nodes of the generators that any step is given. A default one is put back in any case.
  std::vector<int> generators;

  // Whether it computes what the program does. `given`: numbers of the call and its guards. Needs the GIL.
  bool fits(const std::vector<at::Tensor>& registers, const NumberValues& given) const;
  // The generators that this call has at these nodes. Needs the GIL.
  std::vector<at::Generator> generators_of(const std::vector<PyObject*>& nodes) const;
  // What a backward pass may need of the state before the form runs. Needs no GIL.
  Earlier earlier(const std::vector<at::Tensor>& registers) const;
  // Gives the results the history that they would have. Needs the GIL.
  void put_history(std::vector<at::Tensor>* registers, const NumberValues& numbers,
                   const Earlier& earlier) const;
};

}  // namespace lazytrace
