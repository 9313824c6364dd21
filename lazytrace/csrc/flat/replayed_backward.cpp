#include "flat/replayed_backward.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/SequenceNumber.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "flat/named.h"
#include "flat/roots.h"
#include "passes/registers.h"
#include "replay/workspace.h"
#include "signature/ambient.h"
#include "torch/autograd_graph.h"
#include "torch/memory.h"
#include "torch/overrides.h"
#include "torch/random_streams.h"

namespace lazytrace {

using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

// ---------------------------------------------------------------- what is held
bool ReplayedBackward::Switches::operator==(const Switches& other) const {
  return included == other.included && excluded == other.excluded && process == other.process;
}

ReplayedBackward::Switches ReplayedBackward::Switches::now() {
  auto local = c10::impl::tls_local_dispatch_key_set();
  return {local.included_.raw_repr(), local.excluded_.raw_repr(), process_switches()};
}

const char* const kBuildsFromNowOn =
    ". From now on the function builds its graph at each call; make this call again, or pass "
    "create_graph=True in the first backward pass, too.";

namespace {

constexpr const char* kCannotBuild =
    "a backward pass through the replay of a traced function asked for more than the passes before it: for a "
    "graph of the gradients (create_graph), for some of them only (inputs), for those of other results, or "
    "under other switches of torch. That needs the whole graph of autograd, which cannot be built any more: ";

void lead_past_handing(const OpenGraph& graph, const std::shared_ptr<const MemoryThen>& shown);

// A result would hold its node, and the node the result. As torch's own saved results are, it is another
// object, whose version is the same.
at::Tensor without_history(const at::Tensor& result) {
  return at::Tensor(result.unsafeGetTensorImpl()->shallow_copy_and_detach(
      result.unsafeGetTensorImpl()->version_counter(), false));
}

// Holds what the program begins with as torch's graph would: a tensor that it has saved, and a leaf whose
// gradient it adds up. Of others the memory is kept, which the program begins with where it builds the graph:
// who asks how many hold such a tensor (swap_tensors, a weak reference) is told the same.
Held hold_beginning(const BackwardForm& form, const BackwardForm::Open& begin, const at::Tensor& tensor) {
  auto is_it = [&](int reg) { return reg == begin.reg; };
  bool plain = tensor.defined() && !tensor.is_inference() && tensor.layout() == at::kStrided;
  bool saved = begin.saved || std::any_of(form.watched.begin(), form.watched.end(),
                                          [&](const auto& watched) { return is_it(watched.reg); });
  if (!plain || !tensor.has_storage() || saved) return Held::of(tensor);
  if (!tensor.requires_grad()) return Held::of(without_history(tensor));
  if (!tensor.is_leaf()) return Held::of(tensor);  // the graph leads to its history, and nothing to it
  if (std::any_of(form.exits.begin(), form.exits.end(), [&](const auto& exit) { return is_it(exit.end); }))
    return Held::of_leaf(tensor);
  return Held::of(without_history(tensor).set_requires_grad(true));
}

// The results that are views of roots. Younger results may be made of them, so they are made root by root.
class Views {
 public:
  Views(const BackwardForm& form, std::vector<at::Tensor>* registers) : form_(form), registers_(*registers) {}

  // Makes those of one root, which has its history by now.
  void make(const BackwardForm::Root& root) {
    if (form_.views.empty()) return;
    at::AutoGradMode grad(true);
    there_.insert(root.reg);
    for (const Step& step : form_.views)
      if (there_.count(step.arguments[0].reg)) make(step);
    there_.clear();
  }

 private:
  void make(const Step& step) {
    stack_.clear();
    for (const Argument& argument : step.arguments)
      stack_.emplace_back(argument.kind == Argument::Kind::Register ? c10::IValue(registers_[argument.reg])
                                                                    : argument.constant);
    step.op.callBoxed(stack_);
    const Result& only = step.results[0];
    if (only.kind == Result::Kind::Register) return put(only.reg, stack_[0].toTensor());
    auto made = stack_[0].toTensorVector();
    for (size_t i = 0; i < made.size(); ++i) put(only.list[i].reg, made[i]);
  }
  void put(int reg, const at::Tensor& view) {
    if (reg < 0) return;
    registers_[reg] = view;
    there_.insert(reg);
  }

  const BackwardForm& form_;
  std::vector<at::Tensor>& registers_;
  std::unordered_set<int> there_;
  torch::jit::Stack stack_;
};

}  // namespace

void ReplayedBackward::attach(const std::shared_ptr<const BackwardForm>& form, std::vector<at::Tensor>* all,
                              const NumberValues& numbers, const Earlier& earlier) {
  std::vector<at::Tensor>& registers = *all;
  // In a pass the node with the highest number goes first: the graph keeps the place that it would have.
  uint64_t first = at::sequence_number::peek();
  for (uint64_t i = 0; i < form->nodes; ++i) at::sequence_number::get_and_increment();
  auto node = c10::make_intrusive<ReplayedBackward>();
  node->first_number_ = first;
  node->form_ = form;
  node->earlier_ = earlier;
  node->switches_ = Switches::now();
  node->dtype_ = c10::get_default_dtype();
  node->depth_ = pass_depth();
  if (!form->whole->program().numbers.empty()) node->numbers_ = numbers;
  auto is_root = [&](int reg) {
    return std::any_of(form->roots.begin(), form->roots.end(), [&](auto& root) { return root.reg == reg; });
  };
  auto kept = [&](int reg) { return is_root(reg) ? without_history(registers[reg]) : registers[reg]; };
  for (int reg : form->saved) node->saved_.push_back(kept(reg));
  for (const auto& one : form->watched) node->watched_.push_back(Held::of(registers[one.reg], kept(one.reg)));
  for (const auto& one : form->begins)
    node->begins_.push_back(hold_beginning(*form, one, registers[one.reg]));
  edge_list edges;
  for (const auto& exit : form->exits)
    edges.push_back(torch::autograd::impl::gradient_edge(registers[exit.end]));
  node->set_next_edges(std::move(edges));
  Views views(*form, all);
  for (size_t i = 0; i < form->roots.size(); ++i) {
    const auto& root = form->roots[i];
    edge_list next = {torch::autograd::Edge(node, node->add_input_metadata(registers[root.reg]))};
    for (size_t k : form->leads[i]) next.push_back(node->inner_[k].edge());
    auto named = make_passing(root.kind, std::move(next), root.depth);
    node->passing_.emplace_back(named);
    skip_inputs(named.get(), root.at);
    torch::autograd::set_history(registers[root.reg], named);
    views.make(root);
    for (const auto& inner : form->inner)
      if (inner.root == i) node->keep_inner(inner, registers[inner.reg]);
  }
  for (const auto& one : form->given) {
    const at::Tensor& result = registers[one.reg];
    node->given_.push_back(Held::of(result, result.requires_grad() ? without_history(result) : result));
  }
}

// A view has a node before torch's own, so that others can lead to it.
void ReplayedBackward::keep_inner(const BackwardForm::Inner& inner, const at::Tensor& result) {
  using torch::autograd::impl::gradient_edge;
  if (inner.kind >= 0) {
    auto named = make_passing(inner.kind, {gradient_edge(result)}, 0);
    skip_inputs(named.get(), inner.at);
    torch::autograd::impl::set_gradient_edge(result, {named, named->add_input_metadata(result)});
  }
  auto edge = gradient_edge(result);
  inner_.push_back({WeakNode(edge.function), edge.input_nr, WeakResult(result.getIntrusivePtr())});
}

void ReplayedBackward::release_variables() {
  std::lock_guard<std::recursive_mutex> lock(passes_);
  // The graph itself knows which of its parts a pass has used up.
  if (graph_ || !form_->spends) return;
  released_ = true;
  saved_.clear();
  begins_.clear();
  watched_.clear();
  given_.clear();
  earlier_ = Earlier();
}

// ---------------------------------------------------------------- a pass
// A result that others are made of was recorded with all that comes to it, from these, too: what comes from
// the caller alone may lie in memory otherwise, as an expanded number does. It is added to the rest, by which
// the same values come about.
variable_list ReplayedBackward::laid_out(variable_list gradients) const {
  for (size_t i = 0; i < form_->roots.size(); ++i) {
    const auto& root = form_->roots[i];
    at::Tensor& gradient = gradients[i];
    bool inner = std::any_of(form_->inner.begin(), form_->inner.end(),
                             [&](const auto& one) { return one.root == i && one.kind < 0; });
    if (!inner || root.given < 0 || !gradient.defined() || root.look.matches(gradient)) continue;
    bool strided = gradient.layout() == at::kStrided && !gradient.is_nested() && root.look.strided();
    if (strided && gradient.sizes() == at::IntArrayRef(root.look.sizes())) gradient = gradient.contiguous();
  }
  return gradients;
}

bool ReplayedBackward::runs_as_then() const {
  if (at::GradMode::is_enabled() || torch::autograd::AnomalyMode::is_enabled() ||
      c10::impl::TorchDispatchModeTLS::any_modes_set() || operators_are_watched())
    return false;
  return form_->plan->overrides == aten_overrides() && switches_ == Switches::now();
}

bool ReplayedBackward::as_recorded(const variable_list& gradients) const {
  for (size_t i = 0; i < form_->roots.size(); ++i) {
    const auto& root = form_->roots[i];
    if (root.given < 0 ? gradients[i].defined() : !root.look.matches(gradients[i])) return false;
  }
  for (size_t i = 0; i < form_->exits.size(); ++i)
    if (!task_should_compute_output(i)) return false;
  return asked_inside(all_inner(), true).empty();
}

variable_list ReplayedBackward::apply(variable_list&& gradients) {
  std::unique_lock<std::recursive_mutex> lock(passes_);
  pybind11::gil_scoped_acquire gil;
  TORCH_CHECK(!released_, torch::autograd::ERR_BACKWARD_TWICE);
  if (!graph_ && !has_new_hooks() && runs_as_then()) {
    if (as_recorded(gradients)) return replay(gradients);
    variable_list all = laid_out(gradients);
    if (as_recorded(all)) return replay(all);
  }
  form_->surprised = true;
  bool to_leaves = !graph_ && !is_inside_another() && is_all_between();
  return to_leaves ? pass_to_leaves(gradients, &lock) : pass(gradients);
}

// Whether another pass waits for this one, which may be on its way through the nodes of the results: it goes
// by the edges that it has found. One that was there at the call is not.
bool ReplayedBackward::is_inside_another() const { return pass_depth() > depth_ + 1; }

// Whether a tensor that the call began with has hooks by now; none had any then.
bool ReplayedBackward::has_new_hooks() const {
  return std::any_of(begins_.begin(), begins_.end(), [](const Held& held) {
    at::Tensor tensor = held.owner();
    return tensor.defined() && tensor.requires_grad() && has_hooks(tensor);
  });
}

namespace {

// The nodes that a pass from these edges comes to.
std::unordered_set<Node*> nodes_behind(const edge_list& edges) {
  std::unordered_set<Node*> found;
  std::vector<Node*> open;
  auto meet = [&](const torch::autograd::Edge& edge) {
    if (edge.is_valid() && found.insert(edge.function.get()).second) open.push_back(edge.function.get());
  };
  for (const auto& edge : edges) meet(edge);
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    for (const auto& edge : node->next_edges()) meet(edge);
  }
  return found;
}

}  // namespace

// Whether all that this pass brings to what there was before the call comes from here, and none of it is
// returned. The pass counts what is still to come to each node, also from where it began, which no node
// tells.
bool ReplayedBackward::is_all_between() const {
  torch::autograd::GraphTask* task = current_pass();
  if (!task || !task->exec_info_.empty()) return false;
  for (const Inner& inner : inner_)
    if (auto node = inner.node.lock(); node && calls_python(*node)) return false;
  std::unordered_map<Node*, int> arrivals;
  auto count = [&](const Node& node) {
    for (const auto& edge : node.next_edges())
      if (edge.is_valid()) ++arrivals[edge.function.get()];
  };
  count(*this);
  for (const Node* node : nodes_behind(next_edges())) count(*node);
  std::lock_guard<std::mutex> lock(task->mutex_);
  return std::all_of(arrivals.begin(), arrivals.end(), [&](const auto& arrival) {
    auto [node, from_here] = arrival;
    auto open = task->dependencies_.find(node);
    return open != task->dependencies_.end() && open->second == from_here && !task->not_ready_.count(node);
  });
}

namespace {
// Those of Python share a dict with the tensor, so they can be taken off as before.
void move_hooks(Node* from, Node* to) {
  for (auto& hook : from->tensor_pre_hooks()) to->add_tensor_pre_hook(std::move(hook));
  from->tensor_pre_hooks().clear();
  std::vector<int> retained;
  for (const auto& [index, hook] : from->retains_grad_hooks()) retained.push_back(static_cast<int>(index));
  for (int index : retained)
    to->add_retains_grad_hook(from->pop_retains_grad_hook(static_cast<size_t>(index)), index);
}
}  // namespace

// Hooks go where the gradients come to.
void ReplayedBackward::take_hooks_over() {
  for (size_t i = 0; i < inner_.size(); ++i) {
    auto from = inner_[i].node.lock();
    const auto& to = graph_->inner[i];
    if (!from || !calls_python(*from)) continue;
    TORCH_CHECK(to.input_nr == inner_[i].input && from->pre_hooks().empty() && from->post_hooks().empty(),
                kCannotBuild, "the node of a result that another one is made of has hooks", kBuildsFromNowOn);
    move_hooks(from.get(), to.function.get());
  }
}

// The passes after the first one find the graph itself behind the results. Those that others are made of are
// results of its nodes from now on: it leads to these. `created`: gradients of that pass have graphs, which
// lead into this one past the results' own nodes.
void ReplayedBackward::lead_on(bool created) {
  lead_past();
  take_hooks_along(created);
}

void ReplayedBackward::lead_past() {
  if (graph_->open) lead_past_handing(*graph_->open, graph_->shown);
  graph_->left = true;
  for (size_t i = 0; i < inner_.size(); ++i) {
    auto result = inner_[i].result.lock();
    if (!result) continue;
    at::Tensor tensor(std::move(result));
    if (torch::autograd::impl::gradient_edge(tensor) == inner_[i].edge())
      torch::autograd::impl::set_gradient_edge(tensor, graph_->inner[i]);
    if (form_->inner[i].kind < 0) continue;
    if (auto from = inner_[i].node.lock())
      lazytrace::lead_on(from.get(), graph_->inner[i], true, graph_->shown);
  }
  for (size_t i = 0; i < passing_.size(); ++i)
    if (auto from = passing_[i].lock())
      lazytrace::lead_on(from.get(), torch::autograd::impl::gradient_edge(graph_->roots[i]), false,
                         graph_->shown);
}

// Those of the results' nodes go to the nodes of the graph.
void ReplayedBackward::take_hooks_along(bool created) {
  for (size_t i = 0; i < passing_.size(); ++i) {
    auto from = passing_[i].lock();
    if (!from) continue;
    auto to = torch::autograd::impl::gradient_edge(graph_->roots[i]);
    bool same_place =
        to.input_nr == form_->roots[i].at && from->pre_hooks().empty() && from->post_hooks().empty();
    if (same_place) move_hooks(from.get(), to.function.get());
    bool inner =
        std::any_of(form_->inner.begin(), form_->inner.end(), [&](const auto& one) { return one.root == i; });
    lazytrace::lead_on(from.get(), std::move(to), inner || created, graph_->shown);
  }
  passing_.clear();
}

void ReplayedBackward::check_versions() const {
  for (size_t i = 0; i < watched_.size(); ++i) {
    const auto& watched = form_->watched[i];
    const Held& held = watched_[i];
    if (!watched.in_pass || held.is_as_it_was()) continue;
    std::string text = watched.itself ? held.description() : "";
    TORCH_CHECK(
        false,
        "one of the variables needed for gradient computation has been modified by an inplace operation: ",
        text.empty() ? watched.text : text, " is at version ", held.now(), "; expected version ", held.then(),
        " instead. Hint: enable anomaly detection to find the operation that failed to compute its gradient, "
        "with torch.autograd.set_detect_anomaly(True, check_nan=False).");
  }
}

// Torch's nodes have saved some tensors themselves, and views or copies of others: the first would show other
// memory by now, the others what they did. `all`: the graph is built from all that the call began with.
void ReplayedBackward::check_memory(bool all) const {
  auto check = [&](const Held& held, const BackwardForm::Open& one) {
    if (all || one.saved) MemoryThen::check(*form_, held, one.look);
  };
  for (size_t i = 0; i < begins_.size(); ++i) check(begins_[i], form_->begins[i]);
  for (size_t i = 0; i < given_.size() && !all; ++i) check(given_[i], form_->given[i]);
}

variable_list ReplayedBackward::replay(const variable_list& gradients) {
  check_versions();
  check_memory(false);
  bool keep = torch::autograd::get_current_graph_task_keep_graph() || !form_->spends;
  std::vector<at::Tensor> registers(static_cast<size_t>(form_->plan->program().registers));
  for (size_t i = 0; i < saved_.size(); ++i) registers[i] = keep ? saved_[i] : std::move(saved_[i]);
  variable_list brought;
  if (form_->run(&registers, gradients, &brought)) return brought;
  form_->surprised = true;
  return pass(gradients);
}

// ---------------------------------------------------------------- the whole graph
namespace {

// Hands gradients on as they are.
class Handing final : public torch::autograd::Node {
 public:
  explicit Handing(std::shared_ptr<const MemoryThen> shown) : shown_(std::move(shown)) {}
  variable_list apply(variable_list&& gradients) override {
    shown_->check();
    return std::move(gradients);
  }
  std::string name() const override { return "Handing"; }

 private:
  std::shared_ptr<const MemoryThen> shown_;
};

// Asks in the place of a node that is not on the way any more.
struct AsksMemory final : torch::autograd::FunctionPreHook {
  explicit AsksMemory(std::shared_ptr<const MemoryThen> of) : shown(std::move(of)) {}
  variable_list operator()(const variable_list& gradients) override {
    shown->check();
    return gradients;
  }
  std::shared_ptr<const MemoryThen> shown;
};

const Handing* handing_behind(const torch::autograd::Edge& edge) {
  return dynamic_cast<const Handing*>(edge.function.get());
}

// A Handing would add up what comes from the graph before any of it met what comes from outside of it, and
// another order gives other bits. It is where the graph's own passes end. Gradients that have graphs, which
// are made of what its nodes have saved, lead to the tensors of then themselves.
void lead_saved_past_handing(const std::vector<at::Tensor>& begins) {
  for (const at::Tensor& begin : begins) {
    if (!begin.defined() || !begin.requires_grad()) continue;
    const Handing* handing = handing_behind(torch::autograd::impl::gradient_edge(begin));
    if (!handing) continue;
    if (begin.is_leaf())
      torch::autograd::impl::set_grad_accumulator(
          begin, c10::weak_intrusive_ptr<Node>(handing->next_edge(0).function));
    else
      torch::autograd::impl::set_gradient_edge(begin, handing->next_edge(0));
  }
}

// Of the nodes behind these gradients, which a pass has made from this number on, those that lead to the
// tensors of then ask as the others do.
void ask_behind(const variable_list& gradients, uint64_t from, const OpenGraph& graph,
                const std::shared_ptr<const MemoryThen>& shown) {
  std::unordered_set<Node*> met, ends;
  for (const auto& edge : graph.edges_of_ends())
    if (const Handing* handing = handing_behind(edge)) ends.insert(handing->next_edge(0).function.get());
  std::vector<Node*> open;
  auto meet = [&](Node* node) {
    if (node && node->sequence_nr() >= from && !ends.count(node) && met.insert(node).second)
      open.push_back(node);
  };
  for (const at::Tensor& gradient : gradients)
    if (gradient.defined()) meet(gradient.grad_fn().get());
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    bool leads_there = false;
    for (const auto& edge : node->next_edges()) {
      leads_there |= ends.count(edge.function.get()) > 0;
      meet(edge.function.get());
    }
    if (leads_there) node->add_pre_hook(std::make_unique<AsksMemory>(shown));
  }
}

// The same of the nodes themselves, once passes go into the graph from elsewhere.
void lead_past_handing(const OpenGraph& graph, const std::shared_ptr<const MemoryThen>& shown) {
  std::unordered_set<Node*> asking;
  for (const OpenGraph::Exit& exit : graph.exits()) {
    // Torch lets nobody set an edge of a node that others lead to, as it counts how deep they are: here is
    // one node less.
    auto& edge = const_cast<edge_list&>(exit.node->next_edges())[exit.edge];
    const Handing* handing = handing_behind(edge);
    if (!handing) continue;
    edge = torch::autograd::Edge(handing->next_edge(0));
    if (asking.insert(exit.node).second) exit.node->add_pre_hook(std::make_unique<AsksMemory>(shown));
  }
}

// The same tensor with a node of its own before its history. A pass through the graph ends there, and the one
// that it is part of goes on into the history, and calls what hooks there are. A leaf stays one, as autocast
// keeps what it has cast of leaves alone: the node takes the place of what adds up its gradient, which a leaf
// does not hold. Nodes that lead there do, and `held` until there are any.
at::Tensor beginning_of(const at::Tensor& tensor, std::shared_ptr<const MemoryThen> shown,
                        std::vector<c10::intrusive_ptr<Node>>* held) {
  at::Tensor beginning = without_history(tensor);
  auto node = c10::make_intrusive<Handing>(std::move(shown));
  held->push_back(node);
  node->set_next_edges({torch::autograd::impl::gradient_edge(tensor)});
  if (!tensor.is_leaf()) {
    torch::autograd::set_history(beginning, node);
    return beginning;
  }
  beginning.set_requires_grad(true);
  node->add_input_metadata(beginning);
  torch::autograd::impl::set_grad_accumulator(beginning, c10::weak_intrusive_ptr<Node>(node));
  return beginning;
}

// Remembers what the steps made, of some registers. Under a witness all steps run as they were recorded.
class Made final : public Witness {
 public:
  Made(const Program& program, const std::vector<at::Tensor>& registers, const std::vector<int>& of)
      : program_(program), registers_(registers) {
    for (int reg : of) made_.emplace(reg, at::Tensor());
  }
  void before(size_t) override {}
  void after(size_t at) override {
    each_result(program_.steps[at], [&](int reg) {
      auto known = made_.find(reg);
      if (known != made_.end()) known->second = registers_[reg];
    });
  }
  void passes(int, const at::Tensor&) override {}
  // Undefined where no step made it.
  const at::Tensor& of(int reg) const { return made_.at(reg); }

 private:
  const Program& program_;
  const std::vector<at::Tensor>& registers_;
  std::unordered_map<int, at::Tensor> made_;
};

// The random numbers of then, and those of now when it goes out of scope.
class RandomOfThen {
 public:
  explicit RandomOfThen(const RandomStreams& then) {
    if (!then.defined()) return;
    now_ = RandomStreams::now();
    then.put_back();
  }
  ~RandomOfThen() { now_.put_back(); }
  RandomOfThen(const RandomOfThen&) = delete;
  RandomOfThen& operator=(const RandomOfThen&) = delete;

 private:
  RandomStreams now_;
};

// Of the memory of results, what the nodes of the graph have saved: whoever writes to a result from now on,
// and whoever has, with or without a count, writes to that.
void share_memory(const at::Tensor& saved, const at::Tensor& result) {
  const c10::Storage &to = saved.storage(), &from = result.storage();
  if (to.is_alias_of(from)) return;
  bool same = to.nbytes() == from.nbytes() && saved.storage_offset() == result.storage_offset() &&
              saved.device() == result.device();
  TORCH_CHECK(same || same_bits(saved, result), kCannotBuild, "a result was written to since, by .data",
              kBuildsFromNowOn);
  if (!same) return;
  auto let_go = [](void* held) { delete static_cast<c10::Storage*>(held); };
  to.unsafeGetStorageImpl()->set_data_ptr_noswap(
      at::DataPtr(from.mutable_data(), new c10::Storage(from), let_go, from.device()));
}

void share_version(const at::Tensor& saved, const at::Tensor& result) {
  if (!result.defined() || result.is_inference() || saved._version() != result._version()) return;
  const void* known = version_counter_of(result);
  auto share = [&](const at::TensorBase& tensor) {
    tensor.unsafeGetTensorImpl()->set_version_counter(saved.unsafeGetTensorImpl()->version_counter());
  };
  if (result.is_view() && version_counter_of(at::Tensor(result._base())) == known) share(result._base());
  share(result);
}

// Gives the nodes between `roots` and `begins`, which were numbered from `from` up to `to` as they were made,
// the numbers from `first` on.
void number_nodes(const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>& begins, uint64_t from,
                  uint64_t to, uint64_t first) {
  std::unordered_set<Node*> met;
  for (const at::Tensor& begin : begins)
    if (begin.defined() && begin.requires_grad())
      met.insert(torch::autograd::impl::gradient_edge(begin).function.get());
  std::vector<Node*> open;
  auto meet = [&](Node* node) {
    if (!node || !met.insert(node).second) return;
    uint64_t number = node->sequence_nr();
    if (number >= from && number < to) node->set_sequence_nr(first + (number - from));
    open.push_back(node);
  };
  for (const at::Tensor& root : roots)
    if (root.defined() && root.requires_grad())
      meet(torch::autograd::impl::gradient_edge(root).function.get());
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    for (const auto& edge : node->next_edges()) meet(edge.function.get());
  }
}

// What somebody has switched on for the pass is none of the program's business, which ran before it.
class AsThen {
 public:
  AsThen(uint32_t process, caffe2::TypeMeta dtype)
      : hooks_(at::SavedTensorDefaultHooks::get_tls_state()), process_(process) {
    at::SavedTensorDefaultHooks::set_tls_state({});
    torch::autograd::AnomalyMode::set_enabled(false, checks_);
    if (dtype != dtype_) c10::set_default_dtype(dtype);
  }
  ~AsThen() {
    if (c10::get_default_dtype() != dtype_) c10::set_default_dtype(dtype_);
    at::SavedTensorDefaultHooks::set_tls_state(hooks_);
    torch::autograd::AnomalyMode::set_enabled(anomaly_, checks_);
  }
  AsThen(const AsThen&) = delete;
  AsThen& operator=(const AsThen&) = delete;

 private:
  const at::impl::SavedTensorDefaultHooksTLS hooks_;
  const bool anomaly_ = torch::autograd::AnomalyMode::is_enabled();
  const bool checks_ = torch::autograd::AnomalyMode::should_check_nan();
  const caffe2::TypeMeta dtype_ = c10::get_default_dtype();
  const ProcessSwitchesOfThen process_;
  // A pass under vmap brings many gradients; what they are gradients of was computed outside of it.
  c10::impl::ExcludeDispatchKeyGuard outside_{c10::DispatchKeySet(
      {c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::FuncTorchDynamicLayerBackMode,
       c10::DispatchKey::FuncTorchVmapMode, c10::DispatchKey::VmapMode, c10::DispatchKey::Python,
       c10::DispatchKey::PythonTLSSnapshot})};
};

}  // namespace

// A graph that leads on to the tensors of then has saved these, not copies.
std::shared_ptr<const MemoryThen> ReplayedBackward::shown_from_now_on(bool leaves) const {
  auto shown = std::make_shared<MemoryThen>(form_);
  auto add = [&](const at::Tensor& tensor, const BackwardForm::Open& one) {
    if (one.saved) shown->add(tensor, one.look);
  };
  for (size_t i = 0; i < begins_.size() && !leaves; ++i)
    if (at::Tensor begin = begins_[i].owner(); begin.defined() && begin.requires_grad())
      add(begin, form_->begins[i]);
  for (size_t i = 0; i < given_.size(); ++i) add(given_[i].owner(), form_->given[i]);
  return shown;
}

// `leaves`: the graph leads on to the tensors of then, and can be passed through as a whole only.
void ReplayedBackward::build_graph(bool leaves) {
  const Program& whole = form_->whole->program();
  auto is_written = [&](int reg) {
    return std::find(form_->written.begin(), form_->written.end(), reg) != form_->written.end();
  };
  auto is_begin = [&](int reg) {
    return std::any_of(form_->begins.begin(), form_->begins.end(), [&](auto& one) { return one.reg == reg; });
  };
  auto is_given = [&](int reg) {
    auto is_it = [&](const auto& one) { return one.reg == reg; };
    return std::any_of(form_->given.begin(), form_->given.end(), is_it) ||
           std::any_of(form_->roots.begin(), form_->roots.end(), is_it);
  };
  for (size_t i = 0; i < begins_.size(); ++i)
    TORCH_CHECK(is_written(form_->begins[i].reg) || begins_[i].is_as_it_was(), kCannotBuild, "a tensor of ",
                form_->begins[i].look.text(), " that the call began with has been written to since",
                kBuildsFromNowOn);
  check_memory(true);
  AsThen as_then(switches_.process, dtype_);
  ModeSwitch modes;
  modes.to(whole.modes[0]);
  auto graph = std::make_unique<Graph>();
  graph->shown = shown_from_now_on(leaves);
  std::vector<at::Tensor> registers(static_cast<size_t>(whole.registers));
  std::vector<c10::intrusive_ptr<Node>> handing;
  for (size_t i = 0; i < begins_.size(); ++i) {
    const at::Tensor tensor = begins_[i].owner();
    at::Tensor& begin = registers[form_->begins[i].reg] = tensor;
    if (tensor.defined() && tensor.requires_grad() && !leaves)
      begin = beginning_of(tensor, graph->shown, &handing);
  }
  for (size_t i = 0; i < form_->written.size(); ++i) registers[form_->written[i]] = earlier_.written[i];
  std::vector<at::Tensor> begins = registers;
  RandomOfThen random(earlier_.random);
  WorkspaceLease space;
  space->memory.numbers = numbers_;
  Made made(whole, registers, form_->saved);
  uint64_t number = at::sequence_number::peek();
  Outcome outcome =
      Interpreter(*form_->whole, registers, space->values.nodes, space->opaque, space->early, space->memory)
          .run(0, nullptr, &made);
  if (outcome.given.error) std::rethrow_exception(outcome.given.error);
  TORCH_CHECK(outcome.ok(), kCannotBuild, "step ", outcome.step, " gave ", outcome.found, kBuildsFromNowOn);
  // Torch's nodes have what was computed then, whatever was done to the memory behind it without a count.
  for (size_t i = 0; i < saved_.size(); ++i) {
    int reg = form_->saved[i];
    const at::Tensor& now = made.of(reg);
    bool others_have_it = is_begin(reg) || is_given(reg);
    TORCH_CHECK(others_have_it || !now.defined() || !saved_[i].defined() || same_bits(now, saved_[i]),
                kCannotBuild, "memory that the call began with was written to since, by .data",
                kBuildsFromNowOn);
  }
  // What was written to since was saved here, too: who comes to it is told.
  for (size_t i = 0; i < watched_.size(); ++i) {
    const at::Tensor& saved = registers[form_->watched[i].reg];
    if (is_begin(form_->watched[i].reg)) continue;
    for (int64_t n = watched_[i].then(); n < watched_[i].now(); ++n)
      saved.unsafeGetTensorImpl()->bump_version();
    share_memory(saved, watched_[i].tensor());
    share_version(saved, watched_[i].owner());
  }
  for (const auto& root : form_->roots) graph->roots.push_back(Roots::root_of(registers[root.of]));
  if (at::sequence_number::peek() - number == form_->nodes)
    number_nodes(graph->roots, begins, number, number + form_->nodes, first_number_);
  if (!leaves) open(graph.get(), begins);
  for (const auto& one : form_->inner)
    graph->inner.push_back(torch::autograd::impl::gradient_edge(registers[one.reg]));
  graph_ = std::move(graph);
  saved_.clear();
  begins_.clear();
  watched_.clear();
  given_.clear();
}

// `begins`: the registers that the program began with.
void ReplayedBackward::open(Graph* graph, const std::vector<at::Tensor>& begins) const {
  Ends ends(form_->begin_registers(), begins);
  graph->open.emplace(graph->roots, ends.edges);
  const auto& exits = graph->open->exits();
  bool same = graph->open->obstacle().empty() && exits.size() == form_->exits.size();
  for (size_t i = 0; i < exits.size() && same; ++i)
    same = ends.registers[exits[i].end] == form_->exits[i].end;
  TORCH_CHECK(same, kCannotBuild, "its graph is another one by now", kBuildsFromNowOn);
  lead_saved_past_handing(begins);
}

// The graph is passed through to the leaves, as it stands before the tensors of then, and nothing comes from
// this node to them: so their hooks are called, and gradients added up, between its nodes. `lock`: this
// node's, which they may come to.
variable_list ReplayedBackward::pass_to_leaves(const variable_list& gradients,
                                               std::unique_lock<std::recursive_mutex>* lock) {
  build_graph(true);
  edge_list roots;
  variable_list given;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    roots.push_back(torch::autograd::impl::gradient_edge(graph_->roots[i]));
    given.push_back(gradients[i]);
  }
  bool keep = torch::autograd::get_current_graph_task_keep_graph(), create = at::GradMode::is_enabled();
  set_next_edges({});
  // Hooks may begin passes, which find the graph; those of the results have been called.
  lead_past();
  std::exception_ptr raised;
  {
    pybind11::gil_scoped_release released;
    lock->unlock();
    try {
      torch::autograd::Engine::get_default_engine().execute(roots, given, keep, create, true);
    } catch (...) {
      raised = std::current_exception();
    }
    lock->lock();
  }
  take_hooks_along(create);
  if (raised) std::rethrow_exception(raised);
  return {};
}

variable_list ReplayedBackward::pass(const variable_list& gradients) {
  if (!graph_) build_graph();
  TORCH_CHECK(graph_->open && !graph_->left, kCannotBuild, "another pass goes through it", kBuildsFromNowOn);
  OpenGraph::Pass how;
  how.keep = torch::autograd::get_current_graph_task_keep_graph();
  how.create = at::GradMode::is_enabled();
  const auto& exits = graph_->open->exits();
  how.wanted.assign(graph_->open->ends(), 0);
  for (size_t i = 0; i < exits.size(); ++i)
    if (task_should_compute_output(i)) how.wanted[exits[i].end] = 1;
  // What comes to them from here has been handed to them, and comes back in the gradients.
  for (size_t k : asked_inside(all_inner(), true)) {
    const auto& inner = form_->inner[k];
    how.instead.emplace_back(graph_->inner[k], inner.kind < 0 ? gradients[inner.root] : at::Tensor());
  }
  variable_list brought;
  uint64_t number = at::sequence_number::peek();
  {
    pybind11::gil_scoped_release released;
    brought = graph_->open->pass(gradients, how);
  }
  if (how.create) ask_behind(brought, number, *graph_->open, graph_->shown);
  if (!is_inside_another()) lead_on(how.create);
  return brought;
}

// ---------------------------------------------------------------- between results
namespace {

const torch::autograd::GraphTask::ExecInfo* plan_of(const Node* node) {
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  if (!chosen) return nullptr;
  auto found = chosen->find(const_cast<Node*>(node));
  return found == chosen->end() ? nullptr : &found->second;
}

}  // namespace

std::vector<size_t> ReplayedBackward::all_inner() const {
  std::vector<size_t> all(inner_.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Which of these results the pass asks for the gradients of: returns them, or keeps them in `.grad`, where it
// goes no further.
std::vector<size_t> ReplayedBackward::asked_inside(const std::vector<size_t>& inner,
                                                   bool captured_only) const {
  std::vector<size_t> asked;
  for (size_t k : inner) {
    auto node = inner_[k].node.lock();
    const auto* plan = node ? plan_of(node.get()) : nullptr;
    if (!plan) continue;
    auto is_it = [&](const auto& capture) { return capture.input_idx_ == static_cast<int>(inner_[k].input); };
    bool captured = plan->captures_ && std::any_of(plan->captures_->begin(), plan->captures_->end(), is_it);
    if (captured || (plan->needed_ && !captured_only)) asked.push_back(k);
  }
  return asked;
}

// Those that are asked for are given all that comes to them, those that are not come to their hooks in the
// graph. `goes_on`: the pass comes to this node, too.
void ReplayedBackward::check_hooks_inside(const std::vector<size_t>& asked, bool goes_on) const {
  for (size_t k = 0; k < inner_.size(); ++k) {
    auto node = inner_[k].node.lock();
    bool is_asked = std::find(asked.begin(), asked.end(), k) != asked.end();
    TORCH_CHECK(
        !node || !calls_python(*node) || (is_asked && !goes_on), kCannotBuild,
        "a result that another one is made of has a hook, and the gradient of such a result is asked for",
        kBuildsFromNowOn);
  }
}

bool ReplayedBackward::hooks_inside(size_t root) const {
  const auto& leads = form_->leads[root];
  return std::any_of(leads.begin(), leads.end(), [&](size_t k) {
    auto node = inner_[k].node.lock();
    return node && calls_python(*node);
  });
}

void ReplayedBackward::bring_inside(size_t root, const at::Tensor& gradient, variable_list* brought) {
  if (!gradient.defined()) return;
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  const auto* plan = plan_of(this);
  bool goes_on = !chosen || chosen->empty() || (plan && plan->should_execute());
  // A pass that returns gradients comes through others on its way to what it was asked for.
  bool returns = goes_on || !asked_inside(all_inner(), true).empty();
  std::vector<size_t> asked = asked_inside(form_->leads[root], returns);
  bool hooks = hooks_inside(root);
  if (asked.empty() && !(hooks && goes_on)) return;
  std::lock_guard<std::recursive_mutex> lock(passes_);
  pybind11::gil_scoped_acquire gil;
  TORCH_CHECK(!released_, torch::autograd::ERR_BACKWARD_TWICE);
  form_->surprised = true;
  if (!asked.empty()) check_hooks_inside(asked, goes_on);
  if (!graph_) build_graph();
  TORCH_CHECK(graph_->open, kCannotBuild, "another pass goes through it", kBuildsFromNowOn);
  // They must be given what comes to such a result from here, too, and are not called yet.
  if (asked.empty()) return take_hooks_over();
  OpenGraph::Pass how;
  // Others may come through the same nodes in this pass.
  how.keep = torch::autograd::get_current_graph_task_keep_graph() || goes_on || asked.size() > 1;
  how.create = at::GradMode::is_enabled();
  edge_list inside;
  for (size_t k : asked) inside.push_back(graph_->inner[k]);
  variable_list values;
  {
    pybind11::gil_scoped_release released;
    values = graph_->open->pass_to(root, gradient, inside, how);
  }
  const auto& leads = form_->leads[root];
  for (size_t i = 0; i < asked.size(); ++i)
    (*brought)[1 + (std::find(leads.begin(), leads.end(), asked[i]) - leads.begin())] = values[i];
  lead_on_after_this_pass(how.create);
}

// While it runs, it goes by the edges that it has found.
void ReplayedBackward::lead_on_after_this_pass(bool created) {
  if (is_inside_another()) return;
  c10::intrusive_ptr<ReplayedBackward> self = c10::intrusive_ptr<ReplayedBackward>::reclaim_copy(this);
  torch::autograd::Engine::get_default_engine().queue_callback([self, created] {
    std::lock_guard<std::recursive_mutex> lock(self->passes_);
    pybind11::gil_scoped_acquire gil;
    if (self->passing_.empty()) return;
    self->take_hooks_over();
    self->lead_on(created);
  });
}

}  // namespace lazytrace
