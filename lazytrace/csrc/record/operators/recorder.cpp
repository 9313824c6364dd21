#include "record/operators/recorder.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/library.h>

#include <optional>
#include <unordered_set>

#include "cpython/objects.h"
#include "passes/unused.h"
#include "program/flatten.h"
#include "record/operators/parts.h"
#include "support/reasons.h"
#include "torch/autograd_graph.h"
#include "torch/facts.h"
#include "torch/random_mark.h"
#include "torch/storage.h"
#include "torch/traits.h"
#include "torch/transforms.h"

namespace lazytrace {

namespace {
constexpr const char* kComesToRequire = "a tensor comes to require gradients in place";

thread_local Recorder* current = nullptr;

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (current && !current->paused()) return current->on_operator(op, keys, stack);
  bool answers = current && current->note_hidden(op, stack);
  c10::impl::ExcludeDispatchKeyGuard guard(kRecordKey);
  op.callBoxed(stack);
  if (answers) current->note_answer(stack->back().toBool());
}

// Runs the operator itself; those that it calls come to the recorder.
void hand_on(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kRecordKey), stack);
}

// Inside a region of the caller's in which autocast is off, what the function casts stays beyond its own, to
// the next call; where that region ends shows in no call.
bool casts_for_its_caller(const Program& program) {
  const auto& modes = program.modes;
  return !modes[0].any_autocast() && std::any_of(modes.begin(), modes.end(), [](const Modes& one) {
    return one.any_autocast() && one.autocast_cache;
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

RecordingScope::RecordingScope(Recorder* recorder)
    : before_(current), included_(c10::impl::tls_is_dispatch_key_included(kRecordKey)) {
  current = recorder;
  recorder->nested_ = included_;
  c10::impl::tls_set_dispatch_key_included(kRecordKey, true);
}

RecordingScope::~RecordingScope() {
  current = before_;
  c10::impl::tls_set_dispatch_key_included(kRecordKey, included_);
}

Recorder* Recorder::active() { return current; }

Recorder::Recorder() : modes_(Modes::current()) {
  program_->modes.push_back(modes_);
  // A first guess: moving steps to larger memory again and again shows in the time of a recording.
  program_->steps.reserve(128);
}

void Recorder::fail(const std::string& reason) {
  bool first = !failed();
  if (first) {
    reason_ = reason, failed_at_ = place;
    failed_in_block_ = block_.paused > 0, failed_in_operator_ = inside_other_operator();
  }
  // A function that runs again must ask for the numbers that it asked for.
  if (feeding()) return;
  sizes_.end();
  if (first && current == this && !nested_) c10::impl::tls_set_dispatch_key_included(kRecordKey, false);
}

void Recorder::pause() {
  if (!paused_++) own_nodes_.pause(), resuming_.begin_opaque();
}
void Recorder::resume() {
  if (!--paused_) own_nodes_.resume();
  random_mark_ = RandomMark::now();
}

void Recorder::refuse_in_block() {
  if (in_block()) fail(say(reason::BlockDoesMore));
}

bool Recorder::takes_steps() {
  refuse_in_block();
  return !paused() && !stopped();
}

// ---------------------------------------------------------------- registers
int Recorder::register_of(const at::Tensor& tensor) {
  std::optional<bool> exact;
  int reg = origins_.find(tensor, &exact);
  if (exact) sizes_.set(reg, !*exact);
  // `explain` has ended the recording. Until the exit, what was found has the register that it had.
  if (reg >= 0 && feeding_.found(program_->registers, tensor)) reg = origins_.add(tensor, false);
  if (reg < 0) reg = data_register(tensor);
  return reg >= 0 ? reg : feeding_.lent().find(tensor);
}

void Recorder::add_input(const at::Tensor& tensor) {
  int reg = program_->registers;
  bool known = origins_.known(tensor);
  origins_.add_input(tensor);
  if (!known) sizes_.set(reg, true);
}

int Recorder::data_register(const at::Tensor& tensor) {
  if (tensor.requires_grad()) return -1;
  std::vector<at::Tensor> sources = origins_.sources_of(tensor);
  // `x.data.cpu().data`: one between that no step has seen is the `.data` of those before it, if they are
  // one.
  for (size_t i = 1; i < sources.size() && !stopped(); ++i) {
    std::vector<at::Tensor> before(sources.begin(), sources.begin() + static_cast<std::ptrdiff_t>(i));
    bool between = !knows(sources[i]) && !sources[i].requires_grad() && origins_.has_read_data(sources[i]);
    if (!between || !origins_.show_one(before)) continue;
    if (int from = register_of(sources[0]); from >= 0) add_data(sources[i], sources[0], from);
  }
  bool one = origins_.show_one(sources);
  for (const at::Tensor& source : sources) {
    // Of two tensors that show the same memory now, at the next call each may show its own. A function that
    // runs again goes on with the one that it took then.
    if (!one && !feeding_.took_data_of(source)) continue;
    int from = register_of(source);
    if (from >= 0) return add_data(tensor, source, from);
  }
  return -1;
}

// `tensor` is the `.data` of `source`, which the register `from` is.
int Recorder::add_data(const at::Tensor& tensor, const at::Tensor& source, int from) {
  static auto detach = c10::Dispatcher::singleton().findSchemaOrThrow("aten::detach", "");
  Step step(Step::Kind::Data, detach);
  Argument argument;
  argument.kind = Argument::Kind::Register;
  argument.reg = from;
  step.arguments.push_back(argument);
  step.place = place;
  Result result;
  result.loose = sizes_.is_loose(from);
  result.reg = origins_.add(tensor, false);
  sizes_.set(result.reg, result.loose);
  if (own_.count(from)) own_.insert(result.reg);
  if (!moves_memory_ && (was_there(from) || views_.count(from))) views_.insert(result.reg);
  result.meta = shared_.meta_of(tensor);
  step.results.push_back(result);
  if (feeding()) feeding_.replace(result.reg, tensor);
  push(std::move(step));
  origins_.shows(tensor, source);
  return result.reg;
}

int Recorder::output_register(const at::Tensor& tensor) {
  int reg = register_of(tensor);
  if (reg >= 0) {
    use_blank(tensor, false, false);
    note_requires_grad(tensor, reg);
  }
  return reg;
}

// ---------------------------------------------------------------- operators
void Recorder::on_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                           torch::jit::Stack* stack) {
  Sizes::Lifted lifted = sizes_.lift(op.schema(), stack);
  std::vector<at::Tensor> transformed = transformed_arguments(op, *stack);
  // Of a transform before the call, in state: what it stands for may be an argument of this call alone.
  bool found = std::any_of(transformed.begin(), transformed.end(),
                           [&](const at::Tensor& tensor) { return origins_.knows(tensor); });
  if (is_transforming() && found) fail(say(reason::UnknownTensor));
  if (is_transforming() || (!transformed.empty() && !found)) return transform(op, keys, stack, lifted);
  if (stopped() || facts_of(op).profiling) return run_plain(op, stack);
  bool in_parts = lifted.empty() && !follows_sizes() && !conditions_.overridden && comes_apart(op, *stack);
  if (in_parts) return run_watched(op, [&] { hand_on(op, keys, stack); });
  record_operator(op, stack, std::move(lifted));
}

namespace {
// Counts how deep operators call each other.
struct Deeper {
  int* depth;
  explicit Deeper(int* d) : depth(d) { ++*depth; }
  ~Deeper() { --*depth; }
};

bool is_torchs(const std::string& name) {
  return name.rfind("aten::", 0) == 0 || name.rfind("prim::", 0) == 0;
}
}  // namespace

void Recorder::fail_in_operator(const std::string& reason) {
  Deeper inside(&inside_other_operator_);
  fail(reason);
}

// Inside a transform the operator comes again from the batching rule, as the plain operators that it is made
// of. So it does on tensors of a transform that has ended, as those that they stand for.
void Recorder::transform(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                         const Sizes::Lifted& lifted) {
  if (numbers() && follows_sizes()) fail(say(reason::SizesInTransform));
  if (numbers()) numbers()->settle(lifted);
  Deeper inside(&inside_transformed_);
  hand_on(op, keys, stack);
}

void Recorder::run_plain(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Deeper inside(&inside_operator_);
  std::optional<Deeper> inside_other;
  if (!is_torchs(op.schema().name())) inside_other.emplace(&inside_other_operator_);
  c10::impl::ExcludeDispatchKeyGuard guard(kRecordKey);
  op.callBoxed(stack);
}

void Recorder::run_watched(const c10::OperatorHandle& op, c10::function_ref<void()> run) {
  struct Ear final : c10::WarningHandler {
    c10::WarningHandler* next = c10::WarningUtils::get_warning_handler();
    bool warned = false;
    void process(const c10::Warning& warning) override {
      warned = true;
      next->process(warning);
    }
  } ear;
  // torch's own hooks are no part of what the function does: autograd calls them at a replay too.
  struct Away {
    Recorder* recorder;
    explicit Away(Recorder* r) : recorder(r) { set(true); }
    ~Away() { set(false); }
    void set(bool away) const {
      if (recorder->conditions_.hooks == SavedHooks::Torchs) recorder->look_away(away);
    }
  } away(this);
  try {
    c10::WarningUtils::WarningHandlerGuard heard(&ear);
    run();
  } catch (...) {
    // Where Python catches it, the way that it takes from here hangs on values that no read shows.
    fail(say(reason::OperatorRaised, op.schema().name()));
    throw;
  }
  // Python shows a warning once for each line of the user's, which a replay does not come by.
  if (ear.warned) fail(say(reason::OperatorWarned, op.schema().name()));
}

bool Recorder::encode_all(const c10::OperatorHandle& op, const OperatorFacts& facts,
                          const std::vector<c10::IValue>& values, Sizes::Lifted lifted, Step* step) {
  const auto& schema = op.schema();
  auto next = lifted.begin();
  if (facts.lift && values[0].isTensor()) use_blank(values[0].toTensor(), false, false);
  step->arguments.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (next != lifted.end() && next->first == i) {
      step->arguments.push_back(std::move(next->second));
      ++next;
      continue;
    }
    Argument argument;
    if (!encode(schema.arguments()[i], values[i], &argument, facts.view,
                facts.overwrites_outputs && schema.arguments()[i].alias_info()))
      return false;
    // A constant that may come out again must be a new tensor at each replay.
    bool constant = argument.kind == Argument::Kind::Constant && argument.constant.isTensor() &&
                    argument.constant.toTensor().defined();
    if (constant && facts.lift) {
      at::NoGradGuard no_grad;
      c10::impl::ExcludeDispatchKeyGuard guard(kRecordKey);
      step->kind = Step::Kind::Literal;
      step->literal = argument.constant.toTensor().clone();
      continue;
    }
    step->arguments.push_back(std::move(argument));
  }
  return true;
}

// A number that comes out again must be a new tensor at each replay.
void Recorder::refuse_constants(const std::vector<c10::IValue>& arguments, const torch::jit::Stack& stack,
                                const Step& step) {
  const auto& schema = step.op.schema();
  auto shows = [](const c10::IValue& value, const c10::StorageImpl* memory) {
    return value.isTensor() && value.toTensor().defined() && storage_of(value.toTensor()) == memory;
  };
  auto comes_out = [&](const c10::StorageImpl* memory) {
    return std::any_of(stack.end() - static_cast<std::ptrdiff_t>(schema.returns().size()), stack.end(),
                       [&](const c10::IValue& value) {
                         if (!value.isTensorList()) return shows(value, memory);
                         auto items = value.toListRef();
                         return std::any_of(items.begin(), items.end(),
                                            [&](const c10::IValue& item) { return shows(item, memory); });
                       });
  };
  for (size_t i = 0; i < step.arguments.size(); ++i) {
    bool number = step.arguments[i].kind == Argument::Kind::Constant && arguments[i].isTensor() &&
                  arguments[i].toTensor().defined() && schema.arguments()[i].alias_info();
    if (number && comes_out(storage_of(arguments[i].toTensor())))
      fail(say(reason::NumberReturned, schema.name()));
  }
}

namespace {
// The tensors that an operator writes to, and how large they are before it does: out= gives an empty one
// whatever size it takes.
class Written {
 public:
  Written(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
      if (!alias || !alias->isWrite()) continue;
      bool out = schema.arguments()[i].kwarg_only();
      if (arguments[i].isTensor()) add(arguments[i].toTensor(), out);
      if (!arguments[i].isTensorList()) continue;
      for (const at::Tensor& tensor : arguments[i].toTensorVector()) add(tensor, out);
    }
  }
  // An empty one that stays so, too: at another call it may be given more.
  template <typename F>
  void each_resized(F visit) const {
    for (const One& one : tensors_)
      if ((one.out && one.tensor.numel() == 0) || one.tensor.sizes() != at::IntArrayRef(one.sizes))
        visit(one.tensor);
  }

 private:
  struct One {
    at::Tensor tensor;
    c10::SmallVector<int64_t, 5> sizes;
    bool out;
  };
  void add(const at::Tensor& tensor, bool out) {
    if (tensor.defined() && storage_of(tensor))
      tensors_.push_back({tensor, {tensor.sizes().begin(), tensor.sizes().end()}, out});
  }
  std::vector<One> tensors_;
};
}  // namespace

// A function that runs again is handed such a tensor as it is by then, and would have asked its size before.
void Recorder::note_resized(const at::Tensor& tensor, const c10::OperatorHandle& op) {
  note_changed_look(true);
  if (origins_.known(tensor) && sizes_.results_are_loose()) sizes_.set(register_of(tensor), true);
  resuming_.end(op.schema().name() + " changes the size of what it writes to");
}

void Recorder::record_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                               Sizes::Lifted lifted) {
  const auto& schema = op.schema();
  size_t count = schema.arguments().size(), returns = schema.returns().size();
  const OperatorFacts& facts = facts_of(op);
  if (facts.asks_looks && lifted.empty())
    return run_plain(op, stack);  // no step, which could switch the modes
  Step step(op);
  step.place = place;
  note_modes(&step);
  if (!feeding_.lent().empty()) feeding_.lent().restore(stack, count);
  std::vector<c10::IValue> before(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  if (numbers() && facts.changes_metadata) fix_sizes(before, &lifted);
  if (!lifted.empty()) numbers()->settle_kinds(schema, facts, &lifted);
  if (numbers() && !follows_sizes() && !lifted.empty())
    program_->sized |= numbers()->settle_sizes(schema, *stack, &lifted);
  step.takes_numbers = !lifted.empty();
  step.gives_either = facts.gives_either;
  if (!encode_all(op, facts, before, std::move(lifted), &step)) {
    if (feeding()) feeding_.diverge(schema.name() + " with an argument that it did not have");
    return run_plain(op, stack);
  }
  if (feeding() && facts.view) read_fed_blanks(before);
  sizes_.begin(step, shape_depends_on_values(facts, before));
  if (sizes_.follows()) note_memory(before, &step);
  note_kernel(op, &step);
  if (feeding()) return feed_operator(op, stack, std::move(step));
  if (facts.forward_mode) fail(say(reason::ForwardMode));
  note_effects(op, facts, before, &step);
  Written written(schema, before);
  run_watched(op, [&] { run_plain(op, stack); });
  if (!facts.changes_metadata)
    written.each_resized([&](const at::Tensor& tensor) { note_resized(tensor, op); });
  refuse_constants(before, *stack, step);
  if (facts.view) read_blanks(before, *stack, returns);
  // Composite operators (dropout, lstm) carry no tag that says that they draw random numbers.
  RandomMark now = RandomMark::now();
  step.random |= random_mark_ != now;
  program_->random |= step.random;
  random_mark_ = now;
  if (failed()) return;
  note_changed_look(facts.changes_metadata);
  program_->unfilled |= facts.leaves_unfilled;
  // What such a function returns at the next call may be a tensor whose shape was read already.
  if (facts.changes_metadata && (resuming_.after_opaque() || resuming_.after_block()))
    fail(say(reason::ReshapeAfterOpaque, schema.name()));
  if (facts.changes_metadata && !(facts.turns && may_turn(before[0].toTensor(), step)))
    resuming_.end(schema.name() + " changes the shape or the memory of a tensor");
  for (size_t i = 0; i < count; ++i) note_written_gradients(schema.arguments()[i], before[i]);
  step.results.reserve(returns);
  for (size_t i = 0; i < returns; ++i)
    step.results.push_back(decode((*stack)[stack->size() - returns + i], step));
  note_bases(facts, before, *stack, &step);
  note_owner(facts, step);
  for (const c10::IValue& value : before) workload_.add(value);
  for (size_t i = 0; i < returns; ++i) workload_.add((*stack)[stack->size() - returns + i]);
  note_exit(facts, before, &step);
  note_blank(facts, step, returns ? (*stack)[stack->size() - returns] : c10::IValue());
  push(std::move(step));
}

// Whether a function that runs again can be given this tensor, which is turned in place, as it looked before:
// one that a step of the call's has made, of known sizes.
bool Recorder::may_turn(const at::Tensor& tensor, const Step& turning) {
  Origins::Known* known = origins_.known(tensor);
  if (!known || made_by_factory(known->reg) || turning.takes_numbers) return false;
  for (const Step& step : program_->steps)
    for (const Result& result : step.results) {
      if (result.kind != Result::Kind::Register || result.reg != known->reg) continue;
      bool shown = step.kind == Step::Kind::Gradient ||
                   (step.kind == Step::Kind::Operator && !facts_of(step.op).blank_factory);
      return shown && !result.known && !result.loose && result.meta->strided();
    }
  return false;
}

// What surrounds the call of an operator: switches of torch's bindings, and who has written its kernel.
void Recorder::note_kernel(const c10::OperatorHandle& op, Step* step) {
  const std::string& name = op.schema().name();
  // One of torch's that nobody has replaced is seen in the signature (`replaced_kernels`).
  bool may_be_python = !is_torchs(name) || conditions_.overridden;
  // What a replay has run hangs on its kernel, too.
  hangs_on_kernels_ |= may_be_python;
  if (feeding()) return;
  step->below = !conditions_.below && is_below_autograd();
  if (at::globalContext().checkSparseTensorInvariants() != conditions_.invariants)
    fail(say(reason::ChecksInvariants));
  step->python = may_be_python && runs_python(op, conditions_.registrations);
  python_kernels_ += step->python;
  if (step->python && has_written()) fail_in_operator(say(reason::PythonKernel, name));
}

// C code had looked at a number when it was recorded, and raised; this time it goes on to its operator. Or
// the number was written to a place that holds it already. Reads change nothing, so the function can run on
// as if nobody had looked. Whether nothing is left to feed.
bool Recorder::leaves_out_reads() {
  if (feeding_.expected().kind != Step::Kind::Read) return false;
  fail(say(reason::ReadAfterChange, "a number", resuming_.change(), "it reads fewer numbers than before"));
  while (feeding() && feeding_.expected().kind == Step::Kind::Read) feeding_.skip();
  random_mark_ = RandomMark::now();
  return !feeding();
}

void Recorder::leave_out_last_reads() {
  if (feeding()) leaves_out_reads();
}

// Where it comes to its numbers by another path than then, other traces would find other values there.
void Recorder::expect(const Step& step) {
  if (!feeding_.expect(step, numbers())) fail_to_resume(step);
}

void Recorder::fail_to_resume(const Step& step) {
  fail(say(reason::ResumesOtherwise, step.opaque ? step.opaque->name : step.op.schema().name()));
}

// While feeding: the operator has run, and Python is given what it gave.
void Recorder::feed_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack, Step step) {
  if (leaves_out_reads()) return run_plain(op, stack);
  const OperatorFacts& facts = facts_of(op);
  const Step& expected = feeding_.expected();
  size_t returns = op.schema().returns().size();
  expect(step);
  const std::vector<c10::IValue> arguments(
      stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()), stack->end());
  bool refilled = (expected.kind == Step::Kind::Literal && facts.blank_factory) || expected.filled;
  if (refilled)
    run_plain(op, stack);  // Python fills the memory itself, and a replay may have changed its own since
  else
    give(op, stack);
  note_changed_look(facts.changes_metadata);
  for (size_t i = 0; i < returns; ++i) {
    const c10::IValue& value = (*stack)[stack->size() - returns + i];
    feeding_.turn(expected.results[i], value);
    feeding_.meet(expected.results[i], value);
    step.results.push_back(decode(value, step));
    feeding_.note_gradients(expected.results[i], value);
    if (value.isTensor() && value.toTensor().defined() && !facts.view && !refilled && !step.results[i].known)
      feeding_.lent().add(value.toTensor(), step.results[i].reg);
  }
  note_bases(facts, arguments, *stack, &step);
  note_blank(facts, step, returns ? (*stack)[stack->size() - returns] : c10::IValue());
  note_owner(facts, expected);
  push(std::move(step));
}

// Puts what the operator gave in the place of its arguments.
void Recorder::give(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto first = stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  c10::IValue self = first == stack->end() ? c10::IValue() : *first;
  stack->erase(first, stack->end());
  if (feeding_.warned()) fail(say(reason::OperatorWarned, op.schema().name()));
  try {
    feeding_.give(stack);
  } catch (...) {
    random_mark_ = RandomMark::now();
    fail(say(reason::OperatorRaised, op.schema().name()));
    throw;
  }
  // A literal on its way (`to`, `lift_fresh`) stays Python's own memory until what was written there is
  // known.
  bool one = op.schema().returns().size() == 1 && feeding_.expected().results[0].known;
  if (one && self.isTensor() && self.toTensor().defined() && blanks_.holds(self.toTensor()))
    stack->back() = self;
}

void Recorder::note_blank(const OperatorFacts& facts, const Step& step, const c10::IValue& made) {
  // One whose size may differ is no literal: Python would have had to read its size to fill it.
  if (sizes_.results_are_loose()) return;
  if (!facts.blank_factory || step.results.empty() || step.results[0].kind != Result::Kind::Register) return;
  blanks_.add(made.toTensor(), at_step());
}

namespace {
// Calls `visit` on all tensors that an operator is given.
template <typename F>
void each_given(const std::vector<c10::IValue>& arguments, F visit) {
  auto look = [&](const c10::IValue& value) {
    if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor());
  };
  for (const c10::IValue& value : arguments) {
    look(value);
    if (!value.isTensorList() && !value.isOptionalTensorList()) continue;
    for (const c10::IValue& one : value.toListRef()) look(one);
  }
}

bool takes_whole_numbers(const std::vector<c10::IValue>& arguments) {
  bool found = false;
  each_given(arguments,
             [&](const at::Tensor& tensor) { found |= at::isIntegralType(tensor.scalar_type(), true); });
  return found;
}

// Whether an operator that looks at values says yes or no, and nothing else to its kernels.
bool is_question(const c10::OperatorHandle& op, const OperatorFacts& facts,
                 const std::vector<c10::IValue>& arguments) {
  static const std::unordered_set<std::string> kOfOne = {"aten::is_nonzero", "aten::item",
                                                         "aten::_local_scalar_dense"};
  if (!facts.reads) return false;
  if (kOfOne.count(op.schema().name())) return arguments[0].toTensor().scalar_type() == at::kBool;
  const auto& returns = op.schema().returns();
  return returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::BoolType;
}
}  // namespace

bool Recorder::note_hidden(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const OperatorFacts& facts = facts_of(op);
  Sizes::Lifted lifted = sizes_.lift(op.schema(), stack);
  if (numbers()) numbers()->settle(lifted);
  std::vector<c10::IValue> arguments(
      stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()), stack->end());
  bool varies = facts.reads || shape_depends_on_values(facts, arguments);
  resuming_.add_hidden(varies);
  // A flat form asks again, and a pass in C++ may ask, too.
  bool question = (in_block() || in_pass_) && is_question(op, facts, arguments);
  if (!in_block()) return question;
  // Code of torch that looks at memory does so behind all that is seen of a block.
  bool looks = varies || (!facts.leaves_numbers && takes_whole_numbers(arguments));
  if (looks && !question) refuse_in_block();
  note_in_block(arguments, !lifted.empty());
  return question;
}

// What is found again by a guard gets a register, so that the kernels of the block find it.
void Recorder::note_in_block(const std::vector<c10::IValue>& arguments, bool takes_numbers) {
  // A number that is followed is what it was, for code that nobody follows: each value would be a recording.
  if (takes_numbers) fail(say(reason::BlockTakesNumber));
  each_given(arguments, [&](const at::Tensor& tensor) {
    int reg = origins_.knows(tensor) ? register_of(tensor) : -1;
    auto& uses = block_.uses;
    if (reg < 0 || std::find(uses.begin(), uses.end(), reg) != uses.end()) return;
    uses.push_back(reg);
    if (tensor.requires_grad() && tensor.is_leaf()) block_leaves_.emplace_back(reg, tensor.getIntrusivePtr());
  });
}

// Which results show the memory of an argument, or of a tensor in a list of them (meshgrid).
void Recorder::note_bases(const OperatorFacts& facts, const std::vector<c10::IValue>& arguments,
                          const torch::jit::Stack& stack, Step* step) {
  c10::SmallVector<std::pair<int, at::Tensor>, 8> given;
  auto add = [&](int reg, const at::Tensor& tensor) {
    if (reg >= 0 && tensor.defined()) given.emplace_back(reg, tensor);
  };
  for (size_t i = 0; i < arguments.size() && i < step->arguments.size(); ++i) {
    const Argument& argument = step->arguments[i];
    if (argument.kind == Argument::Kind::Register && arguments[i].isTensor())
      add(argument.reg, arguments[i].toTensor());
    if (argument.kind != Argument::Kind::List || !arguments[i].isTensorList()) continue;
    auto list = arguments[i].toTensorVector();
    for (size_t k = 0; k < list.size() && k < argument.list.size(); ++k) add(argument.list[k], list[k]);
  }
  // Of a list of tensors, each result shows the one at its place (broadcast_tensors), though others may share
  // its memory.
  auto look = [&](const at::Tensor& tensor, size_t place, Result* result) {
    auto* storage = result->known || !tensor.defined() ? nullptr : storage_of(tensor);
    auto shows = [&](const auto& one) { return storage && storage_of(one.second) == storage; };
    auto base = std::find_if(given.begin(), given.end(), shows);
    if (place < given.size() && shows(given[place]))
      base = given.begin() + static_cast<std::ptrdiff_t>(place);
    if (base == given.end()) return;
    result->base = base->first;
    result->distance = tensor.storage_offset() - base->second.storage_offset();
    // Where it shows all of it in this call, it does at each: neither has another size, nor is it told how
    // much.
    bool fixed = facts.always_view && !moves_memory_ && !step->takes_numbers && !sizes_.is_loose(base->first);
    if (fixed && same_place(tensor, base->second)) origins_.shows(tensor, base->second);
  };
  size_t first = stack.size() - step->results.size();
  bool lists = step->arguments.size() > 0 && step->arguments[0].kind == Argument::Kind::List;
  for (size_t i = 0; i < step->results.size(); ++i) {
    const c10::IValue& value = stack[first + i];
    if (value.isTensor()) look(value.toTensor(), 0, &step->results[i]);
    if (!value.isTensorList()) continue;
    auto list = value.toTensorVector();
    for (size_t k = 0; k < list.size(); ++k) look(list[k], lists ? k : 0, &step->results[i].list[k]);
  }
}

// item() of a tensor that has one element at each replay cannot raise.
bool Recorder::gives_its_number(const at::Tensor& tensor, const Step& step) const {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided &&
         !sizes_.is_loose(step.arguments[0].reg);
}

namespace {
// A conversion that was a copy in the recording is one at all sizes: only what it is asked for in memory
// could make the difference.
bool converts(const Step& step) {
  const auto& schema = step.op.schema();
  if (schema.name() != "aten::to" || step.results.size() != 1 || step.results[0].base >= 0) return false;
  for (size_t i = 0; i < step.arguments.size() && i < schema.arguments().size(); ++i) {
    const Argument& argument = step.arguments[i];
    if (schema.arguments()[i].name() == "memory_format")
      return argument.kind == Argument::Kind::Constant && argument.constant.isNone();
  }
  return false;
}

// Of two operands and more it is a product, whatever their sizes are; one alone may be shown otherwise.
bool contracts(const Step& step) {
  if (step.op.schema().name() != "aten::einsum") return false;
  return std::any_of(step.arguments.begin(), step.arguments.end(), [](const Argument& argument) {
    return argument.kind == Argument::Kind::List && argument.list.size() > 1;
  });
}

// Whether torch's operator was given tensors of `own` alone: what it gives is new, or shows one of these.
bool takes_only(const std::unordered_set<int>& own, const Step& step) {
  if (step.op.schema().name().rfind("aten::", 0) != 0) return false;
  bool any = false;
  auto outside = [&](int reg) {
    any |= reg >= 0;
    return reg >= 0 && !own.count(reg);
  };
  for (const Argument& argument : step.arguments) {
    if (argument.kind == Argument::Kind::Constant && argument.constant.isTensor()) return false;
    if (argument.kind == Argument::Kind::Register && outside(argument.reg)) return false;
    if (argument.kind == Argument::Kind::List &&
        std::any_of(argument.list.begin(), argument.list.end(), outside))
      return false;
  }
  return any;
}
}  // namespace

// Whose memory results have, where that is the same whatever their sizes are.
void Recorder::note_owner(const OperatorFacts& facts, const Step& step) {
  if (!sizes_.follows()) return;
  // `.data =` may have given what was there the memory of another tensor, which is a copy at some sizes.
  bool views = facts.always_view && !moves_memory_;
  bool made =
      facts.makes_new || converts(step) || contracts(step) || (!moves_memory_ && takes_only(own_, step));
  auto note = [&](const Result& result) {
    if (result.kind != Result::Kind::Register || result.reg < 0 || result.known) return;
    if (made || (facts.view && own_.count(result.base))) own_.insert(result.reg);
    if (views && result.base >= 0 && (was_there(result.base) || views_.count(result.base)))
      views_.insert(result.reg);
  };
  for (const Result& result : step.results) {
    note(result);
    for (const Result& one : result.list) note(one);
  }
}

namespace {
// Whether an operator raises for nothing but the looks of its arguments, which a replay finds as they were:
// one that gives a view. How much memory there is `as_strided` asks, too, and `narrow` the value of a tensor.
bool raises_for_looks_alone(const OperatorFacts& facts, const Step& step) {
  const auto& schema = step.op.schema();
  bool asks = schema.name() == "aten::as_strided" ||
              (schema.name() == "aten::narrow" && schema.overload_name() == "Tensor");
  return facts.view && !facts.changes_metadata && !step.takes_numbers && !asks;
}
}  // namespace

void Recorder::note_exit(const OperatorFacts& facts, const std::vector<c10::IValue>& arguments, Step* step) {
  // A value that is followed leads nowhere by itself.
  bool followed = !step->results.empty() && step->results[0].kind == Result::Kind::Number;
  for (auto& result : step->results) step->exit |= result.kind == Result::Kind::Read;
  step->exit |= (shape_depends_on_values(facts, arguments) && !followed) || step->python;
  step->by_size = !step->exit && sizes_.may_differ(facts, *step);
  step->exit |= step->by_size;
  settle_flags();
  if (step->exit && !flagged_.empty()) resuming_.end(kComesToRequire);  // by this step
  // What has been done cannot be undone to run the function again where the value differs.
  if (step->exit && resuming_.changed() && resuming_.ended())
    fail(say(reason::ReadAfterChange, step->op.schema().name(), resuming_.change(), resuming_.why()));
  bool once = resuming_.changed() || step->once() || conditions_.hooks != SavedHooks::None;
  bool safe = raises_for_looks_alone(facts, *step) && !sizes_.results_are_loose();
  bool raises = !step->exit || step->by_size;
  if (once && raises && !safe && !(followed && gives_its_number(arguments[0].toTensor(), *step)))
    note_catching(step->op.schema().name(), step);
}

// Of a step that leads nowhere unless it raises.
void Recorder::note_catching(const std::string& name, Step* step) {
  if (!would_catch()) return;
  settle_flags();
  step->exit = true;
  step->by_size = false;
  step->after_writes = !catches();
  if (resuming_.ended_before()) fail(say(reason::CaughtAfterChange, name, resuming_.why()));
}

void Recorder::push(Step step) {
  static std::atomic<int64_t> serial{0};
  refuse_in_block();
  // The operator that runs now is the step, and a replay would take this one once more.
  if (inside_operator() && !failed())
    fail(say(reason::StepInOperator, step.opaque ? step.opaque->name : "a step"));
  step.region = regions_.current();
  if (feeding()) {
    if (!feeding_.take_over(&step, numbers())) fail_to_resume(step);
    if (step.opaque && step.opaque->touches) {
      failed_behind_change_ |= !failed() && step.opaque->of_operator;
      fail(say(reason::ResumesAfterOpaque, step.opaque->name));
    }
    program_->random |= step.random;
    program_->effects |= step.effect;
    if (!feeding()) random_mark_ = RandomMark::now();
    if (stopped()) sizes_.end();
  }
  step.numbers = sizes_.take_new();
  settle_flags();
  if (step.node < 0) step.node = serial++;
  if (step.branch < 0) step.branch = serial++;
  resuming_.add(step);
  note_given(step);
  note_gone(&step);
  program_->steps.push_back(std::move(step));
}

void Recorder::note_modes(Step* step) {
  Modes now = Modes::current();
  now.switches = switches_;
  now.autocast_region = regions_.number(now);
  if (now == modes_) return;
  modes_ = now;
  bool own = now.any_autocast() && !program_->modes[0].any_autocast();
  // A replay clears what it has cast, as the end of a region does.
  if (own && !is_in_autocast_region()) fail(say(reason::LeavesModes));
  // It would do so again, and what a replay has cast in the region would be gone.
  if (now.autocast_region && regions_.cleared()) resuming_.end("it clears what autocast has cast");
  for (size_t i = 0; i < program_->modes.size(); ++i)
    if (program_->modes[i] == now) {
      step->modes = static_cast<int>(i);
      return;
    }
  program_->modes.push_back(now);
  step->modes = static_cast<int>(program_->modes.size()) - 1;
}

bool Recorder::encode(const c10::Argument& schema, const c10::IValue& value, Argument* argument, bool view,
                      bool overwritten) {
  bool written = schema.alias_info() && schema.alias_info()->isWrite();
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.defined()) use_blank(tensor, view && !written, overwritten);
    return encode_tensor(tensor, argument, written);
  }
  if (value.isTensorList() || value.isOptionalTensorList()) {
    argument->kind = Argument::Kind::List;
    argument->optional_list = value.isOptionalTensorList();
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isNone() || !item.toTensor().defined()) {
        argument->list.push_back(-1);
        continue;
      }
      use_blank(item.toTensor(), view && !written, overwritten);
      Argument one;
      if (!encode_tensor(item.toTensor(), &one, true)) return false;
      argument->list.push_back(one.reg);
    }
    return true;
  }
  if (value.isList()) {
    for (const c10::IValue& item : value.toListRef())
      if (item.isTensor()) {
        fail(say(reason::MixedList));
        return false;
      }
  }
  if (value.isGenerator()) {
    argument->kind = Argument::Kind::Generator;
    argument->node = origins_.node_of_generator(value.toGenerator());
    if (argument->node < 0) fail(say(reason::OperatorArgument, value.tagKind()));
    return argument->node >= 0;
  }
  if (value.isPyObject() || value.isObject() || value.isStorage() || value.isStream()) {
    fail(say(reason::OperatorArgument, value.tagKind()));
    return false;
  }
  argument->constant = value;
  return true;
}

namespace {
// What torch's bindings make of a Python number. In `y[0] = 2.0` it is not marked as wrapped, but nobody else
// holds it: it has no Python object, and its memory no other tensor.
bool is_python_number(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  if (impl->is_wrapped_number()) return true;
  return tensor.dim() == 0 && !tensor.requires_grad() && !impl->pyobj_slot()->load_pyobj() &&
         tensor.has_storage() && tensor.storage().use_count() == 1 && tensor.device().is_cpu();
}
}  // namespace

bool Recorder::encode_tensor(const at::Tensor& tensor, Argument* argument, bool copied) {
  if (!tensor.defined()) {
    argument->constant = at::Tensor();
    return true;
  }
  if (tensor.is_nested()) {
    fail(say(reason::NestedTensor));
    return false;
  }
  int reg = register_of(tensor);
  if (reg < 0 && is_python_number(tensor) && !copied) {
    argument->constant = shared_.number_of(tensor);
    return true;
  }
  if (reg < 0) {
    fail(say(reason::UnknownTensor));
    return false;
  }
  note_requires_grad(tensor, reg);
  argument->kind = Argument::Kind::Register;
  argument->reg = reg;
  return true;
}

void Recorder::note_requires_grad(const at::Tensor& tensor, int reg) {
  Origins::Known* known = origins_.known(tensor);
  if (!known || known->requires_grad == tensor.requires_grad()) return;
  if (was_there(reg) || is_drawn(tensor) || !tensor.requires_grad())
    return fail(say(reason::RequiresGradChanged));
  // What a replay has made require gradients does so before its step is met.
  if (feeding() && feeding_.expected().kind != Step::Kind::RequireGrad) return;
  known->requires_grad = true;
  // A recorded step has written to memory that it shows: so it does at a replay. A view of that memory counts
  // as a leaf until somebody asks for its history.
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (!tensor.is_leaf() || !meta || !meta->requires_grad_) return;
  static auto detach = c10::Dispatcher::singleton().findSchemaOrThrow("aten::detach_", "");
  Step step(Step::Kind::RequireGrad, detach);  // factories set the flag after their operator has returned
  Argument argument;
  argument.kind = Argument::Kind::Register;
  argument.reg = reg;
  step.arguments.push_back(argument);
  step.place = place;
  // Code that runs again would be told of the flag where it was told that there is none.
  bool born = !program_->steps.empty() && !program_->steps.back().results.empty() &&
              program_->steps.back().results[0].reg == reg;
  const c10::StorageImpl* storage = storage_of(tensor);
  bool asked = !storage || seen_gradients_.count(storage) || (!sees_gradients_ && !born);
  if (!feeding() && asked) resuming_.end(kComesToRequire);
  push(std::move(step));
}

void Recorder::note_written(const at::Tensor& tensor, Step* step) {
  if (!tensor.defined() || !origins_.is_external(tensor)) return;
  step->effect = true;
  program_->effects = true;
  if (is_drawn(tensor)) fail(say(reason::WritesDrawn));
}

void Recorder::note_effects(const c10::OperatorHandle& op, const OperatorFacts& facts,
                            const torch::jit::Stack& arguments, Step* step) {
  const auto& schema = op.schema();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (!(alias && alias->isWrite()) && !(facts.hidden_writes && hidden_write(op, i, arguments))) continue;
    if (arguments[i].isTensor()) note_written(arguments[i].toTensor(), step);
    if (arguments[i].isTensorList())
      for (const at::Tensor& tensor : arguments[i].toTensorVector()) note_written(tensor, step);
  }
  step->random = may_draw(facts, arguments) || std::any_of(arguments.begin(), arguments.end(),
                                                           [](auto& value) { return value.isGenerator(); });
}

Result Recorder::decode(const c10::IValue& value, const Step& step) {
  Result result;
  if (value.isTensor()) return decode_tensor(value.toTensor());
  if (value.isTensorList()) {
    result.kind = Result::Kind::List;
    for (const at::Tensor& tensor : value.toTensorVector()) result.list.push_back(decode_tensor(tensor));
    return result;
  }
  if (value.isNone()) {
    result.kind = Result::Kind::Ignored;
    return result;
  }
  if (value.isObject() || value.isPyObject() || value.isGenericDict())
    fail(say(reason::OperatorResult, value.tagKind()));
  result.read = value;
  bool number = wants_item_ && numbers() && !inside_operator() && (value.isDouble() || value.isInt()) &&
                step.arguments.size() == 1 && step.arguments[0].kind == Argument::Kind::Register;
  result.kind = number ? Result::Kind::Number : Result::Kind::Read;
  if (number) item_ = result.number = numbers()->item(step.arguments[0].reg, value);
  return result;
}

void Recorder::note_gradients(const at::Tensor& tensor) {
  Origins::Known* known = tensor.defined() ? origins_.known(tensor) : nullptr;
  if (!known || known->requires_grad == tensor.requires_grad()) return;
  known->requires_grad = tensor.requires_grad();
  program_->changes_looks = true;
  // Code that runs again finds that the tensor requires gradients before this step. One that does not any
  // more has views that do, or did.
  const c10::StorageImpl* storage = storage_of(tensor);
  bool asked = !tensor.requires_grad() || !sees_gradients_ || !storage || seen_gradients_.count(storage);
  if (feeding() || !asked) return;
  // `p.data.lerp_(..)`: what `.data` gives is gone as a rule before anything else happens. A view that is
  // alive keeps its base.
  if (!tensor.requires_grad() || !sees_gradients_) return resuming_.end(kComesToRequire);
  flagged_.emplace_back(at_step(), tensor.getIntrusivePtr());
  if (tensor.is_view()) flagged_.emplace_back(at_step(), tensor._base().getIntrusivePtr());
}

bool Recorder::requires_gradients(const at::Tensor& tensor) {
  if (!tensor.requires_grad() || !feeding()) return tensor.requires_grad();
  const Origins::Known* known = origins_.known(tensor);
  return !known || known->requires_grad ||
         (tensor.is_view() && requires_gradients(at::Tensor(tensor._base())));
}

void Recorder::settle_flags() {
  for (auto& [step, tensor] : flagged_)
    if (step < at_step() && !tensor.expired()) resuming_.end(kComesToRequire);
  auto before = [this](const auto& one) { return one.first < at_step(); };
  flagged_.erase(std::remove_if(flagged_.begin(), flagged_.end(), before), flagged_.end());
}

void Recorder::saw_gradients(const at::Tensor& tensor) {
  settle_flags();
  // A leaf has come to require gradients since it was made: code that runs again is told of that here, too.
  Origins::Known* known = tensor.defined() && tensor.is_leaf() ? origins_.known(tensor) : nullptr;
  bool listens = known && !inside_operator() && !paused() && !stopped();
  if (listens && tensor.requires_grad() && !known->requires_grad && !was_there(known->reg))
    note_requires_grad(tensor, known->reg);
  if (const c10::StorageImpl* storage = tensor.defined() ? storage_of(tensor) : nullptr)
    seen_gradients_.insert(storage);
  else
    lost_sight();
}

// Some operators that write in place return nothing.
void Recorder::note_written_gradients(const c10::Argument& schema, const c10::IValue& value) {
  if (!schema.alias_info() || !schema.alias_info()->isWrite()) return;
  if (value.isTensor()) note_gradients(value.toTensor());
  if (!value.isTensorList()) return;
  for (const at::Tensor& tensor : value.toTensorVector()) note_gradients(tensor);
}

Result Recorder::decode_tensor(const at::Tensor& tensor) {
  Result result;
  result.meta = shared_.meta_of(tensor);
  if (!tensor.defined()) return result;
  result.loose = sizes_.results_are_loose();
  Origins::Known* known = origins_.known(tensor);
  result.known = known != nullptr;
  note_gradients(tensor);
  if (!known && origins_.is_explained(tensor)) {
    result.known = true;
    result.reg = register_of(tensor);
    return result;
  }
  result.reg = known ? known->reg : origins_.add(tensor, false);
  if (!known) sizes_.set(result.reg, result.loose);
  return result;
}

// ---------------------------------------------------------------- sizes that may differ
void Recorder::follow_numbers(bool sizes, bool arguments) {
  NumberRecorder::Owner owner;
  owner.read = [this](int id, const c10::IValue& value) { read_number(id, value); };
  owner.fail = [this](const std::string& why) { fail(why); };
  owner.changed = [this] { return resuming_.changed(); };
  owner.would_catch = [this] { return would_catch(); };
  owner.again = [this] { return feeding(); };
  owner.asked = [this](int id, const Number& number) -> std::optional<bool> {
    if (!feeding()) return {};
    return feeding_.reads(id, number);
  };
  owner.at_exit = [this] { return feeding() && feeding_.at_exit(); };
  owner.then = [this]() -> const Step* { return feeding() ? &feeding_.expected() : nullptr; };
  sizes_.follow_numbers(std::move(owner));
  program_->follows_numbers = true;
  program_->loose_numbers = arguments;
  if (sizes) sizes_.follow();
}

int Recorder::item_number(const at::Tensor& tensor, const std::function<void()>& ask) {
  static const std::unordered_set<c10::ScalarType> kFollowed = {at::kDouble,   at::kFloat, at::kHalf,
                                                                at::kBFloat16, at::kLong,  at::kInt,
                                                                at::kShort,    at::kChar,  at::kByte};
  struct Wanted {
    bool& wanted;
    explicit Wanted(bool* w) : wanted(*w) {}
    ~Wanted() { wanted = false; }
  } wanted(&wants_item_);
  wants_item_ = numbers() && !paused() && kFollowed.count(tensor.scalar_type());
  item_ = -1;
  try {
    ask();
  } catch (...) {
    // int() of nan: what Python does about it hangs on the value. A function that runs again for it has asked
    // first whether int() gives a number that can be followed.
    if (numbers() && item_ >= 0) {
      if ((*numbers())[item_].real) numbers()->apply(Number::Kind::Trunc, item_, -1);
      numbers()->read(item_);
    }
    throw;
  }
  return numbers() ? std::exchange(item_, -1) : -1;
}

// What autograd or an opaque function has given is a result of that step; found in the state afterwards, it
// would go on as one, and not be fetched where the next call finds another tensor. So would what operators
// have made, and Python code that a replay ran has put there: a function that runs again reads it by itself.
void Recorder::explain(const at::Tensor& tensor, int node, bool exact) {
  const Origins::Known* found = origins_.known(tensor);
  if (found && (given_.count(found->reg) || made(tensor))) {
    feeding_.finds_given();
    return fail(say(reason::GivenAndFound));
  }
  origins_.explain(tensor, node, exact);
}

void Recorder::note_given(const Step& step) {
  if (step.kind != Step::Kind::Opaque && step.kind != Step::Kind::Gradient) return;
  for (const Result& result : step.results)
    if (result.kind == Result::Kind::Register && result.reg >= 0 && !was_there(result.reg))
      given_.insert(result.reg);
}

// Looking for it takes as long as there are tensors. What is fed is held by the replay.
void Recorder::note_gone(Step* step) {
  constexpr size_t kWorthIt = size_t{16} << 20;
  if (feeding()) return;
  for (const Result& result : step->results)
    if (result.kind == Result::Kind::Register && !result.known) made_ += result.meta->bytes();
  if (made_ < kWorthIt) return;
  made_ = 0;
  step->gone = origins_.gone();
}

bool Recorder::is_loose(const at::Tensor& tensor) {
  if (!numbers() || !follows_sizes() || !tensor.defined()) return false;
  if (tensor.is_nested()) {  // which has no sizes
    fail(say(reason::NestedTensor));
    return false;
  }
  int reg = register_of(tensor);
  if (reg < 0) fail(say(belongs_to_transform(tensor) ? reason::SizesInTransform : reason::SizesUnknown));
  return sizes_.is_loose(reg);
}

int Recorder::size_number(Number::Kind kind, const at::Tensor& tensor, int64_t which) {
  if (!is_loose(tensor)) return -1;
  if (inside_operator()) {
    fail(say(reason::SizesInOperator));
    return -1;
  }
  return numbers()->leaf(kind, register_of(tensor), which, tensor);
}

// C code has looked at a number, to raise by itself what its operator has raised in the replay. Where nothing
// was changed, the function runs once more, unless it has a handler, a `finally` or a `with` around it: what
// ends this run would pass there, and what that writes would stay.
bool Recorder::raises_by_itself() {
  if (!feeding() || !feeding_.at_exit() || feeding_.expected().kind != Step::Kind::Operator ||
      !(has_written() || resuming_.changed() || catches()))
    return false;
  std::string name = feeding_.expected().op.schema().name();
  torch::jit::Stack results;
  try {
    feeding_.give(&results);
  } catch (...) {
    random_mark_ = RandomMark::now();
    fail(say(reason::OperatorRaised, name));
    return true;
  }
  return false;
}

void Recorder::pin(const at::Tensor& tensor) {
  if (raises_by_itself()) return;
  auto read = [&](Number::Kind kind, int64_t which) {
    if (int id = size_number(kind, tensor, which); id >= 0) numbers()->read(id);
  };
  for (int64_t i = 0; i < tensor.dim(); ++i) read(Number::Kind::Size, i);
  if (tensor.layout() != at::kStrided) return;
  for (int64_t i = 0; i < tensor.dim(); ++i) read(Number::Kind::Stride, i);
  read(Number::Kind::Offset, 0);
}

// An operator that changes sizes in place: those before it are compared, those after it follow from them.
void Recorder::fix_sizes(const std::vector<c10::IValue>& arguments, Sizes::Lifted* lifted) {
  numbers()->settle(*lifted);
  lifted->clear();
  for (const c10::IValue& value : arguments) {
    if (!value.isTensor() || !is_loose(value.toTensor())) continue;
    pin(value.toTensor());
    sizes_.set(register_of(value.toTensor()), false);
  }
}

// Something looked at the value of a number: a replay that works out another one leaves here.
void Recorder::read_number(int id, const c10::IValue& value) {
  if (stopped() || raises_by_itself()) return;
  if (inside_operator()) return fail(say(reason::SizesInOperator));
  // What a function that runs again looks at besides is there to see.
  if (failed() && feeding() && feeding_.expected().kind != Step::Kind::Read) return;
  static auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::detach", "");
  Step step(Step::Kind::Read, handle);
  step.place = place;
  note_modes(&step);
  Argument argument;
  argument.kind = Argument::Kind::Number;
  argument.reg = id;
  step.arguments.push_back(argument);
  Result result;
  result.kind = Result::Kind::Read;
  result.read = value;
  step.results.push_back(result);
  step.exit = true;
  step.measures = numbers()->measures();
  settle_flags();
  if (resuming_.changed() && resuming_.ended()) {
    std::string otherwise = say(reason::ReadAfterChange, "a number", resuming_.change(), resuming_.why());
    // A replay could not leave here: what state held when the call began is guarded instead.
    std::optional<std::vector<int>> state = numbers()->state_behind(id);
    if (!state) return fail(otherwise);
    return fixed_state_.push_back({std::move(*state), std::move(otherwise), place});
  }
  // No read changes anything: one that is made in one run alone is no divergence.
  if (feeding() && !feeding_.meets(step, numbers())) return fail_to_resume(step);
  push(std::move(step));
}

// What is written to may be a copy at one size and a view of an argument at another.
void Recorder::note_memory(const std::vector<c10::IValue>& arguments, Step* step) {
  if (step->arguments.size() != arguments.size()) return;  // a literal, which nothing is written to
  for (size_t i = 0; i < arguments.size(); ++i) {
    Argument& argument = step->arguments[i];
    const auto* alias = step->op.schema().arguments()[i].alias_info();
    if (argument.kind != Argument::Kind::Register || !alias || !alias->isWrite() || was_there(argument.reg) ||
        own_.count(argument.reg) || views_.count(argument.reg) || !sizes_.is_loose(argument.reg))
      continue;
    // A replay that finds other memory must be able to run the function from its start.
    if (resuming_.changed()) return fail(say(reason::SizesMemory, step->op.schema().name()));
    bool outer = origins_.is_external(arguments[i].toTensor());
    argument.memory = outer ? Argument::Memory::Outer : Argument::Memory::Own;
  }
}

// ---------------------------------------------------------------- memory that nobody was seen to fill
void Recorder::use_blank(const at::Tensor& tensor, bool view, bool overwritten) {
  int step = view ? -1 : blanks_.take(tensor);
  if (step >= 0 && !overwritten) make_literal(step, tensor);
}

namespace {
template <class Visit>
void each_blank(const Blanks& blanks, const std::vector<c10::IValue>& arguments, Visit visit) {
  for (const c10::IValue& argument : arguments)
    if (argument.isTensor() && argument.toTensor().defined() && blanks.holds(argument.toTensor()))
      visit(argument.toTensor());
}
}  // namespace

// A view operator that gives memory of its own has read its argument: `to(device)` of what torch.tensor()
// fills.
void Recorder::read_blanks(const std::vector<c10::IValue>& arguments, const torch::jit::Stack& stack,
                           size_t returns) {
  each_blank(blanks_, arguments, [&](const at::Tensor& blank) {
    auto shows_it = [&](const c10::IValue& result) {
      if (!result.isTensor()) return true;  // a list of views
      return result.toTensor().defined() && storage_of(result.toTensor()) == storage_of(blank);
    };
    if (!std::all_of(stack.end() - static_cast<std::ptrdiff_t>(returns), stack.end(), shows_it))
      use_blank(blank, false, false);
  });
}

// The same while feeding, when the operator does not run.
void Recorder::read_fed_blanks(const std::vector<c10::IValue>& arguments) {
  auto copies = [](const Step& expected) {
    if (expected.kind == Step::Kind::Fill) return true;
    return expected.results.size() == 1 && expected.results[0].reg >= 0 && !expected.results[0].known &&
           expected.results[0].base < 0;
  };
  each_blank(blanks_, arguments, [&](const at::Tensor& blank) {
    if (copies(feeding_.expected())) use_blank(blank, false, false);
  });
}

void Recorder::make_literal(int at, const at::Tensor& tensor) {
  Step& step = program_->steps[at];
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard guard(kRecordKey);
  const TensorMeta& meta = *step.results[0].meta;
  at::Tensor whole = whole_of(tensor, meta.sizes());
  if (!whole.defined()) return;
  for (size_t i = static_cast<size_t>(at); i < program_->steps.size(); ++i)
    if (program_->steps[i].exit) return fill(at, whole.clone());
  step.literal = whole.clone();
  step.kind = Step::Kind::Literal;
  step.arguments.clear();
  if (!meta.matches(step.literal)) fail(say(reason::LiteralLayout));
}

// What Python wrote may hang on what it has read since the memory was made: other branches write other
// values.
void Recorder::fill(int at, at::Tensor literal) {
  program_->steps[at].filled = true;
  static auto copy = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  Step step(Step::Kind::Fill, copy);
  Argument argument;
  argument.kind = Argument::Kind::Register;
  argument.reg = program_->steps[at].results[0].reg;
  step.arguments.push_back(argument);
  step.literal = std::move(literal);
  step.place = place;
  push(std::move(step));
}

// ---------------------------------------------------------------- opaque steps
// What torch.zeros and the like have made: code that runs again gets another Python object for it, and the
// opaque function may have kept the first.
bool Recorder::made_by_factory(int reg) const {
  for (const Step& step : program_->steps) {
    if (step.kind != Step::Kind::Operator || step.results.empty() || step.results[0].reg != reg) continue;
    const std::string& name = step.op.schema().name();
    bool takes_tensors = std::any_of(step.arguments.begin(), step.arguments.end(), [](const Argument& one) {
      return one.kind != Argument::Kind::Constant;
    });
    return !takes_tensors || (name.size() > 5 && name.compare(name.size() - 5, 5, "_like") == 0);
  }
  return false;
}

int Recorder::answer(PyObject* value, const std::string& name) {
  bool number = PyFloat_CheckExact(value) || PyLong_CheckExact(value);
  int id = number && numbers() ? numbers()->answer(value, name) : -1;
  if (id < 0) fail(say(reason::OpaqueResult, name, type_name(value)));
  return id;
}

std::vector<int> Recorder::add_opaque(std::shared_ptr<OpaqueStep> opaque, const std::vector<int>& uses,
                                      const std::unordered_set<int>& unseen, PyObject* result,
                                      PyObject* given, bool knows_parts) {
  static auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::detach", "");
  Step step(Step::Kind::Opaque, handle);
  step.place = place;
  note_modes(&step);
  for (int reg : uses) {
    Argument argument;
    argument.kind = Argument::Kind::Register;
    argument.reg = reg;
    step.arguments.push_back(argument);
  }
  if (feeding()) program_->registers = std::max(program_->registers, feeding_.meet_block(&step));
  bool ended = resuming_.ended();
  sizes_.begin_opaque();
  std::vector<int> followed;  // by leaf
  Flattened flattened(result, given);
  opaque->shape = std::move(flattened.shape);
  opaque->others = std::move(flattened.others);
  for (PyObject* leaf : flattened.leaves) {
    Result one;
    if (is_tensor(leaf)) {
      one = decode_tensor(THPVariable_Unpack(leaf));
      if (has_attributes(leaf)) note_decorated(one.reg);
      if (opaque->asks) answer(leaf, opaque->name);  // which it is none
      opaque->values.push_back(py::none());
    } else {
      if (!is_immutable(leaf)) fail(say(reason::OpaqueResult, opaque->name, type_name(leaf)));
      bool number = PyFloat_CheckExact(leaf) || PyLong_CheckExact(leaf);
      bool flag = opaque->gives_flags && PyBool_Check(leaf) && numbers();
      bool asked = opaque->asks || (opaque->gives_numbers && number);
      one.number = flag ? numbers()->answer(leaf, opaque->name) : asked ? answer(leaf, opaque->name) : -1;
      one.kind = one.number < 0 ? Result::Kind::Read : Result::Kind::Number;
      if (one.number >= 0) one.read = PyFloat_CheckExact(leaf) ? c10::IValue(0.0) : c10::IValue(0);
      opaque->values.push_back(py::reinterpret_borrow<py::object>(leaf));
    }
    followed.push_back(one.number);
    step.results.push_back(std::move(one));
  }
  step.effect = opaque->effects;
  // Its kernels may write to state that no argument shows.
  program_->effects |= step.effect || opaque->watched;
  step.random = opaque->random;
  program_->random |= step.random;
  program_->hooks_outside |= opaque->hooks_outside;
  step.exit = !opaque->told;
  if (opaque->tells && !opaque->cannot_raise) note_catching(opaque->name, &step);
  // Where it raises, nothing would come to the handler.
  if (opaque->python && step.exit && ended && catches())
    fail(say(reason::CaughtAfterChange, opaque->name, resuming_.why()));
  if (!opaque->feedable) resuming_.end("it calls " + opaque->name + ", which cannot be fed");
  for (int reg : uses)
    if (opaque->python && !unseen.count(reg) && made_by_factory(reg))
      resuming_.end(opaque->name + " was given what a factory of torch made");
  // What a step has read of what an earlier one had changed, this one may change again.
  auto reads_late = [](const Step& one) { return one.opaque && one.opaque->late; };
  bool late = opaque->python && std::any_of(program_->steps.begin(), program_->steps.end(), reads_late);
  opaque->confuses_alone = opaque->confuses && !late && !resuming_.ended();
  opaque->confuses |= late;
  if (opaque->confuses) resuming_.end(opaque->name + " changes what the function has read");
  settle_flags();
  // Of a step that is fed it is known whether it does so, but for the one at the exit.
  bool ends = opaque->keeps && (!feeding() || feeding_.at_exit());
  opaque->leads_back &= ends && !resuming_.ended();
  opaque->confuses_alone &= !ends;
  if (ends) resuming_.end(opaque->name + " keeps or changes an object that the call has made");
  bool varies = resuming_.hidden_varies() || opaque->late;
  // A function that cannot be resumed here does not start over behind such a step, either. Nor can it be
  // where the step itself is why, and gives something else: not only tensors.
  auto may_differ = [](const py::object& value) { return !value.is_none(); };
  ended |= !opaque->leads_back && resuming_.ended() &&
           std::any_of(opaque->values.begin(), opaque->values.end(), may_differ);
  bool once = ended && (step.effect || step.random || (opaque->python && opaque->feedable));
  if (step.exit && (resuming_.changed() || once) && varies && resuming_.ended() && !opaque->leads_back)
    fail(say(reason::OpaqueVaries, opaque->name, resuming_.why()));
  // What prints sets no hooks.
  resuming_.end_opaque(opaque->python && !opaque->tells && !opaque->watched, opaque->watched);
  std::string name = opaque->name;
  step.opaque = std::move(opaque);
  push(std::move(step));
  // A function that runs again after a later exit has another list.
  if (!knows_parts && !flattened.given_back.empty())
    resuming_.end(name + " gives back a list or dict that it was given");
  return followed;
}

void Recorder::note_switched() {
  // In which modes a replay calls it, which finds the thread in others behind it.
  Step& opaque = program_->steps.back();
  auto before = std::find(program_->modes.begin(), program_->modes.end(), modes_);
  opaque.modes = static_cast<int>(before - program_->modes.begin());
  Step step(Step::Kind::Numbers, opaque.op);
  step.place = place;
  note_modes(&step);
  push(std::move(step));
}

// ---------------------------------------------------------------- gradients
Step Recorder::gradient_step(Step::Kind kind, const at::Tensor& tensor) {
  static auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::detach", "");
  Step step(kind, handle);
  step.place = place;
  note_modes(&step);
  Argument argument;
  argument.kind = Argument::Kind::Register;
  argument.reg = output_register(tensor);
  if (argument.reg < 0) fail(say(reason::UnknownTensor));
  step.arguments.push_back(argument);
  sizes_.begin(step, false);
  return step;
}

namespace {
// In code that a pass calls, as in a hook behind what it has added, it is no step: the gradient of the leaf
// is compared when the call begins, and what happens to it in the pass is seen.
void meet_in_block(const at::Tensor& leaf, const std::unordered_set<int>& met, bool passes,
                   Recorder* recorder) {
  int reg = passes && recorder->knows(leaf) ? recorder->register_of(leaf) : -1;
  if (reg < 0 || !met.count(reg)) recorder->refuse_in_block();
}
}  // namespace

namespace {
// Whether Python code of a step has given it, with whatever gradient that has put there.
bool is_given(const std::vector<Step>& steps, int reg) {
  auto gives = [&](const Step& step) {
    auto is_it = [&](const Result& result) { return result.reg == reg && !result.known; };
    return step.opaque && step.opaque->python && std::any_of(step.results.begin(), step.results.end(), is_it);
  };
  return std::any_of(steps.begin(), steps.end(), gives);
}
}  // namespace

at::Tensor Recorder::read_gradient(const at::Tensor& tensor) {
  if (in_block()) return meet_in_block(tensor, met_gradients_, in_pass_, this), tensor.grad();
  Step step = gradient_step(Step::Kind::Gradient, tensor);
  if (stopped()) return tensor.grad();
  meet_gradient(tensor, step.arguments[0].reg);
  at::Tensor value = tensor.grad();
  if (feeding()) {
    expect(step);
    torch::jit::Stack stack;
    feeding_.give(&stack);
    feeding_.turn(feeding_.expected().results[0], stack.at(0));
    value = stack[0].isTensor() ? stack[0].toTensor() : at::Tensor();
  }
  step.results.push_back(decode_tensor(value));
  gradients_.insert(step.results[0].reg);
  // It was there before the call, or a backward pass has made it: both outlive the call.
  if (value.defined() && !step.results[0].known) origins_.outlives(value);
  // What it was when the call began is compared then; what hooks have done to it since is not known.
  settle_flags();
  int reg = step.arguments[0].reg;
  bool varies = hooks_ran_ || (!was_there(reg) && is_given(program_->steps, reg));
  step.exit = varies && !(resuming_.changed() && resuming_.ended());
  push(std::move(step));
  return value;
}

// The first step that depends on what the gradient was when the call began.
void Recorder::meet_gradient(const at::Tensor& tensor, int reg) {
  if (reg < 0 || !was_there(reg) || !met_gradients_.insert(reg).second) return;
  EntryGradient entry;
  entry.reg = reg;
  entry.takes = takes_gradients(tensor);
  auto noted = unmet_.find(tensor.unsafeGetTensorImpl());
  bool earlier = noted != unmet_.end() && !noted->second.leaf.expired();
  at::Tensor value = earlier ? at::Tensor(noted->second.value.lock()) : tensor.grad();
  py::gil_scoped_acquire gil;
  if (!traits_of(value).empty())
    fail(say(reason::OpaqueResult, ".grad", "tensor with a class or attributes of its own"));
  entry.meta = earlier ? noted->second.meta : shared_.meta_of(value);
  if (value.defined()) {
    int known = origins_.knows(value) ? register_of(value) : -1;
    if (was_there(known)) entry.same = known;
    for (size_t i = 0; i < entry_values_.size(); ++i)
      if (entry_values_[i]._unsafe_get_target() == value.unsafeGetTensorImpl())
        entry.twin = static_cast<int>(i);
  }
  entry_values_.emplace_back(value.getIntrusivePtr());
  entry.step = at_step();
  program_->gradients.push_back(std::move(entry));
}

// A leaf that the function has not come to yet, as one inside a checkpoint, may get a gradient before it
// does.
void Recorder::note_unmet(const at::Tensor& leaf) {
  if (feeding()) return;  // it has its gradient already
  at::Tensor value = leaf.grad();
  unmet_.try_emplace(
      leaf.unsafeGetTensorImpl(),
      Unmet{Weakly(leaf.getIntrusivePtr()), Weakly(value.getIntrusivePtr()), shared_.meta_of(value)});
}

void Recorder::feed(std::shared_ptr<Resume> resume) {
  for (const EntryGradient& entry : resume->program->gradients) {
    if (entry.step > static_cast<int>(resume->step)) continue;
    met_gradients_.insert(entry.reg);
    entry_values_.emplace_back(at::Tensor().getIntrusivePtr());
    program_->gradients.push_back(entry);
  }
  program_->state_paths = resume->program->state_paths;
  feeding_.begin(std::move(resume));
  // The way to what the other branch has read later may be shorter here.
  for (auto& [path, after] : program_->state_paths) after = std::min(after, feeding_.steps());
}

void Recorder::note_state(const std::vector<std::string>& paths, const std::vector<std::string>& names) {
  size_t after = feeding() ? feeding_.steps() : 0;
  for (const std::string& path : paths) program_->state_paths.emplace(path, after);
  program_->root_names = names;
}

bool Recorder::write_gradient(const at::Tensor& tensor, const at::Tensor& value) {
  if (in_block()) return meet_in_block(tensor, met_gradients_, in_pass_, this), true;
  // One of another size torch refuses: a replay that comes to one leaves before.
  if (is_loose(value)) pin(value);
  bool fed = feeding();
  bool refused = value.defined() && (value.is_nested() || value.sizes() != tensor.sizes() ||
                                     value.dtype() != tensor.dtype() || value.device() != tensor.device());
  if (refused && !fed) fail(say(reason::OperatorRaised, "set_grad"));
  if (is_drawn(tensor) || is_drawn(value)) fail(say(reason::WritesDrawn));
  Step step = gradient_step(Step::Kind::SetGradient, tensor);
  if (value.defined()) {
    Argument argument;
    argument.kind = Argument::Kind::Register;
    argument.reg = output_register(value);
    if (argument.reg < 0) fail(say(reason::UnknownTensor));
    gradients_.insert(argument.reg);
    step.arguments.push_back(argument);
    origins_.outlives(value);
  }
  if (stopped()) return true;
  int reg = step.arguments[0].reg;
  if (met_gradients_.insert(reg).second && was_there(reg))
    program_->set.push_back({reg, takes_gradients(tensor), at_step()});
  step.effect = origins_.is_external(tensor);
  program_->effects |= step.effect;
  if (fed) expect(step);
  push(std::move(step));
  return !fed;
}

bool Recorder::write_requires_grad(const at::Tensor& tensor, bool value) {
  bool settable = tensor.is_leaf() && !tensor.is_inference() && !tensor.is_nested() &&
                  torch::autograd::isDifferentiableType(tensor.scalar_type());
  int reg = settable ? register_of(tensor) : -1;
  Origins::Known* known = reg >= 0 && was_there(reg) ? origins_.known(tensor) : nullptr;
  if (!known) return false;
  if (modes_.autocast_region) fail(say(reason::WriteInAutocast));
  Step step = gradient_step(Step::Kind::RequireGrad, tensor);
  if (stopped()) return true;
  Argument flag;
  flag.kind = Argument::Kind::Constant;
  flag.constant = value;
  step.arguments.push_back(flag);
  step.effect = program_->effects = program_->changes_looks = true;
  flags_.emplace(tensor.unsafeGetTensorImpl(), tensor.requires_grad());
  known->requires_grad = value;
  if (feeding()) expect(step);
  push(std::move(step));
  return true;
}

namespace {
// What `.data` can be set of, and to, so that the tensor looks as it did.
bool has_plain_data(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_inference() &&
         !tensor.is_quantized() && !tensor.is_nested() && !tensor.is_view();
}

bool looks_alike(const at::Tensor& a, const at::Tensor& b) {
  auto keys = [](const at::Tensor& t) { return t.unsafeGetTensorImpl()->key_set().raw_repr(); };
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.dtype() == b.dtype() &&
         a.device() == b.device() && keys(a) == keys(b);
}
}  // namespace

// `p.data -= x`: its own `.data`, which it shows at each call, changes nothing when it is set.
bool Recorder::is_its_data(const at::Tensor& tensor, int of, const at::Tensor& value) {
  const Origins::Known* known = origins_.known(value);
  if (!known || !value.is_alias_of(tensor) || value.storage_offset() != tensor.storage_offset()) return false;
  const auto& steps = program_->steps;
  // What moves either to other memory in between.
  auto moves = [&](const Step& step) {
    return step.kind == Step::Kind::SetData || step.opaque || facts_of(step.op).changes_metadata;
  };
  for (auto step = steps.rbegin(); step != steps.rend() && !moves(*step); ++step)
    if (step->kind == Step::Kind::Data && step->results[0].reg == known->reg)
      return step->arguments[0].reg == of;
  return false;
}

void Recorder::settle_read_data(const at::Tensor& tensor, int of) {
  at::Tensor before = tensor.variable_data();
  add_data(before, tensor, of);
  origins_.read_data_of(tensor, before);
}

void Recorder::settle_read_data() {
  if (stopped()) return;
  for (const at::Tensor& source : origins_.data_read()) {
    // Nobody has what was read any more, or a function that runs again had nothing when it was recorded.
    bool has = source.has_storage() && source.storage().use_count() > 1;
    if (!(feeding() ? feeding_.took_data_of(source) : has)) continue;
    int of = register_of(source);
    if (of >= 0) settle_read_data(source, of);
  }
}

bool Recorder::write_data(const at::Tensor& tensor, const at::Tensor& value) {
  if (!has_plain_data(tensor) || !tensor.is_leaf()) return false;
  if (value.layout() != at::kStrided || !value.has_storage() || value.is_inference()) return false;
  if (is_loose(tensor)) pin(tensor);
  if (is_loose(value)) pin(value);
  if (!looks_alike(tensor, value)) return false;
  if (is_drawn(tensor) || is_drawn(value)) fail(say(reason::WritesDrawn));
  if (modes_.autocast_region) fail(say(reason::WriteInAutocast));
  int of = register_of(tensor);
  if (of >= 0 && is_its_data(tensor, of, value)) return true;
  if (of >= 0 && origins_.has_read_data(tensor)) settle_read_data(tensor, of);
  Step step = gradient_step(Step::Kind::SetData, tensor);
  Argument argument;
  argument.kind = Argument::Kind::Register;
  argument.reg = output_register(value);
  if (argument.reg < 0) fail(say(reason::UnknownTensor));
  if (stopped()) return true;
  step.arguments.push_back(argument);
  step.effect = origins_.is_external(tensor) || was_there(step.arguments[0].reg);
  program_->effects |= step.effect;
  note_changed_look(true);
  // Its memory is from now on that of the tensor, and what is known of one holds for the other.
  if (step.effect) origins_.outlives(value);
  saw_gradients(tensor);
  saw_gradients(value);
  origins_.shows(tensor, value);
  if (feeding()) expect(step);
  push(std::move(step));
  return true;
}

void Recorder::note_hooked(int reg) {
  std::vector<int>& hooked = program_->hooked;
  auto at = std::lower_bound(hooked.begin(), hooked.end(), reg);
  if (at == hooked.end() || *at != reg) hooked.insert(at, reg);
}

Recorder::Backward Recorder::look_ahead(const std::vector<at::Tensor>& roots, bool accumulates,
                                        c10::function_ref<bool(torch::autograd::Node&)> watches) {
  AutogradGraph graph = AutogradGraph::of(roots, origins_.histories(), pure_);
  Backward facts{graph.python || conditions_.hooks != SavedHooks::None, false, graph.elsewhere, false, {}};
  for (const at::Tensor& leaf : graph.leaves) {
    // Where it changes no gradient, a leaf gets its register when it is asked for: a function that runs again
    // may find other leaves behind an opaque function.
    int reg = accumulates || !origins_.knows(leaf) ? register_of(leaf) : 0;
    facts.python |= reg < 0;
    facts.effects |= accumulates && (reg < 0 || !made(leaf));
    if (accumulates) reg < 0 ? note_unmet(leaf) : meet_gradient(leaf, reg);
    reg = origins_.knows(leaf) ? register_of(leaf) : -1;
    if (reg >= 0 && was_there(reg)) facts.leaves.emplace_back(leaf, reg);
  }
  // A block that runs once more may come to leaves of its own.
  for (const auto& [reg, weak] : block_leaves_) {
    auto held = weak.lock();
    if (!held) continue;
    at::Tensor leaf(std::move(held));
    const std::vector<int>& hooked = program_->hooked;
    facts.python |= has_hooks(leaf) && !std::binary_search(hooked.begin(), hooked.end(), reg);
    if (accumulates) meet_gradient(leaf, reg);
  }
  // A graph from before the call may be another one at the next; one that an opaque function has made may
  // call hooks for what it has saved, which no node shows.
  facts.python |= graph.outer || resuming_.after_opaque();
  auto is_watched = [&](torch::autograd::Node* node) { return watches(*node); };
  if (!facts.python) facts.python = !std::all_of(graph.hooked.begin(), graph.hooked.end(), is_watched);
  facts.watched = (resuming_.after_block() || !graph.hooked.empty()) && !facts.python;
  facts.python |= facts.watched;
  // Where the replay has come further than this pass, hooks that are set behind it are on the graph by now.
  if (const OpaqueStep* ran = feeding_.pass()) facts.python = ran->python, facts.watched = ran->watched;
  program_->backward |= !facts.python || facts.watched;
  hooks_ran_ |= facts.python;
  return facts;
}

bool Recorder::follows_way(const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>& inputs) {
  AutogradWay way = AutogradWay::between(roots, inputs, own_nodes_);
  // Two leaves that are one tensor at the next call would be one input: `merged` compares what is there.
  note_changed_look(way.plain && !way.others);
  return !way.others;
}

// ---------------------------------------------------------------- the program
void Recorder::note_workload() {
  program_->small = workload_.is_small();
  // Anomaly mode asks Python for a stack.
  program_->undisturbed = workload_.is_plain() && !conditions_.overridden &&
                          conditions_.hooks == SavedHooks::None &&
                          !torch::autograd::AnomalyMode::is_enabled();
}

// Hooks of autograd must see each tensor once, in order: a program under them must run to its end whatever
// happens.
void Recorder::judge_hooks() {
  if (conditions_.hooks == SavedHooks::None) return;
  program_->python_between = true;
  bool steady = std::all_of(program_->steps.begin(), program_->steps.end(),
                            [](const Step& step) { return !step.exit && !step.opaque; });
  if (!steady) fail(say(reason::HooksAndExits));
}

// Numbers that nothing but the result needs.
void Recorder::work_out_rest() {
  std::vector<int> rest = sizes_.take_new();
  if (rest.empty()) return;
  static auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::detach", "");
  Step step(Step::Kind::Numbers, handle);
  step.place = place;
  push(std::move(step));
  program_->steps.back().numbers = std::move(rest);
}

std::shared_ptr<Program> Recorder::finish(const std::vector<int>& outputs) {
  if (numbers()) work_out_rest();
  if (program_->dynamic)
    program_->numbers_then.assign(numbers()->values(), numbers()->values() + program_->numbers.size());
  else
    program_->looks.clear();
  if (origins_.meets_drawn()) fail(say(reason::MeetsDrawn));
  drop_unused(program_.get(), outputs);
  judge_hooks();
  if (regions_.in_callers() && casts_for_its_caller(*program_)) fail(say(reason::CastAgain));
  note_workload();
  sizes_.end();
  origins_.clear();
  blanks_.clear();
  shared_.clear();
  feeding_.lent().clear();
  return program_;
}

}  // namespace lazytrace
