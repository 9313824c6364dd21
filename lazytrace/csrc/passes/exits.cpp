#include "passes/exits.h"

#include <algorithm>

namespace lazytrace {

// Up to an exit before which nothing was changed the function can also run from its start. That is the better
// choice where the results that would have to be kept for it are large, and where exits are many and seldom
// taken: nothing could be lowered before them.
void place_exits(Plan* plan) {
  const Program& program = plan->program();
  constexpr size_t kMostBytes = size_t{32} << 20;
  size_t bytes = 0;
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    int at = static_cast<int>(i);
    if (step.once()) plan->first_once = std::min(plan->first_once, at);
    // A size leads back to the start as long as nothing was changed.
    bool about_size = step.by_size || step.kind == Step::Kind::Read;
    bool worth_keeping =
        plan->changed_before(i) || program.casts_stay() || (bytes <= kMostBytes && !about_size);
    if (step.exit && at <= program.unresumable && worth_keeping) plan->keep_until = at;
    for (auto& result : step.results)
      if (result.kind == Result::Kind::Register && !result.known) bytes += result.meta->bytes();
  }
}

}  // namespace lazytrace
