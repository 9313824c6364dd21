#include "recorder.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/library.h>

#include "opaque.h"
#include "random_mark.h"
#include "schema.h"

namespace lazytrace {

namespace {

thread_local Recorder* current = nullptr;

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (current && !current->paused()) return current->on_operator(op, keys, stack);
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
  c10::impl::tls_set_dispatch_key_included(kRecordKey, true);
}

RecordingScope::~RecordingScope() {
  current = before_;
  c10::impl::tls_set_dispatch_key_included(kRecordKey, included_);
}

Recorder* Recorder::active() { return current; }

Recorder::Recorder() : program_(std::make_shared<Program>()), modes_(Modes::current()) {
  program_->modes.push_back(modes_);
}

void Recorder::fail(const std::string& reason) {
  if (failed()) return;
  reason_ = reason;
  failed_at_ = place;
}

void Recorder::pause() { ++paused_; }
void Recorder::resume() {
  --paused_;
  random_mark_ = RandomMark::now();
}

// ---------------------------------------------------------------- registers
int Recorder::new_register(const at::Tensor& tensor, bool external) {
  int reg = program_->registers++;
  auto* impl = tensor.unsafeGetTensorImpl();
  known_.insert_or_assign(impl, Known{reg, tensor.requires_grad(),
                                      c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr())});
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
    new_register(tensor, true);
  program_->inputs = program_->registers;
}

void Recorder::explain(const at::Tensor& tensor, int node) {
  if (explained_.emplace(tensor.unsafeGetTensorImpl(), node).second) explained_keep_.push_back(tensor);
}

int Recorder::register_of(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  auto found = known_.find(impl);
  if (found != known_.end()) return found->second.reg;
  auto explained = explained_.find(impl);
  if (explained == explained_.end()) return data_register(tensor);
  int reg = new_register(tensor, true);
  program_->captures.push_back(reg);
  capture_nodes_.push_back(explained->second);
  return reg;
}

int Recorder::data_register(const at::Tensor& tensor) {
  for (const at::Tensor& source : data_of_) {
    if (!storage_of(tensor) || storage_of(source) != storage_of(tensor) || source.sizes() != tensor.sizes() ||
        source.strides() != tensor.strides() || source.storage_offset() != tensor.storage_offset() ||
        tensor.requires_grad())
      continue;
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
    result.reg = new_register(tensor, false);
    result.meta = TensorMeta::of(tensor);
    step.results.push_back(result);
    program_->steps.push_back(std::move(step));
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
  // Inside a transform the operator comes again from the batching rule, as the plain operators that it is
  // made of.
  if (c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode)) {
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kRecordKey), stack);
    return;
  }
  if (failed() || facts_of(op).profiling) return run_plain(op, stack);
  record_operator(op, stack);
}

void Recorder::run_plain(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard guard(kRecordKey);
  op.callBoxed(stack);
}

void Recorder::record_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  size_t count = schema.arguments().size();
  Step step(op);
  step.place = place;
  note_modes(&step);
  const OperatorFacts& facts = facts_of(op);
  std::vector<c10::IValue> before(stack->end() - count, stack->end());
  if (facts.lift && before[0].isTensor()) use_blank(before[0].toTensor(), false, false);
  for (size_t i = 0; i < count; ++i) {
    Argument argument;
    if (!encode(schema.arguments()[i], before[i], &argument, facts.view,
                facts.overwrites_outputs && schema.arguments()[i].alias_info()))
      return run_plain(op, stack);
    // A constant that may come out again must be a new tensor at each replay.
    bool constant = argument.kind == Argument::Kind::Constant && argument.constant.isTensor() &&
                    argument.constant.toTensor().defined();
    if (constant && facts.lift) {
      at::NoGradGuard no_grad;
      c10::impl::ExcludeDispatchKeyGuard guard(kRecordKey);
      step.kind = Step::Kind::Literal;
      step.literal = argument.constant.toTensor().clone();
      continue;
    }
    if (constant && schema.arguments()[i].alias_info())
      fail("uses a Python number as a tensor that " + schema.name() + " returns");
    step.arguments.push_back(std::move(argument));
  }
  note_effects(op, facts, before, &step);
  try {
    run_plain(op, stack);
  } catch (...) {
    // Where Python catches it, the way that it takes from here hangs on values that no read shows.
    fail(schema.name() + " raised");
    throw;
  }
  // Composite operators (dropout, lstm) carry no tag that says that they draw random numbers.
  RandomMark now = RandomMark::now();
  step.random |= random_mark_ != now;
  program_->random |= step.random;
  random_mark_ = now;
  if (failed()) return;
  for (size_t i = 0; i < schema.returns().size(); ++i)
    step.results.push_back(decode((*stack)[stack->size() - schema.returns().size() + i]));
  bool reads = false;
  for (auto& result : step.results) reads |= result.kind == Result::Kind::Read;
  // What has been done cannot be undone to run the function again where the value differs.
  if ((reads || shape_depends_on_values(facts, before)) && (program_->effects || program_->random))
    fail("reads a tensor's value (" + schema.name() + ") after " +
         (program_->effects ? "an in-place write to an argument or to state" : "drawing random numbers"));
  int at = static_cast<int>(program_->steps.size());
  if (facts.blank_factory && !step.results.empty() && step.results[0].kind == Result::Kind::Register)
    if (auto* storage = storage_of((*stack)[stack->size() - schema.returns().size()].toTensor())) {
      blank_[storage] = Blank{at, false};
      keep_storage_.push_back((*stack)[stack->size() - schema.returns().size()].toTensor().storage());
    }
  program_->steps.push_back(std::move(step));
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
        fail("an operator takes a list that mixes tensors and other values");
        return false;
      }
  }
  if (value.isGenerator()) {
    fail("uses an explicit torch.Generator");
    return false;
  }
  if (value.isPyObject() || value.isObject() || value.isStorage() || value.isStream()) {
    fail("an operator takes a " + value.tagKind() + " argument");
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
    fail("uses a nested tensor");
    return false;
  }
  int reg = register_of(tensor);
  if (reg < 0 && is_python_number(tensor) && !copied) {
    argument->constant = tensor;
    return true;
  }
  if (reg < 0) {
    fail("uses a tensor of unknown origin");
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
    return fail("changes requires_grad of a tensor");
  found->second.requires_grad = true;
  static auto detach = c10::Dispatcher::singleton().findSchemaOrThrow("aten::detach_", "");
  Step step(Step::Kind::RequireGrad, detach);  // factories set the flag after their operator has returned
  Argument argument;
  argument.kind = Argument::Kind::Register;
  argument.reg = reg;
  step.arguments.push_back(argument);
  step.place = place;
  program_->steps.push_back(std::move(step));
}

void Recorder::note_written(const at::Tensor& tensor, Step* step) {
  if (!tensor.defined() || !is_external(tensor)) return;
  step->effect = true;
  program_->effects = true;
  if (modes_.any_autocast() && !program_->modes[0].any_autocast())
    fail("writes to a tensor inside an autocast region of its own");
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
  step->random = facts.seeded;
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
    fail("an operator returns a " + value.tagKind());
  result.kind = Result::Kind::Read;
  result.read = value;
  return result;
}

Result Recorder::decode_tensor(const at::Tensor& tensor) {
  Result result;
  result.meta = TensorMeta::of(tensor);
  if (!tensor.defined()) return result;
  auto found = known_.find(tensor.unsafeGetTensorImpl());
  result.known = found != known_.end();
  if (result.known) found->second.requires_grad = tensor.requires_grad();
  if (!result.known && explained_.count(tensor.unsafeGetTensorImpl())) {
    result.known = true;
    result.reg = register_of(tensor);
    return result;
  }
  result.reg = result.known ? found->second.reg : new_register(tensor, false);
  return result;
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
  const TensorMeta& meta = step.results[0].meta;
  at::Tensor whole = tensor.detach();
  if (whole.sizes() != c10::IntArrayRef(meta.sizes()) || !whole.is_non_overlapping_and_dense()) {
    // A view came first: the literal is everything behind it.
    if (whole.storage().nbytes() / whole.element_size() == 0) return;
    whole =
        at::empty({0}, whole.options())
            .set_(whole.storage(), 0, meta.sizes(), c10::contiguous_strides(c10::IntArrayRef(meta.sizes())));
  }
  step.literal = whole.clone();
  step.kind = Step::Kind::Literal;
  step.arguments.clear();
  if (!meta.matches(step.literal)) fail("uses a literal with a memory layout that cannot be kept");
}

// ---------------------------------------------------------------- opaque steps
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
  std::vector<PyObject*> leaves;
  flatten_value(result, &leaves, &opaque->shape);
  for (PyObject* leaf : leaves) {
    Result one;
    if (THPVariable_Check(leaf)) {
      one = decode_tensor(THPVariable_Unpack(leaf));
      opaque->values.push_back(py::none());
    } else {
      if (!is_immutable(leaf)) fail(opaque->name + " returns a " + type_name(leaf));
      one.kind = Result::Kind::Read;
      opaque->values.push_back(py::reinterpret_borrow<py::object>(leaf));
    }
    step.results.push_back(std::move(one));
  }
  step.effect = opaque->effects;
  program_->effects |= step.effect;
  step.random = opaque->random;
  program_->random |= step.random;
  step.opaque = std::move(opaque);
  program_->steps.push_back(std::move(step));
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
    for (int reg : argument.list)
      if (reg >= 0) visit(reg);
  }
}
}  // namespace

// The `empty` behind a literal, and literals that nobody uses any more.
void Recorder::drop_unused(const std::vector<int>& outputs) {
  std::vector<char> used(program_->registers, 0);
  for (int reg : outputs) used[reg] = 1;
  std::vector<Step> kept;
  for (size_t i = program_->steps.size(); i-- > 0;) {
    Step& step = program_->steps[i];
    bool removable = step.kind == Step::Kind::Literal ||
                     (step.kind == Step::Kind::Operator && facts_of(step.op).blank_factory);
    if (removable && step.modes < 0 && !used[step.results[0].reg]) continue;
    each_argument(step, [&](int reg) { used[reg] = 1; });
    kept.push_back(std::move(step));
  }
  program_->steps.assign(std::make_move_iterator(kept.rbegin()), std::make_move_iterator(kept.rend()));
}

void Recorder::place_frees(const std::vector<int>& outputs) {
  std::vector<int> last(program_->registers, -1);
  for (size_t i = 0; i < program_->steps.size(); ++i) {
    each_argument(program_->steps[i], [&](int reg) { last[reg] = static_cast<int>(i); });
    each_result(program_->steps[i], [&](int reg) {
      if (reg >= 0) last[reg] = static_cast<int>(i);
    });
  }
  for (int reg : outputs) last[reg] = -1;
  for (int reg = 0; reg < program_->registers; ++reg) {
    if (last[reg] < 0) continue;
    Step& step = program_->steps[last[reg]];
    step.frees.push_back(reg);
    int uses = 0;
    Argument* only = nullptr;
    each_argument(step, [&](int used) { uses += used == reg; });
    for (auto& argument : step.arguments)
      if (argument.kind == Argument::Kind::Register && argument.reg == reg) only = &argument;
    if (uses == 1 && only && step.kind == Step::Kind::Operator) only->last = true;
  }
}

std::shared_ptr<Program> Recorder::finish(const std::vector<int>& outputs) {
  drop_unused(outputs);
  place_frees(outputs);
  known_.clear();
  explained_.clear();
  explained_keep_.clear();
  keep_storage_.clear();
  data_of_.clear();
  return program_;
}

}  // namespace lazytrace
