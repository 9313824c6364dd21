#include "trace/unwritten.h"

#include <ATen/SparseCsrTensorUtils.h>

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
  if (!made.defined()) return;
  if (made.layout() == at::kSparse) return;  // it has no elements yet
  bool compressed = at::sparse_csr::is_sparse_compressed(made);
  if ((made.layout() != at::kStrided && !compressed) || made.is_quantized()) return (void)(left_any_ = true);
  at::AutoDispatchBelowADInplaceOrView below;
  at::Tensor memory = compressed ? made.values() : made;
  // All of it: a view may show what lies between the elements.
  at::Tensor(memory.detach()).set_(memory.storage()).fill_(ones_ ? 1 : 0);
}

void FillBlanks::passes(int, const at::Tensor&) {}

}  // namespace lazytrace
