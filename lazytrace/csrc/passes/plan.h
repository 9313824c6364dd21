// How a program is run: what the passes work out of it. What was recorded is in the Program, and stays as it
// is.
#pragma once

#include <climits>
#include <memory>
#include <vector>

#include "passes/looks.h"
#include "program/program.h"

namespace lazytrace {

class Lowered;

// How one step is run.
struct StepPlan {
  std::shared_ptr<const Lowered> lowered;  // a shorter way, or null
  std::vector<int> frees;                  // the registers that nobody needs behind it
  std::vector<int> empties;                // of which nobody needs what lies in them, but their looks
  // Bit i: its argument i is the only and last use of a register, which is moved to it, not copied.
  uint64_t moves = 0;
  // Whether it may run below autograd, as nobody will see what its results are to autograd: never, where none
  // of its arguments requires gradients, always.
  enum class Quiet : uint8_t { Never, WithoutGradients, Always } quiet = Quiet::Never;

  static constexpr size_t kMostMoves = 64;
};

// Ownership: shares its program, which must not change from then on. It is immutable once built, so any
// number of threads may run it. Destroy it with the GIL held.
struct Plan {
  explicit Plan(std::shared_ptr<const Program> of) : steps(of->steps.size()), program_(std::move(of)) {}

  const Program& program() const { return *program_; }
  const std::shared_ptr<const Program>& shared_program() const { return program_; }

  std::vector<StepPlan> steps;  // by step of the program
  // Of a dynamic program that has shorter ways at the sizes of the recording: how each register looked.
  Looks::Recorded looks;
  std::vector<int> used;     // inputs that anything needs: taking hold of a tensor is not free
  bool brief = false;        // so little work that letting go of the GIL would take longer
  bool lends = false;        // brief, and no Python code can run in the middle: arguments are lent to it
  uint64_t overrides = 0;    // aten_overrides() when its shorter ways were found
  int first_once = INT_MAX;  // the first step that must not be done again
  int keep_until = -1;       // the last side exit that can be resumed: no register is freed before it
  int undoable = -1;         // of a flat form: whoever runs it can undo what the steps up to this one change

  // A step that raised has changed nothing, so Python may be led to it again even where it changes metadata.
  // `shown`: what the function had read of what the step has changed is shown to it as it was.
  bool resumable(size_t step, bool raised, bool shown = false) const;
  bool changed_before(size_t step) const { return first_once <= static_cast<int>(step); }
  // The same of what stays changed where a replay stops there.
  bool lasting_before(size_t step) const {
    return (changed_before(step) && undoable < static_cast<int>(step)) || program_->python_between;
  }

 private:
  std::shared_ptr<const Program> program_;
};

// All passes, in their order. `outputs`: the registers that leave the program. The caller may add what it
// knows of the program before it shares the plan (`undoable`). Needs the GIL.
std::shared_ptr<Plan> make_plan(std::shared_ptr<const Program> program, const std::vector<int>& outputs);

}  // namespace lazytrace
