#include "passes/unused.h"

#include "passes/registers.h"
#include "torch/facts.h"

namespace lazytrace {

void drop_unused(Program* program, const std::vector<int>& outputs) {
  std::vector<char> used(program->registers, 0);
  for (int reg : outputs) used[reg] = 1;
  size_t last_exit = 0;
  for (size_t i = 0; i < program->steps.size(); ++i)
    if (program->steps[i].exit) last_exit = i;
  std::vector<Step> kept;
  for (size_t i = program->steps.size(); i-- > 0;) {
    Step& step = program->steps[i];
    bool removable = step.kind == Step::Kind::Literal ||
                     (step.kind == Step::Kind::Operator && facts_of(step.op).blank_factory);
    if (removable && i > last_exit && step.modes < 0 && step.numbers.empty() && !used[step.results[0].reg])
      continue;
    each_needed(*program, step, [&](int reg) { used[reg] = 1; });
    kept.push_back(std::move(step));
  }
  program->steps =
      std::vector<Step>(std::make_move_iterator(kept.rbegin()), std::make_move_iterator(kept.rend()));
  for (Step& step : program->steps) {
    step.arguments.shrink_to_fit();
    step.results.shrink_to_fit();
  }
}

}  // namespace lazytrace
