#include "replay/interpreter.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>

#include "cpython/cached_entry.h"
#include "cpython/traceback_frames.h"
#include "guard/guards.h"
#include "passes/lowered.h"
#include "program/flatten.h"
#include "program/own_hooks.h"
#include "replay/made_parts.h"
#include "torch/accumulation.h"
#include "torch/overrides.h"
#include "torch/record_key.h"
#include "torch/traits.h"
#include "torch/wrapped_numbers.h"

namespace lazytrace {

bool same_value(const c10::IValue& a, const c10::IValue& b) {
  if (a.tagKind() != b.tagKind()) return false;
  if (a.isDouble()) {
    double x = a.toDouble(), y = b.toDouble();
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  if (a.isComplexDouble()) {
    auto x = a.toComplexDouble(), y = b.toComplexDouble();
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  if (a.isTensor()) {  // a Python number that met a tensor operator
    const at::Tensor &x = a.toTensor(), &y = b.toTensor();
    if (!x.defined() || !y.defined()) return x.defined() == y.defined();
    return x.is_same(y) || (x.dim() == 0 && y.dim() == 0 && x.scalar_type() == y.scalar_type() &&
                            same_value(x.item(), y.item()));
  }
  if (a.isList()) {
    auto x = a.toListRef(), y = b.toListRef();
    if (x.size() != y.size()) return false;
    for (size_t i = 0; i < x.size(); ++i)
      if (!same_value(x[i], y[i])) return false;
    return true;
  }
  return a == b;
}

std::exception_ptr caught() {
  std::exception_ptr error = std::current_exception();
  py::gil_scoped_acquire gil;
  try {
    std::rethrow_exception(error);
  } catch (py::error_already_set&) {
    return error;
  } catch (python_error& raised) {
    // torch leaves what was raised in the indicator, or has put it into the exception.
    raised.restore();
    if (PyErr_Occurred()) return std::make_exception_ptr(py::error_already_set());
  } catch (...) {
    PyErr_Clear();
  }
  return error;
}

void tell(const std::vector<c10::Warning>& warnings) {
  py::gil_scoped_acquire gil;
  torch::PyWarningHandler handler;
  for (const c10::Warning& warning : warnings) c10::warn(warning);
}

namespace {
// As torch's bindings make it.
at::Tensor number_tensor(const c10::Scalar& value) {
  at::Tensor tensor = c10::scalar_to_tensor(value);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

const Modes& modes_at(const Program& program, size_t step) {
  for (size_t i = step + 1; i-- > 0;)
    if (program.steps[i].modes >= 0) return program.modes[program.steps[i].modes];
  return program.modes[0];
}
}  // namespace

// What torch's binding says of an index, which looks at it before it calls the operator (applySelect,
// ATen/TensorIndexing.h).
std::exception_ptr Interpreter::index_error(const Step& s) const {
  const at::Tensor& tensor = registers_[s.arguments[0].reg];
  int64_t dim = s.arguments[1].constant.toInt(), index = number(s.arguments[2].reg).toInt();
  int64_t size = tensor.size(dim);
  if (index >= -size && index < size) return caught();
  try {
    TORCH_CHECK_INDEX(false, "index ", index, " is out of bounds for dimension ", s.index, " with size ",
                      size);
  } catch (...) {
    return std::current_exception();
  }
}

Outcome Interpreter::run(size_t from, const Given* given, Witness* witness, KeptRegion region) {
  stack_.clear();
  Outcome outcome;
  if (program_.steps.empty()) return outcome;
  numbers_.resize(program_.numbers.size());
  if (!plan_.looks.empty()) looks_.begin(plan_.looks);
  const bool works_out = program_.works_out();
  ModeSwitch modes;
  modes.go_on_in(std::move(region));
  witness_ = witness;
  if (witness) witness->starts(numbers_);
  shortcuts_ = !witness && plan_.overrides == aten_overrides() && !operators_are_watched();
  c10::WarningUtils::WarningHandlerGuard heard(&warnings_);
  alone_ = is_only_thread();
  std::optional<py::gil_scoped_release> released;
  if (!plan_.brief) released.emplace();
  if (given) modes.to(modes_at(program_, from));
  for (size_t i = from; i < program_.steps.size(); ++i) {
    const Step& s = program_.steps[i];
    const StepPlan& planned = plan_.steps[i];
    at_ = i;
    if (s.modes >= 0) modes.to(program_.modes[s.modes]);
    bool asks = works_out && (program_.dynamic || !s.numbers.empty());
    if (asks && !(given && i == from) && !(work_out(s) && writes_as_recorded(s))) {
      if (error_ && (i > 0 ? plan_.lasting_before(i - 1) : program_.python_between))
        std::rethrow_exception(error_);
      outcome.step = static_cast<int>(i);
      outcome.found = found_;
      outcome.begun = false;
      outcome.region = modes.keep_region(s.region);
      return outcome;
    }
    if (witness) witness->before(i);
    bool accepted;
    try {
      accepted = given && i == from ? take(s, *given) : step(s, planned, i);
    } catch (...) {
      // The function may catch it: it runs again, from the start where nothing was changed, and is given the
      // exception.
      outcome.given.error = s.index < 0 ? caught() : index_error(s);
      if (!plan_.resumable(i, true) && plan_.lasting_before(i)) std::rethrow_exception(outcome.given.error);
      if (!confused_) found_ = "an exception";
      accepted = false;
    }
    if (!accepted) {
      outcome.step = static_cast<int>(i);
      outcome.found = found_;
      outcome.confused = confused_;
      outcome.late = late_;
      outcome.moved = moved_;
      outcome.given.results = std::move(stack_);
      outcome.given.value = std::move(value_);
      outcome.given.shape = std::move(shape_);
      outcome.given.others = std::move(others_);
      outcome.given.parts = std::move(parts_);
      outcome.given.keeps = keeps_;
      outcome.given.warnings = std::move(warnings_.all);
      outcome.region = modes.keep_region(s.region);
      return outcome;
    }
    if (witness) witness->after(i);
    // Nothing is made of what has another size at each call.
    for (int reg : planned.frees)
      if (!looks_same(reg) || emptied_.has(registers_[reg]))
        registers_[reg].reset();
      else if (!shells_.take_back(reg, &registers_[reg]))
        recycler_.give(std::move(registers_[reg]));
    emptied_.add(planned.empties, registers_);
    if (s.kind == Step::Kind::Opaque) emptied_.sweep(registers_);  // a backward pass lets go of its graph
  }
  return outcome;
}

// Python has worked out the numbers at this place, whatever it has done with them since.
bool Interpreter::work_out(const Step& s) {
  for (int id : s.numbers) {
    const Number& number = program_.numbers[static_cast<size_t>(id)];
    NumberValue& place = numbers_[static_cast<size_t>(id)];
    if (number.is_given()) continue;
    if (number.is_leaf()) {
      place = number.asks_tensor() ? NumberValue::of(ask(number, registers_[number.reg]))
                                   : constant_value(number);
      continue;
    }
    auto result = apply(program_.numbers, number, numbers_.data());
    if (result)
      place = *result;
    else if (!work_out_slowly(id))
      return false;
  }
  return true;
}

// What is out of the ordinary, such as a division by zero, Python works out itself. What it raises is raised
// as the function would.
bool Interpreter::work_out_slowly(int id) {
  py::gil_scoped_acquire gil;
  std::optional<NumberValue> result;
  try {
    result = apply_in_python(program_.numbers, program_.numbers[static_cast<size_t>(id)], numbers_.data());
  } catch (py::error_already_set&) {
    error_ = std::current_exception();
  }
  if (result) numbers_[static_cast<size_t>(id)] = *result;
  found_ = error_ ? "an exception" : "a number beyond 64 bits";
  return result.has_value();
}

bool Interpreter::is_outer(const at::Tensor& tensor) const {
  if (!tensor.has_storage()) return true;
  auto shares = [&](int reg) {
    const at::Tensor& other = registers_[reg];
    return other.defined() && other.has_storage() && other.storage().is_alias_of(tensor.storage());
  };
  return std::any_of(plan_.used.begin(), plan_.used.end(), shares) ||
         std::any_of(program_.captures.begin(), program_.captures.end(), shares);
}

// What is a copy at one size may be a view of an argument at another.
bool Interpreter::writes_as_recorded(const Step& s) {
  if (!program_.dynamic) return true;
  for (auto& argument : s.arguments) {
    if (argument.memory == Argument::Memory::Any) continue;
    if (is_outer(registers_[argument.reg]) == (argument.memory == Argument::Memory::Outer)) continue;
    found_ = "other memory to write to";
    return false;
  }
  return true;
}

bool Interpreter::step(const Step& s, const StepPlan& planned, size_t at) {
  std::optional<AccumulationLock> lock;
  if (!alone_ && s.accumulates >= 0) lock.emplace(registers_[s.accumulates]);
  switch (s.kind) {
    case Step::Kind::Read: {
      stack_.clear();
      push(s.arguments[0], false);
      return matches(s.results[0], stack_[0]);
    }
    case Step::Kind::Operator:
      if (shortcuts_ && planned.lowered && shortcut(s, *planned.lowered)) return true;
      if (s.below || (shortcuts_ && may_be_quiet(s, planned))) {
        at::AutoDispatchBelowADInplaceOrView below;
        return call(s, planned, at);
      }
      if (s.flat) {
        at::AutoDispatchBelowAutograd below;
        return call(s, planned, at);
      }
      return call(s, planned, at);
    case Step::Kind::Literal: {
      at::NoGradGuard no_grad;
      registers_[s.results[0].reg] = s.literal.clone();
      return true;
    }
    case Step::Kind::Fill: {
      at::NoGradGuard no_grad;
      registers_[s.arguments[0].reg].variable_data().copy_(s.literal);
      return true;
    }
    case Step::Kind::Data:
      running_ = &s;
      registers_[s.results[0].reg] = registers_[s.arguments[0].reg].variable_data();
      return matches_tensor(s.results[0], registers_[s.results[0].reg]);
    case Step::Kind::RequireGrad:
      if (s.effect)
        set_.set_requires_grad(registers_[s.arguments[0].reg], s.arguments[1].constant.toBool());
      else
        registers_[s.arguments[0].reg].set_requires_grad(true);
      return true;
    case Step::Kind::Opaque:
      if (!plan_.looks.empty()) looks_.forget();
      return opaque(s, at);
    case Step::Kind::Gradient:
      return gradient(s);
    case Step::Kind::SetGradient: {
      // As Python does it: others may look at the gradient meanwhile.
      std::optional<py::gil_scoped_acquire> gil;
      if (!alone_ && s.accumulates < 0) gil.emplace();
      return set_gradient(s);
    }
    case Step::Kind::SetData:
      set_.set_data(registers_[s.arguments[0].reg], registers_[s.arguments[1].reg]);
      return true;
    case Step::Kind::Numbers:
      return true;
  }
  return false;
}

bool Interpreter::gradient(const Step& s) {
  running_ = &s;
  stack_.clear();
  const Result& expected = s.results[0];
  const at::Tensor& now = registers_[s.arguments[0].reg].grad();
  // Mostly there is none: another thread may set one at any time.
  if (!now.defined() && expected.kind == Result::Kind::Register && !expected.meta->defined()) {
    store_tensor(expected, at::Tensor());
    return true;
  }
  stack_.emplace_back(now);
  if (!matches(expected, stack_[0])) return false;
  const at::Tensor& grad = stack_[0].toTensor();
  if (grad.defined() && !expected.known && is_held(grad)) {
    found_ = "a tensor that is something else as well";
    return false;
  }
  if (expected.reg >= 0 && !expected.known) gradients_.push_back(expected.reg);
  store(expected, std::move(stack_[0]));
  return true;
}

// Whether it is an argument, captured state or the gradient of another tensor.
bool Interpreter::is_held(const at::Tensor& tensor) const {
  auto is_it = [&](int reg) { return registers_[reg].is_same(tensor); };
  return std::any_of(gradients_.begin(), gradients_.end(), is_it) ||
         std::any_of(program_.captures.begin(), program_.captures.end(), is_it) ||
         std::any_of(plan_.used.begin(), plan_.used.end(), is_it);
}

bool Interpreter::set_gradient(const Step& s) {
  at::Tensor value = s.arguments.size() > 1 ? registers_[s.arguments[1].reg] : at::Tensor();
  at::Tensor& tensor = registers_[s.arguments[0].reg];
  if (value.defined() && value.sizes() != tensor.sizes()) {
    found_ = "a gradient of another size";
    return false;
  }
  // Another thread was faster: autograd would add to what that has set.
  if (s.accumulates >= 0 && tensor.grad().defined()) {
    at::NoGradGuard no_grad;
    tensor.mutable_grad().add_(value);
    return true;
  }
  std::swap(tensor.mutable_grad(), value);
  // The gradients of the last step are as large as those of this one.
  recycler_.give(std::move(value));
  return true;
}

bool Interpreter::may_be_quiet(const Step& s, const StepPlan& planned) const {
  if (planned.quiet != StepPlan::Quiet::WithoutGradients) return planned.quiet == StepPlan::Quiet::Always;
  auto requires_grad = [&](int reg) { return reg >= 0 && registers_[reg].requires_grad(); };
  for (auto& argument : s.arguments) {
    if (argument.kind == Argument::Kind::Register && requires_grad(argument.reg)) return false;
    bool lists = argument.kind == Argument::Kind::List;
    if (lists && std::any_of(argument.list.begin(), argument.list.end(), requires_grad)) return false;
  }
  return true;
}

namespace {
// Whether autograd may save what the step is given. A flat one runs below it.
bool builds_graph(const Step& s) {
  if (s.flat || s.below) return false;
  return std::any_of(s.results.begin(), s.results.end(), [](const Result& result) {
    bool one = result.meta->requires_grad();
    return one || std::any_of(result.list.begin(), result.list.end(),
                              [](const Result& item) { return item.meta->requires_grad(); });
  });
}

// A number of the program is for all of its runs, and the graph of one of them may be written to.
void renew_number(c10::IValue* argument) {
  if (argument->isTensor() && is_wrapped_number(argument->toTensor()))
    *argument = copy_of_number(argument->toTensor());
}
}  // namespace

// The shorter way. Where it warns, the operator runs itself, so that its result can be handed over with the
// warning: it changes nothing, so nobody can tell that it has run twice.
bool Interpreter::shortcut(const Step& s, const Lowered& way) {
  const Desk desk{registers_, program_.numbers, numbers_, recycler_, shells_, scalar_, looks_};
  return way.run(s, desk) && warnings_.all.empty();
}

// Whether the step has warned, and the function can run again to be warned where it called the operator.
// Where it cannot, the caller is warned.
bool Interpreter::warned(size_t at) {
  if (warnings_.all.empty()) return false;
  if (plan_.resumable(at, false) || !plan_.lasting_before(at)) {
    found_ = "a warning";
    return true;
  }
  tell(std::exchange(warnings_.all, {}));
  return false;
}

bool Interpreter::call(const Step& s, const StepPlan& planned, size_t at) {
  // Of a shorter way that was given up; an operator may warn only once.
  std::vector<c10::Warning> before = std::exchange(warnings_.all, {});
  running_ = &s;
  stack_.clear();
  uint64_t moves = planned.moves;
  bool renews = builds_graph(s);
  for (auto& argument : s.arguments) {
    push(argument, moves & 1);
    moves >>= 1;
    if (renews && argument.kind == Argument::Kind::Constant) renew_number(&stack_.back());
  }
  s.op.callBoxed(stack_);
  if (warnings_.all.empty()) warnings_.all = std::move(before);
  for (size_t i = 0; i < s.results.size(); ++i)
    if (!matches(s.results[i], stack_[i])) return false;
  if (warned(at)) return false;
  for (size_t i = 0; i < s.results.size(); ++i) store(s.results[i], std::move(stack_[i]));
  return true;
}

namespace {
bool calls(const Step& s, PyCFunction function) {
  PyObject* called = s.opaque ? s.opaque->function.value.ptr() : nullptr;
  return called && PyCFunction_Check(called) && PyCFunction_GET_FUNCTION(called) == function;
}

// Which finds it: another way is for those that find none.
bool looks_up_entry(const Step& s) {
  PyObject* only = s.opaque && s.opaque->values.size() == 1 ? s.opaque->values[0].ptr() : nullptr;
  bool none = only && (only == kNoEntry || only == kNotGiven);
  return !none && calls(s, look_up_entry);
}
}  // namespace

// The GIL may not be held: what belongs to Python is not copied.
bool Interpreter::take(const Step& s, const Given& given) {
  if (s.kind == Step::Kind::Opaque) {
    py::gil_scoped_acquire gil;
    store_value(s, Flattened(given.value.ptr(), nullptr));
    if (looks_up_entry(s)) note_use(s);
    return true;
  }
  for (size_t i = 0; i < s.results.size(); ++i) store(s.results[i], c10::IValue(given.results[i]));
  return true;
}

void Interpreter::push(const Argument& argument, bool moves) {
  switch (argument.kind) {
    case Argument::Kind::Constant:
      stack_.push_back(argument.constant);
      return;
    case Argument::Kind::Register:
      if (moves)
        stack_.emplace_back(std::move(registers_[argument.reg]));
      else
        stack_.emplace_back(registers_[argument.reg]);
      return;
    case Argument::Kind::List:
      return push_list(argument);
    case Argument::Kind::Number:
      stack_.push_back(number(argument.reg));
      return;
    case Argument::Kind::NumberTensor:
      stack_.emplace_back(number_tensor(number(argument.reg).toScalar()));
      if (witness_) witness_->passes(argument.reg, stack_.back().toTensor());
      return;
    case Argument::Kind::Numbers:
      return push_numbers(argument);
    case Argument::Kind::Generator:  // which the call holds
      stack_.emplace_back(reinterpret_cast<THPGenerator*>(state_[static_cast<size_t>(argument.node)])->cdata);
      return;
  }
}

void Interpreter::push_list(const Argument& argument) {
  if (argument.optional_list) {
    c10::List<std::optional<at::Tensor>> list;
    list.reserve(argument.list.size());
    for (int reg : argument.list)
      list.push_back(reg < 0 ? std::optional<at::Tensor>() : std::optional<at::Tensor>(registers_[reg]));
    stack_.emplace_back(std::move(list));
  } else {
    c10::List<at::Tensor> list;
    list.reserve(argument.list.size());
    for (int reg : argument.list) list.push_back(registers_[reg]);
    stack_.emplace_back(std::move(list));
  }
}

void Interpreter::push_numbers(const Argument& argument) {
  if (!argument.constant.isIntList()) {
    auto scalars = argument.constant.toList().copy();
    for (size_t i = 0; i < argument.list.size(); ++i)
      if (argument.list[i] >= 0) scalars.set(i, number(argument.list[i]));
    stack_.emplace_back(std::move(scalars));
    return;
  }
  c10::List<int64_t> list;
  list.reserve(argument.list.size());
  auto constants = argument.constant.toListRef();
  for (size_t i = 0; i < argument.list.size(); ++i) {
    int id = argument.list[i];
    list.push_back(id < 0 ? constants[i].toInt() : numbers_[static_cast<size_t>(id)].whole);
  }
  stack_.emplace_back(std::move(list));
}

bool Interpreter::matches(const Result& result, const c10::IValue& value) {
  switch (result.kind) {
    case Result::Kind::Ignored:
      return true;
    case Result::Kind::Number:
      if (value.tagKind() == result.read.tagKind()) return true;
      found_ = "a number of another type";
      return false;
    case Result::Kind::Read: {
      if (same_value(result.read, value)) return true;
      std::ostringstream text;
      text << value;
      found_ = text.str();
      return false;
    }
    case Result::Kind::Register:
      return matches_tensor(result, value.toTensor());
    case Result::Kind::List: {
      auto list = value.toTensorList();
      if (list.size() != result.list.size()) {
        found_ = std::to_string(list.size()) + " tensors";
        return false;
      }
      for (size_t i = 0; i < list.size(); ++i)
        if (!matches_tensor(result.list[i], list.get(i))) return false;
      return true;
    }
  }
  return false;
}

bool Interpreter::is_argument(const at::Tensor& tensor) const {
  if (!running_ || !tensor.defined()) return false;
  // Python code may give anything that it can reach.
  if (running_->kind == Step::Kind::Opaque)
    return std::any_of(registers_.begin(), registers_.end(),
                       [&](const at::Tensor& other) { return other.is_same(tensor); });
  auto is_it = [&](int reg) { return reg >= 0 && registers_[reg].is_same(tensor); };
  for (auto& argument : running_->arguments) {
    if (argument.kind == Argument::Kind::Register && is_it(argument.reg)) return true;
    if (argument.kind == Argument::Kind::List &&
        std::any_of(argument.list.begin(), argument.list.end(), is_it))
      return true;
  }
  return false;
}

bool Interpreter::matches_tensor(const Result& result, const at::Tensor& tensor) {
  if (result.loose) {
    if (!result.meta->matches_loosely(tensor)) {
      found_ = result.meta->loose_difference(tensor);
      return false;
    }
  } else if (!result.meta->matches(tensor)) {
    found_ = result.meta->difference(tensor);
    return false;
  }
  bool may_differ = result.loose || (running_ && (running_->takes_numbers || running_->gives_either ||
                                                  running_->kind == Step::Kind::Opaque));
  if (may_differ && !result.known && is_argument(tensor)) {
    found_ = "its argument instead of a new tensor";
    return false;
  }
  if (result.reg >= 0 && result.known && registers_[result.reg].defined() &&
      !registers_[result.reg].is_same(tensor)) {
    found_ = "a new tensor instead of its argument";
    return false;
  }
  return true;
}

void Interpreter::store(const Result& result, c10::IValue&& value) {
  if (result.kind == Result::Kind::Register) return store_tensor(result, std::move(value).toTensor());
  if (result.kind == Result::Kind::Number) {
    NumberValue& place = numbers_[static_cast<size_t>(result.number)];
    place = value.isDouble() ? NumberValue::of_real(value.toDouble()) : NumberValue::of(value.toInt());
  }
  if (result.kind != Result::Kind::List) return;
  auto list = std::move(value).toTensorList();
  for (size_t i = 0; i < list.size(); ++i) store_tensor(result.list[i], list.get(i));
}

void Interpreter::store_tensor(const Result& result, at::Tensor tensor) {
  if (result.reg < 0) return;
  // What an in-place operator gives back is there already, and perhaps lent.
  if (!result.known || !registers_[result.reg].is_same(tensor)) registers_[result.reg] = std::move(tensor);
}

// What Python code has changed of what the function reads, or wrote before (-1), but for what it has changed
// in the recording, too: none, or the first guard node that leads to something else.
std::optional<int> Interpreter::moved_by(const OpaqueStep& step, const Behind& known) const {
  if (!step.free || !state_moved_) return {};
  if (!early_.stand()) return -1;
  early_.lift();
  int moved = -1;
  {
    OwnHooks aside(program_, at_, registers_);
    moved = state_moved_(known);
  }
  early_.put_down();
  return moved < 0 ? std::nullopt : std::optional<int>(moved);
}

// Whether all that has changed since the call began is read behind the step alone: the function reads that
// itself when it runs again.
bool Interpreter::moves_late(const Step& s, size_t at) const {
  if (!s.exit || !plan_.resumable(at, false)) return false;
  std::optional<int> moved = moved_by(*s.opaque, {});
  return !moved || *moved >= s.opaque->behind.first_late;
}

// Calls a function that is there for as long as the process, and changes no state.
void Interpreter::call_own(const Step& s) {
  py::object call = s.opaque->call.build({registers_, state_, &program_.numbers, numbers_.data()});
  value_ = py::reinterpret_steal<py::object>(PyObject_Call(
      s.opaque->function.value.ptr(), PyTuple_GET_ITEM(call.ptr(), 0), PyTuple_GET_ITEM(call.ptr(), 1)));
  if (!value_) throw py::error_already_set();
  running_ = &s;
}

// The number that the step was given, or a tuple of those.
py::object Interpreter::answers(const Step& s) {
  auto answer = [&](const Result& result) {
    auto id = static_cast<size_t>(result.number);
    return to_python(program_.numbers[id], numbers_[id]);
  };
  if (s.opaque->shape == ".") return answer(s.results[0]);
  py::tuple all(s.results.size());
  for (size_t i = 0; i < s.results.size(); ++i) all[i] = answer(s.results[i]);
  return std::move(all);
}

// A number that a run before this one was given, which was given up or is rehearsed, is that of this one.
bool Interpreter::ask_number(const Step& s, size_t at) {
  int id = s.results.empty() ? -1 : s.results[0].number;
  if (std::find(done_.answered.begin(), done_.answered.end(), id) == done_.answered.end()) {
    if (!takes_stray(s)) call_own(s);
    const Flattened flattened(value_.ptr(), nullptr);
    if (!matches_value(s, flattened)) return false;
    store_value(s, flattened);
    done_.answered.push_back(id);
  }
  if (static_cast<int>(at) <= plan_.keep_until) opaque_.push_back({at, answers(s), nullptr});
  value_ = py::object();
  return true;
}

// Whether an entry shows memory of an argument or of captured state, or of a gradient of one.
bool Interpreter::shows_outer(const Flattened& flattened) {
  if (!taken_) {
    taken_ = std::make_unique<Taken>();
    auto note = [&](const at::Tensor& tensor) {
      const auto* storage = storage_of(tensor);
      if (!storage) return;
      // Of arrays of numpy another storage may be the same memory.
      if (taken_->outer.insert(storage).second) taken_->ranges.push_back(range_of(storage));
    };
    auto note_both = [&](int reg) {
      const at::Tensor& tensor = registers_[reg];
      note(tensor);
      if (tensor.defined() && tensor.requires_grad() && tensor.is_leaf()) note(tensor.grad());
    };
    for (int reg : plan_.used) note_both(reg);
    for (int reg : program_.captures) note_both(reg);
  }
  return std::any_of(flattened.leaves.begin(), flattened.leaves.end(), [&](PyObject* leaf) {
    if (!is_tensor(leaf)) return false;
    const at::Tensor& tensor = THPVariable_Unpack(leaf);
    if (!tensor.has_storage()) return true;
    const auto* storage = tensor.storage().unsafeGetStorageImpl();
    auto overlaps = [range = range_of(storage)](const MemoryRange& one) { return overlap(one, range); };
    return taken_->outer.count(storage) ||
           std::any_of(taken_->ranges.begin(), taken_->ranges.end(), overlaps);
  });
}

// Whether an entry is one tensor with one that was taken before, though it was not, or the other way round.
bool Interpreter::takes_again(const Step& s, const Flattened& flattened) {
  for (size_t i = 0; i < s.results.size(); ++i) {
    const Result& result = s.results[i];
    if (result.kind != Result::Kind::Register || !result.meta->defined()) continue;
    const at::Tensor& tensor = THPVariable_Unpack(flattened.leaves[i]);
    auto is_it = [&](const at::Tensor& other) { return other.is_same(tensor); };
    bool again = result.known ? !is_it(registers_[result.reg])
                              : std::any_of(taken_->entries.begin(), taken_->entries.end(), is_it);
    if (again) found_ = result.known ? "a new tensor" : "a tensor that was taken before";
    if (again) return true;
  }
  for (PyObject* leaf : flattened.leaves)
    if (is_tensor(leaf)) taken_->entries.push_back(THPVariable_Unpack(leaf));
  return false;
}

// The cache is told of it once the call has an answer.
void Interpreter::note_use(const Step& s, PyObject* cache, const Entry& entry) {
  auto is_it = [&](const DoneOnce::Used& one) { return one.node == s.node; };
  if (std::any_of(done_.used.begin(), done_.used.end(), is_it)) return;
  done_.used.push_back({s.node, py::reinterpret_borrow<py::object>(cache), entry.key});
}

// Of one that another trace has found.
void Interpreter::note_use(const Step& s) {
  py::gil_scoped_acquire gil;
  py::object call = s.opaque->call.build({registers_, state_, &program_.numbers, numbers_.data()});
  PyObject* args = PyTuple_GET_ITEM(call.ptr(), 0);
  if (Entry entry = entry_of(args); entry.result) note_use(s, PyTuple_GET_ITEM(args, 0), entry);
}

// What a functools cache holds, without a copy of it; false where it is not what the step gave, which
// call_own() says more of.
bool Interpreter::take_cached(const Step& s, size_t at) {
  if (!looks_up_entry(s)) return false;
  py::object call = s.opaque->call.build({registers_, state_, &program_.numbers, numbers_.data()});
  PyObject* args = PyTuple_GET_ITEM(call.ptr(), 0);
  Entry entry = entry_of(args);
  if (!entry.result) return false;
  running_ = &s;
  Flattened flattened(entry.result, nullptr, true);
  if (!matches_value(s, flattened)) return false;
  store_value(s, flattened);
  note_use(s, PyTuple_GET_ITEM(args, 0), entry);
  if (static_cast<int>(at) <= plan_.keep_until)
    opaque_.push_back({at, py::reinterpret_borrow<py::object>(entry.result), nullptr});
  return true;
}

// An entry of a container: taking it changes nothing.
bool Interpreter::take_entry(const Step& s, size_t at) {
  if (take_cached(s, at)) return true;
  call_own(s);
  stack_.clear();
  Flattened flattened(value_.ptr(), nullptr);
  bool shown = shows_outer(flattened);
  if (shown || !matches_value(s, flattened) || takes_again(s, flattened)) {
    // No other program takes what something else shows, either.
    shape_ = shown ? "!" : std::move(flattened.shape);
    others_ = std::move(flattened.others);
    if (shown) found_ = "memory that something else shows";
    if (value_.ptr() == Py_Ellipsis) found_ = "no entry";
    return false;
  }
  store_value(s, flattened);
  if (static_cast<int>(at) <= plan_.keep_until) opaque_.push_back({at, value_, nullptr});
  value_ = py::object();
  return true;
}

// Whether a run before this one has told already what the step tells, which gives nothing, or raises what was
// raised then; notes that this one does.
bool Interpreter::is_told(const Step& s, size_t at) {
  if (!s.opaque->tells) return false;
  auto told = std::find_if(done_.told.begin(), done_.told.end(),
                           [&](const DoneOnce::Told& one) { return one.node == s.node; });
  if (told == done_.told.end()) {
    done_.told.push_back({s.node, nullptr});
    return false;
  }
  if (told->error) std::rethrow_exception(std::exchange(told->error, nullptr));
  if (static_cast<int>(at) <= plan_.keep_until) opaque_.push_back({at, py::none(), nullptr});
  return true;
}

namespace {
at::Tensor copy_of(const at::Tensor& tensor) {
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard unseen(kRecordKey);
  return tensor.clone(at::MemoryFormat::Preserve);
}
}  // namespace

// Whether a run before this one was led away by what the step gave, which is then what it gives now.
bool Interpreter::takes_stray(const Step& s) {
  if (!done_.stray.value || done_.stray.node != s.node) return false;
  value_ = py::reinterpret_borrow<py::object>(done_.stray.value.get());
  running_ = &s;
  return true;
}

// Whether a run before this one has drawn what the step draws: what that was given, as a value.
bool Interpreter::is_drawn(const Step& s) {
  if (!s.draws_once()) return false;
  if (takes_stray(s)) return true;
  auto drawn = std::find_if(done_.drawn.begin(), done_.drawn.end(),
                            [&](const DoneOnce::Drawn& one) { return one.node == s.node; });
  if (drawn == done_.drawn.end()) return false;
  if (s.shuffles()) {
    // Past the counting of versions, as numpy writes.
    const at::Tensor& array = registers_[s.arguments[0].reg];
    std::memcpy(array.unsafeGetTensorImpl()->mutable_data(), drawn->copy.const_data_ptr(), array.nbytes());
    value_ = py::none();
    return true;
  }
  value_ = py::reinterpret_steal<py::object>(THPVariable_Wrap(copy_of(drawn->copy)));
  return true;
}

namespace {
// What Python code may change of tensors and modes, which no guard says behind it: as it is before.
class LooksBefore {
 public:
  // Where the step may come to any tensor, of those from before the call, too.
  LooksBefore(const Plan& plan, size_t at, const std::vector<at::Tensor>& registers)
      : program_(plan.program()), step_(program_.steps[at]), registers_(registers), modes_(Modes::current()) {
    // Where it has switched them in the recording, a step behind it that does nothing else says to which.
    const Step* next = at + 1 < program_.steps.size() ? &program_.steps[at + 1] : nullptr;
    if (next && next->kind == Step::Kind::Numbers && next->modes >= 0) {
      const Switches switches = modes_.switches;
      modes_ = program_.modes[static_cast<size_t>(next->modes)];
      modes_.switches = switches;
      modes_.autocast_region = 0;
    }
    for (auto& argument : step_.arguments) {
      const at::Tensor& tensor = registers_[argument.reg];
      arguments_.push_back({0, TensorMeta::of(tensor), traits_of(tensor)});
    }
    // What it is to change has another look behind it.
    for (const LookBehind& behind : step_.opaque->looks)
      if (behind.argument < arguments_.size()) arguments_[behind.argument] = behind, changes_ = true;
    if (!step_.opaque->free) return;
    for (int reg : plan.used) add(reg);
    for (int reg : program_.captures) add(reg);
  }
  // Nothing where arguments and modes are as they are to be.
  std::string difference() const {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const at::Tensor& tensor = registers_[step_.arguments[i].reg];
      if (arguments_[i].traits != traits_of(tensor)) return "an argument that it has put attributes on";
      // Nobody uses a register any more that holds nothing.
      if (tensor.defined() && !matches(arguments_[i].look, tensor))
        return "an argument that it has changed the shape of";
    }
    return Modes::current() == modes_ ? "" : "a mode of torch that it has switched";
  }
  // Registers of other tensors that look otherwise by now.
  std::vector<int> turned() const {
    std::vector<int> found;
    for (auto& [reg, look] : others_)
      if (!look.matches(registers_[reg])) found.push_back(reg);
    return found;
  }

 private:
  void add(int reg) {
    auto is_it = [&](const Argument& argument) { return argument.reg == reg; };
    bool given = std::any_of(step_.arguments.begin(), step_.arguments.end(), is_it);
    if (registers_[reg].defined() && !given) others_.emplace_back(reg, TensorMeta::of(registers_[reg]));
  }
  // A recording that follows sizes has no step that changes one of them.
  bool matches(const TensorMeta& look, const at::Tensor& tensor) const {
    return program_.dynamic && changes_ ? look.matches_loosely(tensor) : look.matches(tensor);
  }

  const Program& program_;
  const Step& step_;
  const std::vector<at::Tensor>& registers_;
  Modes modes_;
  bool changes_ = false;  // how an argument looks
  std::vector<LookBehind> arguments_;
  std::vector<std::pair<int, TensorMeta>> others_;
};
}  // namespace

// Whether it has changed nothing of what was made for it but what it did when it was recorded. The function
// has others of its own, and may read those.
bool Interpreter::has_filled(const Step& s, const MadeParts& parts) {
  std::vector<int> changed = parts.changed(s.opaque->fills);
  if (changed.empty()) return true;
  PyObject* part = parts.at(changed[0]);
  found_ = "a " + (PyCell_Check(part) ? "variable" : type_name(part)) +
           " that it was given and has changed, though it did not when it was recorded";
  return false;
}

// Of Python state and tensors of before the call. `turned`: registers of those that look otherwise.
void Interpreter::judge_state(const Step& s, size_t at, const std::vector<int>& turned, bool raised) {
  const Behind& behind = s.opaque->behind;
  std::optional<int> moved = turned.empty() ? moved_by(*s.opaque, behind) : std::nullopt;
  if (turned.empty() && !moved) return;
  auto is_late = [&](int reg) {
    return std::find(behind.tensors.begin(), behind.tensors.end(), reg) != behind.tensors.end();
  };
  late_ = std::all_of(turned.begin(), turned.end(), is_late) && moves_late(s, at);
  moved_ = !late_ && turned.empty() && plan_.resumable(at, raised, true);
  confused_ = !late_ && !moved_;
  found_ = turned.empty() ? "Python state that it has changed, though it did not when it was recorded"
                          : "a tensor that it has changed the look of";
}

// It has given something else.
void Interpreter::leave_with(Flattened* given, bool knows_parts) {
  // Other programs may have read before it what it has changed.
  shape_ = late_ || moved_ ? "!" : std::move(given->shape);
  others_ = std::move(given->others);
  // A function that runs again would be given an object of this call's, and has another one of its own, but
  // for what it reads of state itself.
  confused_ = !knows_parts && !given->given_back.empty() && !running_->opaque->late;
  if (confused_) found_ = "a list or dict that it was given";
}

bool Interpreter::opaque(const Step& s, size_t at) {
  py::gil_scoped_acquire gil;
  running_ = &s;
  if (s.opaque->asks) return ask_number(s, at);
  if (s.opaque->gives_numbers) return take_entry(s, at);
  if (is_told(s, at)) return true;
  if (calls(s, begin_entry)) done_.count_uses();
  for (const WrittenByThen& one : s.opaque->written)
    early_.make(one, state_[one.effect.owner],
                one.value.build({registers_, state_, &program_.numbers, numbers_.data()}));
  early_.orders().restore();
  py::object call = s.opaque->call.build({registers_, state_, &program_.numbers, numbers_.data()});
  py::object function = s.opaque->function.build({registers_, state_});
  if (!s.opaque->attribute.empty()) function = function.attr(s.opaque->attribute.c_str());
  const LooksBefore looks(plan_, at, registers_);
  std::shared_ptr<MadeParts> parts;
  if (s.opaque->free) parts = std::make_shared<MadeParts>(s.opaque->call, call.ptr());
  bool drawn = is_drawn(s);
  if (parts) parts->count_holders();
  if (!drawn)
    value_ = py::reinterpret_steal<py::object>(
        PyObject_Call(function.ptr(), PyTuple_GET_ITEM(call.ptr(), 0), PyTuple_GET_ITEM(call.ptr(), 1)));
  std::optional<py::error_already_set> raised;
  if (!value_) raised.emplace();
  if (s.opaque->counts)
    std::for_each(s.opaque->written.begin(), s.opaque->written.end(), [&](auto& one) { early_.go_on(one); });
  // Nobody else is given the handle of a hook.
  py::object handle;
  if (s.opaque->hooks > 0 && !raised) handle = std::exchange(value_, py::none());
  if (parts && !parts->changed().empty()) parts_ = parts;
  // Where nothing runs again, an exception leaves the function with whatever the step has changed.
  const bool reads_on = !raised || plan_.resumable(at, true);
  std::string changed = reads_on ? looks.difference() : "";
  if (!changed.empty()) confused_ = true, found_ = std::move(changed);
  if (reads_on && !confused_) judge_state(s, at, looks.turned(), raised.has_value());
  if (raised) {
    if (parts && s.opaque->may_not_keep) keeps_ = parts->are_kept(held_by_traceback(raised->value().ptr()));
    if (keeps_) parts_ = parts;
    throw py::error_already_set(*raised);
  }
  stack_.clear();
  running_ = &s;
  if (confused_) return false;
  Flattened flattened(value_.ptr(), call.ptr());
  const bool gives_back = parts && parts->have_any(flattened.given_back);
  keeps_ = parts && s.opaque->may_not_keep && parts->are_kept(flattened.held);
  if (keeps_) found_ = "what it was given and keeps, though it did not when it was recorded";
  if (late_ || moved_ || keeps_ || (parts && !has_filled(s, *parts)) || !matches_value(s, flattened)) {
    if (gives_back || keeps_) parts_ = parts;
    leave_with(&flattened, parts != nullptr);
    return false;
  }
  parts_ = nullptr;
  store_value(s, flattened);
  if (done_.may_follow && !drawn && s.draws_once()) {
    int made = s.shuffles() ? s.arguments[0].reg : s.results[0].reg;
    if (made >= 0) done_.drawn.push_back({s.node, copy_of(registers_[made])});
  }
  // An exit behind it may be resumed even where this step itself is none: in an autocast region.
  if (static_cast<int>(at) <= plan_.keep_until)
    opaque_.push_back({at, handle ? handle : value_, gives_back ? parts : nullptr});
  value_ = py::object();
  return true;
}

bool Interpreter::matches_value(const Step& s, const Flattened& flattened) {
  const auto& leaves = flattened.leaves;
  if (leaves.size() != s.results.size() || flattened.shape != s.opaque->shape) {
    found_ = "a result of another structure";
    return false;
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    const Result& result = s.results[i];
    if (result.kind == Result::Kind::Register) {
      if (!is_tensor(leaves[i])) {
        found_ = "a " + type_name(leaves[i]);
        return false;
      }
      if (!matches_tensor(result, THPVariable_Unpack(leaves[i]))) return false;
      for (size_t j = 0; j < i; ++j) {
        const Result& other = s.results[j];
        if (other.kind != Result::Kind::Register || (other.reg == result.reg) == (leaves[i] == leaves[j]))
          continue;
        found_ = "one tensor in other places of its result";
        return false;
      }
    } else if (result.kind == Result::Kind::Number) {
      // A nan is given as it is, and is none the next time: a function that runs again would not read it.
      bool nan =
          s.opaque->gives_numbers && PyFloat_Check(leaves[i]) && std::isnan(PyFloat_AS_DOUBLE(leaves[i]));
      bool flag = PyBool_Check(leaves[i]) && PyBool_Check(s.opaque->values[i].ptr());
      if (nan || !(flag || same_kind_of_number(leaves[i], s.opaque->values[i].ptr()))) {
        found_ = short_repr(leaves[i]);
        return false;
      }
    } else if (!same_immutable(leaves[i], s.opaque->values[i].ptr())) {
      found_ = short_repr(leaves[i]);
      return false;
    }
  }
  return true;
}

void Interpreter::store_value(const Step& s, const Flattened& flattened) {
  const auto& leaves = flattened.leaves;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (s.results[i].kind == Result::Kind::Register)
      store_tensor(s.results[i], at::Tensor(THPVariable_Unpack(leaves[i])));
    if (s.results[i].kind == Result::Kind::Number)
      numbers_[static_cast<size_t>(s.results[i].number)] =
          PyFloat_Check(leaves[i]) ? NumberValue::of_real(PyFloat_AS_DOUBLE(leaves[i]))
                                   : NumberValue::of(PyLong_AsLongLong(leaves[i]));
  }
}

bool Interpreter::fits(const Step& step, const Given& given, std::vector<at::Tensor>& registers) {
  if (given.error) return false;
  static const Plan* none = new Plan(std::make_shared<const Program>());
  static const auto* no_state = new std::vector<PyObject*>();
  OpaqueResults opaque;
  EarlyWrites early;
  InterpreterMemory memory;
  // Registers that the other trace has beyond those of this one hold nothing yet.
  std::vector<at::Tensor> seen = registers;
  int most = -1;
  for (auto& result : step.results) {
    most = std::max(most, result.reg);
    for (auto& one : result.list) most = std::max(most, one.reg);
  }
  seen.resize(std::max(seen.size(), static_cast<size_t>(most + 1)));
  Interpreter interpreter(*none, seen, *no_state, opaque, early, memory);
  interpreter.running_ = &step;  // what it gave may be its argument
  if (step.kind == Step::Kind::Opaque) {
    if (!given.value) return false;
    if (given.parts && !given.parts->changed(step.opaque->fills).empty()) return false;
    if (given.keeps && step.opaque->may_not_keep) return false;
    Flattened flattened(given.value.ptr(), nullptr);
    if (!given.shape.empty()) flattened.shape = given.shape;  // others may hold it by now
    return interpreter.matches_value(step, flattened);
  }
  if (step.results.size() != given.results.size()) return false;
  for (size_t i = 0; i < step.results.size(); ++i)
    if (!interpreter.matches(step.results[i], given.results[i])) return false;
  return true;
}

bool Interpreter::finds_held(const Plan& plan, size_t at, const Given& given,
                             const std::vector<at::Tensor>& registers) {
  const Program& program = plan.program();
  const Step& step = program.steps[at];
  if (step.kind != Step::Kind::Gradient || step.results[0].known) return false;
  const at::Tensor& found = given.results[0].toTensor();
  auto is_it = [&](int reg) { return reg >= 0 && found.defined() && registers[reg].is_same(found); };
  if (std::any_of(program.captures.begin(), program.captures.end(), is_it)) return true;
  if (std::any_of(plan.used.begin(), plan.used.end(), is_it)) return true;
  return std::any_of(
      program.steps.begin(), program.steps.begin() + static_cast<std::ptrdiff_t>(at),
      [&](const Step& one) { return one.kind == Step::Kind::Gradient && is_it(one.results[0].reg); });
}

}  // namespace lazytrace
