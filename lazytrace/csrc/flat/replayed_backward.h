// The node of autograd that stands for all that a replay of a program did.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <optional>
#include <vector>

#include "flat/backward_form.h"
#include "flat/held.h"
#include "flat/open_graph.h"
#include "program/numbers.h"

namespace lazytrace {

// Replays the recorded backward pass. A pass that asks for more (a graph of the gradients, some of them only,
// gradients of other results), or comes under other switches of torch, is given the graph itself: the program
// builds it, from what the call began with.
//
// Holds what torch's nodes hold, and the arguments, until a pass lets go of them.
class ReplayedBackward final : public torch::autograd::Node {
 public:
  // Gives the results of a replay, which lie in `registers`, their history. Needs the GIL.
  static void attach(const std::shared_ptr<const BackwardForm>& form, std::vector<at::Tensor>* registers,
                     const NumberValues& numbers, const Earlier& earlier);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  std::string name() const override { return "ReplayedBackward"; }
  void release_variables() override;
  // The calls from now on build their graphs.
  void give_up() const { form_->surprised = true; }

 private:
  // Switches that decide which kernels a pass runs.
  struct Switches {
    uint64_t included, excluded;
    uint32_t process;
    bool operator==(const Switches& other) const;
    static Switches now();
  };
  // The graph that the program has built.
  struct Graph {
    std::vector<at::Tensor> roots;
    std::optional<OpenGraph> open;
  };

  void check_versions() const;
  void check_memory(bool all) const;
  bool inner_hooks(const torch::autograd::variable_list& gradients) const;
  void take_hooks_over(const std::vector<at::Tensor>& registers);
  void lead_on(bool created);
  bool as_recorded(const torch::autograd::variable_list& gradients) const;
  torch::autograd::variable_list replay(const torch::autograd::variable_list& gradients);
  torch::autograd::variable_list pass(const torch::autograd::variable_list& gradients);
  void build_graph();

  std::shared_ptr<const BackwardForm> form_;
  std::vector<at::Tensor> saved_;
  std::vector<Held> begins_, watched_, given_;
  NumberValues numbers_;
  Earlier earlier_;
  Switches switches_{};
  std::unique_ptr<Graph> graph_;
  // The nodes of results that others are made of. They hold this one.
  using WeakNode = c10::weak_intrusive_ptr<torch::autograd::Node>;
  std::vector<WeakNode> passing_;  // by root: the node of the result
  struct Inner {
    WeakNode node;
    uint32_t input;
  };
  std::vector<Inner> inner_;
  bool released_ = false;
};

}  // namespace lazytrace
