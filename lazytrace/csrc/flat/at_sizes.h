// A program that fits all sizes, as it is run at those that come often.
#pragma once

#include <memory>
#include <vector>

#include "flat/fixed_sizes.h"
#include "passes/plan.h"
#include "replay/witness.h"

namespace lazytrace {

// Watches a run and makes a plan for its sizes alone, for a program that leaves nothing to autograd. Sizes
// are constants there and results have the looks that were seen, so no size leads elsewhere: nothing is kept
// for side exits, and all of it is lowered, as in a recording of these sizes.
class AtSizes final : public Witness {
 public:
  // Whether nothing but sizes leads away from the program once it has changed anything, and nothing that it
  // is made of could surprise such a plan.
  static bool suits(const Plan& plan);

  AtSizes(const Plan& plan, const std::vector<at::Tensor>& registers)
      : plan_(plan), program_(plan.program()), registers_(registers), sizes_(program_) {
    steps_.reserve(program_.steps.size());
  }

  void starts(const NumberValues& numbers) override { numbers_ = &numbers; }
  void before(size_t at) override { sizes_.note(program_.steps[at], *numbers_); }
  void after(size_t at) override;
  void passes(int, const at::Tensor&) override {}

  // Once the run has ended as recorded; null where most of the program runs in the same way without it.
  // `outputs`: the registers that leave the program. Needs the GIL.
  std::shared_ptr<const Plan> finish(const std::vector<int>& outputs);

 private:
  bool gains(size_t at) const;
  void find_base(const Step& step, size_t place, Result* result) const;

  const Plan& plan_;
  const Program& program_;
  const std::vector<at::Tensor>& registers_;
  FixedSizes sizes_;
  const NumberValues* numbers_ = nullptr;
  std::vector<Step> steps_;
  size_t gaining_ = 0;  // of these
};

}  // namespace lazytrace
