#include "passes/frees.h"

#include <algorithm>

#include "passes/registers.h"

namespace lazytrace {

namespace {
// What is kept for exits alone, and which the function has let go of before these.
void place_empties(Plan* plan, const std::vector<int>& last) {
  const Program& program = plan->program();
  std::vector<char> made(program.registers, 0);
  for (int i = 0; i < plan->keep_until; ++i) {
    const Step& step = program.steps[i];
    if (step.kind == Step::Kind::Operator)
      each_result(step, [&](int reg) {
        if (reg >= 0) made[reg] = 1;
      });
    for (int reg : step.gone) {
      if (last[reg] < 0 || !made[reg]) continue;
      int behind = std::max(i, last[reg]);
      if (behind < plan->keep_until) plan->steps[behind].empties.push_back(reg);
    }
  }
}
}  // namespace

void place_frees(Plan* plan, const std::vector<int>& outputs) {
  const Program& program = plan->program();
  std::vector<int> last(program.registers, -1);
  for (size_t i = 0; i < program.steps.size(); ++i) {
    each_needed(program, program.steps[i], [&](int reg) { last[reg] = static_cast<int>(i); });
    each_result(program.steps[i], [&](int reg) {
      if (reg >= 0) last[reg] = static_cast<int>(i);
    });
  }
  for (int reg : outputs) last[reg] = -1;
  // Of these the caller and the state keep hold.
  for (int reg = 0; reg < program.inputs; ++reg) last[reg] = -1;
  for (int reg : program.captures) last[reg] = -1;
  place_empties(plan, last);
  for (int reg = 0; reg < program.registers; ++reg) {
    if (last[reg] < 0) continue;
    // A function that runs again may ask for anything that was made before the last exit.
    bool kept = last[reg] <= plan->keep_until;
    if (kept) last[reg] = plan->keep_until;
    const Step& step = program.steps[last[reg]];
    StepPlan& planned = plan->steps[last[reg]];
    planned.frees.push_back(reg);
    int uses = 0;
    size_t only = StepPlan::kMostMoves;
    each_argument(step, [&](int used) { uses += used == reg; });
    for (size_t i = 0; i < step.arguments.size(); ++i)
      if (step.arguments[i].kind == Argument::Kind::Register && step.arguments[i].reg == reg) only = i;
    // A step that may give back its argument compares its results with its arguments, as does one that fits
    // other sizes or numbers.
    bool compares = program.dynamic || step.takes_numbers || step.gives_either;
    bool moves = !kept && !compares && uses == 1 && step.kind == Step::Kind::Operator;
    if (moves && only < StepPlan::kMostMoves) planned.moves |= uint64_t{1} << only;
  }
}

void place_inputs(Plan* plan, const std::vector<int>& outputs) {
  const Program& program = plan->program();
  std::vector<char> used(program.registers, plan->keep_until >= 0);
  for (int reg : outputs) used[reg] = 1;
  for (const Step& step : program.steps) {
    each_needed(program, step, [&](int reg) { used[reg] = 1; });
    each_result(step, [&](int reg) {
      if (reg >= 0) used[reg] = 1;
    });
  }
  for (int reg = 0; reg < program.inputs; ++reg)
    if (used[reg]) plan->used.push_back(reg);
}

}  // namespace lazytrace
