#include "flat/flattening.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <sstream>
#include <unordered_set>

#include "flat/named.h"
#include "flat/saved.h"
#include "passes/exits.h"
#include "passes/frees.h"
#include "passes/lower.h"
#include "passes/registers.h"
#include "replay/interpreter.h"
#include "torch/autograd_graph.h"
#include "torch/overrides.h"

namespace lazytrace {

Flattening::Flattening(const Program& program, const std::vector<at::Tensor>& registers,
                       std::function<bool(int64_t)> knows_writes)
    : program_(program),
      registers_(registers),
      knows_writes_(std::move(knows_writes)),
      sharing_(sharing_of(program, registers)),
      kernels_(program.registers, kernel_registrations()),
      graph_(static_cast<size_t>(program.registers), 0),
      enters_(static_cast<size_t>(program.registers), 0),
      modes_(program.modes),
      now_(program.modes[0]) {
  for (int reg : program.used) kernels_.meet(reg, registers[reg]);
  for (int reg : program.captures) kernels_.meet(reg, registers[reg]);
  auto begin = [&](int reg) {
    if (!registers[reg].defined() || !registers[reg].requires_grad()) return;
    begins_graph_.push_back(reg);
    edges_.push_back(torch::autograd::impl::gradient_edge(registers[reg]));
  };
  if (!program.backward) {
    for (int reg : program.used) begin(reg);
    for (int reg : program.captures) begin(reg);
  }
  if (program.dynamic) hinder("it follows sizes");
  if (program.python_between) hinder("hooks of saved tensors are called");
  if (program.modes[0].any_autocast()) hinder("it was called under autocast");
}

void Flattening::hinder(const std::string& why) {
  if (obstacle_.empty()) obstacle_ = why;
}

// ---------------------------------------------------------------- while the program runs
void Flattening::before(size_t at) {
  collects_ = false;
  const Step& step = program_.steps[at];
  if (step.modes >= 0) now_ = program_.modes[step.modes];
  if (!obstacle_.empty()) return;
  kernels_.clear();
  mark_ = kernels_.steps().size();
  first_new_ = kernels_.registers();
  backward_ = step.opaque && step.opaque->engine;
  if (backward_ && step.opaque->python) return hinder("a backward pass runs Python code");
  if (backward_) meet_leaves(step);
  collects_ = step.kind == Step::Kind::Operator || backward_;
  note_whole_numbers(step);
}

void Flattening::on_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                           torch::jit::Stack* stack) {
  if (!collects_) return run_kernel(op, keys, stack);
  watch_gradients();
  kernels_.on_kernel(op, keys, stack);
}

void Flattening::after(size_t at) {
  bool collected = std::exchange(collects_, false);
  if (!obstacle_.empty()) return;
  const Step& step = program_.steps[at];
  // What gives a number, such as item(), gives the same one without the graph.
  bool graph = gives_graph(step) || (takes_graph(step) && !gives_numbers(step));
  if (backward_) {
    watch_gradients();
    leaves_.clear();
    backward_ = false;
    graph = true;
  }
  if (collected && graph) return replace(step);
  if (step.kind == Step::Kind::Opaque && graph) return hinder(step.opaque->name + " is given a graph");
  if (step.kind == Step::Kind::SetGradient && graph) return hinder("a gradient has a graph");
  // Its proof runs what is kept twice.
  if (step.opaque && step.opaque->python) return hinder(step.opaque->name + " runs Python code");
  for (const Argument& argument : step.arguments)
    if (argument.kind == Argument::Kind::Generator) return hinder("a generator is drawn from");
  keep(step);
}

// Whether the function may go on in another way after the step.
bool Flattening::leads_away(const Step& step) const {
  if (!step.exit || step.kind == Step::Kind::Gradient) return false;
  if (step.after_writes) return !knows_writes_(step.node);
  if (step.opaque && step.opaque->engine) return false;
  // That an operation gives a number at all is no branch of the function's: eager code would raise there.
  return step.kind != Step::Kind::Read || step.arguments[0].kind != Argument::Kind::Number ||
         program_.numbers[static_cast<size_t>(step.arguments[0].reg)].kind != Number::Kind::Works;
}

bool Flattening::takes_graph(const Step& step) const {
  bool found = false;
  each_argument(step, [&](int reg) { found |= graph_[reg] != 0; });
  return found;
}

bool Flattening::gives_numbers(const Step& step) {
  return step.kind == Step::Kind::Operator && !step.effect && !step.results.empty() &&
         std::all_of(step.results.begin(), step.results.end(), [](const Result& result) {
           return result.kind == Result::Kind::Number || result.kind == Result::Kind::Read;
         });
}

// A result that requires gradients and is no leaf.
bool Flattening::gives_graph(const Step& step) const {
  bool found = false;
  each_result(step, [&](int reg) {
    found |= reg >= 0 && registers_[reg].defined() && registers_[reg].requires_grad() &&
             !registers_[reg].is_leaf();
  });
  return found;
}

// ---------------------------------------------------------------- gradients
Step Flattening::gradient_step(Step::Kind kind, int leaf) const {
  static auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::detach", "");
  Step step(kind, handle);
  Argument argument;
  argument.kind = Argument::Kind::Register;
  argument.reg = leaf;
  step.arguments.push_back(argument);
  return step;
}

// The leaves that the pass may come to. A gradient that is there already will be added to.
void Flattening::meet_leaves(const Step& step) {
  std::vector<at::Tensor> roots;
  each_argument(step, [&](int reg) { roots.push_back(registers_[reg]); });
  AutogradGraph graph;
  {
    py::gil_scoped_acquire gil;  // nodes may belong to Python
    graph = AutogradGraph::of(roots);
  }
  if (graph.python) return hinder("a backward pass runs Python code");
  if (!step.opaque->accumulates) return;
  for (const at::Tensor& leaf : graph.leaves) {
    int reg = kernels_.register_of(leaf);
    if (reg < 0) return hinder("a leaf of unknown origin");
    const at::Tensor& gradient = leaf.grad();
    if (gradient.defined() && gradient.requires_grad()) return hinder("a gradient has a graph");
    if (gradient.defined() && kernels_.register_of(gradient) < 0) {
      Step read = gradient_step(Step::Kind::Gradient, reg);
      Result result;
      result.reg = kernels_.fresh();
      result.meta = std::make_shared<TensorMeta>(TensorMeta::of(gradient));
      read.results.push_back(result);
      if (kernels_.was_there(leaf))
        kernels_.meet(result.reg, gradient);
      else
        kernels_.know(result.reg, gradient, false);
      kernels_.steps().push_back(std::move(read));
      gradients_[reg] = result.reg;
    }
    leaves_.push_back({reg, leaf, gradient.defined() ? gradient.unsafeGetTensorImpl() : nullptr});
  }
}

// Where autograd has set a gradient since the last kernel.
void Flattening::watch_gradients() {
  for (Leaf& leaf : leaves_) {
    const at::Tensor& gradient = leaf.tensor.grad();
    const c10::TensorImpl* impl = gradient.defined() ? gradient.unsafeGetTensorImpl() : nullptr;
    if (impl == leaf.gradient) continue;
    leaf.gradient = impl;
    if (!impl) return hinder("a gradient is taken away");
    int reg = kernels_.register_of(gradient);
    if (reg < 0) return hinder("a gradient of unknown origin");
    if (gradient.requires_grad()) return hinder("a gradient has a graph");
    Step set = gradient_step(Step::Kind::SetGradient, leaf.reg);
    Argument value;
    value.kind = Argument::Kind::Register;
    value.reg = reg;
    set.arguments.push_back(value);
    set.effect = kernels_.is_external(leaf.tensor);
    if (set.effect) kernels_.outlives(gradient);
    kernels_.steps().push_back(std::move(set));
    gradients_[leaf.reg] = reg;
  }
}

// ---------------------------------------------------------------- steps
int Flattening::mode(const Modes& modes) {
  auto at = std::find(modes_.begin(), modes_.end(), modes);
  if (at == modes_.end()) at = modes_.insert(modes_.end(), modes);
  return static_cast<int>(at - modes_.begin());
}

// The modes of the steps from `from` on, as numbers of all modes for now. Kernels have what autocast does
// behind them.
void Flattening::set_modes(size_t from, const Modes& now, bool kernels) {
  Modes modes = now;
  if (kernels)
    for (bool& on : modes.autocast) on = false;
  for (size_t i = from; i < kernels_.steps().size(); ++i) {
    Step& step = kernels_.steps()[i];
    if (kernels) modes.grad = step.flat && step.modes == 1;
    step.modes = mode(modes);
  }
}

// Reading a gradient once more, with nothing in between that could have changed it.
bool Flattening::drops(const Step& step) {
  int leaf = step.arguments[0].reg;
  const Result& result = step.results[0];
  auto known = gradients_.find(leaf);
  if (known == gradients_.end()) {
    gradients_[leaf] = result.reg;
    return false;
  }
  if (!step.numbers.empty() || !result.meta->defined() || known->second < 0) return false;
  if (kernels_.register_of(registers_[result.reg]) < 0) return false;
  if (result.known) return true;
  size_t before = obstacle_.size();
  name(result);
  return obstacle_.size() == before;
}

void Flattening::keep(const Step& step) {
  kernels_.drop(mark_, first_new_);
  if (step.kind == Step::Kind::Gradient && begins_ >= 0 && drops(step)) return;
  if (step.kind == Step::Kind::SetGradient)
    gradients_[step.arguments[0].reg] = step.arguments.size() > 1 ? step.arguments[1].reg : -1;
  if (step.opaque) gradients_.clear();
  kernels_.steps().push_back(step);
  Step& copy = kernels_.steps().back();
  copy.frees.clear();
  copy.lowered = nullptr;
  copy.quiet = Step::Quiet::Never;
  copy.exit = leads_away(step);
  copy.early = step.effect && kernels_.writes_early(step, registers_);
  for (Argument& argument : copy.arguments) argument.last = false;
  set_modes(mark_, now_, false);
  bool gradient = step.kind == Step::Kind::Gradient;
  each_result(step, [&](int reg) {
    if (reg >= 0) gradient ? kernels_.meet(reg, registers_[reg]) : kernels_.know(reg, registers_[reg], false);
  });
}

void Flattening::replace(const Step& step) {
  if (!kernels_.obstacle().empty()) return hinder(kernels_.obstacle());
  if (step.takes_numbers) return hinder("a number that may differ enters a graph");
  if (step.python) return hinder("a kernel in Python");
  if (reads_values(step)) return hinder("code of torch reads the values of a tensor outside of any kernel");
  if (begins_ < 0) begins_ = static_cast<int>(mark_);
  each_argument(step, [&](int reg) {
    if (reg < static_cast<int>(enters_.size())) enters_[reg] = 1;
  });
  bool away = leads_away(step);
  for (size_t i = mark_; i < kernels_.steps().size(); ++i) {
    kernels_.steps()[i].place = step.place;
    kernels_.steps()[i].node = step.node;
    kernels_.steps()[i].exit |= away;
  }
  set_modes(mark_, now_, true);
  name_results(step);
  if (mark_ < kernels_.steps().size())
    kernels_.steps()[mark_].numbers = step.numbers;
  else if (!step.numbers.empty())
    hinder("numbers are worked out where no kernel runs");
}

void Flattening::note_whole_numbers(const Step& step) {
  whole_.clear();
  each_argument(step, [&](int reg) {
    const at::Tensor& tensor = registers_[reg];
    if (tensor.defined() && at::isIntegralType(tensor.scalar_type(), true))
      whole_.push_back(kernels_.register_of(tensor));
  });
}

// The code of an operator that is made of others, or of its backward pass, may look at the memory of a tensor
// (lengths, the places where to split) and call kernels with what it found: constants, as far as they show.
// Such a tensor, or the copy that was made to look at, goes into no kernel.
bool Flattening::reads_values(const Step& step) const {
  static const std::unordered_set<std::string> kByLook = {"aten::view_as", "aten::expand_as",
                                                          "aten::reshape_as", "aten::type_as", "aten::to"};
  if (kByLook.count(step.op.schema().name())) return false;
  std::unordered_set<int> used;
  auto first = kernels_.steps().begin() + static_cast<std::ptrdiff_t>(mark_), last = kernels_.steps().end();
  for (auto kernel = first; kernel != last; ++kernel)
    each_argument(*kernel, [&](int reg) { used.insert(reg); });
  each_result(step, [&](int reg) {
    if (reg >= 0 && registers_[reg].defined()) used.insert(kernels_.register_of(registers_[reg]));
  });
  auto is_read = [&](int reg) { return reg < 0 || !used.count(reg); };
  if (std::any_of(whole_.begin(), whole_.end(), is_read)) return true;
  // Its backward pass looks at what it gives.
  auto packs = [](const Step& kernel) { return kernel.op.schema().name() == "aten::_pack_padded_sequence"; };
  return std::any_of(first, last, packs) || looks_at_copies(mark_, used);
}

bool Flattening::looks_at_copies(size_t from, const std::unordered_set<int>& used) const {
  auto first = kernels_.steps().begin() + static_cast<std::ptrdiff_t>(from);
  return std::any_of(first, kernels_.steps().end(), [&](const Step& kernel) {
    const std::string& name = kernel.op.schema().name();
    if (name != "aten::_to_copy" && name != "aten::clone") return false;
    const Result& copy = kernel.results[0];
    return at::isIntegralType(copy.meta->dtype(), true) && (copy.reg < 0 || !used.count(copy.reg));
  });
}

// Which kernel's result each result of the step is.
void Flattening::name_results(const Step& step) {
  for (const Result& result : step.results) {
    name(result);
    for (const Result& one : result.list) name(one);
  }
}

void Flattening::name(const Result& result) {
  if (result.reg < 0) return;
  const at::Tensor& tensor = registers_[result.reg];
  if (!tensor.defined()) return;
  graph_[result.reg] = tensor.requires_grad() && !tensor.is_leaf();
  if (result.known) return;
  int reg = kernels_.register_of(tensor);
  if (reg < 0) return hinder("a result of unknown origin");
  names_.resize(static_cast<size_t>(kernels_.registers()), -1);
  if (reg < program_.registers || names_[reg] >= 0) return hinder("two results are one tensor");
  names_[reg] = result.reg;
  kernels_.know(result.reg, tensor, kernels_.is_external(tensor));
}

void Flattening::rename() {
  names_.resize(static_cast<size_t>(kernels_.registers()), -1);
  auto rename = [&](int& reg) {
    if (reg >= 0 && names_[reg] >= 0) reg = names_[reg];
  };
  auto rename_all = [&](Step& step) {
    for (Argument& argument : step.arguments) {
      if (argument.kind == Argument::Kind::Register) rename(argument.reg);
      if (argument.kind == Argument::Kind::List)
        for (int& reg : argument.list) rename(reg);
    }
    for (Result& result : step.results) {
      rename(result.reg), rename(result.base);
      for (Result& one : result.list) rename(one.reg), rename(one.base);
    }
  };
  for (Step& step : kernels_.steps()) rename_all(step);
  if (!follows_) return;
  for (Step& step : follows_->views) rename_all(step);
  for (auto& root : follows_->roots) rename(root.reg);
}

// ---------------------------------------------------------------- the form
namespace {

// How a backward pass from here ends, before it has done anything: at nodes whose saved tensors are gone, on
// every way. Those before them must save nothing that could be written to later, which raises another error.
// Needs the GIL.
struct SpentGraph {
  bool spent = false;
  std::unordered_set<torch::autograd::Node*> before;  // the nodes that a pass goes through, or stops at

  explicit SpentGraph(const at::Tensor& root) {
    std::vector<torch::autograd::Node*> open{root.grad_fn().get()};
    before.insert(open.begin(), open.end());
    while (!open.empty()) {
      torch::autograd::Node* node = open.back();
      open.pop_back();
      Saved saved = saved_by(node);
      if (saved == Saved::Tensors || dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
        spent = false;
        return;
      }
      if (saved == Saved::Gone) {
        spent = true;
        continue;
      }
      for (const auto& edge : node->next_edges())
        if (edge.function && before.insert(edge.function.get()).second) open.push_back(edge.function.get());
    }
  }
};

// Memory that a kernel makes and nobody takes, such as the workspace of a batch norm.
void drop_blanks(Program* program, const std::vector<int>& outputs) {
  std::vector<char> used(static_cast<size_t>(program->registers), 0);
  for (int reg : outputs) used[reg] = 1;
  for (const Step& step : program->steps) each_needed(*program, step, [&](int reg) { used[reg] = 1; });
  auto unused = [&](const Step& step) {
    return step.flat && step.modes < 0 && facts_of(step.op).blank_factory && !used[step.results[0].reg];
  };
  auto& steps = program->steps;
  steps.erase(std::remove_if(steps.begin(), steps.end(), unused), steps.end());
}

}  // namespace

void Flattening::spend(const std::vector<int>& outputs, FlatForm* form) {
  for (int reg : outputs) {
    const at::Tensor& tensor = registers_[reg];
    if (!tensor.defined() || !tensor.requires_grad() || tensor.is_leaf()) continue;
    auto is_it = [&](const FlatForm::Spent& one) { return one.reg == reg; };
    if (!graph_[reg] || std::any_of(form->spent.begin(), form->spent.end(), is_it)) continue;
    if (tensor.is_view()) return hinder("a view with a graph leaves the function");
    SpentGraph graph(tensor);
    if (!graph.spent) return hinder("a graph that no backward pass has used up leaves the function");
    auto is_before = [&](int other) {
      const auto& node = registers_[other].defined() ? registers_[other].grad_fn() : nullptr;
      return node && node != tensor.grad_fn() && graph.before.count(node.get());
    };
    if (std::any_of(outputs.begin(), outputs.end(), is_before))
      return hinder("a graph that no backward pass has used up leads from one result to another");
    FlatForm::Spent spent{reg, node_kind(node_name_of(tensor)), {}, {}};
    if (spent.kind < 0) return hinder("results of too many kinds of operators");
    AutogradGraph behind = AutogradGraph::of({tensor});
    for (const at::Tensor& leaf : behind.leaves) {
      int known = kernels_.register_of(leaf);
      bool stays =
          std::find(program_.captures.begin(), program_.captures.end(), known) != program_.captures.end() ||
          std::find(program_.used.begin(), program_.used.end(), known) != program_.used.end();
      if (stays) spent.leaves.push_back(known);
    }
    for (int other : outputs)
      if (registers_[other].defined() && registers_[other].grad_fn() != tensor.grad_fn() &&
          behind.nodes.count(registers_[other].grad_fn().get()))
        spent.results.push_back(other);
    form->spent.push_back(std::move(spent));
  }
  // What is behind a node must be there before it.
  std::sort(form->spent.begin(), form->spent.end(), [&](const auto& a, const auto& b) {
    return registers_[a.reg].grad_fn()->sequence_nr() < registers_[b.reg].grad_fn()->sequence_nr();
  });
}

// Whether the step looks at a number that hangs on nothing but what the call and its guards bring.
bool Flattening::reads_given(const Step& step) const {
  if (step.kind != Step::Kind::Read || step.arguments[0].kind != Argument::Kind::Number) return false;
  auto later = [](const Number& number) { return number.asks_tensor() || number.kind == Number::Kind::Item; };
  return leaves_of(program_.numbers, step.arguments[0].reg, later).empty();
}

// A flat form cannot be resumed: where it stops at an exit behind the beginning, all is put back, and the
// program itself runs. Memory that was there before is not.
void Flattening::place_undo(FlatForm* form) {
  Program& made = form->program;
  auto remains = [](const Step& step) {
    return step.once() && step.kind != Step::Kind::SetGradient && (step.early || step.opaque || step.python);
  };
  auto fixed = std::find_if(made.steps.begin(), made.steps.end(), remains);
  bool changed = false;
  for (auto step = made.steps.begin(); step != made.steps.end(); ++step) {
    changed |= step->once();
    size_t at = static_cast<size_t>(step - made.steps.begin());
    if (at < form->begins || !std::exchange(step->exit, false)) continue;
    if (reads_given(*step)) {
      form->reads.push_back(at);
      continue;
    }
    if (step >= fixed)
      return hinder("what follows hangs on a value (" + step->op.schema().name() +
                    "), after memory of before the call has changed");
    if (changed) made.undoable = static_cast<int>(at);
  }
  for (int at = 0; at <= made.undoable; ++at) {
    const Step& step = made.steps[static_cast<size_t>(at)];
    form->draws |= step.random;
    if (step.kind == Step::Kind::SetGradient) form->sets.push_back(step.arguments[0].reg);
  }
}

// ---------------------------------------------------------------- the pass through a graph that is left
// Whether the tensors that the program began with have the history that they had.
bool Flattening::keeps_edges() const {
  for (size_t i = 0; i < begins_graph_.size(); ++i)
    if (torch::autograd::impl::gradient_edge(registers_[begins_graph_[i]]) != edges_[i]) return false;
  return true;
}

// A gradient of this look, of any values: what a pass does hangs on none, or it will be found to differ.
at::Tensor gradient_like(const TensorMeta& look, uint64_t seed) {
  int64_t elements = 1;
  for (size_t i = 0; i < look.sizes().size(); ++i)
    elements += std::max<int64_t>(look.sizes()[i] - 1, 0) * look.strides()[i];
  auto generator = at::detail::createCPUGenerator(seed);
  at::Tensor memory = at::randn({elements}, generator, at::TensorOptions().dtype(look.dtype()));
  return memory.as_strided(look.sizes(), look.strides());
}

namespace {

bool writes(const Step& step) {
  const auto& declared = step.op.schema().arguments();
  return facts_of(step.op).hidden_writes ||
         std::any_of(declared.begin(), declared.end(),
                     [](const auto& one) { return one.alias_info() && one.alias_info()->isWrite(); });
}

}  // namespace

// Gradients in the registers that the pass begins with; undefined of those that have none.
std::vector<at::Tensor> Flattening::meet_roots(const Roots& roots, const std::vector<TensorMeta>& looks) {
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < roots.tensors.size(); ++i) {
    const at::Tensor& tensor = roots.tensors[i];
    int kind = node_kind(node_name_of(tensor)), reg = kernels_.register_of(tensor);
    if (kind < 0) hinder("results of too many kinds of operators");
    if (reg < 0) hinder("a result of unknown origin");
    if (kernels_.is_external(tensor)) hinder("memory of before the call leaves it with a graph");
    gradients.emplace_back();
    BackwardForm::Root root{reg, roots.of[i], kind, -1, looks[i]};
    if (looks[i].defined()) {
      gradients.back() = gradient_like(looks[i], i);
      if (!looks[i].matches(gradients.back())) hinder("a gradient that is out of the ordinary");
      root.given = kernels_.fresh();
      kernels_.know(root.given, gradients.back(), true);
    }
    follows_->roots.push_back(std::move(root));
  }
  return gradients;
}

// Whether torch raises wherever a second pass begins; where it does nowhere, nothing is let go of.
bool Flattening::raises_twice(const OpenGraph& graph, const std::vector<at::Tensor>& roots) const {
  std::vector<at::Tensor> asked;
  for (size_t i = 0; i < roots.size(); ++i)
    if (follows_->roots[i].given >= 0) asked.push_back(roots[i]);
  OpenGraph gone(asked, edges_);
  if (!gone.saves()) return false;
  std::unordered_set<torch::autograd::Node*> saving;
  for (auto* node : gone.nodes())
    if (saved_by(node) != Saved::Nothing) saving.insert(node);
  auto meets = [&](const at::Tensor& root) {
    OpenGraph part({root}, edges_);
    return std::any_of(part.nodes().begin(), part.nodes().end(),
                       [&](auto* node) { return saving.count(node) > 0; });
  };
  return std::all_of(roots.begin(), roots.end(), meets);
}

// The kernels that lead from the roots to those results that are views of them.
void Flattening::note_views(const std::vector<int>& registers) {
  std::unordered_map<int, const Step*> makers;
  names_.resize(static_cast<size_t>(kernels_.registers()), -1);
  auto known_as = [&](int reg) { return reg >= 0 && names_[reg] >= 0 ? names_[reg] : reg; };
  for (const Step& step : kernels_.steps())
    each_result(step, [&](int reg) { makers.emplace(known_as(reg), &step); });
  std::vector<const Step*> chain;
  for (int view : registers) {
    if (registers_[view]._version() != 0) return hinder("a view that was written to leaves the function");
    int reg = kernels_.register_of(registers_[view]);
    auto is_root = [&](const BackwardForm::Root& root) { return known_as(root.reg) == reg; };
    while (std::none_of(follows_->roots.begin(), follows_->roots.end(), is_root)) {
      auto maker = makers.find(reg);
      bool plain = maker != makers.end() && maker->second->flat && facts_of(maker->second->op).view &&
                   maker->second->arguments[0].kind == Argument::Kind::Register && !writes(*maker->second);
      if (!plain) return hinder("a view of unknown origin leaves the function");
      if (std::find(chain.begin(), chain.end(), maker->second) == chain.end()) chain.push_back(maker->second);
      reg = known_as(maker->second->arguments[0].reg);
    }
  }
  for (const Step& step : kernels_.steps())
    if (std::find(chain.begin(), chain.end(), &step) != chain.end()) follows_->views.push_back(step);
}

// What the program writes to is copied before each replay, as the graph may have to be built from it later.
void Flattening::note_written() {
  constexpr size_t kMostBytes = size_t{1} << 20;
  size_t bytes = 0;
  std::unordered_set<const void*> memory;
  for (int reg : follows_->begins) {
    const at::Tensor& tensor = registers_[reg];
    if (!tensor.defined() || !kernels_.was_written(tensor)) continue;
    if (tensor.requires_grad()) hinder("it writes to a tensor that requires gradients");
    if (!memory.insert(tensor.storage().unsafeGetStorageImpl()).second)
      hinder("it writes to memory that several tensors show");
    bytes += tensor.storage().nbytes();
    follows_->written.push_back(reg);
  }
  if (bytes > kMostBytes) hinder("it writes to more than 1 MiB of before the call");
}

// The caller may write to the results, and to what the program began with, before a pass comes.
void Flattening::note_saved(const OpenGraph& graph, const std::vector<int>& outputs) {
  std::vector<int> open = follows_->begins;
  open.insert(open.end(), outputs.begin(), outputs.end());
  std::vector<torch::autograd::Node*> nodes(graph.nodes().begin(), graph.nodes().end());
  std::sort(nodes.begin(), nodes.end(), [](auto* a, auto* b) { return a->sequence_nr() > b->sequence_nr(); });
  for (auto* node : nodes)
    for (const at::Tensor& saved : saved_tensors(node)) {
      auto is_with = [&](int reg) {
        return registers_[reg].defined() && version_counter_of(registers_[reg]) == version_counter_of(saved);
      };
      auto found = std::find_if(open.begin(), open.end(), is_with);
      if (found == open.end() || saved.is_inference()) continue;
      auto is_known = [&](const BackwardForm::Watched& one) { return one.reg == *found; };
      const auto& known = follows_->watched;
      if (std::any_of(known.begin(), known.end(), is_known)) continue;
      // As SavedVariable::unpack() says it: of a view, autograd then makes the node anew.
      std::ostringstream text;
      text << '[' << saved.toString() << ' ' << saved.sizes() << ']';
      if (const auto& maker = saved.grad_fn()) {
        std::string name = saved.is_view() ? "AsStrided" : maker->name();
        text << ", which is output " << saved.output_nr() << " of " << name.substr(0, name.find("Backward"))
             << ',';
      }
      follows_->watched.push_back({*found, text.str()});
    }
}

void Flattening::follow(std::shared_ptr<const Program> whole, const std::vector<int>& outputs,
                        const std::vector<TensorMeta>& looks) {
  if (!obstacle_.empty()) return;
  if (begins_ < 0) return hinder("it builds no graph");
  if (!keeps_edges()) return hinder("it changes the history of an argument");
  Roots roots(outputs, registers_);
  const std::vector<at::Tensor>& tensors = roots.tensors;
  if (looks.size() != tensors.size()) return hinder("its results are views at times");
  OpenGraph graph(tensors, edges_);
  if (!graph.obstacle().empty()) return hinder(graph.obstacle());
  // Two nodes more, and what a replay costs, against those that there were.
  constexpr size_t kFewest = 6;
  if (graph.nodes().size() < kFewest) return hinder("its graph is too small for one node to pay");
  // Nodes that outlive the trace hold it, and may let go of it in any thread.
  follows_ = std::shared_ptr<BackwardForm>(new BackwardForm(), [](BackwardForm* form) {
    if (Py_IsInitialized() == 0) return;
    py::gil_scoped_acquire gil;
    delete form;
  });
  follows_->whole = std::move(whole);
  follows_->begins = program_.used;
  follows_->begins.insert(follows_->begins.end(), program_.captures.begin(), program_.captures.end());
  note_written();
  kernels_.clear();
  cut_ = mark_ = kernels_.steps().size();
  first_of_pass_ = kernels_.registers();
  std::vector<at::Tensor> gradients = meet_roots(roots, looks);
  note_views(roots.views);
  note_saved(graph, outputs);
  follows_->spends = raises_twice(graph, tensors);
  if (!follows_->spends && graph.saves()) hinder("only some of its results have a graph that is used up");
  if (!obstacle_.empty()) return;
  std::vector<at::Tensor> brought;
  collects_ = true;
  try {
    py::gil_scoped_release released;
    brought = graph.pass(gradients, {});
  } catch (...) {
    std::exception_ptr error = caught();  // the caller's own pass will say so
    hinder("its backward pass raises");
  }
  collects_ = false;
  if (!obstacle_.empty()) return;
  if (!graph.in_order()) hinder("its backward pass goes another way than it came");
  for (size_t i = 0; i < brought.size(); ++i) {
    int reg = brought[i].defined() ? kernels_.register_of(brought[i]) : -1;
    if (brought[i].defined() && reg < first_of_pass_) hinder("a gradient of unknown origin");
    follows_->exits.push_back({begins_graph_[graph.exits()[i].end], reg});
  }
  hinder_by_kernels();
  modes_of_pass_ = now_;
  modes_of_pass_.grad = false;
  for (bool& on : modes_of_pass_.autocast) on = false;
}

// Whether the kernels of the pass can be run again and again: what they are given stays as it is.
void Flattening::hinder_by_kernels() {
  if (!kernels_.obstacle().empty()) return hinder(kernels_.obstacle());
  std::unordered_set<int> used;
  for (const auto& exit : follows_->exits) used.insert(exit.reg);
  for (size_t i = cut_; i < kernels_.steps().size(); ++i)
    each_argument(kernels_.steps()[i], [&](int reg) { used.insert(reg); });
  if (looks_at_copies(cut_, used)) hinder("code of torch reads the values of a tensor outside of any kernel");
  for (size_t i = cut_; i < kernels_.steps().size(); ++i) {
    const Step& step = kernels_.steps()[i];
    const auto& declared = step.op.schema().arguments();
    bool hidden = facts_of(step.op).hidden_writes;
    if (step.random) hinder("its backward pass draws random numbers");
    if (step.effect) hinder("its backward pass writes to what it is given");
    for (size_t a = 0; a < step.arguments.size(); ++a) {
      const auto* alias = declared[a].alias_info();
      if (!hidden && !(alias && alias->isWrite())) continue;
      auto is_saved = [&](int reg) { return reg >= 0 && reg < first_of_pass_; };
      const Argument& argument = step.arguments[a];
      if (is_saved(argument.reg) || std::any_of(argument.list.begin(), argument.list.end(), is_saved))
        hinder("its backward pass writes to what it has saved");
    }
  }
}

namespace {

// Kernels whose results nobody needs, such as those that add up what comes to the end of the graph.
void drop_needless(std::vector<Step>* steps, std::vector<char> needed) {
  std::vector<Step> kept;
  for (size_t i = steps->size(); i-- > 0;) {
    Step& step = (*steps)[i];
    bool used = step.exit || writes(step);
    each_result(step, [&](int reg) { used |= reg >= 0 && needed[reg]; });
    if (!used) continue;
    each_argument(step, [&](int reg) { needed[reg] = 1; });
    kept.push_back(std::move(step));
  }
  steps->assign(std::make_move_iterator(kept.rbegin()), std::make_move_iterator(kept.rend()));
}

}  // namespace

// Views are not saved, but made again: one that was saved would be a view to autograd, too. Puts those of
// what the pass needs before it.
void Flattening::make_views_again(std::vector<Step>* steps) const {
  std::unordered_map<int, const Step*> views;
  const auto& all = kernels_.steps();
  for (const Step& step : all)
    if (step.flat && facts_of(step.op).view && !writes(step))
      each_result(step, [&](int reg) { views.emplace(reg, &step); });
  std::unordered_set<const Step*> needed;
  std::vector<int> open;
  auto need = [&](int reg) {
    auto view = views.find(reg);
    if (view != views.end() && needed.insert(view->second).second)
      each_argument(*view->second, [&](int base) { open.push_back(base); });
  };
  for (const Step& step : *steps) each_argument(step, need);
  while (!open.empty()) {
    int reg = open.back();
    open.pop_back();
    need(reg);
  }
  std::vector<Step> first;
  for (const Step& step : all)
    if (needed.count(&step)) first.push_back(step);
  steps->insert(steps->begin(), std::make_move_iterator(first.begin()), std::make_move_iterator(first.end()));
}

// Cuts the steps of the pass off, into a program of their own. `outputs` grows by what it needs of the
// others.
void Flattening::end_backward(std::vector<int>* outputs) {
  auto& all = kernels_.steps();
  std::vector<Step> steps(std::make_move_iterator(all.begin() + static_cast<std::ptrdiff_t>(cut_)),
                          std::make_move_iterator(all.end()));
  all.erase(all.begin() + static_cast<std::ptrdiff_t>(cut_), all.end());
  std::vector<char> needed(static_cast<size_t>(kernels_.registers()), 0);
  for (const auto& exit : follows_->exits)
    if (exit.reg >= 0) needed[exit.reg] = 1;
  drop_needless(&steps, needed);
  make_views_again(&steps);
  // The registers of its own: what was saved, the gradients, the rest.
  std::vector<int> places(static_cast<size_t>(kernels_.registers()), -1);
  std::vector<char> made(places.size(), 0);
  for (const auto& root : follows_->roots)
    if (root.given >= 0) made[root.given] = 1;
  for (const Step& step : steps) {
    each_argument(step, [&](int reg) {
      if (made[reg] || places[reg] >= 0) return;
      places[reg] = static_cast<int>(follows_->saved.size());
      follows_->saved.push_back(reg);
    });
    each_result(step, [&](int reg) {
      if (reg >= 0 && places[reg] < 0) made[reg] = 1;
    });
  }
  int next = static_cast<int>(follows_->saved.size());
  auto place = [&](int& reg) {
    if (reg < 0) return;
    if (places[reg] < 0) places[reg] = next++;
    reg = places[reg];
  };
  for (auto& root : follows_->roots) place(root.given);
  for (Step& step : steps) {
    for (Argument& argument : step.arguments) {
      if (argument.kind == Argument::Kind::Register) place(argument.reg);
      if (argument.kind == Argument::Kind::List)
        for (int& reg : argument.list) place(reg);
    }
    for (Result& result : step.results) {
      place(result.reg), place(result.base);
      for (Result& one : result.list) place(one.reg), place(one.base);
    }
  }
  std::vector<int> brought;
  for (auto& exit : follows_->exits) {
    place(exit.reg);
    if (exit.reg >= 0) brought.push_back(exit.reg);
  }
  outputs->insert(outputs->end(), follows_->saved.begin(), follows_->saved.end());
  for (const auto& root : follows_->roots) outputs->push_back(root.reg);
  Program& pass = follows_->program;
  pass.modes.push_back(modes_of_pass_);
  for (Step& step : steps) step.modes = -1;
  pass.steps = std::move(steps);
  pass.registers = next;
  pass.overrides = aten_overrides();
  lower(&pass, brought);
  place_frees(&pass, brought);
}

std::shared_ptr<FlatForm> Flattening::finish(std::vector<int> outputs) {
  if (obstacle_.empty() && begins_ < 0) hinder("it builds no graph");
  if (!obstacle_.empty()) return nullptr;
  auto form = std::make_shared<FlatForm>();
  if (!follows_) spend(outputs, form.get());
  auto note_leaf = [&](int reg) {
    if (follows_ || !enters_[reg] || !registers_[reg].defined() || !registers_[reg].requires_grad()) return;
    if (!is_plain_leaf(registers_[reg])) hinder("an argument has a history, or a gradient of another dtype");
    form->leaves.push_back(reg);
  };
  for (int reg : program_.used) note_leaf(reg);
  for (int reg : program_.captures) note_leaf(reg);
  if (!obstacle_.empty()) return nullptr;
  rename();
  if (follows_) end_backward(&outputs);
  if (!obstacle_.empty()) return nullptr;
  form->backward = follows_;
  form->begins = static_cast<size_t>(begins_);
  form->sharing = std::move(sharing_);
  Program& made = form->program;
  made.steps = std::move(kernels_.steps());
  made.modes = std::move(modes_);
  made.registers = follows_ ? first_of_pass_ : kernels_.registers();
  made.inputs = program_.inputs;
  made.captures = program_.captures;
  made.numbers = program_.numbers;
  made.follows_numbers = program_.follows_numbers;
  made.effects = program_.effects;
  made.random = program_.random;
  made.unfilled = program_.unfilled;
  made.backward = program_.backward;
  made.changes_looks = program_.changes_looks;
  made.unresumable = std::min(program_.unresumable, begins_);
  made.overrides = aten_overrides();
  int last = 0;
  for (Step& step : made.steps) {
    int now = step.modes;
    step.modes = now == last ? -1 : now;
    last = now;
  }
  drop_blanks(&made, outputs);
  place_undo(form.get());
  if (!obstacle_.empty()) return nullptr;
  place_exits(&made);
  place_inputs(&made, outputs);
  lower(&made, outputs);
  place_frees(&made, outputs);
  made.used = program_.used;  // what shares memory with what was asked of these
  return form;
}

}  // namespace lazytrace
