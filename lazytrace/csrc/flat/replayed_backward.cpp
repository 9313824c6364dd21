#include "flat/replayed_backward.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "flat/named.h"
#include "flat/roots.h"
#include "flat/undo.h"
#include "replay/lowered.h"
#include "replay/workspace.h"
#include "signature/ambient.h"
#include "torch/autograd_graph.h"
#include "torch/overrides.h"

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

namespace {

constexpr const char* kCannotBuild =
    "a backward pass through the replay of a traced function asked for more than the passes before it: for a "
    "graph of the gradients (create_graph), for some of them only (inputs), for those of other results, or "
    "under other switches of torch. That needs the whole graph of autograd, which cannot be built any more: ";
constexpr const char* kNext =
    ". From now on the function builds its graph at each call; make this call again, or pass "
    "create_graph=True in the first backward pass, too.";

// A result would hold its node, and the node the result. As torch's own saved results are, it is another
// object, whose version is the same.
at::Tensor without_history(const at::Tensor& result) {
  return at::Tensor(result.unsafeGetTensorImpl()->shallow_copy_and_detach(
      result.unsafeGetTensorImpl()->version_counter(), false));
}

void make_views(const BackwardForm& form, std::vector<at::Tensor>* registers) {
  at::AutoGradMode grad(true);
  torch::jit::Stack stack;
  for (const Step& step : form.views) {
    stack.clear();
    for (const Argument& argument : step.arguments)
      stack.emplace_back(argument.kind == Argument::Kind::Register ? c10::IValue((*registers)[argument.reg])
                                                                   : argument.constant);
    step.op.callBoxed(stack);
    const Result& only = step.results[0];
    if (only.kind == Result::Kind::Register) {
      if (only.reg >= 0) (*registers)[only.reg] = stack[0].toTensor();
      continue;
    }
    auto made = stack[0].toTensorVector();
    for (size_t i = 0; i < made.size(); ++i)
      if (only.list[i].reg >= 0) (*registers)[only.list[i].reg] = made[i];
  }
}

}  // namespace

void ReplayedBackward::attach(const std::shared_ptr<const BackwardForm>& form, std::vector<at::Tensor>* all,
                              const NumberValues& numbers, const Earlier& earlier) {
  std::vector<at::Tensor>& registers = *all;
  auto node = c10::make_intrusive<ReplayedBackward>();
  node->form_ = form;
  node->earlier_ = earlier;
  node->switches_ = Switches::now();
  if (!form->whole->numbers.empty()) node->numbers_ = numbers;
  auto is_root = [&](int reg) {
    return std::any_of(form->roots.begin(), form->roots.end(), [&](auto& root) { return root.reg == reg; });
  };
  auto kept = [&](int reg) { return is_root(reg) ? without_history(registers[reg]) : registers[reg]; };
  for (int reg : form->saved) node->saved_.push_back(kept(reg));
  for (const auto& one : form->watched) node->watched_.push_back(Held::of(registers[one.reg], kept(one.reg)));
  for (const auto& one : form->begins) node->begins_.push_back(Held::of(registers[one.reg]));
  edge_list edges;
  for (const auto& exit : form->exits)
    edges.push_back(torch::autograd::impl::gradient_edge(registers[exit.end]));
  node->set_next_edges(std::move(edges));
  for (const auto& root : form->roots) {
    uint32_t input = node->add_input_metadata(registers[root.reg]);
    auto named = make_passing(root.kind);
    node->passing_.emplace_back(named);
    named->set_next_edges({torch::autograd::Edge(node, input)});
    torch::autograd::set_history(registers[root.reg], named);
  }
  if (!form->views.empty()) make_views(*form, all);
  for (const auto& one : form->given) {
    const at::Tensor& result = registers[one.reg];
    node->given_.push_back(Held::of(result, result.requires_grad() ? without_history(result) : result));
  }
  for (const auto& one : form->inner) {
    auto edge = torch::autograd::impl::gradient_edge(registers[one.second]);
    node->inner_.push_back({WeakNode(edge.function), edge.input_nr});
  }
}

void ReplayedBackward::release_variables() {
  std::lock_guard<std::mutex> lock(mutex_);
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
bool ReplayedBackward::as_recorded(const variable_list& gradients) const {
  if (at::GradMode::is_enabled() || torch::autograd::AnomalyMode::is_enabled() ||
      c10::impl::TorchDispatchModeTLS::any_modes_set() || operators_are_watched())
    return false;
  if (form_->program.overrides != aten_overrides() || !(switches_ == Switches::now())) return false;
  for (size_t i = 0; i < form_->roots.size(); ++i) {
    const auto& root = form_->roots[i];
    if (root.given < 0 ? gradients[i].defined() : !root.look.matches(gradients[i])) return false;
  }
  for (size_t i = 0; i < form_->exits.size(); ++i)
    if (!task_should_compute_output(i)) return false;
  return true;
}

variable_list ReplayedBackward::apply(variable_list&& gradients) {
  std::lock_guard<std::mutex> lock(mutex_);
  pybind11::gil_scoped_acquire gil;
  TORCH_CHECK(!released_, torch::autograd::ERR_BACKWARD_TWICE);
  bool hooks = !graph_ && inner_hooks(gradients);
  if (!graph_ && !hooks && as_recorded(gradients)) return replay(gradients);
  form_->surprised = true;
  return pass(gradients);
}

// Whether a result that others are made of has hooks: these must be given what comes to it from those, too.
bool ReplayedBackward::inner_hooks(const variable_list& gradients) const {
  bool found = false;
  for (size_t i = 0; i < inner_.size(); ++i) {
    auto node = inner_[i].node.lock();
    size_t root = form_->inner[i].first;
    bool others = false;
    for (size_t k = 0; k < gradients.size(); ++k) others |= k != root && gradients[k].defined();
    if (!node || !others || !calls_python(*node)) continue;
    TORCH_CHECK(!gradients[root].defined(), kCannotBuild,
                "a result that another one is made of has a hook, which was called before all was there",
                kNext);
    found = true;
  }
  return found;
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
void ReplayedBackward::take_hooks_over(const std::vector<at::Tensor>& registers) {
  for (size_t i = 0; i < inner_.size(); ++i) {
    auto from = inner_[i].node.lock();
    auto to = torch::autograd::impl::gradient_edge(registers[form_->inner[i].second]);
    if (!from || !calls_python(*from)) continue;
    TORCH_CHECK(to.input_nr == inner_[i].input && from->pre_hooks().empty() && from->post_hooks().empty(),
                kCannotBuild, "the node of a result that another one is made of has hooks", kNext);
    move_hooks(from.get(), to.function.get());
  }
}

// The passes after the first one find the graph itself behind the results. `created`: gradients of that pass
// have graphs, which lead into this one past the results' own nodes.
void ReplayedBackward::lead_on(bool created) {
  for (size_t i = 0; i < passing_.size(); ++i) {
    auto from = passing_[i].lock();
    if (!from) continue;
    auto to = torch::autograd::impl::gradient_edge(graph_->roots[i]);
    bool same_place = to.input_nr == 0 && from->pre_hooks().empty() && from->post_hooks().empty();
    if (same_place) move_hooks(from.get(), to.function.get());
    bool inner = std::any_of(form_->inner.begin(), form_->inner.end(),
                             [&](const auto& one) { return one.first == i; });
    lazytrace::lead_on(from.get(), std::move(to), inner || created);
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
    if ((!all && !one.saved) || held.shows_the_same(one.look)) return;
    form_->surprised = true;
    TORCH_CHECK(
        false, "a tensor of ", one.look.text(),
        ", which a replay of a traced function was given or gave, was given other memory (.data, set_()) "
        "before the backward pass",
        kNext);
  };
  for (size_t i = 0; i < begins_.size(); ++i) check(begins_[i], form_->begins[i]);
  for (size_t i = 0; i < given_.size() && !all; ++i) check(given_[i], form_->given[i]);
}

variable_list ReplayedBackward::replay(const variable_list& gradients) {
  check_versions();
  check_memory(false);
  bool keep = torch::autograd::get_current_graph_task_keep_graph() || !form_->spends;
  std::vector<at::Tensor> registers(static_cast<size_t>(form_->program.registers));
  for (size_t i = 0; i < saved_.size(); ++i) registers[i] = keep ? saved_[i] : std::move(saved_[i]);
  variable_list brought;
  if (form_->run(&registers, gradients, &brought)) return brought;
  form_->surprised = true;
  return pass(gradients);
}

// ---------------------------------------------------------------- the whole graph
namespace {

// Hands gradients on as they are.
struct Handing final : torch::autograd::Node {
  variable_list apply(variable_list&& gradients) override { return std::move(gradients); }
  std::string name() const override { return "Handing"; }
};

// The same tensor with a node of its own before its history. A pass through the graph ends there, and the one
// that it is part of goes on into the history, and calls what hooks there are.
at::Tensor beginning_of(const at::Tensor& tensor) {
  at::Tensor beginning = without_history(tensor);
  auto node = c10::make_intrusive<Handing>();
  node->set_next_edges({torch::autograd::impl::gradient_edge(tensor)});
  torch::autograd::set_history(beginning, node);
  return beginning;
}

// Shows each step that it runs to nobody: so all of them run as they were recorded.
struct Nobody final : Witness {
  void before(size_t) override {}
  void after(size_t) override {}
  void passes(int, const at::Tensor&) override {}
};

// The random numbers of then, and those of now when it goes out of scope.
class RandomOfThen {
 public:
  explicit RandomOfThen(const at::Tensor& then) {
    if (!then.defined()) return;
    now_ = random_state();
    set_random_state(then);
  }
  ~RandomOfThen() {
    if (now_.defined()) set_random_state(now_);
  }
  RandomOfThen(const RandomOfThen&) = delete;
  RandomOfThen& operator=(const RandomOfThen&) = delete;

 private:
  at::Tensor now_;
};

}  // namespace

void ReplayedBackward::build_graph() {
  const Program& whole = *form_->whole;
  auto is_written = [&](int reg) {
    return std::find(form_->written.begin(), form_->written.end(), reg) != form_->written.end();
  };
  auto is_begin = [&](int reg) {
    return std::any_of(form_->begins.begin(), form_->begins.end(), [&](auto& one) { return one.reg == reg; });
  };
  for (size_t i = 0; i < begins_.size(); ++i)
    TORCH_CHECK(is_written(form_->begins[i].reg) || begins_[i].is_as_it_was(), kCannotBuild, "a tensor of ",
                form_->begins[i].look.text(), " that the call began with has been written to since", kNext);
  check_memory(true);
  // A pass under vmap brings many gradients; what they are gradients of was computed outside of it.
  c10::impl::ExcludeDispatchKeyGuard outside(c10::DispatchKeySet(
      {c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::FuncTorchDynamicLayerBackMode,
       c10::DispatchKey::FuncTorchVmapMode, c10::DispatchKey::VmapMode}));
  ModeSwitch modes;
  modes.to(whole.modes[0]);
  auto graph = std::make_unique<Graph>();
  std::vector<at::Tensor> registers(static_cast<size_t>(whole.registers));
  for (size_t i = 0; i < begins_.size(); ++i) {
    const at::Tensor& tensor = begins_[i].tensor();
    registers[form_->begins[i].reg] =
        tensor.defined() && tensor.requires_grad() ? beginning_of(tensor) : tensor;
  }
  for (size_t i = 0; i < form_->written.size(); ++i) registers[form_->written[i]] = earlier_.written[i];
  std::vector<at::Tensor> begins = registers;
  RandomOfThen random(earlier_.random);
  WorkspaceLease space;
  space->memory.numbers = numbers_;
  Nobody nobody;
  Outcome outcome = Runner(whole, registers, space->values.nodes, space->opaque, space->early, space->memory)
                        .run(0, nullptr, &nobody);
  if (outcome.given.error) std::rethrow_exception(outcome.given.error);
  TORCH_CHECK(outcome.ok(), kCannotBuild, "step ", outcome.step, " gave ", outcome.found, kNext);
  // What was written to since was saved here, too: who comes to it is told.
  for (size_t i = 0; i < watched_.size(); ++i)
    for (int64_t n = watched_[i].then(); n < watched_[i].now() && !is_begin(form_->watched[i].reg); ++n)
      registers[form_->watched[i].reg].unsafeGetTensorImpl()->bump_version();
  for (const auto& root : form_->roots) graph->roots.push_back(Roots::root_of(registers[root.of]));
  Ends ends(form_->begin_registers(), begins);
  graph->open.emplace(graph->roots, ends.edges);
  const auto& exits = graph->open->exits();
  bool same = graph->open->obstacle().empty() && exits.size() == form_->exits.size();
  for (size_t i = 0; i < exits.size() && same; ++i)
    same = ends.registers[exits[i].end] == form_->exits[i].end;
  TORCH_CHECK(same, kCannotBuild, "its graph is another one by now", kNext);
  take_hooks_over(registers);  // no pass that is watched goes through them
  graph_ = std::move(graph);
  saved_.clear();
  begins_.clear();
  watched_.clear();
  given_.clear();
}

variable_list ReplayedBackward::pass(const variable_list& gradients) {
  if (!graph_) build_graph();
  OpenGraph::Pass how;
  how.keep = torch::autograd::get_current_graph_task_keep_graph();
  how.create = at::GradMode::is_enabled();
  const auto& exits = graph_->open->exits();
  how.wanted.assign(graph_->open->ends(), 0);
  for (size_t i = 0; i < exits.size(); ++i)
    if (task_should_compute_output(i)) how.wanted[exits[i].end] = 1;
  variable_list brought;
  {
    pybind11::gil_scoped_release released;
    brought = graph_->open->pass(gradients, how);
  }
  lead_on(how.create);
  return brought;
}

}  // namespace lazytrace
