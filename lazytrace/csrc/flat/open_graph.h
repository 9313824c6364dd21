// A graph of autograd between results and what was there before them.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <map>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace lazytrace {

// The backward pass that runs in this thread, or null.
torch::autograd::GraphTask* current_pass();
// How many passes wait for it, as code in their middle has begun it; -1 outside of any.
int pass_depth();

// Of the registers that a program begins with, those that require gradients, and where these go.
struct Ends {
  Ends(const std::vector<int>& begins, const std::vector<at::Tensor>& registers);

  std::vector<int> registers;
  torch::autograd::edge_list edges;
};

// Keeps what comes out of the graph apart, use by use: autograd adds up the gradients of a tensor in the
// order in which it comes to its uses, those outside of the graph among them, and another order gives other
// bits. Lives no longer than its roots.
class OpenGraph {
 public:
  using Edge = torch::autograd::Edge;

  // A use of what was there before: the edge of a node that leads to the end with this number.
  struct Exit {
    torch::autograd::Node* node;
    size_t edge;
    size_t end;
  };

  // `ends`: the edges at which it stops. Needs the GIL, as nodes may belong to Python.
  OpenGraph(const std::vector<at::Tensor>& roots, torch::autograd::edge_list ends);

  // In the order in which a backward pass comes to them.
  const std::vector<Exit>& exits() const { return exits_; }
  const std::unordered_set<torch::autograd::Node*>& nodes() const { return nodes_; }
  // Whether a node of the graph hands gradients on there.
  bool leads_to(const Edge& edge) const;
  size_t ends() const { return ends_.size(); }
  const torch::autograd::edge_list& edges_of_ends() const { return ends_; }
  // Why nobody but the engine can tell what a pass does; empty where somebody can.
  const std::string& obstacle() const { return obstacle_; }
  // Whether a node has saved tensors. Needs the GIL.
  bool saves() const;

  struct Pass {
    bool keep = true;  // the graph
    bool create = false;
    std::vector<char> wanted;  // by end; empty: all
    // Edges inside of the graph: what comes to one does not go on, but this does, in its place.
    std::vector<std::pair<Edge, at::Tensor>> instead;
  };
  // What a pass brings to each exit; undefined where it brings nothing, or nothing is wanted. `gradients`: by
  // root, undefined of those that the pass does not begin at. No hooks behind the ends are called. The GIL
  // must not be held.
  torch::autograd::variable_list pass(const torch::autograd::variable_list& gradients, const Pass& how) const;
  // What a pass from one root brings to edges inside of the graph; it ends there. The GIL must not be held.
  torch::autograd::variable_list pass_to(size_t root, const at::Tensor& gradient,
                                         const torch::autograd::edge_list& inside, const Pass& how) const;
  // Whether the last pass came to the exits in their order.
  bool in_order() const { return in_order_; }

 private:
  void meet(torch::autograd::Node* node, std::vector<torch::autograd::Node*>* open);
  void look_at(torch::autograd::Node* node, std::vector<torch::autograd::Node*>* open);

  torch::autograd::edge_list roots_, ends_;
  std::map<std::pair<torch::autograd::Node*, uint32_t>, size_t> numbers_;  // of ends
  std::unordered_set<torch::autograd::Node*> end_nodes_, nodes_;
  std::vector<Exit> exits_;
  std::string obstacle_;
  mutable bool in_order_ = true;
};

}  // namespace lazytrace
