// Numbers in state that a program does nothing with but write what comes of them: `self.steps += 1`.
#pragma once

#include <vector>

#include "guard/guards.h"
#include "program/effect.h"
#include "program/program.h"
#include "program/value_tree.h"

namespace lazytrace {

// Whether the effect writes to the very place that the guard looks at.
bool is_place(const Effect& effect, const Guard& guard);

// A replay reads them when it begins and writes when it ends, and runs without the GIL in between. Python
// code would have read such a place right before it wrote there, so what another thread has written meanwhile
// would be lost. All of it needs the GIL.
class Counters {
 public:
  // `output`: the result and what is written.
  void find(const Program& program, const GuardTree& tree, const std::vector<Effect>& effects,
            const Tree& output);
  bool empty() const { return counters_.empty(); }
  // Before the writes: what they come to from what the places hold now. `state`: the values of guard nodes.
  void catch_up(const Program& program, const std::vector<Effect>& effects,
                const std::vector<PyObject*>& state, NumberValues* numbers) const;

 private:
  struct Counter {
    size_t effect;
    int number;
  };

  std::vector<Counter> counters_;
  std::vector<int> left_;  // the numbers that the result and the writes show
};

}  // namespace lazytrace
