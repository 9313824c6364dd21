#include "passes/length.h"

#include <algorithm>

#include "torch/overrides.h"

namespace lazytrace {

namespace {

// A few small operators of torch itself, on the CPU: none of them waits for anybody.
bool is_brief(const Program& program) {
  constexpr size_t kMostSteps = 4;
  if (program.dynamic) return false;  // the next call may bring more elements
  if (program.steps.size() > kMostSteps || !program.small) return false;
  return std::all_of(program.steps.begin(), program.steps.end(), [](const Step& step) {
    if (step.kind == Step::Kind::Numbers) return true;
    return step.kind == Step::Kind::Operator && step.op.schema().name().rfind("aten::", 0) == 0;
  });
}

}  // namespace

void judge_length(Plan* plan) {
  const Program& program = plan->program();
  plan->brief = is_brief(program);
  // A write may let go of a graph of autograd, whose nodes may belong to Python. What was not there while the
  // program was recorded may be by now.
  plan->lends = plan->brief && !program.effects && program.undisturbed && !aten_is_overridden();
}

}  // namespace lazytrace
