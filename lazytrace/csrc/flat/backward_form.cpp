#include "flat/backward_form.h"

#include "replay/workspace.h"

namespace lazytrace {

std::vector<int> beginnings_of(const Plan& plan) {
  std::vector<int> begins = plan.used;
  const std::vector<int>& captures = plan.program().captures;
  begins.insert(begins.end(), captures.begin(), captures.end());
  return begins;
}

std::vector<int> BackwardForm::begin_registers() const {
  std::vector<int> registers;
  for (const Open& one : begins) registers.push_back(one.reg);
  return registers;
}

bool BackwardForm::run(std::vector<at::Tensor>* registers, const std::vector<at::Tensor>& gradients,
                       std::vector<at::Tensor>* brought) const {
  registers->resize(static_cast<size_t>(plan->program().registers));
  for (size_t i = 0; i < roots.size(); ++i)
    if (roots[i].given >= 0) (*registers)[roots[i].given] = gradients[i];
  WorkspaceLease space;
  Outcome outcome =
      Interpreter(*plan, *registers, space->values.nodes, space->opaque, space->early, space->memory).run();
  if (outcome.given.error) std::rethrow_exception(outcome.given.error);
  if (!outcome.ok()) return false;
  brought->resize(exits.size());
  for (size_t i = 0; i < exits.size(); ++i)
    if (exits[i].reg >= 0) (*brought)[i] = (*registers)[exits[i].reg];
  return true;
}

}  // namespace lazytrace
