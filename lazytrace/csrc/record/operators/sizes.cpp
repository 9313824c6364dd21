#include "record/operators/sizes.h"

#include <algorithm>

namespace lazytrace {

void Sizes::follow_numbers(NumberRecorder::Owner owner) {
  numbers_ = std::make_shared<NumberRecorder>(&program_->numbers, std::move(owner));
}

void Sizes::follow() { program_->dynamic = numbers_ != nullptr; }

void Sizes::set(int reg, bool loose) {
  if (!follows() || reg < 0) return;
  auto at = static_cast<size_t>(reg);
  if (loose_.size() <= at) loose_.resize(at + 1, 0);
  loose_[at] = loose;
}

// The size of a result may differ when that of an argument may, or when it follows from values.
void Sizes::begin(const Step& step, bool varies) {
  if (!numbers_) return;
  ++operators_;
  last_operator_ = step.op.schema().name();
  if (!follows()) return;
  results_are_loose_ = varies;
  for (const Argument& argument : step.arguments) {
    switch (argument.kind) {
      case Argument::Kind::Number:
      case Argument::Kind::Numbers:
        results_are_loose_ = true;
        break;
      case Argument::Kind::Register:
        results_are_loose_ |= is_loose(argument.reg);
        break;
      case Argument::Kind::List:
        for (int reg : argument.list) results_are_loose_ |= is_loose(reg);
        break;
      default:
        break;
    }
  }
}

bool Sizes::may_differ(const OperatorFacts& facts, const Step& step) const {
  if (!results_are_loose_) return false;
  bool lists = std::any_of(step.results.begin(), step.results.end(),
                           [](const Result& result) { return result.kind == Result::Kind::List; });
  if (lists) return true;
  // How many dimensions a result has follows from those of the arguments, but where those of size 1 go. What
  // is raised for an index beyond its tensor is not what the operator says.
  const std::string& name = step.op.schema().name();
  bool view = facts.always_view && name != "aten::squeeze" && name != "aten::select";
  if (facts.makes_new || view) return false;
  // An operator that is made of others may give back its argument.
  return facts.view || step.op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

}  // namespace lazytrace
