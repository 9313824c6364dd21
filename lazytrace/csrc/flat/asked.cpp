#include "flat/asked.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <utility>

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

std::shared_ptr<Asked> Asked::of(const std::vector<at::Tensor>& roots,
                                 const torch::autograd::edge_list& ends) {
  auto asked = std::make_shared<Asked>();
  asked->looks_.resize(roots.size());
  for (const auto& end : ends) asked->ends_.push_back(end.function.get());
  std::map<Node*, std::unique_ptr<Look>> hooks;
  for (size_t i = 0; i < roots.size(); ++i) {
    auto edge = torch::autograd::impl::gradient_edge(roots[i]);
    auto& hook = hooks[edge.function.get()];
    if (!hook) hook = std::make_unique<Look>(asked);
    hook->roots.emplace_back(i, edge.input_nr);
  }
  for (auto& [node, hook] : hooks) node->add_pre_hook(std::move(hook));
  return asked;
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
  looks_[root] = TensorMeta::of(gradient);
  more_ |= !looks_[root].strided() || !looks_[root].plain_keys() || !gradient.device().is_cpu();
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
