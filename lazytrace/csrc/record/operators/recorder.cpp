#include "record/operators/recorder.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/library.h>

#include "cpython/objects.h"
#include "passes/lower.h"
#include "program/flatten.h"
#include "support/reasons.h"
#include "torch/facts.h"
#include "torch/random_mark.h"

namespace lazytrace {

namespace {

thread_local Recorder* current = nullptr;

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (current && !current->paused()) return current->on_operator(op, keys, stack);
  if (current) current->note_hidden(op, stack);
  c10::impl::ExcludeDispatchKeyGuard guard(kRecordKey);
  op.callBoxed(stack);
}

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
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

namespace {
bool is_below_autograd() {
  return c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView);
}
}  // namespace

Recorder::Recorder()
    : program_(std::make_shared<Program>()),
      modes_(Modes::current()),
      below_(is_below_autograd()),
      invariants_(at::globalContext().checkSparseTensorInvariants()) {
  program_->modes.push_back(modes_);
  // A first guess: moving steps to larger memory again and again shows in the time of a recording.
  program_->steps.reserve(128);
  known_.reserve(256);
}

void Recorder::fail(const std::string& reason) {
  if (failed()) return;
  reason_ = reason;
  failed_at_ = place;
  // What runs from here on must be given plain numbers.
  if (numbers_made_) numbers_made_->end();
  if (current == this && !feeding() && !nested_) c10::impl::tls_set_dispatch_key_included(kRecordKey, false);
}

void Recorder::pause() {
  ++paused_;
  hidden_varies_ = false;
}
void Recorder::resume() {
  --paused_;
  random_mark_ = RandomMark::now();
}

// ---------------------------------------------------------------- registers
int Recorder::new_register(const at::Tensor& tensor, bool external, bool loose) {
  int reg = program_->registers++;
  if (numbers_made_) {
    loose_.resize(static_cast<size_t>(reg) + 1, 0);
    loose_[static_cast<size_t>(reg)] = loose;
  }
  auto* impl = tensor.unsafeGetTensorImpl();
  known_.insert_or_assign(impl, Known{reg, tensor.requires_grad(), c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr())});
  if (external)
    if (auto* storage = storage_of(tensor)) external_.insert(storage);
  return reg;
}

void Recorder::add_input(const at::Tensor& tensor) {
  auto found = known_.find(tensor.unsafeGetTensorImpl());
  // One tensor as two arguments: both registers exist, the program uses the first.
  if (found != known_.end())
    program_->registers++;
  else
    new_register(tensor, true, true);
  program_->inputs = program_->registers;
}

void Recorder::explain(const at::Tensor& tensor, int node, bool exact) {
  if (explained_.emplace(tensor.unsafeGetTensorImpl(), Explained{node, exact}).second) explained_keep_.push_back(tensor);
}

int Recorder::register_of(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  auto found = known_.find(impl);
  if (found != known_.end()) return found->second.reg;
  auto explained = explained_.find(impl);
  if (explained == explained_.end()) {
    int data = data_register(tensor);
    return data >= 0 ? data : lent_register(tensor);
  }
  int reg = new_register(tensor, true, !explained->second.exact);
  program_->captures.push_back(reg);
  capture_nodes_.push_back(explained->second.node);
  return reg;
}

namespace {
PyObject* swap_function = nullptr;

bool same_place(const at::Tensor& a, const at::Tensor& b) {
  return storage_of(a) && storage_of(a) == storage_of(b) && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.storage_offset() == b.storage_offset() && a.dtype() == b.dtype();
}
}  // namespace

void configure_swap(py::object swap) { swap_function = swap.release().ptr(); }

// torch's Python factories (torch.zeros, torch.rand) give Python a copy of what their operator returned where
// somebody else holds that too, as a resumed replay does. The copy shares memory but no history: Python is
// given the tensor itself back as soon as the copy is seen.
int Recorder::lent_register(const at::Tensor& tensor) {
  if (tensor.requires_grad()) return -1;
  for (auto& [lent, reg] : lent_) {
    if (!same_place(lent, tensor)) continue;
    py::gil_scoped_acquire gil;
    PyObject* copy = tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
    auto known = known_.find(lent.unsafeGetTensorImpl());
    if (!copy || known == known_.end()) return reg;
    // Tensors with weak references cannot be exchanged, and known_ keeps one.
    bool requires_grad = known->second.requires_grad;
    known_.erase(known);
    py::object held = py::reinterpret_borrow<py::object>(copy);
    py::object mine = py::reinterpret_steal<py::object>(THPVariable_Wrap(lent));
    py::object done = py::reinterpret_steal<py::object>(
        PyObject_CallFunctionObjArgs(swap_function, copy, mine.ptr(), nullptr));
    known_.insert_or_assign(
        lent.unsafeGetTensorImpl(),
        Known{reg, requires_grad, c10::weak_intrusive_ptr<c10::TensorImpl>(lent.getIntrusivePtr())});
    if (!done) throw py::error_already_set();
    return reg;
  }
  return -1;
}

void Recorder::restore_lent(torch::jit::Stack* stack, size_t count) {
  auto restored = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || known_.count(tensor.unsafeGetTensorImpl()) ||
        explained_.count(tensor.unsafeGetTensorImpl()) || is_data(tensor) || lent_register(tensor) < 0)
      return tensor;
    for (auto& [lent, reg] : lent_)
      if (same_place(lent, tensor)) return lent;
    return tensor;
  };
  for (size_t i = stack->size() - count; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (value.isTensor()) {
      value = restored(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(restored(tensor));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& one : value.toListRef())
        list.push_back(one.isTensor() ? std::optional<at::Tensor>(restored(one.toTensor())) : std::nullopt);
      value = list;
    }
  }
}

// Whether it may be the `.data` of a tensor that was asked for it.
bool Recorder::is_data(const at::Tensor& tensor) const {
  return std::any_of(data_of_.begin(), data_of_.end(), [&](const at::Tensor& source) {
    return same_place(source, tensor) && !source.is_same(tensor);
  });
}

int Recorder::data_register(const at::Tensor& tensor) {
  for (const at::Tensor& source : data_of_) {
    if (!same_place(source, tensor) || source.is_same(tensor) || tensor.requires_grad()) continue;
    int from = register_of(source);
    if (from < 0) continue;
    static auto detach = c10::Dispatcher::singleton().findSchemaOrThrow("aten::detach", "");
    Step step(Step::Kind::Data, detach);
    Argument argument;
    argument.kind = Argument::Kind::Register;
    argument.reg = from;
    step.arguments.push_back(argument);
    step.place = place;
    Result result;
    result.loose = is_loose_register(from);
    result.reg = new_register(tensor, false, result.loose);
    result.meta = meta_of(tensor);
    step.results.push_back(result);
    if (feeding()) feeder_->replace(result.reg, tensor);
    push(std::move(step));
    return result.reg;
  }
  return -1;
}

bool Recorder::is_external(const at::Tensor& tensor) const {
  auto* storage = storage_of(tensor);
  return !storage || external_.count(storage);
}

bool Recorder::was_there(int reg) const {
  if (reg < program_->inputs) return reg >= 0;
  for (int captured : program_->captures)
    if (captured == reg) return true;
  return false;
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
  Lifted lifted;
  if (numbers_made_) lifted = numbers_made_->lift(op.schema(), stack);
  // Inside a transform the operator comes again from the batching rule, as the plain operators that it is
  // made of.
  if (c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode)) {
    if (numbers()) fail(say(reason::SizesInTransform));
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kRecordKey), stack);
    return;
  }
  if (stopped() || facts_of(op).profiling) return run_plain(op, stack);
  record_operator(op, stack, std::move(lifted));
}

void Recorder::run_plain(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  struct Inside {
    int& depth;
    explicit Inside(int& d) : depth(d) { ++depth; }
    ~Inside() { --depth; }
  } inside(inside_operator_);
  c10::impl::ExcludeDispatchKeyGuard guard(kRecordKey);
  op.callBoxed(stack);
}

void Recorder::run_watched(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
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
      if (recorder->saved_hooks_ == SavedHooks::Torchs) recorder->look_away(away);
    }
  } away(this);
  try {
    c10::WarningUtils::WarningHandlerGuard heard(&ear);
    run_plain(op, stack);
  } catch (...) {
    // Where Python catches it, the way that it takes from here hangs on values that no read shows.
    fail(say(reason::OperatorRaised, op.schema().name()));
    throw;
  }
  // Python shows a warning once for each line of the user's, which a replay does not come by.
  if (ear.warned) fail(say(reason::OperatorWarned, op.schema().name()));
}

bool Recorder::encode_all(const c10::OperatorHandle& op, const OperatorFacts& facts,
                          const std::vector<c10::IValue>& values, Lifted lifted, Step* step) {
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
    if (constant && schema.arguments()[i].alias_info()) fail(say(reason::NumberReturned, schema.name()));
    step->arguments.push_back(std::move(argument));
  }
  return true;
}

void Recorder::record_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack, Lifted lifted) {
  const auto& schema = op.schema();
  size_t count = schema.arguments().size(), returns = schema.returns().size();
  Step step(op);
  step.place = place;
  note_modes(&step);
  const OperatorFacts& facts = facts_of(op);
  if (!lent_.empty()) restore_lent(stack, count);
  std::vector<c10::IValue> before(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  if (numbers() && facts.changes_metadata) fix_sizes(before, &lifted);
  if (!encode_all(op, facts, before, std::move(lifted), &step)) {
    if (feeding()) diverge(schema.name() + " with an argument that it did not have");
    return run_plain(op, stack);
  }
  if (numbers_made_) {
    ++operators_;
    last_operator_ = schema.name();
    note_loose(facts, before, &step);
  }
  if (feeding()) return feed_operator(op, stack, std::move(step));
  if (facts.forward_mode) fail(say(reason::ForwardMode));
  note_kernel(op, &step);
  note_effects(op, facts, before, &step);
  run_watched(op, stack);
  // Composite operators (dropout, lstm) carry no tag that says that they draw random numbers.
  RandomMark now = RandomMark::now();
  step.random |= random_mark_ != now;
  program_->random |= step.random;
  random_mark_ = now;
  if (failed()) return;
  program_->changes_looks |= facts.changes_metadata;
  program_->unfilled |= facts.leaves_unfilled;
  // What such a function returns at the next call may be a tensor whose shape was read already.
  if (facts.changes_metadata && after_opaque_) fail(say(reason::ReshapeAfterOpaque, schema.name()));
  if (facts.changes_metadata) end_resuming(schema.name() + " changes the shape or the memory of a tensor");
  step.results.reserve(returns);
  for (size_t i = 0; i < returns; ++i) step.results.push_back(decode((*stack)[stack->size() - returns + i]));
  note_bases(before, *stack, &step);
  for (const c10::IValue& value : before) note_size(value);
  for (size_t i = 0; i < returns; ++i) note_size((*stack)[stack->size() - returns + i]);
  note_exit(facts, before, &step);
  note_blank(facts, step, returns ? (*stack)[stack->size() - returns] : c10::IValue());
  push(std::move(step));
}

// What surrounds the call of an operator: switches of torch's bindings, and who has written its kernel.
void Recorder::note_kernel(const c10::OperatorHandle& op, Step* step) {
  const std::string& name = op.schema().name();
  step->below = !below_ && is_below_autograd();
  if (at::globalContext().checkSparseTensorInvariants() != invariants_) fail(say(reason::ChecksInvariants));
  bool torchs = name.rfind("aten::", 0) == 0 || name.rfind("prim::", 0) == 0;
  step->python = (!torchs || overridden_) && runs_python(op, registrations_);
  if (step->python && has_written()) fail(say(reason::PythonKernel, name));
}

// While feeding: the operator has run, and Python is given what it gave.
void Recorder::feed_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack, Step step) {
  const OperatorFacts& facts = facts_of(op);
  const Step& expected = feeder_->expected();
  size_t returns = op.schema().returns().size();
  expect_same(feeder_->difference(step));
  bool refilled = (expected.kind == Step::Kind::Literal && facts.blank_factory) || expected.filled;
  if (refilled) {
    run_plain(op, stack);  // Python fills the memory itself, and a replay may have changed its own since
  } else {
    auto first = stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
    c10::IValue self = first == stack->end() ? c10::IValue() : *first;
    stack->erase(first, stack->end());
    if (feeder_->at_exit() && feeder_->warned()) fail(say(reason::OperatorWarned, op.schema().name()));
    try {
      feeder_->give(stack);
    } catch (...) {
      feeder_->advance();
      random_mark_ = RandomMark::now();
      fail(say(reason::OperatorRaised, op.schema().name()));
      throw;
    }
    // A literal on its way (`to`, `lift_fresh`) stays Python's own memory until what was written there is
    // known.
    if (returns == 1 && expected.results[0].known && self.isTensor() && self.toTensor().defined() &&
        blank_.count(storage_of(self.toTensor())))
      stack->back() = self;
  }
  for (size_t i = 0; i < returns; ++i) {
    const c10::IValue& value = (*stack)[stack->size() - returns + i];
    if (value.isTensor() && expected.results[i].known) know_again(expected.results[i].reg, value.toTensor());
    step.results.push_back(decode(value));
    if (!feeder_->at_exit()) note_fed_gradients(expected.results[i], value);
    if (value.isTensor() && value.toTensor().defined() && !facts.view && !refilled && !step.results[i].known)
      lent_.emplace_back(value.toTensor(), step.results[i].reg);
  }
  note_blank(facts, step, returns ? (*stack)[stack->size() - returns] : c10::IValue());
  push(std::move(step));
}

// The register of a literal: Python filled memory of its own, and goes on with that of the replay.
void Recorder::know_again(int reg, const at::Tensor& tensor) {
  if (reg < 0 || !tensor.defined() || !feeder_->holds(reg, tensor)) return;
  known_.try_emplace(
      tensor.unsafeGetTensorImpl(),
      Known{reg, tensor.requires_grad(), c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr())});
}

// A tensor that requires gradients by now did not do so when its step ran, where a later step made it.
void Recorder::note_fed_gradients(const Result& expected, const c10::IValue& value) {
  auto note = [&](const at::Tensor& tensor, const TensorMeta& meta) {
    auto found = tensor.defined() ? known_.find(tensor.unsafeGetTensorImpl()) : known_.end();
    if (found != known_.end()) found->second.requires_grad = meta.requires_grad();
  };
  if (expected.kind == Result::Kind::Register) note(value.toTensor(), *expected.meta);
  if (expected.kind != Result::Kind::List) return;
  auto list = value.toTensorList();
  for (size_t i = 0; i < list.size() && i < expected.list.size(); ++i)
    note(list.get(i), *expected.list[i].meta);
}

void Recorder::note_blank(const OperatorFacts& facts, const Step& step, const c10::IValue& made) {
  // One whose size may differ is no literal: Python would have had to read its size to fill it.
  if (loose_results_) return;
  if (!facts.blank_factory || step.results.empty() || step.results[0].kind != Result::Kind::Register) return;
  if (auto* storage = storage_of(made.toTensor())) {
    blank_[storage] = Blank{at_step(), false};
    keep_storage_.push_back(made.toTensor().storage());
  }
}

void Recorder::note_hidden(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const OperatorFacts& facts = facts_of(op);
  if (numbers_made_) numbers_made_->settle(numbers_made_->lift(op.schema(), stack));
  std::vector<c10::IValue> arguments(
      stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()), stack->end());
  hidden_varies_ |= facts.reads || shape_depends_on_values(facts, arguments);
}

void Recorder::note_size(const c10::IValue& value) {
  auto note = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    elements_ += tensor.is_nested() ? SIZE_MAX / 2 : static_cast<size_t>(tensor.numel());
    only_cpu_ &= tensor.device().is_cpu();
    only_plain_ &= !tensor.key_set().has_any(c10::python_ks);
  };
  if (value.isTensor()) note(value.toTensor());
  if (value.isTensorList())
    for (const at::Tensor& tensor : value.toTensorVector()) note(tensor);
}

// Which results show the memory of an argument.
void Recorder::note_bases(const std::vector<c10::IValue>& arguments, const torch::jit::Stack& stack,
                          Step* step) {
  auto look = [&](const at::Tensor& tensor, Result* result) {
    auto* storage = result->known || !tensor.defined() ? nullptr : storage_of(tensor);
    for (size_t i = 0; storage && i < arguments.size() && i < step->arguments.size(); ++i) {
      if (!arguments[i].isTensor() || !arguments[i].toTensor().defined() ||
          step->arguments[i].kind != Argument::Kind::Register ||
          storage_of(arguments[i].toTensor()) != storage)
        continue;
      result->base = step->arguments[i].reg;
      result->distance = tensor.storage_offset() - arguments[i].toTensor().storage_offset();
      return;
    }
  };
  size_t first = stack.size() - step->results.size();
  for (size_t i = 0; i < step->results.size(); ++i) {
    const c10::IValue& value = stack[first + i];
    if (value.isTensor()) look(value.toTensor(), &step->results[i]);
    if (!value.isTensorList()) continue;
    auto list = value.toTensorVector();
    for (size_t k = 0; k < list.size(); ++k) look(list[k], &step->results[i].list[k]);
  }
}

void Recorder::note_exit(const OperatorFacts& facts, const std::vector<c10::IValue>& arguments, Step* step) {
  for (auto& result : step->results) step->exit |= result.kind == Result::Kind::Read;
  step->exit |= shape_depends_on_values(facts, arguments) || step->python;
  // What has other sizes may have another number of dimensions or be another number of tensors. An operator that is
  // made of others may give back its argument.
  if (loose_results_)
    for (auto& result : step->results)
      step->exit |= facts.view || result.kind == Result::Kind::List ||
                    step->op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  // What has been done cannot be undone to run the function again where the value differs.
  if (step->exit && changed_ && program_->unresumable <= at_step())
    fail(say(reason::ReadAfterChange, step->op.schema().name(),
             program_->effects  ? "an in-place write to an argument or to state"
             : program_->random ? "drawing random numbers"
                                : "an opaque function",
             unresumable_why_));
  if ((changed_ || step->once() || saved_hooks_ != SavedHooks::None) && !step->exit && would_catch()) {
    step->exit = true;
    if (program_->unresumable < at_step())
      fail(say(reason::CaughtAfterChange, step->op.schema().name(), unresumable_why_));
  }
}

void Recorder::end_resuming(const std::string& why) {
  if (program_->unresumable <= at_step()) return;
  program_->unresumable = at_step();
  unresumable_why_ = why;
}

void Recorder::push(Step step) {
  static std::atomic<int64_t> serial{0};
  bool fed = feeding();
  if (fed) {
    const Step& ran = feeder_->expected();
    expect_same(feeder_->difference(step));
    if (!feeder_->at_exit()) expect_same(feeder_->difference_of_results(step));
    step.node = ran.node;
    if (!feeder_->at_exit()) {
      step.branch = ran.branch;
      step.results = ran.results;  // as they were then: later steps may have changed what they require
    }
    step.random = ran.random;
    step.effect = ran.effect;
    step.python = ran.python;
    step.below = ran.below;
    if (step.opaque) note_fed_opaque(*ran.opaque, &step);
    step.exit = ran.exit;
    step.filled = ran.filled;
    program_->random |= step.random;
    program_->effects |= step.effect;
    feeder_->advance();
    if (!feeder_->active()) random_mark_ = RandomMark::now();
  }
  if (numbers_made_) step.numbers = numbers_made_->take_new();
  if (step.node < 0) step.node = serial++;
  if (step.branch < 0) step.branch = serial++;
  changed_ |= step.once();
  program_->steps.push_back(std::move(step));
}

// What it did to tensors and to Python state was not seen this time, but when its trace was recorded.
void Recorder::note_fed_opaque(const OpaqueStep& ran, Step* step) {
  OpaqueStep& made = *step->opaque;
  made.effects = ran.effects || feeder_->at_exit();
  made.random = ran.random;
  made.touches = ran.touches;
  made.confuses = ran.confuses;
  step->effect |= made.effects;
  if (!feeder_->at_exit()) made.shape = ran.shape, made.values = ran.values;
  if (made.touches) fail(say(reason::ResumesAfterOpaque, made.name));
}

PyObject* divergence_type() {
  static PyObject* type = PyErr_NewException("lazytrace._core.Diverged", PyExc_BaseException, nullptr);
  return type;
}

void Recorder::diverge(const std::string& how) {
  py::gil_scoped_acquire gil;
  if (feeder_->diverged.empty()) {
    py::tuple at = place_tuple(place);
    feeder_->diverged = how + (text_of(at[0].ptr()).empty() ? ""
                                                            : " (" + text_of(at[0].ptr()) + ":" +
                                                                  std::to_string(at[1].cast<int>()) + ")");
  }
  PyErr_SetString(divergence_type(), feeder_->diverged.c_str());
  throw py::error_already_set();
}

py::object Recorder::fed_value() {
  try {
    return feeder_->value();
  } catch (...) {
    feeder_->advance();  // that was the exit
    throw;
  }
}

void Recorder::expect_same(const std::string& difference) {
  if (!difference.empty()) diverge(difference);
}

void Recorder::expect_opaque() {
  if (!feeder_->active() || feeder_->expected().kind != Step::Kind::Opaque) diverge("an opaque function");
}

std::string Recorder::divergence() const {
  if (!feeder_) return "";
  if (!feeder_->diverged.empty()) return feeder_->diverged;
  return feeder_->active() ? "it ended before " + feeder_->expected().op.schema().name() : "";
}

bool Recorder::shape_depends_on_values(const OperatorFacts& facts,
                                       const std::vector<c10::IValue>& arguments) {
  if (!facts.index || arguments.size() < 2) return facts.data_dependent_shape;
  for (const c10::IValue& item : arguments[1].toListRef())  // a mask selects as many as it has true entries
    if (item.isTensor() && item.toTensor().defined() &&
        (item.toTensor().scalar_type() == at::kBool || item.toTensor().scalar_type() == at::kByte))
      return true;
  return false;
}

void Recorder::note_modes(Step* step) {
  Modes now = Modes::current();
  if (now == modes_) return;
  modes_ = now;
  // Its cache of cast weights goes when a replay stops inside it.
  if (now.any_autocast()) end_resuming("it enters an autocast region of its own");
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
    fail(say(reason::ExplicitGenerator));
    return false;
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
    argument->constant = number_of(tensor);
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
  auto found = known_.find(tensor.unsafeGetTensorImpl());
  if (found == known_.end() || found->second.requires_grad == tensor.requires_grad()) return;
  if (was_there(reg) || !tensor.is_leaf() || !tensor.requires_grad())
    return fail(say(reason::RequiresGradChanged));
  found->second.requires_grad = true;
  static auto detach = c10::Dispatcher::singleton().findSchemaOrThrow("aten::detach_", "");
  Step step(Step::Kind::RequireGrad, detach);  // factories set the flag after their operator has returned
  Argument argument;
  argument.kind = Argument::Kind::Register;
  argument.reg = reg;
  step.arguments.push_back(argument);
  step.place = place;
  push(std::move(step));
}

void Recorder::note_written(const at::Tensor& tensor, Step* step) {
  if (!tensor.defined() || !is_external(tensor)) return;
  step->effect = true;
  program_->effects = true;
  if (modes_.any_autocast() && !program_->modes[0].any_autocast()) fail(say(reason::WriteInAutocast));
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
  step->random = may_draw(facts, arguments);
}

Result Recorder::decode(const c10::IValue& value) {
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
  result.kind = Result::Kind::Read;
  result.read = value;
  return result;
}

// Many results of one program look the same: they share what is known of them.
std::shared_ptr<const TensorMeta> Recorder::meta_of(const at::Tensor& tensor) {
  constexpr size_t kAsked = 16;  // of the newest
  for (size_t i = metas_.size(); i-- > 0 && metas_.size() - i <= kAsked;)
    if (metas_[i]->matches(tensor)) return metas_[i];
  metas_.push_back(std::make_shared<const TensorMeta>(TensorMeta::of(tensor)));
  return metas_.back();
}

// Python numbers that are written again and again in a function are one constant of the program: no operator
// writes to it, and none gives it back.
at::Tensor Recorder::number_of(const at::Tensor& tensor) {
  if (!tensor.has_storage() || !tensor.device().is_cpu()) return tensor;
  for (const at::Tensor& known : numbers_) {
    bool same =
        known.scalar_type() == tensor.scalar_type() && known.key_set() == tensor.key_set() &&
        known.unsafeGetTensorImpl()->is_wrapped_number() == tensor.unsafeGetTensorImpl()->is_wrapped_number();
    if (same && std::memcmp(known.const_data_ptr(), tensor.const_data_ptr(), known.element_size()) == 0)
      return known;
  }
  numbers_.push_back(tensor);
  return tensor;
}

Result Recorder::decode_tensor(const at::Tensor& tensor) {
  Result result;
  result.meta = meta_of(tensor);
  if (!tensor.defined()) return result;
  result.loose = loose_results_;
  auto found = known_.find(tensor.unsafeGetTensorImpl());
  result.known = found != known_.end();
  if (result.known && found->second.requires_grad != tensor.requires_grad()) {
    found->second.requires_grad = tensor.requires_grad();
    program_->changes_looks = true;
    // Code that runs again would see the tensor require gradients before this step.
    if (!feeding()) end_resuming("a tensor comes to require gradients in place");
  }
  if (!result.known && explained_.count(tensor.unsafeGetTensorImpl())) {
    result.known = true;
    result.reg = register_of(tensor);
    return result;
  }
  result.reg = result.known ? found->second.reg : new_register(tensor, false, loose_results_);
  return result;
}

// ---------------------------------------------------------------- sizes that may differ
void Recorder::follow_sizes() {
  program_->dynamic = true;
  NumberRecorder::Owner owner;
  owner.read = [this](int id, int64_t value) { read_number(id, value); };
  owner.fail = [this](const std::string& why) { fail(why); };
  numbers_made_ = std::make_shared<NumberRecorder>(&program_->numbers, std::move(owner));
}

bool Recorder::is_loose_register(int reg) const {
  return reg >= 0 && static_cast<size_t>(reg) < loose_.size() && loose_[static_cast<size_t>(reg)];
}

bool Recorder::is_loose(const at::Tensor& tensor) {
  if (!numbers() || !tensor.defined()) return false;
  int reg = register_of(tensor);
  if (reg < 0) fail(say(reason::SizesUnknown));
  return is_loose_register(reg);
}

int Recorder::size_number(Number::Kind kind, const at::Tensor& tensor, int64_t which) {
  if (!is_loose(tensor)) return -1;
  if (inside_operator()) {
    fail(say(reason::SizesInOperator));
    return -1;
  }
  return numbers()->leaf(kind, register_of(tensor), which, tensor);
}

void Recorder::pin(const at::Tensor& tensor) {
  auto read = [&](Number::Kind kind, int64_t which) {
    if (int id = size_number(kind, tensor, which); id >= 0) numbers()->read(id);
  };
  for (int64_t i = 0; i < tensor.dim(); ++i) read(Number::Kind::Size, i);
  if (tensor.layout() != at::kStrided) return;
  for (int64_t i = 0; i < tensor.dim(); ++i) read(Number::Kind::Stride, i);
  read(Number::Kind::Offset, 0);
}

// An operator that changes sizes in place: those before it are compared, those after it follow from them.
void Recorder::fix_sizes(const std::vector<c10::IValue>& arguments, Lifted* lifted) {
  numbers()->settle(*lifted);
  lifted->clear();
  for (const c10::IValue& value : arguments) {
    if (!value.isTensor() || !is_loose(value.toTensor())) continue;
    pin(value.toTensor());
    loose_[static_cast<size_t>(register_of(value.toTensor()))] = 0;
  }
}

// Something looked at the value of a number: a replay that works out another one leaves here.
void Recorder::read_number(int id, int64_t value) {
  if (failed()) return;
  if (inside_operator()) return fail(say(reason::SizesInOperator));
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
  if (changed_ && program_->unresumable <= at_step())
    return fail(say(reason::ReadAfterChange, "a size", "a change", unresumable_why_));
  push(std::move(step));
}

// The size of a result may differ where that of an argument may, or where it follows from values.
void Recorder::note_loose(const OperatorFacts& facts, const std::vector<c10::IValue>& arguments, Step* step) {
  loose_results_ = shape_depends_on_values(facts, arguments);
  for (size_t i = 0; i < step->arguments.size(); ++i) {
    Argument& argument = step->arguments[i];
    loose_results_ |= argument.kind == Argument::Kind::Number || argument.kind == Argument::Kind::Numbers;
    if (argument.kind == Argument::Kind::Register) loose_results_ |= is_loose_register(argument.reg);
    for (int reg : argument.list)
      if (argument.kind == Argument::Kind::List) loose_results_ |= is_loose_register(reg);
    // A literal has fewer arguments than its operator, and is written to by none.
    const auto* alias = i < step->op.schema().arguments().size() ? step->op.schema().arguments()[i].alias_info()
                                                                 : nullptr;
    if (argument.kind != Argument::Kind::Register || !alias || !alias->isWrite() ||
        step->arguments.size() != arguments.size() || was_there(argument.reg) ||
        !is_loose_register(argument.reg))
      continue;
    argument.memory =
        is_external(arguments[i].toTensor()) ? Argument::Memory::Outer : Argument::Memory::Own;
  }
}

// ---------------------------------------------------------------- memory that nobody was seen to fill
void Recorder::use_blank(const at::Tensor& tensor, bool view, bool overwritten) {
  auto* storage = storage_of(tensor);
  auto found = storage ? blank_.find(storage) : blank_.end();
  if (found == blank_.end() || view) return;
  int step = found->second.step;
  blank_.erase(found);
  if (!overwritten) make_literal(step, tensor);
}

void Recorder::make_literal(int at, const at::Tensor& tensor) {
  Step& step = program_->steps[at];
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard guard(kRecordKey);
  const TensorMeta& meta = *step.results[0].meta;
  at::Tensor whole = tensor.detach();
  if (whole.sizes() != c10::IntArrayRef(meta.sizes()) || !whole.is_non_overlapping_and_dense()) {
    // A view came first: the literal is everything behind it.
    if (whole.storage().nbytes() / whole.element_size() == 0) return;
    whole =
        at::empty({0}, whole.options())
            .set_(whole.storage(), 0, meta.sizes(), c10::contiguous_strides(c10::IntArrayRef(meta.sizes())));
  }
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

void Recorder::add_opaque(std::shared_ptr<OpaqueStep> opaque, const std::vector<int>& uses,
                          PyObject* result) {
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
  loose_results_ = program_->dynamic;
  std::vector<PyObject*> leaves;
  flatten_value(result, &leaves, &opaque->shape);
  for (PyObject* leaf : leaves) {
    Result one;
    if (is_tensor(leaf)) {
      one = decode_tensor(THPVariable_Unpack(leaf));
      opaque->values.push_back(py::none());
    } else {
      if (!is_immutable(leaf)) fail(say(reason::OpaqueResult, opaque->name, type_name(leaf)));
      one.kind = Result::Kind::Read;
      opaque->values.push_back(py::reinterpret_borrow<py::object>(leaf));
    }
    step.results.push_back(std::move(one));
  }
  step.effect = opaque->effects;
  program_->effects |= step.effect;
  step.random = opaque->random;
  program_->random |= step.random;
  step.exit = true;
  if (!opaque->feedable) end_resuming("it calls " + opaque->name + ", which cannot be fed");
  for (int reg : uses)
    if (made_by_factory(reg)) end_resuming(opaque->name + " was given what a factory of torch made");
  if (opaque->confuses) end_resuming(opaque->name + " changes what the function has read");
  if (changed_ && hidden_varies_ && program_->unresumable <= at_step())
    fail(say(reason::OpaqueVaries, opaque->name, unresumable_why_));
  after_opaque_ |= opaque->python;
  step.opaque = std::move(opaque);
  push(std::move(step));
}

// ---------------------------------------------------------------- the program
namespace {
template <typename F>
void each_result(const Step& step, F visit) {
  for (auto& result : step.results) {
    visit(result.reg);
    for (auto& one : result.list) visit(one.reg);
  }
}
template <typename F>
void each_argument(const Step& step, F visit) {
  for (auto& argument : step.arguments) {
    if (argument.kind == Argument::Kind::Register) visit(argument.reg);
    if (argument.kind != Argument::Kind::List) continue;
    for (int reg : argument.list)
      if (reg >= 0) visit(reg);
  }
}

// The same, and the registers whose sizes it asks for.
template <typename F>
void each_needed(const Program& program, const Step& step, F visit) {
  each_argument(step, visit);
  for (int id : step.numbers) {
    const Number& number = program.numbers[static_cast<size_t>(id)];
    if (number.asks_tensor()) visit(number.reg);
  }
}
}  // namespace

// The `empty` behind a literal, and literals that nobody uses any more.
// A function that runs again asks for all of them up to the exit.
void Recorder::drop_unused(const std::vector<int>& outputs) {
  std::vector<char> used(program_->registers, 0);
  for (int reg : outputs) used[reg] = 1;
  size_t last_exit = 0;
  for (size_t i = 0; i < program_->steps.size(); ++i)
    if (program_->steps[i].exit) last_exit = i;
  std::vector<Step> kept;
  for (size_t i = program_->steps.size(); i-- > 0;) {
    Step& step = program_->steps[i];
    bool removable = step.kind == Step::Kind::Literal ||
                     (step.kind == Step::Kind::Operator && facts_of(step.op).blank_factory);
    if (removable && i > last_exit && step.modes < 0 && step.numbers.empty() && !used[step.results[0].reg])
      continue;
    each_needed(*program_, step, [&](int reg) { used[reg] = 1; });
    kept.push_back(std::move(step));
  }
  program_->steps =
      std::vector<Step>(std::make_move_iterator(kept.rbegin()), std::make_move_iterator(kept.rend()));
  for (Step& step : program_->steps) {
    step.arguments.shrink_to_fit();
    step.results.shrink_to_fit();
  }
}

// Up to an exit before which nothing was changed the function can also run from its start. That is the better
// choice where the results that would have to be kept for it are large.
void Recorder::place_exits() {
  constexpr size_t kMostBytes = size_t{32} << 20;
  size_t bytes = 0;
  for (size_t i = 0; i < program_->steps.size(); ++i) {
    const Step& step = program_->steps[i];
    int at = static_cast<int>(i);
    if (step.once()) program_->first_once = std::min(program_->first_once, at);
    bool worth_keeping = program_->changed_before(i) || bytes <= kMostBytes;
    if (step.exit && at <= program_->unresumable && worth_keeping) program_->keep_until = at;
    for (auto& result : step.results)
      if (result.kind == Result::Kind::Register && !result.known) bytes += result.meta->bytes();
  }
}

void Recorder::place_frees(const std::vector<int>& outputs) {
  std::vector<int> last(program_->registers, -1);
  for (size_t i = 0; i < program_->steps.size(); ++i) {
    each_needed(*program_, program_->steps[i], [&](int reg) { last[reg] = static_cast<int>(i); });
    each_result(program_->steps[i], [&](int reg) {
      if (reg >= 0) last[reg] = static_cast<int>(i);
    });
  }
  for (int reg : outputs) last[reg] = -1;
  // Of these the caller and the state keep hold.
  for (int reg = 0; reg < program_->inputs; ++reg) last[reg] = -1;
  for (int reg : program_->captures) last[reg] = -1;
  for (int reg = 0; reg < program_->registers; ++reg) {
    if (last[reg] < 0) continue;
    // A function that runs again may ask for anything that was made before the last exit.
    bool kept = last[reg] <= program_->keep_until;
    if (kept) last[reg] = program_->keep_until;
    Step& step = program_->steps[last[reg]];
    step.frees.push_back(reg);
    int uses = 0;
    Argument* only = nullptr;
    each_argument(step, [&](int used) { uses += used == reg; });
    for (auto& argument : step.arguments)
      if (argument.kind == Argument::Kind::Register && argument.reg == reg) only = &argument;
    // What is dynamic compares its results with its arguments.
    if (!kept && !program_->dynamic && uses == 1 && only && step.kind == Step::Kind::Operator) only->last = true;
  }
}

// A few small operators of torch itself, on the CPU: none of them waits for anybody.
void Recorder::judge_length() {
  constexpr size_t kMostSteps = 4, kMostElements = 2048;
  // The next call may bring more elements.
  program_->brief = !program_->dynamic && program_->steps.size() <= kMostSteps && elements_ <= kMostElements && only_cpu_;
  for (const Step& step : program_->steps)
    program_->brief &= step.kind == Step::Kind::Operator && step.op.schema().name().rfind("aten::", 0) == 0;
  // A write may let go of a graph of autograd, whose nodes may belong to Python; anomaly mode asks Python for
  // a stack.
  program_->overrides = aten_overrides();
  program_->lends = program_->brief && !program_->effects && !overridden_ && only_plain_ &&
                    saved_hooks_ == SavedHooks::None && !torch::autograd::AnomalyMode::is_enabled();
}

// Hooks of autograd must see each tensor once, in order: a program under them must run to its end whatever
// happens.
void Recorder::judge_hooks() {
  if (saved_hooks_ == SavedHooks::None) return;
  program_->python_between = true;
  bool steady = std::all_of(program_->steps.begin(), program_->steps.end(),
                            [](const Step& step) { return !step.exit && !step.opaque; });
  if (!steady) fail(say(reason::HooksAndExits));
}

void Recorder::place_inputs(const std::vector<int>& outputs) {
  std::vector<char> used(program_->registers, program_->keep_until >= 0);
  for (int reg : outputs) used[reg] = 1;
  for (const Step& step : program_->steps) {
    each_needed(*program_, step, [&](int reg) { used[reg] = 1; });
    each_result(step, [&](int reg) {
      if (reg >= 0) used[reg] = 1;
    });
  }
  for (int reg = 0; reg < program_->inputs; ++reg)
    if (used[reg]) program_->used.push_back(reg);
}

std::shared_ptr<Program> Recorder::finish(const std::vector<int>& outputs) {
  drop_unused(outputs);
  place_exits();
  judge_hooks();
  judge_length();
  place_inputs(outputs);
  if (!program_->dynamic) lower(program_.get(), outputs);
  place_frees(outputs);
  if (numbers_made_) numbers_made_->end();
  known_.clear();
  explained_.clear();
  explained_keep_.clear();
  keep_storage_.clear();
  data_of_.clear();
  metas_.clear();
  numbers_.clear();
  lent_.clear();
  return program_;
}

}  // namespace lazytrace
