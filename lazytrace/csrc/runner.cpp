#include "runner.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <cstring>
#include <sstream>

#include "opaque.h"

namespace lazytrace {

bool same_value(const c10::IValue& a, const c10::IValue& b) {
  if (a.tagKind() != b.tagKind()) return false;
  if (a.isDouble()) {
    double x = a.toDouble(), y = b.toDouble();
    return std::memcmp(&x, &y, sizeof x) == 0 || (x != x && y != y);
  }
  if (a.isComplexDouble()) {
    auto x = a.toComplexDouble(), y = b.toComplexDouble();
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  return a == b;
}

Outcome Runner::run() {
  Outcome outcome;
  ModeSwitch modes;
  struct Fed {
    std::vector<py::object>& results;
    ~Fed() {
      if (results.empty()) return;
      py::gil_scoped_acquire gil;
      results.clear();
    }
  } fed{fed_};
  py::gil_scoped_release released;
  for (size_t i = 0; i < program_.steps.size(); ++i) {
    const Step& s = program_.steps[i];
    if (s.modes >= 0) modes.to(program_.modes[s.modes]);
    bool accepted;
    try {
      accepted = step(s);
    } catch (...) {
      // The function may catch it: where nothing was changed yet, Python runs again and raises, or not, by
      // itself.
      if (changed_before(i)) throw;
      found_ = "an exception";
      accepted = false;
    }
    if (!accepted) {
      outcome.step = static_cast<int>(i);
      outcome.result = result_;
      outcome.found = found_;
      outcome.effects = changed_before(i);
      outcome.fed = std::move(fed_);
      return outcome;
    }
    for (int reg : s.frees) registers_[reg].reset();
  }
  return outcome;
}

bool Runner::changed_before(size_t step) const {
  for (size_t i = 0; i <= step; ++i)
    if (program_.steps[i].effect || program_.steps[i].random) return true;
  return false;
}

bool Runner::step(const Step& s) {
  switch (s.kind) {
    case Step::Kind::Operator:
      return call(s);
    case Step::Kind::Literal: {
      at::NoGradGuard no_grad;
      registers_[s.results[0].reg] = s.literal.clone();
      return true;
    }
    case Step::Kind::Data:
      registers_[s.results[0].reg] = registers_[s.arguments[0].reg].variable_data();
      return s.results[0].meta.matches(registers_[s.results[0].reg]);
    case Step::Kind::RequireGrad:
      registers_[s.arguments[0].reg].set_requires_grad(true);
      return true;
    case Step::Kind::Opaque:
      return opaque(s);
  }
  return false;
}

bool Runner::call(const Step& s) {
  stack_.clear();
  for (auto& argument : s.arguments) push(argument);
  s.op.callBoxed(stack_);
  for (size_t i = 0; i < s.results.size(); ++i) {
    result_ = static_cast<int>(i);
    if (!accept(s.results[i], std::move(stack_[i]))) return false;
  }
  return true;
}

void Runner::push(const Argument& argument) {
  switch (argument.kind) {
    case Argument::Kind::Constant:
      stack_.push_back(argument.constant);
      return;
    case Argument::Kind::Register:
      if (argument.last)
        stack_.emplace_back(std::move(registers_[argument.reg]));
      else
        stack_.emplace_back(registers_[argument.reg]);
      return;
    case Argument::Kind::List:
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
}

bool Runner::accept(const Result& result, c10::IValue&& value) {
  switch (result.kind) {
    case Result::Kind::Ignored:
      return true;
    case Result::Kind::Read:
      return accept_read(result, value);
    case Result::Kind::Register:
      return accept_tensor(result, std::move(value).toTensor());
    case Result::Kind::List: {
      auto list = std::move(value).toTensorList();
      if (list.size() != result.list.size()) {
        found_ = std::to_string(list.size()) + " tensors";
        return false;
      }
      for (size_t i = 0; i < list.size(); ++i)
        if (!accept_tensor(result.list[i], list.get(i))) return false;
      return true;
    }
  }
  return false;
}

bool Runner::accept_tensor(const Result& result, at::Tensor tensor) {
  if (!result.meta.matches(tensor)) {
    found_ = result.meta.difference(tensor);
    return false;
  }
  if (result.reg < 0) return true;
  if (result.known && registers_[result.reg].defined() && !registers_[result.reg].is_same(tensor)) {
    found_ = "a new tensor instead of its argument";
    return false;
  }
  registers_[result.reg] = std::move(tensor);
  return true;
}

bool Runner::accept_read(const Result& result, const c10::IValue& value) {
  if (same_value(result.read, value)) return true;
  std::ostringstream text;
  text << value;
  found_ = text.str();
  return false;
}

bool Runner::opaque(const Step& s) {
  py::gil_scoped_acquire gil;
  py::object call = s.opaque->call.build({registers_, state_});
  py::object function = s.opaque->function.build({registers_, state_});
  if (!s.opaque->attribute.empty()) function = function.attr(s.opaque->attribute.c_str());
  auto value = py::reinterpret_steal<py::object>(
      PyObject_Call(function.ptr(), PyTuple_GET_ITEM(call.ptr(), 0), PyTuple_GET_ITEM(call.ptr(), 1)));
  if (!value) throw py::error_already_set();
  if (s.opaque->feedable) fed_.push_back(value);
  std::vector<PyObject*> leaves;
  std::string shape;
  flatten_value(value.ptr(), &leaves, &shape);
  if (leaves.size() != s.results.size() || shape != s.opaque->shape) {
    found_ = "a result of another structure";
    return false;
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    const Result& result = s.results[i];
    result_ = static_cast<int>(i);
    if (result.kind == Result::Kind::Register) {
      if (!THPVariable_Check(leaves[i])) {
        found_ = "a " + type_name(leaves[i]);
        return false;
      }
      if (!accept_tensor(result, at::Tensor(THPVariable_Unpack(leaves[i])))) return false;
    } else if (!same_immutable(leaves[i], s.opaque->values[i].ptr())) {
      found_ = short_repr(leaves[i]);
      return false;
    }
  }
  return true;
}

}  // namespace lazytrace
