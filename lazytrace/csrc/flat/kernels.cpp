#include "flat/kernels.h"

#include <algorithm>

#include "flat/usual.h"
#include "passes/registers.h"
#include "passes/ways.h"
#include "torch/overrides.h"
#include "torch/storage.h"
#include "torch/wrapped_numbers.h"

namespace lazytrace {

namespace {

// What of which memory a tensor shows: two that agree hold the same numbers at any time.
std::string look_of(const at::Tensor& tensor) {
  std::string look;
  auto add = [&](int64_t value) { look.append(reinterpret_cast<const char*>(&value), sizeof value); };
  add(reinterpret_cast<int64_t>(storage_of(tensor)));
  add(tensor.storage_offset());
  add(static_cast<int64_t>(tensor.scalar_type()));
  add(bits_of(tensor));
  for (int64_t size : tensor.sizes()) add(size);
  for (int64_t stride : tensor.strides()) add(stride);
  return look;
}

bool is_usual(const at::Tensor& tensor) { return !tensor.is_inference() && shows_plain_memory(tensor); }

std::string name_of(const c10::OperatorHandle& op) { return op.schema().name(); }

// A view in place of an operator that gives a tensor another look at its memory: what follows takes that.
std::optional<c10::OperatorHandle> turning(const c10::OperatorHandle& op) {
  static const std::unordered_map<std::string, std::pair<const char*, const char*>> kViews = {
      {"aten::transpose_", {"aten::transpose", "int"}},
      {"aten::t_", {"aten::t", ""}},
      {"aten::squeeze_", {"aten::squeeze", ""}},
      {"aten::squeeze_.dim", {"aten::squeeze", "dim"}},
      {"aten::unsqueeze_", {"aten::unsqueeze", ""}}};
  auto found = kViews.find(full_name(op.schema()));
  if (found == kViews.end()) return std::nullopt;
  return c10::Dispatcher::singleton().findSchemaOrThrow(found->second.first, found->second.second);
}

// Autograd leaves what keeps track of views and versions to such operators alone (gen_variable_type.py).
bool has_aliases(const c10::FunctionSchema& schema) {
  auto aliased = [](const c10::Argument& one) { return one.alias_info() != nullptr; };
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), aliased) ||
         std::any_of(schema.returns().begin(), schema.returns().end(), aliased);
}

bool is_plain_constant(const c10::IValue& value) {
  if (value.isList()) {
    auto list = value.toListRef();
    return std::all_of(list.begin(), list.end(), is_plain_constant);
  }
  return value.isNone() || value.isInt() || value.isDouble() || value.isBool() || value.isComplexDouble() ||
         value.isString() || value.isDevice();
}

}  // namespace

void Kernels::know(int reg, const at::Tensor& tensor, bool external) {
  if (!tensor.defined()) return;
  known_.insert_or_assign(
      tensor.unsafeGetTensorImpl(),
      Known{reg, c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(tensor.getIntrusivePtr()),
            bits_of(tensor)});
  c10::StorageImpl* storage = storage_of(tensor);
  storages_[reg] = storage;
  if (!storage) return;
  if (tensor.layout() == at::kStrided) shown_[look_of(tensor)] = reg;
  memory_.push_back(tensor.storage().getWeakStorageImpl());
  met_.insert(storage);
  if (external) external_.insert(storage);
}

void Kernels::set_data(int reg, const at::Tensor& tensor, bool outlives) {
  for (auto at = shown_.begin(); at != shown_.end();)
    at = at->second == reg ? shown_.erase(at) : std::next(at);
  c10::StorageImpl* storage = storage_of(tensor);
  storages_[reg] = storage;
  memory_.push_back(tensor.storage().getWeakStorageImpl());
  if (outlives) external_.insert(storage);
}

void Kernels::meet(int reg, const at::Tensor& tensor) {
  c10::StorageImpl* storage = storage_of(tensor);
  if (storage && !met_.count(storage)) early_.insert(storage);
  know(reg, tensor, true);
}

bool Kernels::was_there(const at::Tensor& tensor) const {
  auto* storage = storage_of(tensor);
  return !storage || early_.count(storage);
}

bool Kernels::writes_early(const Step& step, const std::vector<at::Tensor>& registers) const {
  if (step.kind != Step::Kind::Operator) return true;
  bool early = false;
  each_written(step, [&](int reg) { early |= registers[reg].defined() && was_there(registers[reg]); });
  return early;
}

c10::StorageImpl* Kernels::memory_of(int reg) const {
  auto found = storages_.find(reg);
  return found == storages_.end() ? nullptr : found->second;
}

std::optional<std::vector<c10::StorageImpl*>> Kernels::early_memory(const Step& step) const {
  std::vector<c10::StorageImpl*> memory;
  bool known = step.kind == Step::Kind::Operator;
  each_written(step, [&](int reg) {
    c10::StorageImpl* one = memory_of(reg);
    known &= one != nullptr;
    if (one && was_there(one)) memory.push_back(one);
  });
  return known && !memory.empty() ? std::make_optional(std::move(memory)) : std::nullopt;
}

void Kernels::outlives(const at::Tensor& tensor) {
  if (auto* storage = storage_of(tensor)) external_.insert(storage);
}

bool Kernels::is_external(const at::Tensor& tensor) const {
  auto* storage = storage_of(tensor);
  return storage && external_.count(storage);
}

bool Kernels::was_written(const at::Tensor& tensor) const {
  auto* storage = storage_of(tensor);
  return storage && written_.count(storage);
}

int Kernels::register_of(const at::Tensor& tensor) const {
  auto known = known_.find(tensor.unsafeGetTensorImpl());
  // Torch's code takes these bits from a tensor while it writes to it.
  if (known != known_.end()) return known->second.bits == bits_of(tensor) ? alive(known->second.reg) : -1;
  if (!storage_of(tensor) || tensor.layout() != at::kStrided) return -1;
  auto shown = shown_.find(look_of(tensor));
  return shown == shown_.end() ? -1 : alive(shown->second);
}

void Kernels::drop(size_t step, int reg) {
  steps_.erase(steps_.begin() + static_cast<std::ptrdiff_t>(step), steps_.end());
  dead_.resize(static_cast<size_t>(next_), 0);
  std::fill(dead_.begin() + reg, dead_.end(), 1);
}

// ---------------------------------------------------------------- arguments
bool Kernels::encode_tensor(const at::Tensor& tensor, Argument* argument) {
  if (!tensor.defined()) {
    argument->constant = tensor;
    return true;
  }
  if (auto number = numbers_.find(tensor.unsafeGetTensorImpl()); number != numbers_.end()) {
    argument->kind = Argument::Kind::NumberTensor;
    argument->reg = number->second.first;
    return true;
  }
  int reg = register_of(tensor);
  // What torch makes of a number in the code of an operator, or of one of its arguments.
  if (reg < 0 && tensor.dim() == 0 && tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    argument->constant = is_wrapped_number(tensor) ? copy_of_number(tensor) : tensor;
    return true;
  }
  if (reg < 0 || !is_usual(tensor)) return false;
  argument->kind = Argument::Kind::Register;
  argument->reg = reg;
  return true;
}

bool Kernels::encode(const c10::IValue& value, Argument* argument) {
  if (value.isTensor()) return encode_tensor(value.toTensor(), argument);
  argument->optional_list = value.isOptionalTensorList();
  if (!value.isTensorList() && !argument->optional_list) {
    argument->constant = value;
    return is_plain_constant(value);
  }
  argument->kind = Argument::Kind::List;
  for (const c10::IValue& item : value.toListRef()) {
    Argument one;
    bool none = item.isNone() || !item.toTensor().defined();
    if (none && !argument->optional_list) return false;
    if (!none && (!encode_tensor(item.toTensor(), &one) || one.kind != Argument::Kind::Register))
      return false;
    argument->list.push_back(none ? -1 : one.reg);
  }
  return true;
}

void Kernels::encode_all(const c10::OperatorHandle& op, const torch::jit::Stack& arguments, Step* step) {
  for (const c10::IValue& value : arguments) {
    step->arguments.emplace_back();
    if (!encode(value, &step->arguments.back())) hinder(name_of(op) + " takes something of unknown origin");
    step->takes_numbers |= step->arguments.back().kind == Argument::Kind::NumberTensor;
  }
}

// Memory that `empty` has made and that code outside of any kernel fills would be empty at a replay.
void Kernels::note_blanks(const OperatorFacts& facts, const c10::Argument* schema, const Argument& argument) {
  bool written = schema && schema->alias_info() && schema->alias_info()->isWrite();
  auto note = [&](int reg) {
    if (reg < 0 || !blank_.count(reg) || (facts.view && !written)) return;
    if (written && facts.overwrites_outputs)
      blank_.erase(reg);
    else
      hinder("memory that no kernel was seen to fill");
  };
  note(argument.kind == Argument::Kind::Register ? argument.reg : -1);
  if (argument.kind == Argument::Kind::List)
    for (int reg : argument.list) note(reg);
}

void Kernels::note_written(const c10::OperatorHandle& op, const OperatorFacts& facts,
                           const torch::jit::Stack& arguments, Step* step) {
  const auto& declared = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = declared[i].alias_info();
    bool written = (alias && alias->isWrite()) || (facts.hidden_writes && hidden_write(op, i, arguments));
    if (!written) continue;
    auto note = [&](const at::Tensor& tensor) {
      if (tensor.defined() && bits_of(tensor))
        hinder(name_of(op) + " writes to a tensor that is shown conjugated or negated");
      step->effect |= is_external(tensor);
      step->early |= tensor.defined() && was_there(tensor);
      written_.insert(storage_of(tensor));
    };
    if (arguments[i].isTensor()) note(arguments[i].toTensor());
    if (arguments[i].isTensorList())
      for (const at::Tensor& tensor : arguments[i].toTensorVector()) note(tensor);
  }
}

// ---------------------------------------------------------------- results
Result Kernels::decode_tensor(const at::Tensor& tensor, const Step& step) {
  Result result;
  result.meta = TensorMeta::undefined();
  if (!tensor.defined()) return result;
  if (!is_usual(tensor)) hinder(name_of(step.op) + " gives a tensor that is out of the ordinary");
  int reg = register_of(tensor);
  auto known = known_.find(tensor.unsafeGetTensorImpl());
  bool given = false;
  each_argument(step, [&](int one) { given |= one == reg; });
  result.known = known != known_.end() && given;
  // To autograd it is a plain result, whatever it was while there was a graph.
  bool requires_grad = result.known && is_external(tensor) && tensor.requires_grad();
  result.meta = std::make_shared<TensorMeta>(TensorMeta::made(
      tensor.scalar_type(), tensor.device(), requires_grad, tensor.key_set().raw_repr(), tensor.sizes(),
      tensor.layout() == at::kStrided ? std::optional<c10::IntArrayRef>(tensor.strides()) : std::nullopt));
  if (result.known) {
    result.reg = reg;
    return result;
  }
  result.reg = fresh();
  // The view of an argument, or what an operator writes to and gives back in another object.
  c10::StorageImpl* storage = storage_of(tensor);
  for (const Argument& argument : step.arguments) {
    if (argument.kind != Argument::Kind::Register || !storage || storages_[argument.reg] != storage) continue;
    result.base = argument.reg;
    if (blank_.count(argument.reg)) blank_.insert(result.reg);
    break;
  }
  know(result.reg, tensor, false);
  return result;
}

Result Kernels::decode(const c10::IValue& value, const Step& step) {
  if (value.isTensor()) return decode_tensor(value.toTensor(), step);
  Result result;
  if (value.isTensorList()) {
    result.kind = Result::Kind::List;
    for (const at::Tensor& tensor : value.toTensorVector())
      result.list.push_back(decode_tensor(tensor, step));
    return result;
  }
  result.kind = value.isNone() ? Result::Kind::Ignored : Result::Kind::Read;
  result.read = value;
  if (!is_plain_constant(value)) hinder(name_of(step.op) + " gives something that is no tensor");
  return result;
}

bool Kernels::is_literal(const OperatorFacts& facts, const torch::jit::Stack& stack) const {
  if (!takes_literals_ || !facts.lift || !stack.back().isTensor()) return false;
  const at::Tensor& tensor = stack.back().toTensor();
  return tensor.defined() && tensor.dim() == 0 && tensor.device().is_cpu() && is_usual(tensor) &&
         register_of(tensor) < 0 && !numbers_.count(tensor.unsafeGetTensorImpl());
}

// One that nobody had before the call, and that is known by a name which can be another from here on.
bool Kernels::can_be_turned(const c10::IValue& value) const {
  return value.isTensor() && is_usual(value.toTensor()) && !is_external(value.toTensor()) &&
         register_of(value.toTensor()) >= 0;
}

void Kernels::on_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const OperatorFacts& facts = facts_of(op);
  if (facts.profiling) return run_kernel(op, keys, stack);
  const auto& declared = op.schema().arguments();
  size_t returns = op.schema().returns().size();
  Step step(op);
  step.flat = true;
  step.below = !has_aliases(op.schema());
  step.modes = at::GradMode::is_enabled();
  if (is_literal(facts, *stack)) {
    step.kind = Step::Kind::Literal;
    step.flat = false;
    step.literal = copy_of_number(stack->back().toTensor());
    run_kernel(op, keys, stack);
    step.results.push_back(decode(stack->back(), step));
    steps_.push_back(std::move(step));
    return;
  }
  std::optional<c10::OperatorHandle> turns;
  std::vector<int64_t> offsets;  // of the arguments, for the places of views
  bool empty_blank = false;
  {
    torch::jit::Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(declared.size()), stack->end());
    encode_all(op, arguments, &step);
    for (size_t i = 0; i < declared.size(); ++i) note_blanks(facts, &declared[i], step.arguments[i]);
    if (facts.changes_metadata && can_be_turned(arguments[0])) turns = turning(op);
    if (turns)
      step.op = *turns;
    else
      note_written(op, facts, arguments, &step);
    step.random = may_draw(facts, arguments);
    step.exit = shape_depends_on_values(facts, arguments);
    for (const c10::IValue& value : arguments)
      offsets.push_back(value.isTensor() && storage_of(value.toTensor()) ? value.toTensor().storage_offset()
                                                                         : 0);
    empty_blank = facts.blank_factory;
  }
  if ((facts.changes_metadata && !turns) || facts.leaves_unfilled)
    hinder(name_of(op) + " changes the look of a tensor");
  if (runs_python(op, registrations_)) hinder(name_of(op) + " runs Python code");
  RandomMark before = RandomMark::now();
  run_kernel(op, keys, stack);
  step.random |= before != RandomMark::now();
  if (turns) known_.erase(stack->back().toTensor().unsafeGetTensorImpl());
  for (size_t i = stack->size() - returns; i < stack->size(); ++i) {
    step.results.push_back(decode((*stack)[i], step));
    step.exit |= step.results.back().kind == Result::Kind::Read;
  }
  auto place = [&](Result* result, const at::Tensor& tensor) {
    if (result->base < 0) return;
    for (size_t i = 0; i < step.arguments.size(); ++i)
      if (step.arguments[i].kind == Argument::Kind::Register && step.arguments[i].reg == result->base)
        result->distance = tensor.storage_offset() - offsets[i];
  };
  for (size_t i = 0; i < returns; ++i) {
    const c10::IValue& value = (*stack)[stack->size() - returns + i];
    Result& result = step.results[i];
    if (result.kind == Result::Kind::Register && value.isTensor()) place(&result, value.toTensor());
    if (result.kind != Result::Kind::List) continue;
    auto list = value.toTensorVector();
    for (size_t k = 0; k < list.size(); ++k) place(&result.list[k], list[k]);
  }
  if (empty_blank && step.results[0].reg >= 0 && step.results[0].meta->bytes() > 0)
    blank_.insert(step.results[0].reg);
  if (turns) turned_.insert(step.results[0].reg);
  steps_.push_back(std::move(step));
}

}  // namespace lazytrace
