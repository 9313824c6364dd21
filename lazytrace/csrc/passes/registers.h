// The registers that a step reads and makes.
#pragma once

#include "program/program.h"
#include "torch/facts.h"

namespace lazytrace {

// visit(register) for each result, those of lists too; -1 where it has none.
template <typename F>
void each_result(const Step& step, F visit) {
  for (auto& result : step.results) {
    visit(result.reg);
    for (auto& one : result.list) visit(one.reg);
  }
}

// The same for an argument, without those that are none.
template <typename F>
void each_register(const Argument& argument, F visit) {
  if (argument.kind == Argument::Kind::Register) visit(argument.reg);
  if (argument.kind != Argument::Kind::List) return;
  for (int reg : argument.list)
    if (reg >= 0) visit(reg);
}

// The same for each argument.
template <typename F>
void each_argument(const Step& step, F visit) {
  for (auto& argument : step.arguments) each_register(argument, visit);
}

// The same for each that an operator may write to: it hides which of all, maybe.
template <typename F>
void each_written(const Step& step, F visit) {
  const auto& declared = step.op.schema().arguments();
  bool hidden = facts_of(step.op).hidden_writes;
  for (size_t i = 0; i < step.arguments.size() && i < declared.size(); ++i) {
    const auto* alias = declared[i].alias_info();
    if (hidden || (alias && alias->isWrite())) each_register(step.arguments[i], visit);
  }
}

// The same, and the registers whose sizes the step asks for.
template <typename F>
void each_needed(const Program& program, const Step& step, F visit) {
  each_argument(step, visit);
  for (int id : step.numbers) {
    const Number& number = program.numbers[static_cast<size_t>(id)];
    if (number.asks_tensor()) visit(number.reg);
  }
}

}  // namespace lazytrace
