#include "exits/feeder.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "program/own_hooks.h"
#include "torch/record_key.h"

namespace lazytrace {

namespace {

// Of the same way through the function, in which numbers have come about in one order: those that are worked
// out are the same ones, whatever their values were.
bool same_numbers(const Argument& a, const Argument& b) {
  if (a.list != b.list) return false;
  auto x = a.constant.toListRef(), y = b.constant.toListRef();
  for (size_t i = 0; i < a.list.size(); ++i)
    if (a.list[i] < 0 && !same_value(x[i], y[i])) return false;
  return true;
}

}  // namespace

bool Feeder::is_one(int reg, int other) const {
  if (reg == other) return true;
  return two_names_ && reg >= 0 && other >= 0 && held(reg).defined() && holds(other, held(reg));
}

bool Feeder::same_argument(const Argument& a, const Argument& b) const {
  if (a.kind != b.kind) return false;
  if (a.kind == Argument::Kind::Constant) return same_value(a.constant, b.constant);
  if (a.kind == Argument::Kind::Numbers) return same_numbers(a, b);
  if (a.kind != Argument::Kind::Register && a.kind != Argument::Kind::List)
    return a.reg == b.reg && a.list == b.list;
  return is_one(a.reg, b.reg) && std::equal(a.list.begin(), a.list.end(), b.list.begin(), b.list.end(),
                                            [this](int reg, int other) { return is_one(reg, other); });
}

bool Feeder::same_registers(const Result& a, const Result& b) const {
  auto same = [this](const Result& one, const Result& other) {
    // What was there before may be a tensor of two names here; what is new has one.
    return one.reg == other.reg || (one.known && other.known && is_one(one.reg, other.reg));
  };
  return a.kind == b.kind && a.number == b.number && same(a, b) &&
         std::equal(a.list.begin(), a.list.end(), b.list.begin(), b.list.end(), same);
}

bool Feeder::reads(int id, const Number& number) const {
  const Step& step = expected();
  if (step.kind != Step::Kind::Read || step.arguments.empty() ||
      step.arguments[0].kind != Argument::Kind::Number || step.arguments[0].reg != id)
    return false;
  return resume_->program->numbers[static_cast<size_t>(step.arguments[0].reg)] == number;
}

const Step* Feeder::behind_reads(size_t reads) const {
  const auto& steps = resume_->program->steps;
  size_t at = at_;
  for (; at <= resume_->step; ++at) {
    if (steps[at].kind == Step::Kind::Data) continue;
    if (steps[at].kind != Step::Kind::Read || reads-- == 0) break;
  }
  return at <= resume_->step ? &steps[at] : nullptr;
}

bool Feeder::comes_to(const std::string& name) const {
  const auto& steps = resume_->program->steps;
  auto is_it = [&](const Step& step) { return step.opaque && step.opaque->name == name; };
  auto first = steps.begin() + static_cast<std::ptrdiff_t>(at_);
  return active() && std::any_of(first, steps.begin() + static_cast<std::ptrdiff_t>(resume_->step), is_it);
}

namespace {
// What is no operator has one that stands for it.
std::string name_of(const Step& step) { return step.opaque ? step.opaque->name : step.op.schema().name(); }
}  // namespace

std::string Feeder::difference(const Step& made) const {
  const Step& step = expected();
  std::string names = name_of(made) + " instead of " + name_of(step);
  if (step.op != made.op) return names;
  // The memory of a literal is filled again by Python; its operator is asked for as an ordinary one.
  if (step.kind == Step::Kind::Literal || step.filled)
    return made.kind == Step::Kind::Literal || made.kind == Step::Kind::Operator ? "" : names;
  if (step.kind != made.kind) return names;
  if (step.opaque && step.opaque->name != made.opaque->name) return names;
  if (step.modes != made.modes) return made.op.schema().name() + " in other modes";
  if (step.arguments.size() != made.arguments.size())
    return made.op.schema().name() + " with other tensors inside its arguments";
  // Comparing wrapped numbers runs operators, which are no part of the recording.
  c10::impl::ExcludeDispatchKeyGuard guard(kRecordKey);
  for (size_t i = 0; i < step.arguments.size(); ++i)
    if (!same_argument(step.arguments[i], made.arguments[i]))
      return made.op.schema().name() + " with another argument " + std::to_string(i);
  return "";
}

std::string Feeder::difference_of_results(const Step& made) const {
  const Step& step = expected();
  bool same = step.results.size() == made.results.size();
  for (size_t i = 0; same && i < step.results.size(); ++i)
    same = same_registers(step.results[i], made.results[i]);
  return same ? "" : made.op.schema().name() + ", whose results are other tensors";
}

namespace {
// Of the tensor that torch makes of a number.
bool is_number_tensor(const Argument& argument) {
  if (argument.kind == Argument::Kind::NumberTensor) return true;
  return argument.kind == Argument::Kind::Constant && argument.constant.isTensor() &&
         argument.constant.toTensor().defined() &&
         argument.constant.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
}

bool is_one_number(const Argument& argument) {
  return argument.kind == Argument::Kind::Number || is_number_tensor(argument) ||
         (argument.kind == Argument::Kind::Constant && argument.constant.isScalar());
}

// How many numbers are in the list; -1 of anything else.
int64_t numbers_in(const Argument& argument) {
  if (argument.kind == Argument::Kind::Numbers) return static_cast<int64_t>(argument.list.size());
  bool list = argument.kind == Argument::Kind::Constant && argument.constant.isIntList();
  return list ? static_cast<int64_t>(argument.constant.toIntList().size()) : -1;
}

// The value of the argument, or of the `i`-th in a list of numbers.
c10::IValue number_in(const Argument& argument, size_t i, c10::function_ref<c10::IValue(int)> value) {
  if (argument.kind == Argument::Kind::Constant && argument.constant.isIntList())
    return argument.constant.toIntList().get(i);
  if (argument.kind == Argument::Kind::Constant)
    return argument.constant.isTensor() ? c10::IValue(argument.constant.toTensor().item())
                                        : argument.constant;
  if (argument.kind != Argument::Kind::Numbers) return value(argument.reg);
  return argument.list[i] < 0 ? argument.constant.toListRef()[i] : value(argument.list[i]);
}
}  // namespace

bool Feeder::is_alike(const Step& made, c10::function_ref<c10::IValue(int)> value) const {
  const Step& step = expected();
  bool same = step.op == made.op && step.kind == made.kind && step.modes == made.modes &&
              step.arguments.size() == made.arguments.size() &&
              (!step.opaque || step.opaque->name == made.opaque->name);
  c10::impl::ExcludeDispatchKeyGuard guard(kRecordKey);
  auto then = [&](int id) {
    auto at = static_cast<size_t>(id);
    return to_ivalue(resume_->program->numbers[at], resume_->numbers[at]);
  };
  for (size_t i = 0; same && i < step.arguments.size(); ++i) {
    const Argument &a = step.arguments[i], &b = made.arguments[i];
    if (same_argument(a, b)) continue;
    int64_t count = numbers_in(a);
    bool lists = count >= 0 && count == numbers_in(b);
    same = lists || (is_one_number(a) && is_one_number(b) && is_number_tensor(a) == is_number_tensor(b));
    for (size_t j = 0; same && j < (lists ? static_cast<size_t>(count) : 1); ++j)
      same = same_value(number_in(a, j, then), number_in(b, j, value));
  }
  return same;
}

bool Feeder::gives_alike(const Step& made) const {
  const Step& step = expected();
  if (step.results.size() != made.results.size()) return false;
  if (step.opaque && step.opaque->gives_numbers) return true;
  for (size_t i = 0; i < step.results.size(); ++i) {
    bool numbers =
        step.results[i].kind == Result::Kind::Number && made.results[i].kind == step.results[i].kind;
    if (!numbers && !same_registers(step.results[i], made.results[i])) return false;
  }
  return true;
}

c10::IValue Feeder::result(const Result& result) const {
  auto tensor = [&](const Result& one) { return one.reg >= 0 ? resume_->registers[one.reg] : at::Tensor(); };
  switch (result.kind) {
    case Result::Kind::Register:
      return tensor(result);
    case Result::Kind::Read:
      return result.read;
    case Result::Kind::Number:
      return to_ivalue(resume_->program->numbers[static_cast<size_t>(result.number)],
                       resume_->numbers[static_cast<size_t>(result.number)]);
    case Result::Kind::Ignored:
      return {};
    case Result::Kind::List: {
      c10::List<at::Tensor> list;
      for (auto& one : result.list) list.push_back(tensor(one));
      return list;
    }
  }
  return {};
}

namespace {
py::object context_of(const py::object& exception) {
  return py::reinterpret_steal<py::object>(PyException_GetContext(exception.ptr()));
}

// Python code of a step has raised it in a replay, which is in no handler; the function may be in one now.
void put_below_handled(py::object raised) {
  auto handled = py::reinterpret_steal<py::object>(PyErr_GetHandledException());
  std::unordered_set<PyObject*> known;  // what is handled, and what was when that was raised
  for (py::object one = handled; one && !one.is_none() && known.insert(one.ptr()).second;)
    one = context_of(one);
  for (int left = 1000; left && !known.empty() && !known.count(raised.ptr()); --left) {
    py::object next = context_of(raised);
    if (next && !known.count(next.ptr())) {
      raised = std::move(next);
    } else {
      PyException_SetContext(raised.ptr(), handled.release().ptr());
      return;
    }
  }
}

// Not kept: its traceback comes to hold the frames that hold the Resume, a cycle that nobody would collect.
void raise_given(Given* given) {
  if (!given->error) return;
  try {
    std::rethrow_exception(std::exchange(given->error, nullptr));
  } catch (py::error_already_set& error) {
    py::gil_scoped_acquire gil;
    put_below_handled(error.value());
    throw;
  }
}
}  // namespace

void Feeder::give(torch::jit::Stack* stack) const {
  if (at_exit()) {
    for (const c10::Warning& warning : resume_->given.warnings) c10::warn(warning);
    raise_given(&resume_->given);
    stack->insert(stack->end(), resume_->given.results.begin(), resume_->given.results.end());
    return;
  }
  for (auto& one : expected().results) stack->push_back(result(one));
}

void Feeder::replace(int reg, const at::Tensor& tensor) {
  at::Tensor& before = resume_->registers[static_cast<size_t>(reg)];
  // What steps have written to it is counted there.
  if (before.defined() && !before.is_inference() && !tensor.is_inference())
    tensor.unsafeGetTensorImpl()->set_version_counter(before.unsafeGetTensorImpl()->version_counter());
  before = tensor;
}

size_t Feeder::hooks_on(const at::Tensor& leaf) const {
  return OwnHooks::on(*resume_->program, resume_->step, resume_->registers, leaf);
}

bool Feeder::found(int reg, const at::Tensor& tensor) const {
  const std::vector<int>& captures = resume_->program->captures;
  return two_names_ && std::find(captures.begin(), captures.end(), reg) != captures.end() &&
         holds(reg, tensor);
}

at::Tensor Feeder::captured(c10::function_ref<bool(const at::Tensor&)> is_it) const {
  for (int reg : resume_->program->captures)
    if (const at::Tensor& tensor = resume_->registers[static_cast<size_t>(reg)]; is_it(tensor)) return tensor;
  return {};
}

py::object Feeder::value() const {
  resume_->orders.restore();
  if (at_exit()) {
    raise_given(&resume_->given);
    return resume_->given.value;
  }
  const OpaqueResult* given = opaque_result();
  return given ? given->value : py::none();
}

const OpaqueResult* Feeder::opaque_result() const {
  for (const OpaqueResult& one : resume_->opaque)
    if (one.step == at_) return &one;
  return nullptr;
}

const MadeParts* Feeder::parts() const {
  if (at_exit()) return resume_->given.parts.get();
  const OpaqueResult* given = opaque_result();
  return given ? given->parts.get() : nullptr;
}

}  // namespace lazytrace
