// Kernels as steps: what a program does below autograd, as it is seen while the program runs.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "flat/kernel_scope.h"
#include "program/program.h"
#include "torch/facts.h"
#include "torch/random_mark.h"

namespace lazytrace {

// Writes down kernels. Knows tensors by their TensorImpl, and those that autograd has saved, which are other
// objects, by the memory that they show. Holds weak references only: whether autograd takes a tensor over or
// copies it hangs on who else refers to it. No GIL needed.
class Kernels {
 public:
  // Registers from `first` on are free. `registrations`: kernel_registrations().
  Kernels(int first, uint64_t registrations) : next_(first), registrations_(registrations) {}

  // From now on the tensor is this register. `external`: it was there before the call.
  void know(int reg, const at::Tensor& tensor, bool external);
  // The same of one that comes from outside. Its memory was there before the call, if nobody has met it yet.
  void meet(int reg, const at::Tensor& tensor);
  // The `.data` of the register, which is this tensor, was set: it shows other memory, which has other
  // registers, too. `outlives`: it was there before the call.
  void set_data(int reg, const at::Tensor& tensor, bool outlives);
  // The tensor stands for this number from now on, which is followed.
  void know_number(int number, const at::Tensor& tensor) {
    numbers_.insert_or_assign(tensor.unsafeGetTensorImpl(), std::make_pair(number, tensor));
  }
  // Whether its memory was there before the call.
  bool was_there(const at::Tensor& tensor) const;
  bool was_there(c10::StorageImpl* memory) const { return early_.count(memory); }
  // Whether the operator writes to such memory.
  bool writes_early(const Step& step, const std::vector<at::Tensor>& registers) const;
  // Such memory that the operator of a step that is kept writes to; nothing where that is not known.
  std::optional<std::vector<c10::StorageImpl*>> early_memory(const Step& step) const;
  c10::StorageImpl* memory_of(int reg) const;
  // Its memory outlives the call from now on.
  void outlives(const at::Tensor& tensor);
  bool is_external(const at::Tensor& tensor) const;
  // Whether a kernel has written to its memory, kernels that were dropped among them.
  bool was_written(const at::Tensor& tensor) const;
  // Its register, or -1.
  int register_of(const at::Tensor& tensor) const;
  // Whether the register is what became of a tensor that was turned in place.
  bool is_turned(int reg) const { return turned_.count(reg); }
  int fresh() { return next_++; }
  int registers() const { return next_; }

  void on_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  // Python code runs that has no numbers but those that it has seen, or that stand in it: the tensors that
  // torch makes of these are always the same.
  void take_literals(bool on) { takes_literals_ = on; }

  std::vector<Step>& steps() { return steps_; }
  const std::vector<Step>& steps() const { return steps_; }
  // Forgets the steps from this one on, and the registers from `reg` on that they made.
  void drop(size_t step, int reg);
  // Why the kernels since clear() cannot be run again; empty where they can.
  const std::string& obstacle() const { return obstacle_; }
  void hinder(const std::string& why) {
    if (obstacle_.empty()) obstacle_ = why;
  }
  void clear() { obstacle_.clear(); }

 private:
  struct Known {
    int reg;
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> keep;
    int bits;  // whether it is shown conjugated, or negated
  };

  int alive(int reg) const { return reg < static_cast<int>(dead_.size()) && dead_[reg] ? -1 : reg; }
  bool encode(const c10::IValue& value, Argument* argument);
  bool encode_tensor(const at::Tensor& tensor, Argument* argument);
  void encode_all(const c10::OperatorHandle& op, const torch::jit::Stack& arguments, Step* step);
  void note_written(const c10::OperatorHandle& op, const OperatorFacts& facts,
                    const torch::jit::Stack& arguments, Step* step);
  void note_blanks(const OperatorFacts& facts, const c10::Argument* schema, const Argument& argument);
  bool can_be_turned(const c10::IValue& value) const;
  bool is_literal(const OperatorFacts& facts, const torch::jit::Stack& stack) const;
  Result decode(const c10::IValue& value, const Step& step);
  Result decode_tensor(const at::Tensor& tensor, const Step& step);

  std::vector<Step> steps_;
  // What autograd saves of these is the tensor itself.
  std::unordered_map<c10::TensorImpl*, std::pair<int, at::Tensor>> numbers_;
  std::unordered_map<c10::TensorImpl*, Known> known_;
  std::unordered_map<std::string, int> shown_;                     // by what of which memory it shows
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> memory_;  // keeps addresses apart
  std::unordered_set<c10::StorageImpl*> met_, external_, early_, written_;
  std::unordered_map<int, c10::StorageImpl*> storages_;  // by register
  std::unordered_set<int> turned_;
  std::unordered_set<int> blank_;  // registers that no kernel was seen to fill
  bool takes_literals_ = false;
  std::vector<char> dead_;  // by register: of kernels that were dropped
  std::string obstacle_;
  int next_;
  uint64_t registrations_;
};

}  // namespace lazytrace
