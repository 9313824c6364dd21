#include "trace/unwritten.h"

#include <algorithm>

#include "torch/facts.h"

namespace lazytrace {

namespace {

bool makes_blank(const Step& step) {
  return step.kind == Step::Kind::Operator && facts_of(step.op).blank_factory;
}

}  // namespace

bool makes_blanks(const Program& program) {
  return std::any_of(program.steps.begin(), program.steps.end(), makes_blank);
}

void FillBlanks::before(size_t) {}

void FillBlanks::after(size_t step) {
  const Step& maker = program_.steps[step];
  if (!makes_blank(maker) || maker.results.empty() || maker.results[0].reg < 0) return;
  const at::Tensor& made = registers_[maker.results[0].reg];
  if (!made.defined() || made.layout() != at::kStrided || made.is_quantized()) return;
  at::AutoDispatchBelowADInplaceOrView below;
  // All of its memory: a view may show what lies between the elements.
  at::Tensor(made.detach()).set_(made.storage()).fill_(ones_ ? 1 : 0);
}

void FillBlanks::passes(int, const at::Tensor&) {}

}  // namespace lazytrace
