#include "flat/asked.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <utility>

#include "flat/open_graph.h"

namespace lazytrace {

using torch::autograd::Node;
using torch::autograd::variable_list;

// Of one node: which of its inputs are gradients of which roots.
struct Asked::Look final : torch::autograd::FunctionPreHook {
  explicit Look(std::shared_ptr<Asked> to) : asked(std::move(to)) {}
  variable_list operator()(const variable_list& gradients) override {
    for (auto& [root, input] : roots) asked->note(root, gradients[input]);
    return gradients;
  }
  std::shared_ptr<Asked> asked;
  std::vector<std::pair<size_t, uint32_t>> roots;
};

std::shared_ptr<Asked> Asked::of(const Roots& roots, const std::vector<at::Tensor>& registers,
                                 const torch::autograd::edge_list& ends) {
  using torch::autograd::impl::gradient_edge;
  OpenGraph graph(roots.tensors, ends);
  if (!graph.obstacle().empty()) return nullptr;
  auto asked = std::make_shared<Asked>();
  size_t count = roots.tensors.size();
  asked->looks_.resize(count);
  asked->gates_.resize(count);
  asked->has_views_.resize(count);
  asked->inside_ = graph.nodes();
  for (const auto& end : ends) asked->ends_.push_back(end.function.get());
  for (int view : roots.views) {
    auto is_base = [&](const at::Tensor& root) { return root.is_same(Roots::root_of(registers[view])); };
    auto root = std::find_if(roots.tensors.begin(), roots.tensors.end(), is_base) - roots.tensors.begin();
    asked->gates_[static_cast<size_t>(root)].insert(gradient_edge(registers[view]).function.get());
    asked->has_views_[static_cast<size_t>(root)] = 1;
  }
  std::map<Node*, std::unique_ptr<Look>> hooks;
  for (size_t i = 0; i < count; ++i) {
    auto edge = gradient_edge(roots.tensors[i]);
    auto& hook = hooks[edge.function.get()];
    if (!hook) hook = std::make_unique<Look>(asked);
    hook->roots.emplace_back(i, edge.input_nr);
    if (graph.leads_to(edge))
      asked->gates_[i].insert(edge.function.get());
    else
      asked->gates_[i].clear();
  }
  for (auto& [node, hook] : hooks) node->add_pre_hook(std::move(hook));
  return asked;
}

// Whether the caller has used the root, too, where others are made of it.
bool Asked::from_outside(size_t root) const {
  const auto* all = torch::autograd::get_current_graph_task_nodes_in_graph();
  const auto& gates = gates_[root];
  return !all || std::any_of(all->begin(), all->end(), [&](Node* node) {
    return !inside_.count(node) && !gates.count(node) &&
           std::any_of(node->next_edges().begin(), node->next_edges().end(),
                       [&](const auto& edge) { return gates.count(edge.function.get()) > 0; });
  });
}

void Asked::note(size_t root, const at::Tensor& gradient) {
  std::lock_guard<std::mutex> lock(mutex_);
  int task = torch::autograd::get_current_graph_task_id();
  more_ |= (task_ >= 0 && task_ != task) || at::GradMode::is_enabled();
  task_ = task;
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  auto is_left_out = [&](Node* end) {
    auto found = chosen->find(end);
    return found == chosen->end() || !found->second.should_execute();
  };
  more_ |= chosen && !chosen->empty() && std::any_of(ends_.begin(), ends_.end(), is_left_out);
  if (!gradient.defined()) return;
  bool shared = !gates_[root].empty();
  if (shared && !from_outside(root)) return;
  // What comes from outside and inside to its views would be added up in another order.
  more_ |= shared && has_views_[root];
  looks_[root] = TensorMeta::of(gradient);
  more_ |= !looks_[root].strided() || !looks_[root].plain_keys();
}

bool Asked::anything() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return task_ >= 0;
}

bool Asked::gradients_alone() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !more_;
}

std::vector<TensorMeta> Asked::looks() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return looks_;
}

}  // namespace lazytrace
