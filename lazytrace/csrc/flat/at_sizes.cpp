#include "flat/at_sizes.h"

#include <algorithm>
#include <utility>

#include "passes/registers.h"
#include "torch/facts.h"
#include "torch/storage.h"

namespace lazytrace {

namespace {
// An operator of torch's that gives the same looks for the same looks, and leaves those of its arguments
// alone.
bool follows_looks(const Step& step) {
  const auto& schema = step.op.schema();
  const OperatorFacts& facts = facts_of(step.op);
  if (step.python || step.gives_either || facts.changes_metadata) return false;
  if (schema.name().rfind("aten::", 0) != 0) return false;
  return std::none_of(schema.arguments().begin(), schema.arguments().end(),
                      [](const c10::Argument& argument) { return argument.is_out(); });
}
}  // namespace

bool AtSizes::suits(const Plan& plan) {
  const Program& program = plan.program();
  bool plain = program.modes.size() == 1 && !program.modes[0].grad && !program.modes[0].any_autocast();
  bool quiet = !program.backward && !program.python_between && !program.changes_looks;
  if (!program.dynamic || !plain || !quiet || !program.gradients.empty()) return false;
  FixedSizes sizes(program);
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    bool leads_away = step.exit && !sizes.settle(step);
    if ((leads_away && plan.changed_before(i)) || sizes.takes_others(step)) return false;
    bool known = step.kind == Step::Kind::Literal || step.kind == Step::Kind::Read ||
                 step.kind == Step::Kind::Numbers ||
                 (step.kind == Step::Kind::Operator && follows_looks(step));
    if (!known) return false;
  }
  return true;
}

// What is a copy at one size may show the memory of an argument at another, or begin elsewhere in it.
void AtSizes::find_base(const Step& step, size_t place, Result* result) const {
  result->base = -1;
  result->distance = 0;
  if (result->known || result->reg < 0) return;
  const at::Tensor& tensor = registers_[static_cast<size_t>(result->reg)];
  const auto* storage = tensor.defined() ? storage_of(tensor) : nullptr;
  if (!storage) return;
  std::vector<int> given;
  each_argument(step, [&](int reg) {
    if (registers_[static_cast<size_t>(reg)].defined()) given.push_back(reg);
  });
  auto shows = [&](int reg) { return storage_of(registers_[static_cast<size_t>(reg)]) == storage; };
  auto base = std::find_if(given.begin(), given.end(), shows);
  if (place < given.size() && shows(given[place])) base = given.begin() + static_cast<std::ptrdiff_t>(place);
  if (base == given.end()) return;
  result->base = *base;
  result->distance = tensor.storage_offset() - registers_[static_cast<size_t>(*base)].storage_offset();
}

// Whether a step is kept for an exit, or looks otherwise than in the recording, whose sizes have shorter ways
// in the program itself.
bool AtSizes::gains(size_t at) const {
  auto other = [&](const Result& one) {
    return one.loose && one.reg >= 0 && !one.meta->matches(registers_[static_cast<size_t>(one.reg)]);
  };
  const std::vector<Result>& results = program_.steps[at].results;
  return static_cast<int>(at) <= plan_.keep_until ||
         std::any_of(results.begin(), results.end(), [&](const Result& result) {
           return other(result) || std::any_of(result.list.begin(), result.list.end(), other);
         });
}

void AtSizes::after(size_t at) {
  gaining_ += gains(at);
  const Step& step = program_.steps[at];
  steps_.push_back(step);
  Step& copy = steps_.back();
  copy.exit = step.exit && !sizes_.settle(step);
  copy.by_size = false;
  copy.gone.clear();
  bool lists = !step.arguments.empty() && step.arguments[0].kind == Argument::Kind::List;
  if (step.kind == Step::Kind::Operator)
    for (Result& result : copy.results) {
      find_base(step, 0, &result);
      for (size_t i = 0; i < result.list.size(); ++i) find_base(step, lists ? i : 0, &result.list[i]);
    }
  sizes_.fix(registers_, &copy);
}

std::shared_ptr<const Plan> AtSizes::finish(const std::vector<int>& outputs) {
  constexpr size_t kFew = 4;  // a part of the steps
  if (kFew * gaining_ < steps_.size()) return nullptr;
  auto made = std::make_shared<Program>(program_);
  made->steps = std::move(steps_);
  made->numbers = sizes_.fixed();
  sizes_.give(&made->steps);
  made->dynamic = false;
  made->looks.clear();
  made->numbers_then.clear();
  return make_plan(std::move(made), outputs);
}

}  // namespace lazytrace
