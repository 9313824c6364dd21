#include "flat/flattening.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <unordered_set>

#include "flat/kernel_steps.h"
#include "flat/named.h"
#include "flat/saved.h"
#include "flat/written_later.h"
#include "passes/registers.h"
#include "torch/autograd_graph.h"
#include "torch/facts.h"
#include "torch/overrides.h"

namespace lazytrace {

namespace {
// Whether a tensor comes to show other memory, or to have another shape.
bool moves_memory(const Program& program) {
  return std::any_of(program.steps.begin(), program.steps.end(), [](const Step& step) {
    return step.kind == Step::Kind::SetData ||
           (step.kind == Step::Kind::Operator && facts_of(step.op).changes_metadata);
  });
}
}  // namespace

Flattening::Flattening(const Plan& plan, const std::vector<at::Tensor>& registers,
                       std::function<bool(int64_t)> knows_writes)
    : plan_(plan),
      program_(plan.program()),
      registers_(registers),
      knows_writes_(std::move(knows_writes)),
      sharing_(sharing_of(plan, registers)),
      sizes_(program_),
      kernels_(program_.registers, kernel_registrations()),
      graph_(static_cast<size_t>(program_.registers), 0),
      enters_(static_cast<size_t>(program_.registers), 0),
      modes_(program_.modes),
      now_(program_.modes[0]) {
  auto meet = [&](int reg) {
    kernels_.meet(reg, registers[reg]);
    if (registers[reg].defined() && registers[reg].grad_fn()) histories_.insert(registers[reg].grad_fn());
  };
  for (int reg : plan_.used) meet(reg);
  for (int reg : program_.captures) meet(reg);
  if (!program_.backward) following_ = std::make_unique<Following>(plan, registers, &kernels_);
  if (program_.dynamic && moves_memory(program_)) hinder("it follows sizes that change in place");
  if (program_.python_between) hinder("hooks of saved tensors are called");
  if (program_.modes[0].any_autocast()) hinder("it was called under autocast");
}

void Flattening::goes_without_graph() {
  graphless_ = true;
  following_ = nullptr;
}

void Flattening::hinder(const std::string& why) {
  if (obstacle_.empty()) obstacle_ = why;
}

// ---------------------------------------------------------------- while the program runs
void Flattening::before(size_t at) {
  collects_ = false;
  const Step& step = program_.steps[at];
  sizes_.note(step, *numbers_);
  if (step.modes >= 0) now_ = program_.modes[step.modes];
  if (!obstacle_.empty()) return;
  kernels_.clear();
  mark_ = kernels_.steps().size();
  first_new_ = kernels_.registers();
  backward_ = step.opaque && step.opaque->engine;
  if (backward_ && step.opaque->python && !is_watched(step))
    return hinder("a backward pass runs Python code");
  if (backward_) meet_leaves(step);
  if (stands_for_kernels(step) && step.opaque->call.takes_numbers())
    return hinder(step.opaque->name + " takes a number that may differ");
  if (is_pure(step)) pure_.insert(step.opaque->pure);
  if (is_watched(step)) pure_.insert(step.opaque->functions.begin(), step.opaque->functions.end());
  collects_ = step.kind == Step::Kind::Operator || backward_ || stands_for_kernels(step);
  kernels_.take_literals(stands_for_kernels(step) || (backward_ && !pure_.empty()));
  if (is_watched(step) && !backward_) rewinds_.begin_block();
  note_whole_numbers(step);
}

// A custom function whose operators stand for it. A node that is run later would have to call its Python
// code.
bool Flattening::is_pure(const Step& step) const { return step.opaque && step.opaque->pure && !following_; }

// Python code that was watched, or a pass that runs such code once more. The same holds.
bool Flattening::is_watched(const Step& step) const {
  return step.opaque && step.opaque->watched && !following_;
}

// What no graph calls in a form.
bool Flattening::sets_hook(const Step& step) const { return step.opaque && step.opaque->hook && !following_; }

// Whether its Python code was answered what it was answered when it was watched: no guard says anything of
// another way.
bool Flattening::goes_as_recorded(const Step& step) const {
  const std::vector<bool>& answers = step.opaque->answers;
  std::vector<bool> found;
  for (size_t i = mark_; i < kernels_.steps().size(); ++i)
    for (const Result& result : kernels_.steps()[i].results)
      if (result.kind == Result::Kind::Read && result.read.isBool()) found.push_back(result.read.toBool());
  return answers.empty() || found == answers;
}

// Python code of which nothing but its kernels matters.
bool Flattening::stands_for_kernels(const Step& step) const { return is_pure(step) || is_watched(step); }

void Flattening::on_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                           torch::jit::Stack* stack) {
  if (!collects_) return run_kernel(op, keys, stack);
  watch_gradients();
  rewinds_.before_kernel();
  size_t from = kernels_.steps().size();
  kernels_.on_kernel(op, keys, stack);
  if (!kernels_.steps().empty()) rewinds_.after_kernel(kernels_.steps().back().random);
  if (backward_) note_accumulation(from);
}

void Flattening::after(size_t at) {
  bool collected = std::exchange(collects_, false);
  if (!obstacle_.empty()) return;
  const Step& step = program_.steps[at];
  collected && (backward_ || is_watched(step)) ? rewinds_.before_kernel() : rewinds_.go_on();
  // What gives a number, such as item(), gives the same one without the graph.
  bool graph = gives_graph(step) || (takes_graph(step) && !gives_numbers(step));
  if (backward_) {
    watch_gradients();
    leaves_.clear();
    backward_ = false;
    graph = true;
  }
  if (collected && is_watched(step) && !goes_as_recorded(step))
    return hinder(step.opaque->name + " has gone another way than the one that was watched");
  if (collected && (graph || (stands_for_kernels(step) && (begins_ >= 0 || graphless_))))
    return replace(step);
  if (sets_hook(step) && (begins_ >= 0 || step.opaque->hooks_outside)) {
    // One on a leaf of before the call is taken off again, which would be done alone.
    if (begins_ < 0) begins_ = static_cast<int>(mark_);
    each_argument(step, [&](int reg) { hooked_.insert(reg); });
    return kernels_.drop(mark_, first_new_);  // the pass calls it, which is seen
  }
  if (step.kind == Step::Kind::Opaque && graph) return hinder(step.opaque->name + " is given a graph");
  if (step.kind == Step::Kind::SetGradient && graph) return hinder("a gradient has a graph");
  // What its node saves would show other memory.
  if (following_ && step.kind == Step::Kind::SetData) return hinder("it sets .data of a tensor");
  // The graph that its node may have to build begins with tensors as they were at first.
  if (following_ && step.kind == Step::Kind::RequireGrad && step.effect)
    return hinder("it sets requires_grad of a tensor from before the call");
  // Its proof runs what is kept twice.
  if (step.opaque && step.opaque->python && !only_tells(step))
    return hinder(step.opaque->name + " runs Python code");
  if (step.opaque && step.opaque->random && !step.opaque->asks && !step.draws_once() &&
      step.opaque->function.kind != Tree::Kind::State)
    return hinder(step.opaque->name + " cannot be done twice");
  if (step.draws_once() && step.shuffles() && !shuffles_its_own(step))
    return hinder(step.opaque->name + " shuffles what was there before the call");
  for (const Argument& argument : step.arguments)
    if (following_ && argument.kind == Argument::Kind::Generator) return hinder("a generator is drawn from");
  keep(step);
}

// Whether nobody had the array before the call, and all its memory lies side by side.
bool Flattening::shuffles_its_own(const Step& step) const {
  const at::Tensor& array = registers_[step.arguments[0].reg];
  return array.defined() && array.is_contiguous() && kernels_.memory_of(step.arguments[0].reg) &&
         !kernels_.was_there(array) && !kernels_.is_external(array);
}

// Prints or logs numbers and texts: nothing is done twice, whoever runs the program again. A tensor would be
// shown without its graph.
bool Flattening::only_tells(const Step& step) {
  return step.opaque && step.opaque->tells && step.arguments.empty();
}

// Whether it may do what nobody sees: what is asked for, told and drawn is not done twice.
bool Flattening::may_do_anything(const Step& step) {
  return step.opaque && !step.opaque->asks && !only_tells(step) && !step.draws_once();
}

// Whether the function may go on in another way after the step.
bool Flattening::leads_away(const Step& step) const {
  if (!step.exit || step.kind == Step::Kind::Gradient || sizes_.settle(step) || is_watched(step))
    return false;
  if (step.after_writes) return !knows_writes_(step.node);
  return !step.opaque || !step.opaque->engine;
}

// Whether the sizes of what it gives hang on more than the sizes that the call began with: kernels are made
// for those of one call, so these are compared.
bool Flattening::may_vary(const Step& step) const {
  if (!program_.dynamic) return false;
  bool loose = std::any_of(step.results.begin(), step.results.end(), is_loose);
  if (step.kind == Step::Kind::Opaque) return loose && !step.opaque->engine;
  auto varies = [](const Step& kernel) { return kernel.exit; };
  auto first = kernels_.steps().begin() + static_cast<std::ptrdiff_t>(mark_);
  return loose && (sizes_.takes_others(step) || facts_of(step.op).data_dependent_shape ||
                   std::any_of(first, kernels_.steps().end(), varies));
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
    graph = AutogradGraph::of(roots, {}, pure_);
  }
  // Which hooks it calls is guarded, or they are of steps of the call, where they were watched.
  if (graph.python || (!graph.hooked.empty() && !is_watched(step)))
    return hinder("a backward pass runs Python code");
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
    bool first = !leaf.gradient;
    leaf.gradient = impl;
    Step set = gradient_step(Step::Kind::SetGradient, leaf.reg);
    set.effect = kernels_.is_external(leaf.tensor);
    int reg = impl ? kernels_.register_of(gradient) : -1;
    if (impl) {
      if (reg < 0) return hinder("a gradient of unknown origin");
      if (gradient.requires_grad()) return hinder("a gradient has a graph");
      Argument value;
      value.kind = Argument::Kind::Register;
      value.reg = reg;
      set.arguments.push_back(value);
      if (first) set.accumulates = leaf.reg;
      if (set.effect) kernels_.outlives(gradient);
    }
    kernels_.steps().push_back(std::move(set));
    gradients_[leaf.reg] = reg;
  }
}

// Where it adds to one that was there.
void Flattening::note_accumulation(size_t from) {
  for (size_t i = from; i < kernels_.steps().size(); ++i) {
    Step& step = kernels_.steps()[i];
    each_written(step, [&](int reg) {
      for (const Leaf& leaf : leaves_) {
        auto known = gradients_.find(leaf.reg);
        if (known != gradients_.end() && known->second == reg) step.accumulates = leaf.reg;
      }
    });
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
  if (kernels) modes.leave_autocast();
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
  bool varies = may_vary(step);
  kernels_.drop(mark_, first_new_);
  if (step.kind == Step::Kind::Gradient && begins_ >= 0 && drops(step)) return;
  if (step.kind == Step::Kind::SetGradient)
    gradients_[step.arguments[0].reg] = step.arguments.size() > 1 ? step.arguments[1].reg : -1;
  if (step.kind == Step::Kind::SetData)
    kernels_.set_data(step.arguments[0].reg, registers_[step.arguments[0].reg], step.effect);
  if (may_do_anything(step)) gradients_.clear();
  kernels_.steps().push_back(step);
  Step& copy = kernels_.steps().back();
  copy.gone.clear();
  copy.exit = varies || leads_away(step);
  sizes_.fix(registers_, &copy);
  copy.early = step.effect && !step.draws_once() && kernels_.writes_early(step, registers_);
  set_modes(mark_, now_, false);
  bool gradient = step.kind == Step::Kind::Gradient;
  each_result(step, [&](int reg) {
    if (reg >= 0) gradient ? kernels_.meet(reg, registers_[reg]) : kernels_.know(reg, registers_[reg], false);
  });
}

void Flattening::replace(const Step& step) {
  if (!kernels_.obstacle().empty()) return hinder(kernels_.obstacle());
  // A node that is run later has no numbers of the call's.
  if (step.takes_numbers && sizes_.takes_others(step) && (following_ || !numbers_are_seen(step)))
    return hinder("a number that may differ enters a graph");
  compare_numbers(step);
  if (step.python) return hinder("a kernel in Python");
  if (reads_values(step)) return hinder("code of torch reads the values of a tensor outside of any kernel");
  if (begins_ < 0) begins_ = static_cast<int>(mark_);
  if (gives_turned(step)) return hinder(step.op.schema().name() + " changes the look of a tensor");
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
  std::vector<int> numbers = sizes_.others(step.numbers);
  if (mark_ < kernels_.steps().size())
    kernels_.steps()[mark_].numbers = std::move(numbers);
  else if (!numbers.empty())
    hinder("numbers are worked out where no kernel runs");
}

// Whether it is no number that may differ, or a whole one of a program that follows sizes that hangs on what
// tensors hold, and on sizes: it is mostly the length of the longest of a batch, and is compared.
bool Flattening::is_settled(const Argument& argument) const {
  if (!sizes_.is_other(argument)) return true;
  if (!program_.dynamic || argument.kind == Argument::Kind::NumberTensor) return false;
  auto differs = [](const Number& leaf) {
    return leaf.real || leaf.kind == Number::Kind::Argument || leaf.kind == Number::Kind::State ||
           leaf.kind == Number::Kind::Asked;
  };
  std::vector<int> ids = sizes_.others_of(argument);
  return std::all_of(ids.begin(), ids.end(), [&](int id) {
    return !program_.numbers[static_cast<size_t>(id)].real &&
           leaves_of(program_.numbers, id, differs).empty();
  });
}

// Before the kernels, which were given it as a constant.
void Flattening::compare_numbers(const Step& step) {
  static auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::detach", "");
  for (const Argument& argument : step.arguments) {
    if (argument.kind == Argument::Kind::NumberTensor) continue;
    for (int id : sizes_.others_of(argument)) {
      Step read(Step::Kind::Read, handle);
      read.arguments.emplace_back();
      read.arguments[0].kind = Argument::Kind::Number;
      read.arguments[0].reg = id;
      read.results.emplace_back();
      read.results[0].kind = Result::Kind::Read;
      read.results[0].read =
          to_ivalue(program_.numbers[static_cast<size_t>(id)], (*numbers_)[static_cast<size_t>(id)]);
      read.exit = true;
      auto& steps = kernels_.steps();
      steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(mark_), std::move(read));
    }
  }
}

// Whether the numbers that the step takes are seen as such wherever they go, in the backward pass, too: these
// operators hand the tensor that stands for one to their kernels, and save it as it is. Elsewhere it may
// become a plain constant of a node.
bool Flattening::numbers_are_seen(const Step& step) const {
  if (std::all_of(step.arguments.begin(), step.arguments.end(),
                  [&](const Argument& argument) { return is_settled(argument); }))
    return true;
  static const std::unordered_set<std::string> kHandOn = {"aten::add",  "aten::sub",  "aten::mul",
                                                          "aten::div",  "aten::add_", "aten::sub_",
                                                          "aten::mul_", "aten::div_"};
  if (!kHandOn.count(step.op.schema().name()) || step.op.schema().overload_name() != "Tensor") return false;
  auto first = kernels_.steps().begin() + static_cast<std::ptrdiff_t>(mark_), last = kernels_.steps().end();
  return std::all_of(step.arguments.begin(), step.arguments.end(), [&](const Argument& argument) {
    if (is_settled(argument)) return true;
    if (argument.kind != Argument::Kind::NumberTensor) return false;
    return std::any_of(first, last, [&](const Step& kernel) {
      return std::any_of(kernel.arguments.begin(), kernel.arguments.end(), [&](const Argument& one) {
        return one.kind == Argument::Kind::NumberTensor && one.reg == argument.reg;
      });
    });
  });
}

// Whether a tensor that is known to the program has another look from here on: one that it takes, or a result
// that has a register.
bool Flattening::gives_turned(const Step& step) const {
  bool found = facts_of(step.op).changes_metadata;
  auto look = [&](int reg) {
    found |=
        reg >= 0 && registers_[reg].defined() && kernels_.is_turned(kernels_.register_of(registers_[reg]));
  };
  each_argument(step, look);
  for (const Result& result : step.results)
    if (result.known) look(result.reg);
  return found;
}

void Flattening::note_whole_numbers(const Step& step) {
  whole_.clear();
  if (is_watched(step)) return;  // that was seen while it was recorded
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
  return std::any_of(first, last, packs) || looks_at_copies(kernels_.steps(), mark_, used);
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
  if (kernels_.is_turned(reg)) turned_.insert(result.reg);
  kernels_.know(result.reg, tensor, kernels_.is_external(tensor));
}

void Flattening::rename() {
  names_.resize(static_cast<size_t>(kernels_.registers()), -1);
  auto rename = [&](int& reg) {
    if (reg >= 0 && names_[reg] >= 0) reg = names_[reg];
  };
  for (Step& step : kernels_.steps()) rename_registers(&step, rename);
  if (following_) following_->rename(rename);
}

// ---------------------------------------------------------------- the form
namespace {

// How a backward pass from here ends, before it has done anything: at nodes whose saved tensors are gone, on
// every way. Those before them must save nothing that could be written to later, which raises another error.
// Nodes of before the call are not asked: what they have saved may be behind hooks of the user's. Needs the
// GIL.
struct SpentGraph {
  bool spent = false;
  std::unordered_set<torch::autograd::Node*> before;  // the nodes that a pass goes through, or stops at

  template <class Nodes>
  SpentGraph(const at::Tensor& root, const Nodes& histories) {
    std::vector<torch::autograd::Node*> open{root.grad_fn().get()};
    before.insert(open.begin(), open.end());
    while (!open.empty()) {
      torch::autograd::Node* node = open.back();
      open.pop_back();
      if (histories.count(node->getptr())) {
        spent = false;
        return;
      }
      // What a custom function does the second time is for its code to say.
      Saved saved = is_python(*node) ? Saved::Tensors : saved_by(node);
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
    return step.flat && step.modes < 0 && step.numbers.empty() && facts_of(step.op).blank_factory &&
           !used[step.results[0].reg];
  };
  auto& steps = program->steps;
  steps.erase(std::remove_if(steps.begin(), steps.end(), unused), steps.end());
}

// The proof of a form finds the numbers that the program has left, so it does not see whether one is lost.
bool works_out_all(const Program& form, const FixedSizes& sizes, const Program& whole) {
  std::unordered_set<int> worked_out;
  for (const Step& step : form.steps) worked_out.insert(step.numbers.begin(), step.numbers.end());
  return std::all_of(whole.steps.begin(), whole.steps.end(), [&](const Step& step) {
    return std::all_of(step.numbers.begin(), step.numbers.end(),
                       [&](int id) { return sizes.is_fixed(id) || worked_out.count(id) > 0; });
  });
}

}  // namespace

torch::autograd::Node* Flattening::node_of(const FlatForm::Spent& spent) const {
  return registers_[spent.registers[0].second].grad_fn().get();
}

void Flattening::spend(const std::vector<int>& outputs, FlatForm* form) {
  if (!have_edges(outputs, registers_)) return hinder("autograd does not say what has made a result");
  for (int reg : outputs) {
    const at::Tensor& tensor = registers_[reg];
    if (!tensor.defined() || !tensor.requires_grad() || tensor.is_leaf()) continue;
    auto is_of_it = [&](const FlatForm::Spent& one) { return node_of(one) == tensor.grad_fn().get(); };
    if (!graph_[reg]) continue;
    std::pair<uint32_t, int> place{static_cast<uint32_t>(tensor.output_nr()), reg};
    auto known = std::find_if(form->spent.begin(), form->spent.end(), is_of_it);
    if (known != form->spent.end()) {
      auto& places = known->registers;
      if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
      std::sort(places.begin(), places.end());
      continue;
    }
    if (tensor.is_view()) return hinder("a view with a graph leaves the function");
    if (is_python(*tensor.grad_fn())) return hinder("the result of a custom function leaves the function");
    SpentGraph graph(tensor, histories_);
    if (!graph.spent) return hinder("a graph that no backward pass has used up leaves the function");
    auto is_before = [&](int other) {
      const auto& node = registers_[other].defined() ? registers_[other].grad_fn() : nullptr;
      return node && node != tensor.grad_fn() && graph.before.count(node.get());
    };
    if (std::any_of(outputs.begin(), outputs.end(), is_before))
      return hinder("a graph that no backward pass has used up leads from one result to another");
    FlatForm::Spent spent{{place}, node_kind(node_name_of(tensor)), {}, {}};
    if (spent.kind < 0) return hinder("results of too many kinds of operators");
    AutogradGraph behind = AutogradGraph::of({tensor});
    for (const at::Tensor& leaf : behind.leaves) {
      int known = kernels_.register_of(leaf);
      bool stays =
          std::find(program_.captures.begin(), program_.captures.end(), known) != program_.captures.end() ||
          std::find(plan_.used.begin(), plan_.used.end(), known) != plan_.used.end();
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
    return node_of(a)->sequence_nr() < node_of(b)->sequence_nr();
  });
}

// Whether the step looks at a number that hangs on nothing but what the call and its guards bring.
bool Flattening::reads_given(const Step& step) const {
  if (step.kind != Step::Kind::Read || step.arguments[0].kind != Argument::Kind::Number) return false;
  auto later = [](const Number& number) { return number.comes_later(); };
  return leaves_of(program_.numbers, step.arguments[0].reg, later).empty();
}

// The memory of before the call that can be put back: the call begins with tensors that show it, or it is
// that of their gradients. By memory, the registers of either.
Flattening::Beginnings Flattening::beginnings(const std::vector<Step>& steps) const {
  Beginnings found;
  auto note = [&](int reg) {
    const at::Tensor& tensor = registers_[reg];
    if (tensor.defined() && tensor.has_storage())
      found[tensor.storage().unsafeGetStorageImpl()].tensors.push_back(reg);
  };
  for (int reg : plan_.used) note(reg);
  for (int reg : program_.captures) note(reg);
  std::unordered_set<int> set;
  for (const Step& step : steps) {
    if (step.kind == Step::Kind::SetGradient) set.insert(step.arguments[0].reg);
    if (step.kind != Step::Kind::Gradient || set.count(step.arguments[0].reg)) continue;
    if (auto* memory = kernels_.memory_of(step.results[0].reg))
      found[memory].gradients.push_back(step.arguments[0].reg);
  }
  return found;
}

namespace {
// What a step looks at, and where: "a number at model.py:12".
std::string told(const Step& step) {
  std::string what = step.opaque                     ? step.opaque->name
                     : step.kind == Step::Kind::Read ? "a number"
                                                     : step.op.schema().name();
  py::tuple place = place_tuple(step.place);
  auto file = place[0].cast<std::string>();
  if (file.empty()) return what;
  return what + " at " + file.substr(file.rfind('/') + 1) + ":" + std::to_string(place[1].cast<int>());
}
}  // namespace

// A flat form cannot be resumed: where it stops at an exit behind the beginning, all is put back, and the
// program itself runs. Larger memory would take longer to copy than is gained. Gives the last step that can
// be undone, or -1, and leaves no exit behind the beginning.
int Flattening::place_undo(std::vector<Step>* made, FlatForm* form) {
  constexpr size_t kMost = size_t{4} << 20;
  std::vector<Step>& steps = *made;
  Beginnings beginnings = this->beginnings(steps);
  std::unordered_set<c10::StorageImpl*> written;
  size_t bytes = 0;
  // Which registers show which memory is known where none of them comes to show other memory.
  bool moves = moves_memory(program_);
  auto can_be_kept = [&](const Step& step) {
    auto memory = moves ? std::nullopt : kernels_.early_memory(step);
    if (!memory) return false;
    for (c10::StorageImpl* one : *memory) {
      if (!beginnings.count(one)) return false;
      if (written.insert(one).second) bytes += one->nbytes();
    }
    return bytes <= kMost;
  };
  auto remains = [&](const Step& step) {
    bool sets = step.kind == Step::Kind::SetGradient || step.kind == Step::Kind::SetData ||
                step.kind == Step::Kind::RequireGrad;
    return step.once() && !sets &&
           (may_do_anything(step) || step.python || (step.early && !can_be_kept(step)));
  };
  auto fixed = std::find_if(steps.begin(), steps.end(), remains);
  bool changed = false;
  int undoable = -1;
  for (auto step = steps.begin(); step != steps.end(); ++step) {
    changed |= step->once();
    size_t at = static_cast<size_t>(step - steps.begin());
    if (at < form->begins || !std::exchange(step->exit, false)) continue;
    if (reads_given(*step)) {
      form->reads.push_back(at);
      continue;
    }
    if (step >= fixed) {
      hinder("what follows hangs on a value (" + told(*step) +
             "), after memory of before the call has changed");
      return -1;
    }
    if (changed) undoable = static_cast<int>(at);
  }
  written.clear();
  for (int at = 0; at <= undoable; ++at) {
    const Step& step = steps[static_cast<size_t>(at)];
    form->draws |= step.random;
    if (step.kind == Step::Kind::SetGradient) form->sets.push_back(step.arguments[0].reg);
    if (step.kind == Step::Kind::RequireGrad && step.effect) form->flags.push_back(step.arguments[0].reg);
    if (!step.early) continue;
    if (auto memory = kernels_.early_memory(step)) written.insert(memory->begin(), memory->end());
  }
  for (const auto& [memory, shown] : beginnings)
    if (written.count(memory)) form->written.push_back(shown);
  return undoable;
}

void Flattening::follow(std::shared_ptr<const Plan> whole, const std::vector<int>& outputs,
                        const std::vector<TensorMeta>& looks) {
  if (begins_ < 0) hinder("it builds no graph");
  if (!obstacle_.empty()) return;
  names_.resize(static_cast<size_t>(kernels_.registers()), -1);
  following_->follow(std::move(whole), outputs, looks, now_, names_, [this](bool on) { collects_ = on; });
  if (!following_->obstacle().empty()) hinder(following_->obstacle());
}

std::shared_ptr<FlatForm> Flattening::finish(std::vector<int> outputs) {
  if (obstacle_.empty() && begins_ < 0) hinder("it builds no graph");
  if (!obstacle_.empty()) return nullptr;
  auto form = std::make_shared<FlatForm>();
  if (!following_) spend(outputs, form.get());
  // It counts as written to, which a view in its place does not.
  if (std::any_of(outputs.begin(), outputs.end(), [&](int reg) { return turned_.count(reg) > 0; }))
    hinder("a tensor that was turned in place leaves the function");
  if (std::any_of(outputs.begin(), outputs.end(), [&](int reg) { return hooked_.count(reg) > 0; }))
    hinder("a tensor with a hook leaves the function");
  std::unordered_set<int> flagged;
  for (const Step& step : program_.steps)
    if (step.kind == Step::Kind::RequireGrad) flagged.insert(step.arguments[0].reg);
  auto note_leaf = [&](int reg) {
    if (following_ || !enters_[reg] || !registers_[reg].defined()) return;
    if (!registers_[reg].requires_grad() && !flagged.count(reg)) return;
    if (!is_plain_leaf(registers_[reg])) hinder("an argument has a history, or a gradient of another dtype");
    form->leaves.push_back(reg);
  };
  for (int reg : plan_.used) note_leaf(reg);
  for (int reg : program_.captures) note_leaf(reg);
  if (!obstacle_.empty()) return nullptr;
  rename();
  int registers = kernels_.registers();
  if (following_) {
    registers = following_->first_register();
    form->backward = following_->finish(&outputs, nodes_);
  }
  // Sizes are compared that the program itself does not compare, so no step is the same.
  if (program_.dynamic) begins_ = 0;
  form->begins = static_cast<size_t>(begins_);
  form->sharing = std::move(sharing_);
  auto made = std::make_shared<Program>();
  made->steps = std::move(kernels_.steps());
  made->modes = std::move(modes_);
  made->registers = registers;
  made->inputs = program_.inputs;
  made->captures = program_.captures;
  made->numbers = sizes_.fixed();
  made->follows_numbers = program_.follows_numbers;
  made->effects = program_.effects;
  made->random = program_.random;
  made->unfilled = program_.unfilled;
  made->backward = program_.backward;
  made->changes_looks = program_.changes_looks;
  made->unresumable = std::min(program_.unresumable, begins_);
  int last = 0;
  for (Step& step : made->steps) {
    int now = step.modes;
    step.modes = now == last ? -1 : now;
    last = now;
  }
  for (const Step& step : made->steps)
    for (const Argument& argument : step.arguments)
      if (argument.kind == Argument::Kind::Generator) form->generators.push_back(argument.node);
  drop_blanks(made.get(), outputs);
  if (!works_out_all(*made, sizes_, program_)) hinder("numbers are worked out where no kernel runs");
  if (!following_ && !moves_memory(program_))
    write_later(kernels_, made->numbers, form->begins, &made->steps);
  int undoable = place_undo(&made->steps, form.get());
  if (!obstacle_.empty()) return nullptr;
  sizes_.give(&made->steps);
  std::shared_ptr<Plan> plan = make_plan(std::move(made), outputs);
  plan->used = plan_.used;  // what shares memory with what was asked of these
  plan->undoable = undoable;
  form->plan = std::move(plan);
  return form;
}

}  // namespace lazytrace
