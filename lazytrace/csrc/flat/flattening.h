// Makes the flat form of a program, while the program runs.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "flat/fixed_sizes.h"
#include "flat/following.h"
#include "flat/form.h"
#include "flat/kernels.h"
#include "flat/rewinds.h"
#include "replay/witness.h"
#include "torch/autograd_graph.h"

namespace lazytrace {

// The same kernels on the same operands in the same order give the same bits. So, of a program that runs
// backward passes, the steps that build or use a graph of autograd are replaced by the kernels that they came
// to, and `.grad` is set where autograd was seen to set it. What chose the kernels is held by the key and the
// guards of the trace, hooks and gradients of leaves included. All other steps stay as they are.
//
// Make and finish it with the GIL; lives for one run.
class Flattening final : public Witness, public KernelSink {
 public:
  // `knows_writes`: whether it is known what a step, given by its node, finds in the Python state that the
  // trace writes to. Where it raises, the writes before it are made.
  Flattening(const Plan& plan, const std::vector<at::Tensor>& registers,
             std::function<bool(int64_t)> knows_writes);

  void starts(const NumberValues& numbers) override { numbers_ = &numbers; }
  void before(size_t at) override;
  void after(size_t at) override;
  void passes(int number, const at::Tensor& tensor) override {
    if (!sizes_.is_fixed(number)) kernels_.know_number(number, tensor);
  }
  void on_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) override;

  // Of a program that has run and leaves a graph to its caller: runs a backward pass through that, as one
  // that is given gradients of these looks would, and sees what it does. `outputs`: the registers that leave
  // the program; `looks`: by root. To be called within the scope that watched the program. Needs the GIL.
  void follow(std::shared_ptr<const Plan> whole, const std::vector<int>& outputs,
              const std::vector<TensorMeta>& looks);

  // Where nothing is left to autograd, and custom functions are all that the form does without.
  void goes_without_graph();
  // How many nodes the program makes.
  void built(uint64_t nodes) { nodes_ = nodes; }
  // Which of the tensors that the program begins with share memory, where these are copies.
  void shares(std::vector<int> sharing) { sharing_ = std::move(sharing); }

  // The form, or null: then obstacle() says why. `outputs`: the registers that leave the program.
  std::shared_ptr<FlatForm> finish(std::vector<int> outputs);
  const std::string& obstacle() const { return obstacle_; }

 private:
  struct Leaf {
    int reg;
    at::Tensor tensor;
    const c10::TensorImpl* gradient;
  };

  void hinder(const std::string& why);
  void meet_leaves(const Step& step);
  void watch_gradients();
  void note_accumulation(size_t from);
  Step gradient_step(Step::Kind kind, int leaf) const;
  bool is_pure(const Step& step) const;
  bool is_watched(const Step& step) const;
  bool sets_hook(const Step& step) const;
  bool stands_for_kernels(const Step& step) const;
  bool goes_as_recorded(const Step& step) const;
  static bool only_tells(const Step& step);
  static bool may_do_anything(const Step& step);
  bool leads_away(const Step& step) const;
  bool may_vary(const Step& step) const;
  static bool gives_numbers(const Step& step);
  bool takes_graph(const Step& step) const;
  bool gives_graph(const Step& step) const;
  void keep(const Step& step);
  void replace(const Step& step);
  void note_whole_numbers(const Step& step);
  bool is_settled(const Argument& argument) const;
  bool numbers_are_seen(const Step& step) const;
  void compare_numbers(const Step& step);
  bool gives_turned(const Step& step) const;
  bool shuffles_its_own(const Step& step) const;
  bool reads_values(const Step& step) const;
  void name_results(const Step& step);
  void name(const Result& result);
  bool drops(const Step& step);
  void set_modes(size_t from, const Modes& now, bool kernels);
  int mode(const Modes& modes);
  void rename();
  bool reads_given(const Step& step) const;
  using Beginnings = std::unordered_map<c10::StorageImpl*, Shown>;
  Beginnings beginnings(const std::vector<Step>& steps) const;
  int place_undo(std::vector<Step>* steps, FlatForm* form);
  torch::autograd::Node* node_of(const FlatForm::Spent& spent) const;
  void spend(const std::vector<int>& outputs, FlatForm* form);

  const Plan& plan_;
  const Program& program_;
  const std::vector<at::Tensor>& registers_;
  std::function<bool(int64_t)> knows_writes_;
  std::vector<int> sharing_;
  FixedSizes sizes_;
  const NumberValues* numbers_ = nullptr;  // of the run
  Kernels kernels_;
  Rewinds rewinds_{&kernels_};
  std::vector<char> graph_;                 // by register of the program: is part of a graph
  std::vector<char> enters_;                // is an argument of what builds or uses one
  std::vector<int> names_;                  // register of a kernel -> that of the program which it is
  std::unordered_map<int, int> gradients_;  // by register of a leaf: that of its `.grad`, or -1 of none
  std::vector<Leaf> leaves_;                // of the backward pass that is running
  std::set<c10::intrusive_ptr<torch::autograd::Node>> histories_;  // of what the call began with
  AutogradGraph::Functions pure_;   // custom functions that the program has come to
  std::unordered_set<int> turned_;  // registers of the program that were turned in place
  std::unordered_set<int> hooked_;  // what steps are given that set hooks, which the form goes without
  std::vector<int> whole_;          // registers of arguments of the step that hold whole numbers
  std::vector<Modes> modes_;
  Modes now_;
  size_t mark_ = 0;  // the steps and registers before the one that is running
  int first_new_ = 0;
  int begins_ = -1;
  bool graphless_ = false;
  uint64_t nodes_ = 0;
  bool collects_ = false;
  bool backward_ = false;
  std::unique_ptr<Following> following_;  // of a program that runs no backward pass itself
  std::string obstacle_;
};

}  // namespace lazytrace
