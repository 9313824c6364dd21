// The node of autograd that stands for all that a replay of a program did.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "flat/backward_form.h"
#include "flat/held.h"
#include "flat/memory_then.h"
#include "flat/open_graph.h"
#include "program/numbers.h"

namespace lazytrace {

// How errors end that are about what one node cannot do.
extern const char* const kBuildsFromNowOn;

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
  // What a pass that has come to a root brings from there to other results, which this one is made of:
  // behind the first edge of the root's node. Undefined where the pass does not ask for it.
  void bring_inside(size_t root, const at::Tensor& gradient, torch::autograd::variable_list* brought);
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
    torch::autograd::edge_list inner;  // of the results that others are made of
    std::optional<OpenGraph> open;
    std::shared_ptr<const MemoryThen> shown;
    bool left = false;  // passes go into it past this node
  };

  void check_versions() const;
  void check_memory(bool all) const;
  void take_hooks_over();
  void keep_inner(const BackwardForm::Inner& inner, const at::Tensor& result);
  void lead_on(bool created);
  void lead_past();
  void take_hooks_along(bool created);
  void lead_on_after_this_pass(bool created);
  std::vector<size_t> all_inner() const;
  std::vector<size_t> asked_inside(const std::vector<size_t>& inner, bool captured_only) const;
  bool hooks_inside(size_t root) const;
  void check_hooks_inside(const std::vector<size_t>& asked, bool goes_on) const;
  torch::autograd::variable_list laid_out(torch::autograd::variable_list gradients) const;
  // Whether the modes are those of the recording, and nobody watches.
  bool runs_as_then() const;
  bool as_recorded(const torch::autograd::variable_list& gradients) const;
  torch::autograd::variable_list replay(const torch::autograd::variable_list& gradients);
  torch::autograd::variable_list pass(const torch::autograd::variable_list& gradients);
  bool has_new_hooks() const;
  bool is_inside_another() const;
  bool is_all_between() const;
  torch::autograd::variable_list pass_to_leaves(const torch::autograd::variable_list& gradients,
                                                std::unique_lock<std::recursive_mutex>* lock);
  void build_graph(bool leaves = false);
  std::shared_ptr<const MemoryThen> shown_from_now_on(bool leaves) const;
  void open(Graph* graph, const std::vector<at::Tensor>& begins) const;

  // Held for a pass. Hooks in its middle may begin another one in the same thread.
  std::recursive_mutex passes_;
  std::shared_ptr<const BackwardForm> form_;
  std::vector<at::Tensor> saved_;
  std::vector<Held> begins_, watched_, given_;
  NumberValues numbers_;
  uint64_t first_number_ = 0;  // of the nodes that it stands for
  Earlier earlier_;
  Switches switches_{};
  caffe2::TypeMeta dtype_;  // the default
  int depth_ = -1;          // of the pass that the call was made in
  std::unique_ptr<Graph> graph_;
  // The nodes of results that others are made of. They hold this one.
  using WeakNode = c10::weak_intrusive_ptr<torch::autograd::Node>;
  using WeakResult = c10::weak_intrusive_ptr<at::TensorImpl, c10::UndefinedTensorImpl>;
  std::vector<WeakNode> passing_;  // by root: the node of the result
  struct Inner {
    WeakNode node;
    uint32_t input;
    WeakResult result;  // which holds this node
    torch::autograd::Edge edge() const { return {node.lock(), input}; }
  };
  std::vector<Inner> inner_;
  bool released_ = false;
};

}  // namespace lazytrace
