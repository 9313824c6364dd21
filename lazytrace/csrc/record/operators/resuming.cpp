#include "record/operators/resuming.h"

namespace lazytrace {

void Resuming::end(const std::string& why) {
  if (program_->unresumable <= at_step()) return;
  program_->unresumable = at_step();
  why_ = why;
}

std::string Resuming::change() const {
  if (program_->effects) return "an in-place write to an argument or to state";
  return program_->random ? "drawing random numbers" : "an opaque function";
}

}  // namespace lazytrace
