#include "flat/open_graph.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>

#include "flat/saved.h"
#include "torch/autograd_graph.h"

namespace lazytrace {

using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

torch::autograd::GraphTask* current_pass() {
  using torch::autograd::GraphTask;
  // Torch gives this field of it away.
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (!nodes) return nullptr;
  auto at = reinterpret_cast<uintptr_t>(nodes);
  auto offset = reinterpret_cast<uintptr_t>(&reinterpret_cast<GraphTask*>(at)->nodes_in_graph_) - at;
  return reinterpret_cast<GraphTask*>(at - offset);
}

int pass_depth() {
  const torch::autograd::GraphTask* task = current_pass();
  return task ? task->reentrant_depth_ : -1;
}

Ends::Ends(const std::vector<int>& begins, const std::vector<at::Tensor>& all) {
  for (int reg : begins) {
    if (!all[reg].defined() || !all[reg].requires_grad()) continue;
    registers.push_back(reg);
    edges.push_back(torch::autograd::impl::gradient_edge(all[reg]));
  }
}

OpenGraph::OpenGraph(const std::vector<at::Tensor>& roots, torch::autograd::edge_list ends)
    : ends_(std::move(ends)) {
  for (size_t i = 0; i < ends_.size(); ++i) {
    Node* node = ends_[i].function.get();
    if (!node) {
      obstacle_ = "gradients of an argument are lost";
      continue;
    }
    if (!numbers_.emplace(std::make_pair(node, ends_[i].input_nr), i).second)
      obstacle_ = "two tensors have one history";
    end_nodes_.insert(node);
    if (!node->tensor_pre_hooks().empty() || !node->retains_grad_hooks().empty())
      obstacle_ = "a tensor that was there before has hooks";
  }
  std::vector<Node*> open;
  for (const at::Tensor& root : roots) {
    roots_.push_back(torch::autograd::impl::gradient_edge(root));
    meet(roots_.back().function.get(), &open);
  }
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    look_at(node, &open);
  }
  // The engine takes the newest node that is ready, and no node is ready before all those that are newer.
  std::sort(exits_.begin(), exits_.end(), [](const Exit& a, const Exit& b) {
    uint64_t x = a.node->sequence_nr(), y = b.node->sequence_nr();
    return x != y ? x > y : a.edge < b.edge;
  });
}

void OpenGraph::meet(Node* node, std::vector<Node*>* open) {
  if (!node || !nodes_.insert(node).second) return;
  if (end_nodes_.count(node)) obstacle_ = "its graph goes on into that of an argument";
  if (dynamic_cast<torch::autograd::AccumulateGrad*>(node)) obstacle_ = "a leaf of unknown origin";
  if (calls_python(*node)) obstacle_ = "a backward pass runs Python code";
  open->push_back(node);
}

void OpenGraph::look_at(Node* node, std::vector<Node*>* open) {
  for (size_t i = 0; i < node->num_outputs(); ++i) {
    const Edge& edge = node->next_edge(i);
    if (!edge.is_valid()) continue;
    auto end = numbers_.find({edge.function.get(), edge.input_nr});
    if (end != numbers_.end())
      exits_.push_back({node, i, end->second});
    else
      meet(edge.function.get(), open);
  }
}

bool OpenGraph::leads_to(const Edge& edge) const {
  return std::any_of(nodes_.begin(), nodes_.end(), [&](Node* node) {
    return std::find(node->next_edges().begin(), node->next_edges().end(), edge) != node->next_edges().end();
  });
}

bool OpenGraph::saves() const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [](Node* node) { return saved_by(node) != Saved::Nothing; });
}

namespace {

// Takes hold of what a node gives: so the engine, which may add to what nobody else holds, leaves it as it
// is. Hooks in the middle may begin other passes through the same nodes.
struct Catch final : torch::autograd::FunctionPostHook {
  std::vector<std::pair<size_t, size_t>> exits;  // and their edges
  variable_list* caught = nullptr;
  std::vector<size_t>* order = nullptr;
  const int depth = pass_depth() + 1;  // of its pass, which is about to begin

  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    if (pass_depth() != depth) return outputs;
    for (auto& [exit, edge] : exits) {
      (*caught)[exit] = outputs[edge];
      order->push_back(exit);
    }
    return outputs;
  }
};

// The hooks of one pass, for as long as it lives.
class Catches {
 public:
  Catches(const std::vector<OpenGraph::Exit>& exits, variable_list* caught, std::vector<size_t>* order) {
    for (size_t i = 0; i < exits.size(); ++i) {
      Catch*& hook = hooks_[exits[i].node];
      if (!hook) {
        auto made = std::make_unique<Catch>();
        hook = made.get();
        hook->caught = caught, hook->order = order;
        exits[i].node->add_post_hook(std::move(made));
      }
      hook->exits.emplace_back(i, exits[i].edge);
    }
  }
  ~Catches() {
    for (auto& [node, hook] : hooks_) {
      auto& all = node->post_hooks();
      all.erase(std::remove_if(all.begin(), all.end(), [hook](auto& one) { return one.get() == hook; }),
                all.end());
    }
  }
  Catches(const Catches&) = delete;
  Catches& operator=(const Catches&) = delete;

 private:
  std::map<Node*, Catch*> hooks_;
};

// Puts another gradient in the place of what comes to an edge, once that was captured.
struct Replace final : torch::autograd::FunctionPreHook {
  Replace(uint32_t to, at::Tensor by) : input(to), gradient(std::move(by)) {}
  variable_list operator()(const variable_list& gradients) override {
    if (pass_depth() != depth) return gradients;
    variable_list others = gradients;
    others[input] = gradient;
    return others;
  }
  uint32_t input;
  at::Tensor gradient;
  const int depth = pass_depth() + 1;
};

// The same of some edges, for as long as it lives.
class Replacements {
 public:
  explicit Replacements(const std::vector<std::pair<OpenGraph::Edge, at::Tensor>>& all) {
    for (const auto& [edge, gradient] : all) {
      auto made = std::make_unique<Replace>(edge.input_nr, gradient);
      hooks_.emplace_back(edge.function, made.get());
      edge.function->add_pre_hook(std::move(made));
    }
  }
  ~Replacements() {
    for (auto& [node, hook] : hooks_) {
      auto& all = node->pre_hooks();
      all.erase(std::remove_if(all.begin(), all.end(), [h = hook](auto& one) { return one.get() == h; }),
                all.end());
    }
  }
  Replacements(const Replacements&) = delete;
  Replacements& operator=(const Replacements&) = delete;

 private:
  std::vector<std::pair<c10::intrusive_ptr<Node>, Replace*>> hooks_;
};

}  // namespace

variable_list OpenGraph::pass_to(size_t root, const at::Tensor& gradient, const edge_list& inside,
                                 const Pass& how) const {
  std::vector<std::pair<Edge, at::Tensor>> ended;
  for (const Edge& edge : inside) ended.emplace_back(edge, at::Tensor());
  Replacements here(ended);
  return torch::autograd::Engine::get_default_engine().execute({roots_[root]}, {gradient}, how.keep,
                                                               how.create, false, inside);
}

variable_list OpenGraph::pass(const variable_list& gradients, const Pass& how) const {
  variable_list caught(exits_.size());
  torch::autograd::edge_list roots, wanted;
  variable_list given;
  for (size_t i = 0; i < roots_.size(); ++i) {
    if (!gradients[i].defined()) continue;
    roots.push_back(roots_[i]);
    given.push_back(gradients[i]);
  }
  auto is_wanted = [&](size_t end) { return how.wanted.empty() || how.wanted[end]; };
  for (size_t i = 0; i < ends_.size(); ++i)
    if (is_wanted(i)) wanted.push_back(ends_[i]);
  // Without an end, the engine would go on into what was there before.
  if (roots.empty() || wanted.empty()) return caught;
  std::vector<size_t> order;
  {
    Catches here(exits_, &caught, &order);
    Replacements replaced(how.instead);
    torch::autograd::Engine::get_default_engine().execute(roots, given, how.keep, how.create, false, wanted);
  }
  in_order_ = std::is_sorted(order.begin(), order.end());
  for (size_t i = 0; i < exits_.size(); ++i)
    if (!is_wanted(exits_[i].end)) caught[i] = at::Tensor();
  return caught;
}

}  // namespace lazytrace
