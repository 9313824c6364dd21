#include "flat/fixed_sizes.h"

#include <algorithm>

namespace lazytrace {

bool is_loose(const Result& result) {
  return result.loose || std::any_of(result.list.begin(), result.list.end(), is_loose);
}

FixedSizes::FixedSizes(const Program& program)
    : program_(program), fixed_(program.numbers.size(), 0), now_(program.numbers.size(), NumberValue::of(0)) {
  if (!program.dynamic) return;
  for (size_t id = 0; id < fixed_.size(); ++id) {
    const Number& number = program.numbers[id];
    bool size = number.asks_tensor() && number.kind != Number::Kind::Offset;
    fixed_[id] = number.is_leaf() ? size || number.kind == Number::Kind::Constant
                                  : is_fixed(number.a) && is_fixed(number.b);
  }
}

std::vector<int> FixedSizes::others_of(const Argument& argument) const {
  switch (argument.kind) {
    case Argument::Kind::Number:
    case Argument::Kind::NumberTensor:
      return others({argument.reg});
    case Argument::Kind::Numbers:
      return others(argument.list);
    default:
      return {};
  }
}

bool FixedSizes::takes_others(const Step& step) const {
  return std::any_of(step.arguments.begin(), step.arguments.end(),
                     [&](const Argument& argument) { return is_other(argument); });
}

std::vector<int> FixedSizes::others(const std::vector<int>& numbers) const {
  std::vector<int> found;
  std::copy_if(numbers.begin(), numbers.end(), std::back_inserter(found),
               [&](int id) { return !is_fixed(id); });
  return found;
}

bool FixedSizes::settle(const Step& step) const {
  if (!program_.dynamic) return false;
  if (step.kind == Step::Kind::Read) return !takes_others(step);
  return step.by_size && !takes_others(step);
}

void FixedSizes::note(const Step& step, const NumberValues& now) {
  for (int id : step.numbers)
    if (is_fixed(id)) now_[static_cast<size_t>(id)] = now[static_cast<size_t>(id)];
}

void FixedSizes::fix_argument(Argument* argument) const {
  auto value = [&](int id) {
    return to_ivalue(program_.numbers[static_cast<size_t>(id)], now_[static_cast<size_t>(id)]);
  };
  argument->memory = Argument::Memory::Any;
  if (is_other(*argument)) return;
  if (argument->kind == Argument::Kind::Number) {
    argument->kind = Argument::Kind::Constant;
    argument->constant = value(argument->reg);
  } else if (argument->kind == Argument::Kind::Numbers && argument->constant.isIntList()) {
    c10::List<int64_t> list;
    for (size_t i = 0; i < argument->list.size(); ++i)
      list.push_back(argument->list[i] < 0 ? argument->constant.toListRef()[i].toInt()
                                           : value(argument->list[i]).toInt());
    argument->kind = Argument::Kind::Constant;
    argument->constant = std::move(list);
  }
}

void FixedSizes::fix(const std::vector<at::Tensor>& registers, Step* step) const {
  if (!program_.dynamic) return;
  auto look = [&](Result* result) {
    if (!result->loose) return;
    result->loose = false;
    if (result->reg >= 0) result->meta = std::make_shared<TensorMeta>(TensorMeta::of(registers[result->reg]));
  };
  for (Result& result : step->results) {
    look(&result);
    for (Result& one : result.list) look(&one);
  }
  step->numbers = others(step->numbers);
  if (step->kind != Step::Kind::Operator) return;
  for (Argument& argument : step->arguments) fix_argument(&argument);
  step->takes_numbers =
      std::any_of(step->arguments.begin(), step->arguments.end(), [](const Argument& argument) {
        return argument.kind == Argument::Kind::Number || argument.kind == Argument::Kind::NumberTensor ||
               argument.kind == Argument::Kind::Numbers;
      });
}

Numbers FixedSizes::fixed() const {
  Numbers numbers = program_.numbers;
  for (size_t id = 0; id < numbers.size(); ++id) {
    if (!fixed_[id]) continue;
    Number constant;
    constant.real = numbers[id].real;
    std::memcpy(&constant.which, &now_[id], sizeof constant.which);
    numbers[id] = constant;
  }
  return numbers;
}

void FixedSizes::give(std::vector<Step>* steps) const {
  std::vector<int> all;
  for (size_t id = 0; id < fixed_.size(); ++id)
    if (fixed_[id]) all.push_back(static_cast<int>(id));
  if (steps->empty()) return;
  std::vector<int>& first = steps->front().numbers;
  first.insert(first.begin(), all.begin(), all.end());
}

}  // namespace lazytrace
