// The registers that a step reads and makes.
#pragma once

#include "program/program.h"

namespace lazytrace {

// visit(register) for each result, those of lists too; -1 where it has none.
template <typename F>
void each_result(const Step& step, F visit) {
  for (auto& result : step.results) {
    visit(result.reg);
    for (auto& one : result.list) visit(one.reg);
  }
}

// The same for each argument.
template <typename F>
void each_argument(const Step& step, F visit) {
  for (auto& argument : step.arguments) {
    if (argument.kind == Argument::Kind::Register) visit(argument.reg);
    for (int reg : argument.list)
      if (reg >= 0) visit(reg);
  }
}

}  // namespace lazytrace
