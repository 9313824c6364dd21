#include "flat/following.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <sstream>
#include <unordered_map>

#include "flat/held.h"
#include "flat/kernel_steps.h"
#include "flat/named.h"
#include "flat/saved.h"
#include "passes/registers.h"
#include "replay/interpreter.h"
#include "torch/autograd_graph.h"
#include "torch/memory.h"

namespace lazytrace {

Following::Following(const Plan& plan, const std::vector<at::Tensor>& registers, Kernels* kernels)
    : registers_(registers), kernels_(kernels), begins_(beginnings_of(plan)), ends_(begins_, registers) {}

void Following::hinder(const std::string& why) {
  if (obstacle_.empty()) obstacle_ = why;
}

void Following::rename(const std::function<void(int&)>& name) {
  for (Step& step : form_->views) rename_registers(&step, name);
  for (auto& root : form_->roots) name(root.reg);
}

// Whether the tensors that the program began with have the history that they had.
bool Following::keeps_edges() const {
  return have_edges(begins_, registers_) && Ends(begins_, registers_).edges == ends_.edges;
}

// A gradient of this look, of any values: what a pass does hangs on none, or it will be found to differ.
at::Tensor gradient_like(const TensorMeta& look, uint64_t seed) {
  int64_t elements = 1;
  for (size_t i = 0; i < look.sizes().size(); ++i)
    elements += std::max<int64_t>(look.sizes()[i] - 1, 0) * look.strides()[i];
  auto generator = at::detail::createCPUGenerator(seed);
  at::Tensor memory = at::randn({elements}, generator, at::TensorOptions().dtype(look.dtype()));
  return memory.to(look.device()).as_strided(look.sizes(), look.strides());
}

// Gradients in the registers that the pass begins with; undefined of those that have none.
std::vector<at::Tensor> Following::meet_roots(const Roots& roots, const std::vector<TensorMeta>& looks) {
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < roots.tensors.size(); ++i) {
    const at::Tensor& tensor = roots.tensors[i];
    int kind = node_kind(node_name_of(tensor)), reg = kernels_->register_of(tensor);
    if (kind < 0) hinder("results of too many kinds of operators");
    if (reg < 0) hinder("a result of unknown origin");
    if (kernels_->is_external(tensor)) hinder("memory of before the call leaves it with a graph");
    gradients.emplace_back();
    const auto& edge = torch::autograd::impl::gradient_edge(tensor);
    BackwardForm::Root root{
        reg, roots.of[i], kind, -1, looks[i], edge.input_nr, edge.function->topological_nr()};
    if (looks[i].defined()) {
      gradients.back() = gradient_like(looks[i], i);
      if (!looks[i].matches(gradients.back())) hinder("a gradient that is out of the ordinary");
      root.given = kernels_->fresh();
      kernels_->know(root.given, gradients.back(), true);
    }
    form_->roots.push_back(std::move(root));
  }
  return gradients;
}

// The graph that the pass goes through.
OpenGraph Following::part_of_pass(const Roots& roots) const {
  std::vector<at::Tensor> asked;
  for (size_t i = 0; i < roots.tensors.size(); ++i)
    if (form_->roots[i].given >= 0) asked.push_back(roots.tensors[i]);
  return {asked, ends_.edges};
}

// Whether torch raises wherever a second pass begins; where it does nowhere, nothing is let go of.
bool Following::raises_twice(const Roots& roots) const {
  OpenGraph gone = part_of_pass(roots);
  std::unordered_set<torch::autograd::Node*> saving;
  for (auto* node : gone.nodes())
    if (saved_by(node) != Saved::Nothing) saving.insert(node);
  if (saving.empty()) return false;
  auto meets = [&](const at::Tensor& root) {
    OpenGraph part({root}, ends_.edges);
    return std::any_of(part.nodes().begin(), part.nodes().end(),
                       [&](auto* node) { return saving.count(node) > 0; });
  };
  return std::all_of(roots.tensors.begin(), roots.tensors.end(), meets);
}

// The kernels that lead from the roots to those results that are views of them.
void Following::note_views(const std::vector<int>& registers, const std::vector<int>& names) {
  std::unordered_map<int, const Step*> makers;
  auto known_as = [&](int reg) {
    return reg >= 0 && reg < static_cast<int>(names.size()) && names[reg] >= 0 ? names[reg] : reg;
  };
  for (const Step& step : kernels_->steps())
    each_result(step, [&](int reg) { makers.emplace(known_as(reg), &step); });
  std::vector<const Step*> chain;
  for (int view : registers) {
    if (version_of(registers_[view]) != 0) return hinder("a view that was written to leaves the function");
    int reg = kernels_->register_of(registers_[view]);
    auto is_root = [&](const BackwardForm::Root& root) { return known_as(root.reg) == reg; };
    while (std::none_of(form_->roots.begin(), form_->roots.end(), is_root)) {
      auto maker = makers.find(reg);
      bool plain = maker != makers.end() && maker->second->flat && facts_of(maker->second->op).view &&
                   maker->second->arguments[0].kind == Argument::Kind::Register && !writes(*maker->second);
      if (!plain) return hinder("a view of unknown origin leaves the function");
      if (std::find(chain.begin(), chain.end(), maker->second) == chain.end()) chain.push_back(maker->second);
      reg = known_as(maker->second->arguments[0].reg);
    }
  }
  for (const Step& step : kernels_->steps())
    if (std::find(chain.begin(), chain.end(), &step) != chain.end()) form_->views.push_back(step);
}

// What the program writes to is copied before each replay, as the graph may have to be built from it later.
void Following::note_written() {
  constexpr size_t kMostBytes = size_t{1} << 20;
  size_t bytes = 0;
  std::unordered_set<const void*> memory;
  for (int reg : begins_) {
    const at::Tensor& tensor = registers_[reg];
    if (!tensor.defined() || !kernels_->was_written(tensor)) continue;
    if (tensor.requires_grad()) hinder("it writes to a tensor that requires gradients");
    if (!memory.insert(tensor.storage().unsafeGetStorageImpl()).second)
      hinder("it writes to memory that several tensors show");
    bytes += tensor.storage().nbytes();
    form_->written.push_back(reg);
  }
  if (bytes > kMostBytes) hinder("it writes to more than 1 MiB of before the call");
}

// Hooks that the caller sets on such a result are given what comes to it inside of the graph, too, and a pass
// may ask for it.
void Following::note_inner(const OpenGraph& graph, const Roots& roots) {
  for (size_t i = 0; i < roots.tensors.size(); ++i) {
    if (!graph.leads_to(torch::autograd::impl::gradient_edge(roots.tensors[i]))) continue;
    if (!registers_[roots.of[i]].is_view()) form_->inner.push_back({i, roots.of[i], -1, 0});
    for (int reg : roots.views) {
      const at::Tensor& view = registers_[reg];
      if (!Roots::root_of(view).is_same(roots.tensors[i])) continue;
      int kind = node_kind(node_name_of(view));
      if (kind < 0) hinder("results of too many kinds of operators");
      form_->inner.push_back({i, reg, kind, static_cast<uint32_t>(view.output_nr())});
    }
  }
  for (size_t i = 0; i < roots.tensors.size(); ++i) {
    OpenGraph part({roots.tensors[i]}, ends_.edges);
    auto& leads = form_->leads.emplace_back();
    for (size_t k = 0; k < form_->inner.size(); ++k) {
      const auto& inner = form_->inner[k];
      if (!part.leads_to(torch::autograd::impl::gradient_edge(registers_[inner.reg]))) continue;
      if (inner.root >= i) hinder("a result is made of one that is younger");
      leads.push_back(k);
    }
  }
}

// The caller may write to the results, and to what the program began with, before a pass comes.
void Following::note_saved(const OpenGraph& graph, const Roots& roots, const std::vector<int>& outputs) {
  std::vector<int> open = begins_;
  open.insert(open.end(), outputs.begin(), outputs.end());
  OpenGraph pass = part_of_pass(roots);
  std::vector<torch::autograd::Node*> nodes(graph.nodes().begin(), graph.nodes().end());
  std::sort(nodes.begin(), nodes.end(), [](auto* a, auto* b) { return a->sequence_nr() > b->sequence_nr(); });
  for (auto* node : nodes)
    for (const at::Tensor& saved : saved_tensors(node)) {
      auto is_with = [&](int reg) {
        return registers_[reg].defined() && version_counter_of(registers_[reg]) == version_counter_of(saved);
      };
      auto is_it = [&](int reg) { return registers_[reg].is_same(saved); };
      auto found = std::find_if(open.begin(), open.end(), is_it);
      bool itself = found != open.end() && !saved.is_view();
      if (found == open.end()) found = std::find_if(open.begin(), open.end(), is_with);
      if (found == open.end() || saved.is_inference()) continue;
      bool in_pass = pass.nodes().count(node) > 0;
      auto is_known = [&](const BackwardForm::Watched& one) {
        return one.reg == *found && one.in_pass == in_pass && one.itself == itself;
      };
      const auto& known = form_->watched;
      if (std::any_of(known.begin(), known.end(), is_known)) continue;
      // As SavedVariable::unpack() says it: of a view, autograd then makes the node anew.
      std::ostringstream text;
      text << '[' << saved.toString() << ' ' << saved.sizes() << ']';
      if (const auto& maker = saved.grad_fn()) {
        std::string name = saved.is_view() ? "AsStrided" : operator_of_node(maker->name());
        text << ", which is output " << saved.output_nr() << " of " << name << ',';
      }
      form_->watched.push_back({*found, in_pass, itself, text.str()});
    }
}

void Following::follow(std::shared_ptr<const Plan> whole, const std::vector<int>& outputs,
                       const std::vector<TensorMeta>& looks, const Modes& modes,
                       const std::vector<int>& names, const std::function<void(bool)>& collect) {
  if (!keeps_edges()) return hinder("it changes the history of an argument");
  if (!have_edges(outputs, registers_)) return hinder("autograd does not say what has made a result");
  Roots roots(outputs, registers_);
  const std::vector<at::Tensor>& tensors = roots.tensors;
  if (looks.size() != tensors.size()) return hinder("its results are views at times");
  OpenGraph graph(tensors, ends_.edges);
  if (!graph.obstacle().empty()) return hinder(graph.obstacle());
  // Two nodes more, and what a replay costs, against those that there were.
  constexpr size_t kFewest = 6;
  if (graph.nodes().size() < kFewest) return hinder("its graph is too small for one node to pay");
  // Nodes that outlive the trace hold it, and may let go of it in any thread.
  form_ = std::shared_ptr<BackwardForm>(new BackwardForm(), [](BackwardForm* form) {
    if (Py_IsInitialized() == 0) return;
    py::gil_scoped_acquire gil;
    delete form;
  });
  form_->whole = std::move(whole);
  note_written();
  kernels_->clear();
  cut_ = kernels_->steps().size();
  first_of_pass_ = kernels_->registers();
  std::vector<at::Tensor> gradients = meet_roots(roots, looks);
  note_views(roots.views, names);
  note_saved(graph, roots, outputs);
  note_inner(graph, roots);
  form_->spends = raises_twice(roots);
  if (!form_->spends && graph.saves()) hinder("only some of its results have a graph that is used up");
  if (!obstacle_.empty()) return;
  std::vector<at::Tensor> brought;
  OpenGraph::Pass once;
  once.keep = false;  // the graph of the call itself may need the memory
  collect(true);
  try {
    py::gil_scoped_release released;
    brought = graph.pass(gradients, once);
  } catch (...) {
    std::exception_ptr error = caught();  // the caller's own pass will say so
    hinder("its backward pass raises");
  }
  collect(false);
  if (!obstacle_.empty()) return;
  if (!graph.in_order()) hinder("its backward pass goes another way than it came");
  for (size_t i = 0; i < brought.size(); ++i) {
    int reg = brought[i].defined() ? kernels_->register_of(brought[i]) : -1;
    if (brought[i].defined() && reg < first_of_pass_) hinder("a gradient of unknown origin");
    form_->exits.push_back({ends_.registers[graph.exits()[i].end], reg});
  }
  hinder_by_kernels();
  modes_ = modes;
  modes_.grad = false;
  modes_.leave_autocast();
}

// Whether the kernels of the pass can be run again and again: what they are given stays as it is.
void Following::hinder_by_kernels() {
  if (!kernels_->obstacle().empty()) return hinder(kernels_->obstacle());
  std::unordered_set<int> used;
  for (const auto& exit : form_->exits) used.insert(exit.reg);
  for (size_t i = cut_; i < kernels_->steps().size(); ++i)
    each_argument(kernels_->steps()[i], [&](int reg) { used.insert(reg); });
  if (looks_at_copies(kernels_->steps(), cut_, used))
    hinder("code of torch reads the values of a tensor outside of any kernel");
  for (size_t i = cut_; i < kernels_->steps().size(); ++i) {
    const Step& step = kernels_->steps()[i];
    if (step.random) hinder("its backward pass draws random numbers");
    if (step.effect) hinder("its backward pass writes to what it is given");
    each_written(step, [&](int reg) {
      if (reg < first_of_pass_) hinder("its backward pass writes to what it has saved");
    });
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
void Following::make_views_again(std::vector<Step>* steps) const {
  std::unordered_map<int, const Step*> views;
  const auto& all = kernels_->steps();
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
  for (const Step& step : all) {
    if (!needed.count(&step)) continue;
    first.push_back(step);
    first.back().numbers.clear();  // those of the call, which were only due by then
  }
  steps->insert(steps->begin(), std::make_move_iterator(first.begin()), std::make_move_iterator(first.end()));
}

// What others hold of that which a pass needs: they may give it other memory until then.
void Following::note_open(const std::vector<char>& needed, const std::vector<int>& outputs) {
  for (int reg : begins_) form_->begins.push_back({reg, TensorMeta::of(registers_[reg]), needed[reg] != 0});
  for (int reg : outputs) {
    bool begins = std::find(begins_.begin(), begins_.end(), reg) != begins_.end();
    if (!begins && needed[reg]) form_->given.push_back({reg, TensorMeta::of(registers_[reg]), true});
  }
}

// Cuts the steps of the pass off, into a program of their own. `outputs` grows by what it needs of the
// others.
std::shared_ptr<const BackwardForm> Following::finish(std::vector<int>* outputs, uint64_t nodes) {
  form_->nodes = nodes;
  auto& all = kernels_->steps();
  std::vector<Step> steps(std::make_move_iterator(all.begin() + static_cast<std::ptrdiff_t>(cut_)),
                          std::make_move_iterator(all.end()));
  all.erase(all.begin() + static_cast<std::ptrdiff_t>(cut_), all.end());
  std::vector<char> needed(static_cast<size_t>(kernels_->registers()), 0);
  for (const auto& exit : form_->exits)
    if (exit.reg >= 0) needed[exit.reg] = 1;
  drop_needless(&steps, needed);
  auto note_used = [&] {
    for (const Step& step : steps) each_argument(step, [&](int reg) { needed[reg] = 1; });
  };
  note_used();
  make_views_again(&steps);
  note_used();
  note_open(needed, *outputs);
  // The registers of its own: what was saved, the gradients, the rest.
  std::vector<int> places(static_cast<size_t>(kernels_->registers()), -1);
  std::vector<char> made(places.size(), 0);
  for (const auto& root : form_->roots)
    if (root.given >= 0) made[root.given] = 1;
  for (const Step& step : steps) {
    each_argument(step, [&](int reg) {
      if (made[reg] || places[reg] >= 0) return;
      places[reg] = static_cast<int>(form_->saved.size());
      form_->saved.push_back(reg);
    });
    each_result(step, [&](int reg) {
      if (reg >= 0 && places[reg] < 0) made[reg] = 1;
    });
  }
  int next = static_cast<int>(form_->saved.size());
  auto place = [&](int& reg) {
    if (reg < 0) return;
    if (places[reg] < 0) places[reg] = next++;
    reg = places[reg];
  };
  for (auto& root : form_->roots) place(root.given);
  for (Step& step : steps) rename_registers(&step, place);
  std::vector<int> brought;
  for (auto& exit : form_->exits) {
    place(exit.reg);
    if (exit.reg >= 0) brought.push_back(exit.reg);
  }
  outputs->insert(outputs->end(), form_->saved.begin(), form_->saved.end());
  for (const auto& root : form_->roots) outputs->push_back(root.reg);
  auto pass = std::make_shared<Program>();
  pass->modes.push_back(modes_);
  for (Step& step : steps) step.modes = -1;
  pass->steps = std::move(steps);
  pass->registers = next;
  pass->unresumable = -1;  // where values lead it away, the graph is built
  form_->plan = make_plan(std::move(pass), brought);
  return form_;
}

}  // namespace lazytrace
