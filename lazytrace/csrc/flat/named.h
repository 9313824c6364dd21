// Nodes of autograd that are named like torch's own, in place of those.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <string>

namespace lazytrace {

class MemoryThen;

// A result has a history with the name that torch gave it, whatever computes its gradient.
//
// Of views that are written to, Python and the node itself say different names.
struct NodeName {
  std::string type, name;
  bool operator==(const NodeName& other) const { return type == other.type && name == other.name; }
};

// What the node that made the tensor is called. Needs the GIL.
NodeName node_name_of(const at::Tensor& tensor);
// The number of a kind of node with this name, the same for as long as the process lives; -1 where there are
// too many names. Needs the GIL.
int node_kind(const NodeName& name);
// A node of this kind that hands its gradients on as they are, along its first edge. Others lead from a
// result to those that it is made of; then the first one leads to a ReplayedBackward, which is asked what
// comes to them. No GIL needed.
//
// `depth`: the longest way through the graph that it stands for, at least.
c10::intrusive_ptr<torch::autograd::Node> make_passing(int kind, torch::autograd::edge_list next,
                                                       uint64_t depth);
// For a result that others of its node come before, which are not there.
void skip_inputs(torch::autograd::Node* node, uint32_t count);
// Behind such a node comes this edge from now on. `whole`: hooks that are set from then on would be called
// before all was there that comes to the result, so it refuses them. `shown`: of the graph that the edge
// leads into. Not while it runs; no GIL needed.
void lead_on(torch::autograd::Node* passing, torch::autograd::Edge edge, bool whole,
             std::shared_ptr<const MemoryThen> shown);
// One whose graph a backward pass has used up: asked again, it says what torch says. No GIL needed.
c10::intrusive_ptr<torch::autograd::Node> make_spent(int kind);

}  // namespace lazytrace
