#include "passes/plan.h"

#include <utility>

#include "passes/exits.h"
#include "passes/frees.h"
#include "passes/length.h"
#include "passes/lower.h"

namespace lazytrace {

bool Plan::resumable(size_t step, bool raised, bool shown) const {
  const Step& s = program_->steps[step];
  int at = static_cast<int>(step);
  // A size or number that differs leads back to the start as long as nothing was changed.
  bool feedable = s.kind == Step::Kind::Operator || s.kind == Step::Kind::Gradient ||
                  (s.kind == Step::Kind::Read && (changed_before(step) || program_->casts_stay())) ||
                  (s.kind == Step::Kind::Opaque && s.opaque->feedable);
  bool itself = raised || (s.opaque && (s.opaque->leads_back || (shown && s.opaque->confuses_alone)));
  bool open = at < program_->unresumable || (at == program_->unresumable && itself);
  return at <= keep_until && feedable && open;
}

// Exits come first: what they keep is neither lowered nor freed before them.
std::shared_ptr<Plan> make_plan(std::shared_ptr<const Program> program, const std::vector<int>& outputs) {
  auto plan = std::make_shared<Plan>(std::move(program));
  place_exits(plan.get());
  judge_length(plan.get());
  lower(plan.get(), outputs);
  place_inputs(plan.get(), outputs);
  place_frees(plan.get(), outputs);
  return plan;
}

}  // namespace lazytrace
