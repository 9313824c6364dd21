#include "flat/rehearsal.h"

#include <torch/csrc/autograd/variable.h>

#include <unordered_map>

#include "flat/following.h"
#include "flat/named.h"
#include "torch/accumulation.h"
#include "torch/autograd_graph.h"
#include "torch/memory.h"

namespace lazytrace {

using torch::autograd::variable_list;

Rehearsal::Rehearsal(const FlatForm& form, const std::vector<at::Tensor>& registers,
                     const std::vector<PyObject*>& nodes, const std::vector<int>& outputs)
    : form_(form), outputs_(outputs), registers_(static_cast<size_t>(form.program().registers)) {
  // Other threads would draw the numbers again that are put back.
  if (form.program().random || is_only_thread()) entry_ = RandomStreams::now(form.generators_of(nodes));
  for (int reg : form.plan->used) registers_[reg] = twins_.of(registers[reg]);
  for (int reg : form.program().captures) registers_[reg] = twins_.of(registers[reg]);
  obstacle_ = twins_.obstacle();
  if (form.backward) shadow_.emplace(*form.backward->whole, registers);
}

void Rehearsal::run(const std::vector<PyObject*>& state, const InterpreterMemory& given) {
  if (!obstacle_.empty()) return;
  RandomStreams after = entry_.again();
  entry_.put_back();
  Earlier earlier = form_.earlier(registers_);
  obstacle_ = run_unseen(*form_.plan, &registers_, state, given.numbers, nullptr, given.done, &led_away_);
  if (obstacle_.empty()) form_.put_history(&registers_, given.numbers, earlier);
  drawn_ = entry_.again();
  // One graph at a time: each may keep as much memory as the call itself.
  if (shadow_) copies_ = brought_by(registers_);
  keep_outputs();
  entry_.put_back();
  if (obstacle_.empty() && shadow_) obstacle_ = shadow_->run(state, given.numbers);
  if (shadow_) real_ = brought_by(shadow_->registers());
  shadow_.reset();
  after.put_back();
}

void Rehearsal::keep_outputs() {
  std::vector<at::Tensor> kept(registers_.size());
  for (int reg : outputs_) kept[reg] = registers_[reg];
  registers_ = std::move(kept);
}

// What a backward pass through the graph brings, which is used up by that.
variable_list Rehearsal::brought_by(const std::vector<at::Tensor>& registers) {
  if (!obstacle_.empty()) return {};
  const BackwardForm& form = *form_.backward;
  variable_list gradients;
  std::vector<at::Tensor> roots;
  for (size_t i = 0; i < form.roots.size(); ++i) {
    gradients.push_back(form.roots[i].given < 0 ? at::Tensor() : gradient_like(form.roots[i].look, 7 + i));
    roots.push_back(Roots::root_of(registers[form.roots[i].of]));
  }
  OpenGraph graph(roots, Ends(form.begin_registers(), registers).edges);
  obstacle_ = graph.obstacle();
  if (!obstacle_.empty()) return {};
  OpenGraph::Pass once;
  once.keep = false;
  try {
    py::gil_scoped_release released;
    return graph.pass(gradients, once);
  } catch (...) {
    std::exception_ptr error = caught();
    obstacle_ = "its backward pass raises";
    return {};
  }
}

std::string Rehearsal::compare(const Twins::Pair& pair) const {
  if (!same_memory(pair.real.storage(), pair.copy.storage())) return "a tensor of the state";
  if (version_of(pair.real) != version_of(pair.copy)) return "how often a tensor was written to";
  if (!pair.real.is_leaf()) return "";
  const at::Tensor &real = pair.real.grad(), &copy = pair.copy.grad();
  if (real.defined() != copy.defined()) return "whether there is a gradient";
  if (!real.defined()) return "";
  if (const auto* known = twins_.find(real))
    return known->copy.is_same(copy) ? "" : "which tensor is a gradient";
  return compare_results(real, copy);
}

std::string Rehearsal::compare_results(const at::Tensor& real, const at::Tensor& copy) {
  at::NoGradGuard no_grad;
  TensorMeta look = TensorMeta::of(real.detach());
  if (!look.matches(copy.detach())) return look.difference(copy.detach());
  if (version_of(real) != version_of(copy))
    return "a result of " + look.text() + " was written to " + std::to_string(version_of(real)) + " and " +
           std::to_string(version_of(copy)) + " times";
  if (real.requires_grad() != copy.requires_grad() || real.is_leaf() != copy.is_leaf())
    return "whether a result requires gradients";
  if (real.is_view() != copy.is_view()) return "whether a result is a view";
  if (origin_of_view(real) != origin_of_view(copy)) return "what autograd says of a view that is written to";
  return same_bits(real, copy) ? "" : "a result in value";
}

std::string Rehearsal::difference(const std::vector<at::Tensor>& registers) {
  if (!obstacle_.empty()) return obstacle_;
  if (!(drawn_ == entry_.again())) return "the random numbers drawn";
  std::unordered_map<const c10::StorageImpl*, const c10::StorageImpl*> memory;  // of a tensor: of its copy
  for (const Twins::Pair& pair : twins_.pairs()) {
    std::string found = compare(pair);
    if (!found.empty()) return found;
    const c10::StorageImpl* copy = pair.copy.storage().unsafeGetStorageImpl();
    if (memory.emplace(pair.real.storage().unsafeGetStorageImpl(), copy).first->second != copy)
      return "which tensors share memory";
  }
  for (int reg : outputs_) {
    const at::Tensor &real = registers[reg], &copy = registers_[reg];
    if (real.defined() != copy.defined()) return "a result that is missing";
    if (!real.defined()) continue;
    const auto* known = twins_.find(real);
    std::string found = !known                      ? compare_results(real, copy)
                        : known->copy.is_same(copy) ? ""
                                                    : "which tensor is returned";
    if (!found.empty()) return found;
  }
  return form_.backward ? compare_passes(registers) : "";
}

// What the passes brought through the graph of the form, which is one node, and through that of the program.
std::string Rehearsal::compare_passes(const std::vector<at::Tensor>& registers) const {
  const BackwardForm& form = *form_.backward;
  for (int reg : outputs_) {
    bool named = registers[reg].defined() && registers[reg].requires_grad() && !registers[reg].is_leaf();
    if (named && !(node_name_of(registers[reg]) == node_name_of(registers_[reg])))
      return "what made a result";
  }
  if (real_.size() != form.exits.size() || copies_.size() != real_.size())
    return "how often a tensor is used";
  if (form.surprised) return "what its backward pass does";
  for (size_t i = 0; i < real_.size(); ++i) {
    if (real_[i].defined() != copies_[i].defined()) return "whether there is a gradient";
    std::string found = real_[i].defined() ? compare_results(real_[i], copies_[i]) : "";
    if (!found.empty()) return "a gradient: " + found;
  }
  return "";
}

}  // namespace lazytrace
