// What steps that are kernels do to registers.
#pragma once

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "program/program.h"
#include "torch/facts.h"

namespace lazytrace {

inline bool writes(const Step& step) {
  const auto& declared = step.op.schema().arguments();
  return facts_of(step.op).hidden_writes ||
         std::any_of(declared.begin(), declared.end(),
                     [](const auto& one) { return one.alias_info() && one.alias_info()->isWrite(); });
}

// visit(register) may give each register of the step, arguments first, another number.
template <typename F>
void rename_registers(Step* step, F visit) {
  for (Argument& argument : step->arguments) {
    if (argument.kind == Argument::Kind::Register) visit(argument.reg);
    if (argument.kind == Argument::Kind::List)
      for (int& reg : argument.list) visit(reg);
  }
  for (Result& result : step->results) {
    visit(result.reg), visit(result.base);
    for (Result& one : result.list) visit(one.reg), visit(one.base);
  }
}

// Whether code of torch may have looked at the values of a copy that one of the steps from `from` on has
// made: whole numbers that are not in `used`, the registers that go into kernels.
inline bool looks_at_copies(const std::vector<Step>& steps, size_t from,
                            const std::unordered_set<int>& used) {
  auto first = steps.begin() + static_cast<std::ptrdiff_t>(from);
  return std::any_of(first, steps.end(), [&](const Step& kernel) {
    const std::string& name = kernel.op.schema().name();
    if (name != "aten::_to_copy" && name != "aten::clone") return false;
    const Result& copy = kernel.results[0];
    return at::isIntegralType(copy.meta->dtype(), true) && (copy.reg < 0 || !used.count(copy.reg));
  });
}

}  // namespace lazytrace
