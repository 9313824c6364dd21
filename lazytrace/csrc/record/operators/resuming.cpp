#include "record/operators/resuming.h"

#include <algorithm>

namespace lazytrace {

void Resuming::end(const std::string& why) {
  if (program_->unresumable <= at_step()) return;
  program_->unresumable = at_step();
  why_ = why;
}

namespace {
const char* const kAsksVersion = "it asks how often a tensor was written to";
}  // namespace

void Resuming::ask_version(const at::Tensor& tensor) {
  if (tensor.is_inference() || tensor._version() != 0) return end(kAsksVersion);
  asked_.push_back(tensor.unsafeGetTensorImpl()->version_counter());
}

void Resuming::look_at_versions() {
  bool written = std::any_of(asked_.begin(), asked_.end(),
                             [](const auto& version) { return version.current_version() != 0; });
  if (!written) return;
  asked_.clear();
  end(kAsksVersion);
}

std::string Resuming::change() const {
  if (program_->effects) return "an in-place write to an argument or to state";
  return program_->random ? "drawing random numbers" : "an opaque function";
}

}  // namespace lazytrace
