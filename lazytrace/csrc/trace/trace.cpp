#include "trace/trace.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>
#include <set>

#include "cpython/carrier.h"
#include "cpython/ends.h"
#include "cpython/imports.h"
#include "cpython/lru_cache.h"
#include "flat/at_sizes.h"
#include "flat/flattening.h"
#include "flat/rehearsal.h"
#include "flat/shadow.h"
#include "flat/undo.h"
#include "program/own_hooks.h"
#include "replay/workspace.h"
#include "support/firsts.h"
#include "torch/autograd_graph.h"
#include "torch/gpu.h"
#include "torch/memory.h"
#include "torch/overrides.h"
#include "torch/saves_nothing.h"
#include "torch/traits.h"
#include "trace/unwritten.h"

namespace lazytrace {

// ---------------------------------------------------------------- branches
void Family::add(const std::shared_ptr<Trace>& trace) {
  members_.erase(std::remove_if(members_.begin(), members_.end(), [](auto& one) { return one.expired(); }),
                 members_.end());
  members_.push_back(trace);
}

std::vector<std::shared_ptr<Trace>> Family::through(size_t step, int64_t node) const {
  std::vector<std::shared_ptr<Trace>> found;
  for (auto at = members_.rbegin(); at != members_.rend(); ++at) {
    auto trace = at->lock();
    if (trace && step < trace->program().steps.size() && trace->program().steps[step].node == node)
      found.push_back(std::move(trace));
  }
  return found;
}

size_t Family::branches(size_t step, int64_t node) const {
  std::vector<int64_t> known;
  for (auto& trace : through(step, node)) known.push_back(trace->program().steps[step].branch);
  std::sort(known.begin(), known.end());
  return static_cast<size_t>(std::unique(known.begin(), known.end()) - known.begin());
}

size_t Family::measured() const {
  std::set<int64_t> nodes;
  std::set<std::pair<int64_t, int64_t>> known;
  for (const auto& member : members_) {
    auto trace = member.lock();
    if (!trace) continue;
    for (const Step& step : trace->program().steps) {
      if (!step.measures) continue;
      nodes.insert(step.node);
      known.emplace(step.node, step.branch);
    }
  }
  return known.size() - nodes.size() + 1;
}

void Trace::join(const std::shared_ptr<Trace>& trace) { trace->family_->add(trace); }

namespace {
// Has nobody told what the Python code of a program's steps, and numpy, warn of, which the recording has
// told. The filters of warnings are those of all threads, so that a program without such steps leaves them
// alone.
class Quiet {
 public:
  explicit Quiet(const Program& program) {
    auto is_call = [](const Step& step) {
      return step.opaque && (step.opaque->python || !step.opaque->engine);
    };
    if (std::none_of(program.steps.begin(), program.steps.end(), is_call)) return;
    scope_ = py::module_::import("lazytrace.arrays").attr("quiet")();
    scope_.attr("__enter__")();
  }
  ~Quiet() {
    if (!scope_) return;
    try {
      scope_.attr("__exit__")(py::none(), py::none(), py::none());
    } catch (...) {
      std::exception_ptr error = caught();  // it raises none
    }
  }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  py::object scope_;
};
}  // namespace

// ---------------------------------------------------------------- replaying
// What the recording read of one object, after it had written to another, would not show a write if both were
// one.
int Trace::aliased(const GuardTree::Values& values) const {
  if (written_.empty()) return -1;
  auto object_of = [&](int node) { return tree_.first_of_namespace(node); };
  Containers containers;
  for (const Effect& effect : written_)
    // What a class has is guarded before it is written.
    if (effect.kind != Effect::Kind::Class)
      containers.add(effect.container(values.nodes[effect.owner]), object_of(effect.owner));
  for (int node : tree_.writable()) {
    PyObject* found = values.nodes[static_cast<size_t>(node)];
    if (found && containers.any_in(found, [&] { return object_of(node); })) return node;
  }
  return -1;
}

// Where the look of a tensor changes in place, or a function is resumed that has changed something by then,
// which tells tensors apart by their identity: those that were different must be so again.
int Trace::merged(const Call& call, const GuardTree::Values& values) const {
  bool writes = plan_->keep_until >= 0 && (!written_.empty() || !effects_.empty());
  if (plan_->first_once > plan_->keep_until && !program().changes_looks && !writes) return -1;
  Firsts firsts(call.tensors.size() + tree_.tensors().size());
  int next = 0;
  auto is_new = [&](const at::Tensor& tensor) {
    int number = next++;
    return firsts.of(tensor.unsafeGetTensorImpl(), 0, number) == number;
  };
  for (size_t i = 0; i < call.tensors.size(); ++i) is_new(call.tensor(i));
  for (int node : tree_.tensors()) {
    PyObject* found = values.nodes[static_cast<size_t>(node)];
    if (!found) continue;  // left out
    if (!is_new(THPVariable_Unpack(found))) return node;
  }
  return -1;
}

namespace {
// What an Entry takes from where it was: what is there under the key that it has in this call, or the whole
// container where that is not known yet.
py::object overwritten(const Effect& effect, const Tree& value, PyObject* container, const Numbers& all,
                       const NumberValues& now) {
  const Tree* key = value.items.empty() ? nullptr : &value.items[0];
  bool number = key && key->kind == Tree::Kind::Number;
  auto later = [](const Number& leaf) { return leaf.comes_later(); };
  if (number && !leaves_of(all, key->index, later).empty())
    return py::reinterpret_borrow<py::object>(container);
  auto id = static_cast<size_t>(number ? key->index : 0);
  Effect at = effect;
  if (number) at.key = to_python(all[id], now[id]);
  return at.held(container);
}

// What lies in the dict of an object under this name; borrowed, or null.
PyObject* attribute_of(PyObject* object, PyObject* name) {
  PyObject** dict = _PyObject_GetDictPtr(object);
  return dict && *dict ? PyDict_GetItemWithError(*dict, name) : nullptr;
}
}  // namespace

// Writes are made when the program has run. What is held by a place alone would go later than in the call,
// and all that tells of it: a destructor, a weak reference. What a step sets goes in time, but what its end
// writes has been read by then.
int Trace::ending(const Call& call, const GuardTree::Values& values) const {
  auto is_asked_for = [&](PyObject* object) {
    return std::any_of(weak_.begin(), weak_.end(), [&](int node) { return values.nodes[node] == object; });
  };
  auto shows = [&](PyObject* taken) {
    return shows_its_end(taken) || (!weak_.empty() && leads_to(taken, is_asked_for));
  };
  for (const auto& [owner, name] : sets_)
    if (shows(attribute_of(values.nodes[owner], name.ptr()))) return owner;
  NumberValues numbers;
  for (size_t i = 0; i < effects_.size(); ++i) {
    const Effect& effect = effects_[i];
    PyObject* container = effect.container(values.nodes[effect.owner]);
    bool keyed = effect.kind == Effect::Kind::Entry && !written_whole();
    if (keyed && numbers.empty()) {
      give_numbers(call, values, &numbers);
      work_out_all(program().numbers, &numbers);
    }
    py::object taken = keyed
                           ? overwritten(effect, output_.items[i + 1], container, program().numbers, numbers)
                           : effect.taken(container);
    // Its destructor ran in the recording, too, and nothing that it has written to was read.
    if (taken && gone_[i] && has_destructor(taken.ptr()) &&
        PyWeakref_GET_OBJECT(gone_[i].ptr()) == reinterpret_cast<PyObject*>(Py_TYPE(taken.ptr())))
      continue;
    if (shows(taken.ptr())) return effect.owner;
  }
  return -1;
}

// Another thread may drop what guards have found while the program runs without the GIL, and one write to
// state the owner of the next.
void Trace::hold(GuardTree::Values* values) const {
  for (int node : needed_) values->held.push_back(py::reinterpret_borrow<py::object>(values->nodes[node]));
  // What Python code puts something else in the place of is compared with that.
  if (asks_)
    for (PyObject* value : values->nodes) values->held.push_back(py::reinterpret_borrow<py::object>(value));
}

void Trace::promise(Py_ssize_t first_argument) {
  std::vector<int> needed = needed_;
  for (const Number& number : program().numbers)
    if (number.kind == Number::Kind::State) needed.push_back(static_cast<int>(number.which));
  tree_.promise(first_argument, needed);
}

// The guards, and the registers at the start. -1, or the node that fails.
int Trace::prepare(const Call& call, std::vector<at::Tensor>* registers, Loan* loan,
                   GuardTree::Values* values, int after) const {
  int failed = tree_.check(call.roots.data(), call.roots.size(), call.tensors, values);
  if (failed < 0) failed = aliased(*values);
  if (failed < 0) failed = merged(call, *values);
  if (failed < 0) failed = ending(call, *values);
  if (failed < 0 && program().backward) failed = hooked(call, *values);
  if (failed < 0 && program().asks_gradients()) failed = regraded(call, *values, after);
  if (failed >= 0) return failed;
  hold(values);
  fill(*plan_, call, registers, loan, *values);
  return -1;
}

void Trace::fill(const Plan& plan, const Call& call, std::vector<at::Tensor>* registers, Loan* loan,
                 const GuardTree::Values& values) const {
  const Program& program = plan.program();
  loan->end();
  registers->resize(program.registers);
  bool lends =
      plan.lends && (program.steps.empty() || (plan.overrides == aten_overrides() && !at::hasCallbacks()));
  auto put = [&](int reg, const at::Tensor& tensor) {
    if (lends)
      loan->lend(reg, tensor);
    else
      (*registers)[reg] = tensor;
  };
  for (int reg : plan.used) put(reg, call.tensor(static_cast<size_t>(reg)));
  for (size_t slot = 0; slot < program.captures.size(); ++slot)
    put(program.captures[slot], THPVariable_Unpack(values.captures[slot]));
}

int Trace::node_of(int reg) const {
  const std::vector<int>& captures = program().captures;
  auto at = std::find(captures.begin(), captures.end(), reg);
  if (at != captures.end()) return tree_.node_of_capture(static_cast<size_t>(at - captures.begin()));
  return std::max(0, tree_.node_of_input(reg));
}

// The tensor of a register that was there before the call. Most are asked for in the order of the captures.
const at::Tensor& Trace::TensorsBefore::of(int reg) {
  const Program& program = trace_.program();
  if (reg < program.inputs) return call_.tensor(static_cast<size_t>(reg));
  const std::vector<int>& captures = program.captures;
  while (captures[last_] != reg) last_ = last_ + 1 < captures.size() ? last_ + 1 : 0;
  return THPVariable_Unpack(values_.captures[last_]);
}

int Trace::regraded(const Call& call, const GuardTree::Values& values, int after) const {
  TensorsBefore tensors(*this, call, values);
  // In the place of a leaf may be what has a history, of which there is no `.grad`, either.
  for (const SetEntry& entry : program().set)
    if (entry.step > after && takes_gradients(tensors.of(entry.reg)) != entry.takes)
      return node_of(entry.reg);
  c10::SmallVector<std::pair<const c10::TensorImpl*, int>, 64> held;  // of which tensor it is the gradient
  for (const EntryGradient& entry : program().gradients) {
    if (entry.step <= after) continue;
    const at::Tensor& tensor = tensors.of(entry.reg);
    Takes takes = takes_gradients(tensor);
    if (takes == Takes::Nothing || takes != entry.takes) return node_of(entry.reg);
    const at::Tensor& gradient = tensor.grad();
    if (!entry.meta->matches(gradient) || !traits_of(gradient).empty()) return node_of(entry.reg);
    int twin = entry.twin < 0 ? -1 : program().gradients[static_cast<size_t>(entry.twin)].reg;
    if (entry.same >= 0 && !tensors.of(entry.same).is_same(gradient)) return node_of(entry.reg);
    if (twin >= 0 && !tensors.of(twin).grad().is_same(gradient)) return node_of(entry.reg);
    if (gradient.defined() && entry.same < 0 && twin < 0)
      held.emplace_back(gradient.unsafeGetTensorImpl(), entry.reg);
  }
  // Most steps begin with none.
  if (held.empty()) return -1;
  Firsts firsts(held.size() + call.tensors.size() + values.captures.size());
  for (size_t i = 0; i < call.tensors.size(); ++i) firsts.of(call.tensor(i).unsafeGetTensorImpl(), 0, -1);
  for (PyObject* captured : values.captures)
    firsts.of(THPVariable_Unpack(captured).unsafeGetTensorImpl(), 0, -1);
  int next = 0;
  for (auto [gradient, reg] : held) {
    int number = next++;
    if (firsts.of(gradient, 0, number) != number) return node_of(reg);
  }
  return -1;
}

int Trace::hooked(const Call& call, const GuardTree::Values& values) const {
  const std::vector<int>& guarded = program().hooked;
  for (size_t slot = 0; slot < values.captures.size(); ++slot) {
    const at::Tensor& tensor = THPVariable_Unpack(values.captures[slot]);
    if (!has_hooks(tensor)) continue;
    bool known = std::binary_search(guarded.begin(), guarded.end(), program().captures[slot]);
    if (!known || has_other_hooks(tensor)) return tree_.node_of_capture(slot);
  }
  // The key says whether an argument has any.
  for (int reg : guarded)
    if (reg < program().inputs && has_other_hooks(call.tensor(static_cast<size_t>(reg)))) return node_of(reg);
  return -1;
}

void Trace::give_numbers(const Call& call, const GuardTree::Values& values, NumberValues* numbers) const {
  if (program().given.empty()) return;
  numbers->resize(std::max(numbers->size(), program().numbers.size()));
  for (int id : program().given) {
    const Number& number = program().numbers[static_cast<size_t>(id)];
    NumberValue& place = (*numbers)[static_cast<size_t>(id)];
    auto which = static_cast<size_t>(number.which);
    if (number.kind == Number::Kind::Argument)
      std::memcpy(&place, &call.numbers[which].value, sizeof place);
    else
      place = number.real ? NumberValue::of_real(float_value(values.nodes[which]))
                          : NumberValue::of(whole_value(values.nodes[which]));
  }
}

namespace {
Interpreter interpreter_of(const Plan& plan, Workspace* space) {
  return {plan, space->registers, space->values.nodes, space->opaque, space->early, space->memory};
}

// The switches that a program sets, as they are while it does not run.
Switches switches_outside(const Program& program) {
  Switches outside;
  for (const Modes& modes : program.modes)
    for (size_t row = 0; row < kSwitchCount; ++row)
      if (modes.switches.has(row)) outside.put(row, switch_now(row));
  return outside;
}
}  // namespace

Interpreter Trace::interpreter(const Call& call, Workspace* space) const {
  Interpreter made = interpreter_of(*plan_, space);
  if (!asks_) return made;
  made.ask_state_by([this, &call, space, outside = switches_outside(plan_->program())](const Behind& behind) {
    // What the program has set for a while is as the function found it.
    Switches inside = outside.held();
    outside.apply();
    int moved = tree_.moved(space->values, call.roots.data(), call.roots.size(), call.tensors, behind);
    inside.apply();
    return moved;
  });
  return made;
}

Answer Trace::replay(const Call& call, Workspace* space) const {
  space->memory.done.clear();  // by another trace
  std::vector<at::Tensor>& registers = space->registers;
  GuardTree::Values& values = space->values;
  Loan loan(&registers);
  Answer answer;
  int failed = prepare(call, &registers, &loan, &values);
  if (failed >= 0) {
    answer.miss.node = failed;
    answer.miss.trace = number;
    return answer;
  }
  give_numbers(call, values, &space->memory.numbers);
  if (program().steps.empty()) {
    answer.result = end(space);
    return answer;
  }
  OpaqueResults& opaque = space->opaque;
  std::optional<Outcome> exit;
  std::shared_ptr<FlatCourse> flat = course(registers);
  if (flat && flat->stage == FlatCourse::Stage::Ready)
    if (auto found = replay_flat(call, space, &loan, flat.get(), &exit)) return std::move(*found);
  if (flat && flat->at_sizes)
    if (auto found = replay_at_sizes(call, space, &loan, flat.get())) return std::move(*found);
  Outcome outcome = exit ? std::move(*exit) : run(call, space, flat.get());
  std::shared_ptr<const Trace> other;
  while (!outcome.ok()) {
    const Trace& at = other ? *other : *this;
    std::vector<EarlyWrites::Overwritten> overwritten = space->early.take_back();
    space->memory.set.take_back();
    auto next = go_on(at, outcome, call, &registers, &loan, &values);
    if (!next) {
      loan.keep();
      space->memory.emptied.fill();
      answer.miss = miss(call, at, std::move(outcome), overwritten, space);
      return answer;
    }
    other = std::move(next);
    space->memory.set.put_again();
    other->give_numbers(call, values, &space->memory.numbers);
    Given given = std::move(outcome.given);
    if (given.value) opaque.push_back({static_cast<size_t>(outcome.step), given.value, given.parts});
    auto step = static_cast<size_t>(outcome.step);
    outcome = other->interpreter(call, space).run(step, &given, nullptr, std::move(outcome.region));
  }
  answer.result = (other ? *other : *this).end(space);
  answer.other = std::move(other);
  return answer;
}

// ---------------------------------------------------------------- the flat form
void Trace::note_loose() {
  for (size_t node = 0; node < tree_.size(); ++node) {
    const Guard& guard = tree_[static_cast<int>(node)];
    bool exact = guard.expect == Expect::Tensor && !guard.loose;
    if (guard.capture >= 0 && !exact)
      loose_.push_back(program().captures[static_cast<size_t>(guard.capture)]);
  }
  suits_sizes_ = AtSizes::suits(*plan_);
}

void Trace::note_sets() {
  for (const Step& step : program().steps) {
    if (!step.opaque || !step.opaque->sets) continue;
    const std::vector<Tree>& given = step.opaque->call.items[0].items;
    if (given[0].kind == Tree::Kind::State) sets_.emplace_back(given[0].index, given[1].value);
  }
}

// How far the program has come at the sizes of this call; null where there is no place for these.
std::shared_ptr<FlatCourse> Trace::course(const std::vector<at::Tensor>& registers) const {
  if (!program().dynamic) return courses_.only();
  std::vector<int64_t> sizes;
  auto note = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return sizes.push_back(-1);
    sizes.insert(sizes.end(), tensor.sizes().begin(), tensor.sizes().end());
    if (tensor.layout() != at::kStrided) return;
    sizes.insert(sizes.end(), tensor.strides().begin(), tensor.strides().end());
  };
  for (int reg : plan_->used) note(registers[reg]);
  for (int reg : loose_) note(registers[reg]);
  return courses_.of(std::move(sizes), program().steps.size());
}

// The program itself, which in some calls is watched for a flat form, or compared with it.
Outcome Trace::run(const Call& call, Workspace* space, FlatCourse* flat) const {
  using Stage = FlatCourse::Stage;
  // While operators are watched, such as by a profiler, forms are not run, and could not be proved.
  if (!flat || operators_are_watched()) return interpreter(call, space).run();
  if (suits_sizes_) return run_at_sizes(call, space, flat);
  bool due = flat->stage == Stage::Due || flat->stage == Stage::Made;
  due = due && !flat->busy && have_edges(beginnings_of(*plan_), space->registers);
  if (due && courses_.may_make(flat)) {
    struct Busy {
      bool& busy;
      explicit Busy(bool* b) : busy(*b) { busy = true; }
      ~Busy() { busy = false; }
    } here(&flat->busy);
    return flat->stage == Stage::Due ? run_watched(call, space, flat) : run_compared(call, space, flat);
  }
  Outcome outcome = interpreter(call, space).run();
  if (!outcome.ok() || flat->stage != Stage::Waiting) return outcome;
  // A form of sizes that are met a few times only would cost more than it gives.
  constexpr uint32_t kEnough = 3;
  if (program().dynamic && ++flat->met < kEnough) return outcome;
  if (program().backward)
    flat->stage = Stage::Due;
  else
    await_pass(space->registers, flat);
  return outcome;
}

// A run that is watched for a plan, and the plan, take as much time as some ten of its runs save.
Outcome Trace::run_at_sizes(const Call& call, Workspace* space, FlatCourse* flat) const {
  constexpr uint32_t kOften = 10;
  if (flat->stage != FlatCourse::Stage::Waiting || ++flat->met < kOften)
    return interpreter(call, space).run();
  flat->refuse("");  // no graph is left
  AtSizes watching(*plan_, space->registers);
  Outcome outcome = interpreter(call, space).run(0, nullptr, &watching);
  if (outcome.ok()) flat->at_sizes = watching.finish(outputs());
  return outcome;
}

// Nothing where the program itself has to run; the registers are then filled for it.
std::optional<Answer> Trace::replay_at_sizes(const Call& call, Workspace* space, Loan* loan,
                                             FlatCourse* flat) const {
  std::shared_ptr<const Plan> plan = flat->at_sizes;
  Outcome outcome = interpreter_of(*plan, space).run();
  // What was done until it led away was for nothing.
  if (!flat->goes_on(outcome.ok())) flat->at_sizes = nullptr;
  Answer answer;
  if (outcome.ok()) {
    answer.result = end(space);
    return answer;
  }
  if (plan->lasting_before(static_cast<size_t>(outcome.step))) {
    answer.miss = Miss{-1, outcome.step, true, outcome.found, number, nullptr};
    return answer;
  }
  fill_again(call, space, loan);
  return std::nullopt;
}

void Trace::fill_again(const Call& call, Workspace* space, Loan* loan) const {
  space->registers.clear();
  space->opaque.clear();
  space->memory.emptied.clear();
  fill(*plan_, call, &space->registers, loan, space->values);
}

// Whether passes through the graph that it leaves to its caller ask for gradients alone.
namespace {
bool runs_pure_functions(const Program& program) {
  return std::any_of(program.steps.begin(), program.steps.end(),
                     [](const Step& step) { return step.opaque && step.opaque->pure; });
}
}  // namespace

void Trace::await_pass(const std::vector<at::Tensor>& registers, FlatCourse* flat) const {
  if (flat->asked && flat->asked->anything()) {
    if (!flat->asked->gradients_alone()) return flat->refuse("a backward pass asked for more than gradients");
    flat->looks = flat->asked->looks();
    flat->asked = nullptr;
    flat->stage = FlatCourse::Stage::Due;
    return;
  }
  uint32_t hit = ++flat->hits;
  if ((hit & (hit - 1)) != 0) return;
  Roots roots(outputs(), registers);
  if (roots.tensors.empty()) {
    // Nothing but the Python code of custom functions can be saved.
    if (!runs_pure_functions(program())) return flat->refuse("");
    flat->graphless = true;
    flat->stage = FlatCourse::Stage::Due;
    return;
  }
  std::string obstacle = Shadow::obstacle(program());
  if (!obstacle.empty()) return flat->refuse(obstacle);
  auto has_node = [](const at::Tensor& root) { return root.requires_grad() && !root.is_leaf(); };
  if (!std::all_of(roots.tensors.begin(), roots.tensors.end(), has_node))
    return flat->refuse("a view of a leaf leaves the function");
  if (!have_edges(beginnings_of(*plan_), registers) || !have_edges(roots.views, registers)) return;
  flat->asked = Asked::of(roots, registers, Ends(beginnings_of(*plan_), registers).edges);
}

Outcome Trace::run_watched(const Call& call, Workspace* space, FlatCourse* flat) const {
  if (storages_overlap(*plan_, space->registers)) {
    flat->refuse("two storages show the same memory");
    return interpreter(call, space).run();
  }
  if (!program().backward && !flat->graphless) return run_shadowed(call, space, flat);
  // In the thread of a GPU autograd numbers the nodes of a graph from another start, which says in which
  // order a later pass adds gradients up. Watched, it would build them here.
  if (program().grows && gpu_in_use()) {
    flat->refuse("a backward pass builds a graph in a thread of a GPU");
    return interpreter(call, space).run();
  }
  auto known = [this](int64_t node) { return knows_writes(node); };
  Flattening flattening(*plan_, space->registers, known);
  if (flat->graphless) flattening.goes_without_graph();
  Outcome outcome;
  {
    KernelScope scope(&flattening);
    outcome = interpreter(call, space).run(0, nullptr, &flattening);
  }
  if (outcome.ok()) settle(&flattening, flat);
  return outcome;
}

// Where the graph is left to the caller, a second run is watched, and a backward pass through its graph.
Outcome Trace::run_shadowed(const Call& call, Workspace* space, FlatCourse* flat) const {
  Shadow shadow(*plan_, space->registers);
  auto known = [this](int64_t node) { return knows_writes(node); };
  Flattening flattening(*plan_, shadow.registers(), known);
  flattening.shares(sharing_of(*plan_, space->registers));
  std::string found;
  // Before there is the graph of the call, which may keep as much memory.
  {
    KernelScope scope(&flattening);
    Quiet quiet(program());
    uint64_t first = at::sequence_number::peek();
    found = shadow.run(space->values.nodes, space->memory.numbers, &flattening);
    flattening.built(at::sequence_number::peek() - first);
    if (found.empty()) flattening.follow(plan_, outputs(), flat->looks);
  }
  Outcome outcome = interpreter(call, space).run();
  if (!outcome.ok()) return outcome;
  found.empty() ? settle(&flattening, flat) : flat->refuse(found);
  return outcome;
}

void Trace::settle(Flattening* flattening, FlatCourse* flat) const {
  flat->form = flattening->finish(outputs());
  flat->stage = FlatCourse::Stage::Made;
  if (!flat->form) flat->refuse(flattening->obstacle());
}

namespace {
// Which is not the caller's.
std::string raises(const std::exception& error) { return std::string("its proof raises: ") + error.what(); }
}  // namespace

Outcome Trace::run_compared(const Call& call, Workspace* space, FlatCourse* flat) const {
  std::vector<int> outputs = this->outputs();
  Rehearsal rehearsal(*flat->form, space->registers, space->values.nodes, outputs);
  std::string difference;
  auto rehearse = [&] {
    try {
      Quiet quiet(program());
      rehearsal.run(space->values.nodes, space->memory);
    } catch (const std::exception& error) {
      difference = raises(error);
    }
  };
  // Before there is the graph of the call, which may keep as much memory. Such a program asks for nothing.
  bool leaves_graph = flat->form->backward != nullptr;
  if (leaves_graph) rehearse();
  space->memory.done.may_follow = true;
  Outcome outcome = interpreter(call, space).run();
  if (!outcome.ok()) return outcome;
  if (!leaves_graph) rehearse();
  try {
    if (difference.empty()) difference = rehearsal.difference(space->registers);
  } catch (const std::exception& error) {
    difference = raises(error);
  }
  if (rehearsal.led_away()) {
    flat->note(false);
    return outcome;
  }
  flat->stage = FlatCourse::Stage::Ready;
  if (!difference.empty()) flat->refuse("its flat form gives another result: " + difference);
  return outcome;
}

std::vector<int> Trace::outputs() const {
  std::vector<int> registers;
  output_.each_register([&](int reg) { registers.push_back(reg); });
  return registers;
}

namespace {
// May be let go of by a thread without the GIL.
std::shared_ptr<PyObject> held(const py::object& value) {
  return {Py_NewRef(value.ptr()), [](PyObject* object) {
            py::gil_scoped_acquire gil;
            Py_DECREF(object);
          }};
}
}  // namespace

// Nothing where the program itself has to run; the registers are then filled for it.
// `exit`: how it ended before there was any graph, where both are the same.
std::optional<Answer> Trace::replay_flat(const Call& call, Workspace* space, Loan* loan, FlatCourse* flat,
                                         std::optional<Outcome>* exit) const {
  std::shared_ptr<const FlatForm> form = flat->form;
  if (!form || form->plan->overrides != aten_overrides() || operators_are_watched()) return std::nullopt;
  if (form->backward && form->backward->surprised) {
    flat->refuse("a backward pass asked for more than gradients");
    return std::nullopt;
  }
  fill(*form->plan, call, &space->registers, loan, space->values);
  auto again = [&]() -> std::optional<Answer> {
    fill_again(call, space, loan);
    return std::nullopt;
  };
  if (!form->fits(space->registers, space->memory.numbers)) return again();
  std::optional<Undo> undo;
  if (form->plan->undoable >= 0) {
    undo.emplace(*form, space->registers, space->values.nodes);
    space->memory.done.may_follow = true;
  }
  Earlier earlier = form->earlier(space->registers);
  Outcome outcome;
  Interpreter kernels = interpreter_of(*form->plan, space);
  try {
    outcome = kernels.run();
  } catch (...) {
    write_before(form->program().steps[kernels.at()].node, *space);
    throw;
  }
  if (!outcome.ok()) {
    auto step = static_cast<size_t>(outcome.step);
    // What kernels cast is not kept by autocast.
    if (step < form->begins && (outcome.region.number() || !program().inside_autocast(step))) {
      space->registers.resize(static_cast<size_t>(program().registers));
      *exit = std::move(outcome);
      return std::nullopt;
    }
    flat->note(false);
    bool changed = form->plan->lasting_before(outcome.begun || step == 0 ? step : step - 1);
    if (!changed && undo) undo->roll_back();
    space->memory.set.take_back();
    space->memory.set.clear();
    if (!changed) {
      // What was raised while it told something, the program raises: it tells nothing twice.
      const Step& stopped = form->program().steps[step];
      if (outcome.given.error && stopped.opaque && stopped.opaque->tells)
        space->memory.done.told.back().error = outcome.given.error;
      // Nor does a generator give twice.
      if (outcome.given.value && stopped.opaque && (stopped.opaque->asks || stopped.draws_once()))
        space->memory.done.stray = {stopped.node, held(outcome.given.value)};
      return again();
    }
    Answer answer;
    answer.miss = Miss{-1, outcome.step, true, outcome.found, number, nullptr};
    return answer;
  }
  flat->note(true);
  form->put_history(&space->registers, space->memory.numbers, earlier);
  Answer answer;
  answer.result = end(space);
  return answer;
}

py::object Trace::replay(const Call& call) const {
  tree_.forget_failure();  // reasons name the first
  WorkspaceLease space;
  return to_python(replay(call, &*space));
}

py::object to_python(Answer answer) {
  if (!answer.result) return py::cast(std::move(answer.miss));
  if (answer.other) return py::cast(Branched{answer.other->number, answer.result});
  return std::move(answer.result);
}

// The result, after the writes to Python state.
py::object Trace::end(Workspace* space) const {
  const std::vector<PyObject*>& state = space->values.nodes;
  for (int node : cached_) use_cached(state[tree_[node].parent], tree_[node].key.ptr(), tree_[node].uses);
  space->memory.done.count_uses();
  space->early.settle();
  if (!counters_.empty()) counters_.catch_up(program(), effects_, state, &space->memory.numbers);
  Tree::Fill fill{space->registers, state, &program().numbers, space->memory.numbers.data()};
  if (effects_.empty()) return output_.build_first(fill);
  py::object whole = output_.build(fill);
  for (size_t i = 0; i < effects_.size(); ++i)
    effects_[i].apply(state[effects_[i].owner],
                      PyTuple_GET_ITEM(whole.ptr(), static_cast<Py_ssize_t>(i) + 1));
  space->early.orders().restore();
  return py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(whole.ptr(), 0));
}

namespace {
// Whether nothing that the value is built of can have been changed since.
bool is_plain_inside(const Tree& tree) {
  if (tree.kind != Tree::Kind::Tuple && tree.kind != Tree::Kind::List && tree.kind != Tree::Kind::Dict)
    return tree.is_plain();
  return std::all_of(tree.items.begin(), tree.items.end(), is_plain_inside);
}
}  // namespace

bool Trace::knows_writes(int64_t node) const {
  // Where an exception leaves it, a place may have had something else than before and after.
  for (const Effect& effect : written_)
    if (!effect.settled_at(node)) return false;
  for (size_t i = 0; i < effects_.size(); ++i) {
    // What is built may have been changed since it was written.
    const Tree& value = written_whole() ? output_ : output_.items[i + 1];
    bool known = effects_[i].steady ? is_plain_inside(value) : value.is_plain();
    if (!known && effects_[i].first < node) return false;
  }
  return true;
}

// Where a step raises: the writes before it.
void Trace::write_before(int64_t node, const Workspace& space) const {
  const std::vector<PyObject*>& state = space.values.nodes;
  NumberValues numbers = space.memory.numbers;
  work_out_all(program().numbers, &numbers);
  Tree::Fill fill{space.registers, state, &program().numbers, numbers.data()};
  for (size_t i = 0; i < effects_.size(); ++i) {
    if (effects_[i].last >= node) continue;
    py::object value = written_whole() ? py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(
                                             output_.value.ptr(), static_cast<Py_ssize_t>(i) + 1))
                                       : output_.items[i + 1].build(fill);
    effects_[i].apply(state[effects_[i].owner], value.ptr());
  }
}

// A trace that shares all steps so far, expects what the last one gave, and whose guards hold.
std::shared_ptr<const Trace> Trace::go_on(const Trace& from, const Outcome& outcome, const Call& call,
                                          std::vector<at::Tensor>* registers, Loan* loan,
                                          GuardTree::Values* values) const {
  auto step = static_cast<size_t>(outcome.step);
  if (!outcome.begun || outcome.given.error || !outcome.given.warnings.empty() || outcome.confused ||
      !from.plan_->resumable(step, false))
    return nullptr;
  OwnHooks aside(from.program(), step, *registers);
  for (auto& trace : family_->through(step, from.program().steps[step].node)) {
    if (trace.get() == &from || !Interpreter::fits(trace->program().steps[step], outcome.given, *registers))
      continue;
    GuardTree::Values found;
    if (trace->prepare(call, registers, loan, &found, outcome.step) >= 0) continue;
    if (Interpreter::finds_held(*trace->plan_, step, outcome.given, *registers)) continue;
    trace->tree_.put_made(from.tree_.made(*values), &found);
    *values = std::move(found);
    return trace;
  }
  return nullptr;
}

Miss Trace::miss(const Call& call, const Trace& at, Outcome outcome,
                 const std::vector<EarlyWrites::Overwritten>& overwritten, Workspace* space) const {
  OpaqueResults& opaque = space->opaque;
  auto step = static_cast<size_t>(outcome.step);
  if (outcome.given.value) opaque.push_back({step, outcome.given.value, nullptr});
  bool ran = outcome.begun || step > 0;
  bool changed =
      (ran && at.plan_->changed_before(outcome.begun ? step : step - 1)) || at.program().python_between;
  Miss miss{-1, outcome.step, changed, outcome.found, at.number, nullptr};
  std::optional<OwnHooks> aside(std::in_place, at.program(), step, space->registers);
  bool steady = outcome.begun && !outcome.confused;
  // Python code that ran meanwhile may have changed what the function reads again. What the last step has
  // changed can be put back.
  const OpaqueStep* last = at.program().steps[step].opaque.get();
  bool by_last = last && last->python;
  bool holds = outcome.late || (opaque.empty() && !by_last) || (!outcome.moved && at.check(call) < 0);
  holds &= !outcome.moved || overwritten.empty();
  if (steady && !holds)
    steady = by_last && (outcome.given.earlier = at.earlier(call, space->values, overwritten)) != nullptr;
  aside.reset();
  if (steady && at.plan_->resumable(step, outcome.given.error != nullptr, outcome.given.earlier != nullptr)) {
    miss.resume = std::make_shared<Resume>();
    miss.resume->program = at.plan_->shared_program();
    miss.resume->family = at.family_;
    miss.resume->step = step;
    miss.resume->registers = std::move(space->registers);
    miss.resume->numbers = space->memory.numbers;
    miss.resume->given = std::move(outcome.given);
    miss.resume->opaque = std::move(opaque);
    miss.resume->region = std::move(outcome.region);
    miss.resume->orders = space->early.orders();
    miss.resume->made = at.tree_.made(space->values);
    if (!at.program().state_paths.empty())
      miss.resume->paths = at.tree_.paths(space->values, at.program().root_names);
  }
  return miss;
}

// The state of before the call, as the function must find it where it runs again up to the step that has
// changed some of it, and has written over what the function writes there; null where that cannot be shown.
std::shared_ptr<EarlierState> Trace::earlier(const Call& call, const GuardTree::Values& values,
                                             const std::vector<EarlyWrites::Overwritten>& overwritten) const {
  auto state = std::make_shared<EarlierState>();
  for (const EarlyWrites::Overwritten& one : overwritten)
    if (!state->add_own(one.place, one.owner.ptr(), one.before, one.now)) return nullptr;
  bool shown = tree_.earlier(values, call.roots.data(), call.roots.size(), call.tensors, state.get());
  if (!shown || check(call) >= 0) return nullptr;
  state->hide();
  return state;
}

bool Trace::changes_state() const {
  bool changes = program().effects || !effects_.empty() || !written_.empty();
  for (const Step& step : program().steps) changes |= step.opaque && step.opaque->python;
  return changes;
}

int Trace::check(const Call& call) const {
  GuardTree::Values values;
  int failed = tree_.check(call.roots.data(), call.roots.size(), call.tensors, &values);
  if (failed < 0) failed = aliased(values);
  if (failed < 0) failed = merged(call, values);
  return failed < 0 ? ending(call, values) : failed;
}

bool Trace::gives_sizes(int at) const {
  const Step& step = program().steps.at(static_cast<size_t>(at));
  if (step.kind != Step::Kind::Operator || step.gives_either) return false;
  bool tensors = std::all_of(step.results.begin(), step.results.end(), [](const Result& result) {
    return result.kind == Result::Kind::Register || result.kind == Result::Kind::List;
  });
  const OperatorFacts& facts = facts_of(step.op);
  return tensors && (facts.data_dependent_shape || (facts.index && step.exit));
}

bool Trace::measures(int at) const { return program().steps.at(static_cast<size_t>(at)).measures; }

bool Trace::carries(int node) const {
  const Guard& guard = tree_[node];
  auto is_place = [&](const Effect& effect) {
    return effect.owner == guard.parent && effect.key.ptr() == guard.key.ptr() && effect.index == guard.index;
  };
  if (written_whole() || std::none_of(effects_.begin(), effects_.end(), is_place)) return false;
  return std::any_of(output_.items.begin() + 1, output_.items.end(),
                     [](const Tree& value) { return value.holds_tensor(); });
}

bool Trace::differs_in_size(int node, const Call& call) const {
  return tree_.differs_in_size(node, call.roots.data(), call.roots.size(), call.tensors);
}

std::vector<std::string> Trace::differing_numbers(const Call& call,
                                                  const std::vector<std::string>& names) const {
  auto is_number = [](const Tree& tree) { return tree.kind == Tree::Kind::Number; };
  std::vector<int> rewritten;
  for (size_t i = 0; i < effects_.size() && i + 1 < output_.items.size(); ++i) {
    const std::vector<Tree>& held = output_.items[i + 1].items;
    if (effects_[i].kind == Effect::Kind::Content && std::any_of(held.begin(), held.end(), is_number))
      rewritten.push_back(effects_[i].owner);
  }
  return tree_.differing_numbers(call.roots.data(), call.roots.size(), call.tensors, names, rewritten);
}

namespace {
using SizesMade = std::unordered_set<int64_t>;

// How large the tensors are that steps make of none.
SizesMade sizes_made(const Program& program) {
  SizesMade made;
  auto is_tensor = [](const Argument& argument) {
    return argument.kind == Argument::Kind::Register || argument.kind == Argument::Kind::List;
  };
  for (const Step& step : program.steps) {
    bool makes = step.kind == Step::Kind::Operator &&
                 std::none_of(step.arguments.begin(), step.arguments.end(), is_tensor);
    for (const Result& result : step.results)
      if (makes && result.kind == Result::Kind::Register)
        made.insert(result.meta->sizes().begin(), result.meta->sizes().end());
  }
  return made;
}

// What a module has is no size of a call: its parameters are made for it.
bool is_of_module(const Guard& object) {
  static PyObject* const module = from_module("torch.nn", "Module").release().ptr();
  bool typed = object.expect == Expect::Type && still_alive(object.weak, object.raw);
  return object.expect == Expect::Identity ||
         (typed && PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(object.raw),
                                    reinterpret_cast<PyTypeObject*>(module)));
}
}  // namespace

std::vector<std::string> Trace::sizing_numbers(const std::vector<std::string>& names) const {
  std::vector<std::string> found;
  SizesMade made = sizes_made(program());
  for (int node = 0; node < static_cast<int>(tree_.size()) && !made.empty(); ++node) {
    const Guard& guard = tree_[node];
    if (guard.access != Access::Instance || guard.loose || !tree_.can_be_loose(node)) continue;
    if (!PyLong_CheckExact(guard.value.ptr()) || is_of_module(tree_[guard.parent])) continue;
    int overflow;
    int64_t number = PyLong_AsLongLongAndOverflow(guard.value.ptr(), &overflow);
    if (number > 1 && made.count(number)) found.push_back(tree_.path(node, names));
  }
  return found;
}

namespace {
// The list whose length and entries are followed that the node is read of, or -1.
int list_above(const GuardTree& tree, int node) {
  for (; node >= 0; node = tree[node].parent)
    if (is_of_live_list(tree[node].access)) return tree[node].parent;
  return -1;
}
}  // namespace

std::pair<std::vector<std::string>, std::vector<std::string>> Trace::numbers_behind(int step) const {
  std::pair<std::vector<std::string>, std::vector<std::string>> names;
  const Numbers& numbers = program().numbers;
  auto add = [&](Number::Kind kind, int id, std::vector<std::string>* found) {
    for (int leaf : leaves_of(numbers, id, [&](const Number& number) { return number.kind == kind; })) {
      const Number& number = numbers[static_cast<size_t>(leaf)];
      int list = kind == Number::Kind::State ? list_above(tree_, static_cast<int>(number.which)) : -1;
      if (list >= 0)
        found->push_back(tree_.path(list, program().root_names));
      else if (number.name)
        found->push_back(*number.name);
    }
  };
  auto add_both = [&](int id) {
    add(Number::Kind::State, id, &names.first);
    add(Number::Kind::Argument, id, &names.second);
  };
  for (const Argument& argument : program().steps[static_cast<size_t>(step)].arguments) {
    if (argument.kind == Argument::Kind::Number || argument.kind == Argument::Kind::NumberTensor)
      add_both(argument.reg);
    if (argument.kind == Argument::Kind::Numbers)
      for (int id : argument.list) add_both(id);
  }
  return names;
}

py::tuple Trace::explain(int node, const Call& call, const std::vector<std::string>& names) const {
  return tree_.explain(node, call.roots.data(), call.roots.size(), names);
}

py::list Trace::explain_all(const Call& call, const std::vector<std::string>& names) const {
  return tree_.explain_all(call.roots.data(), call.roots.size(), call.tensors, names);
}

namespace {

at::Tensor dense(const at::Tensor& tensor);
bool close(const at::Tensor& a, const at::Tensor& b);

// A few dtypes have no kernel to be compared with; their operators ran all the same.
bool comparable_and_close(const at::Tensor& a, const at::Tensor& b) {
  try {
    return close(a, b);
  } catch (const c10::Error&) {
    return true;
  }
}

at::Tensor dense(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided ? tensor : tensor.to_dense();
}

bool close(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b)) return true;
  at::NoGradGuard no_grad;
  if (a.layout() != at::kStrided) return a.layout() == b.layout() && close(dense(a), dense(b));
  if (a.device().is_meta() || a.is_quantized()) return true;
  if (at::equal(a.resolve_neg(), b.resolve_neg())) return true;
  if (!a.is_floating_point() && !a.is_complex()) return false;
  if (a.numel() == 0) return true;
  auto wide = a.is_complex() ? at::kComplexDouble : at::kDouble;
  double tolerance =
      a.element_size() < 4 ? 1e-2 : 1e-4;  // kernels may add in another order from call to call
  return at::allclose(a.to(wide), b.to(wide), tolerance, tolerance, true);
}

}  // namespace

namespace {
// What was asked for gives another number each time.
void answer_as_recorded(const Program& program, InterpreterMemory* memory) {
  memory->numbers.resize(program.numbers.size());
  for (const Step& step : program.steps) {
    if (!step.opaque || !step.opaque->asks) continue;
    for (size_t i = 0; i < step.results.size(); ++i) {
      PyObject* value = step.opaque->values[i].ptr();
      memory->numbers[static_cast<size_t>(step.results[i].number)] =
          PyFloat_Check(value) ? NumberValue::of_real(PyFloat_AS_DOUBLE(value))
                               : NumberValue::of(PyLong_AsLongLong(value));
    }
    memory->done.answered.push_back(step.results[0].number);
  }
}
}  // namespace

namespace {
// Whether its graph keeps much memory, which no step of it needs.
bool saves_much(const Program& program) {
  constexpr size_t kMuch = size_t{32} << 20;
  size_t bytes = 0;
  for (const Step& step : program.steps) {
    if (step.opaque) return false;  // it may pass through the graph
    for (const Result& result : step.results)
      if (result.kind == Result::Kind::Register && !result.known && result.meta->requires_grad())
        bytes += result.meta->bytes();
  }
  return bytes > kMuch;
}
}  // namespace

std::string Trace::prove(const Call& call) {
  auto first = std::move(first_);
  first_.clear();
  if (program().effects || program().random || program().python_between || !effects_.empty()) return "";
  for (const Step& step : program().steps)
    if (step.python || (step.opaque && step.opaque->python)) return "";  // Python code runs once per call
  std::vector<at::Tensor> registers;
  GuardTree::Values values;
  Loan loan(&registers);
  int failed = prepare(call, &registers, &loan, &values);
  if (failed >= 0) return "";  // a guard that does not hold is a retrace, not a wrong result
  // Another thread may have changed a number since, which the guard on it lets pass.
  for (int id : program().given) {
    const Number& number = program().numbers[static_cast<size_t>(id)];
    if (number.kind != Number::Kind::State) continue;
    const py::object& recorded = tree_[static_cast<int>(number.which)].value;
    PyObject* now = values.nodes[static_cast<size_t>(number.which)];
    if (recorded && !same_immutable(recorded.ptr(), now)) return "";
  }
  Outcome outcome = run_to_prove(call, values, &registers);
  if (!outcome.ok()) return "step " + std::to_string(outcome.step) + " gave " + outcome.found;
  for (auto& [reg, whole] : first) {
    TensorMeta look = TensorMeta::of(whole);
    if (!look.matches(registers[reg])) return "output differs: " + look.difference(registers[reg]);
    if (program().unfilled) continue;
    at::NoGradGuard no_grad;
    at::Tensor tensor = without_repeats(whole.detach()), again = without_repeats(registers[reg].detach());
    if (whole.is_same(registers[reg]) || comparable_and_close(tensor, again)) continue;
    at::Tensor unwritten = unwritten_elements(call, reg);
    auto rest = [&](const at::Tensor& of) { return dense(of).masked_fill(unwritten, 0); };
    if (!unwritten.defined() || !comparable_and_close(rest(tensor), rest(again)))
      return "output differs in value";
  }
  return "";
}

Outcome Trace::run_to_prove(const Call& call, const GuardTree::Values& values,
                            std::vector<at::Tensor>* registers, Witness* witness) const {
  OpaqueResults opaque;
  EarlyWrites early;
  InterpreterMemory memory;
  give_numbers(call, values, &memory.numbers);
  answer_as_recorded(program(), &memory);
  Quiet quiet(program());
  std::optional<SavesNothing> saves;
  if (saves_much(program())) saves.emplace();  // the graph of the call itself is there
  return Interpreter(*plan_, *registers, values.nodes, opaque, early, memory).run(0, nullptr, witness);
}

// Which elements of a result hang on memory that nothing has written to; undefined where there is no telling.
at::Tensor Trace::unwritten_elements(const Call& call, int reg) const {
  if (!makes_blanks(program())) return {};
  std::vector<at::Tensor> found;
  for (bool ones : {false, true}) {
    std::vector<at::Tensor> registers;
    GuardTree::Values values;
    Loan loan(&registers);
    if (prepare(call, &registers, &loan, &values) >= 0) return {};
    FillBlanks filling(program(), registers, ones);
    if (!run_to_prove(call, values, &registers, &filling).ok()) return {};
    at::NoGradGuard no_grad;
    found.push_back(dense(without_repeats(registers[reg].detach())));
    if (filling.left_any()) return at::ones_like(found[0], at::kBool);
  }
  return found[0].ne(found[1]);
}

// ---------------------------------------------------------------- showing
namespace {

py::object constant(const c10::IValue& value) {
  if (value.isTensor() && !value.toTensor().defined()) return py::none();
  try {
    return torch::jit::toPyObject(value);
  } catch (const std::exception&) {
    return py::str("<constant>");
  }
}

py::object argument_row(const std::vector<Number>& numbers, const Argument& argument) {
  if (argument.kind == Argument::Kind::Register) return py::make_tuple("r", argument.reg);
  if (argument.kind == Argument::Kind::List) return py::make_tuple("l", argument.list);
  if (argument.kind == Argument::Kind::Number || argument.kind == Argument::Kind::NumberTensor)
    return py::make_tuple("n", text_of(numbers, argument.reg));
  if (argument.kind == Argument::Kind::Generator) return py::make_tuple("c", "<generator>");
  if (argument.kind == Argument::Kind::Numbers) {
    py::list list;
    auto constants = argument.constant.toListRef();
    for (size_t i = 0; i < argument.list.size(); ++i)
      list.append(argument.list[i] < 0 ? py::object(py::str(constant(constants[i])))
                                       : py::object(py::str(text_of(numbers, argument.list[i]))));
    return py::make_tuple("n", list);
  }
  return py::make_tuple("c", constant(argument.constant));
}

py::object result_row(const Result& result) {
  if (result.kind == Result::Kind::Register) return py::make_tuple("r", result.reg, result.meta->text());
  if (result.kind == Result::Kind::Read) return py::make_tuple("read", constant(result.read), "");
  if (result.kind == Result::Kind::Number) return py::make_tuple("number", constant(result.read), "");
  if (result.kind == Result::Kind::Ignored) return py::make_tuple("none", py::none(), "");
  py::list list;
  for (auto& one : result.list) list.append(result_row(one));
  return py::make_tuple("l", list, "");
}

}  // namespace

const char* kind_name(Step::Kind kind) {
  switch (kind) {
    case Step::Kind::Operator:
      return "operator";
    case Step::Kind::Literal:
      return "literal";
    case Step::Kind::Fill:
      return "fill";
    case Step::Kind::Data:
      return "data";
    case Step::Kind::RequireGrad:
      return "requires_grad";
    case Step::Kind::Opaque:
      return "opaque";
    case Step::Kind::Read:
      return "read";
    case Step::Kind::Gradient:
      return "gradient";
    case Step::Kind::SetGradient:
      return "set_gradient";
    case Step::Kind::SetData:
      return "set_data";
    case Step::Kind::Numbers:
      return "numbers";
  }
  return "";
}

py::dict Trace::row_of(const Plan& plan, size_t index) {
  const Program& program = plan.program();
  const Step& step = program.steps.at(index);
  py::list arguments, names, results;
  for (auto& argument : step.arguments) arguments.append(argument_row(program.numbers, argument));
  for (auto& argument : step.op.schema().arguments())
    names.append(py::make_tuple(argument.name(), argument.kwarg_only()));
  for (auto& result : step.results) results.append(result_row(result));
  py::dict row;
  row["kind"] = kind_name(step.kind);
  row["operator"] = step.kind == Step::Kind::Opaque ? step.opaque->name
                    : step.kind == Step::Kind::Read ? text_of(program.numbers, step.arguments[0].reg)
                                                    : step.op.schema().name();
  row["overload"] = step.op.schema().overload_name();
  row["arguments"] = arguments;
  row["names"] = names;
  row["results"] = results;
  row["modes"] = step.modes >= 0 ? py::object(py::str(program.modes[step.modes].text())) : py::none();
  row["place"] = place_tuple(step.place);
  row["frees"] = plan.steps[index].frees;
  row["literal"] = step.literal.defined() ? py::cast(step.literal) : py::none();
  return row;
}

py::list Trace::rows_of(const Plan& plan) {
  py::list rows;
  for (size_t i = 0; i < plan.program().steps.size(); ++i) rows.append(row_of(plan, i));
  return rows;
}

py::list Trace::flat_rows() const {
  const FlatCourse& shown = flat();
  return shown.form ? rows_of(*shown.form->plan) : py::list();
}

py::list Trace::guard_rows(const std::vector<std::string>& names) const {
  py::list rows;
  for (size_t i = 0; i < tree_.size(); ++i)
    if (tree_[i].expect != Expect::Anything || tree_[i].length >= 0)
      rows.append(
          py::make_tuple(tree_.path(static_cast<int>(i), names), tree_.expected(tree_[i]), tree_[i].capture));
  return rows;
}

py::list Trace::output_registers() const {
  py::list list;
  output_.each_register([&](int reg) { list.append(reg); });
  return list;
}

}  // namespace lazytrace
