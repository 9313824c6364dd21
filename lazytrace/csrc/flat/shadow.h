// A second run of a program, of which nobody sees anything.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "flat/twins.h"
#include "passes/plan.h"
#include "replay/interpreter.h"
#include "replay/witness.h"

namespace lazytrace {

// Runs a plan; why there is nothing to see of it, or nothing. `done`: by a run that it repeats. `led_away`:
// whether it stopped at a step. Needs the GIL.
std::string run_unseen(const Plan& plan, std::vector<at::Tensor>* registers,
                       const std::vector<PyObject*>& state, const NumberValues& given,
                       Witness* witness = nullptr, const DoneOnce& done = {}, bool* led_away = nullptr);

// On copies, so that a backward pass through the graph that it leaves ends at these, and meets no history and
// no hooks of the user's. Made before the program runs on `registers`. Needs the GIL.
class Shadow {
 public:
  Shadow(const Plan& plan, const std::vector<at::Tensor>& registers);

  // Why the program may not run twice; empty where it may.
  static std::string obstacle(const Program& program);

  // Runs it; puts back the random numbers that it drew. Why there is nothing to see of it, or nothing.
  std::string run(const std::vector<PyObject*>& state, const NumberValues& given, Witness* witness = nullptr);
  const std::vector<at::Tensor>& registers() const { return registers_; }

 private:
  const Plan& plan_;
  Twins twins_;
  std::vector<at::Tensor> registers_;
};

}  // namespace lazytrace
