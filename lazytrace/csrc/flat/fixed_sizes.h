// What is the same in all calls of a dynamic program whose tensors have the sizes of one call.
#pragma once

#include <vector>

#include "program/program.h"

namespace lazytrace {

// Whether its sizes and strides may be other ones at another call.
bool is_loose(const Result& result);

// Makes of the steps of a dynamic program those of one that fits a single call's sizes. A number that is made
// of sizes alone is a constant then: where a size follows from values, the step that gives it is compared. Of
// any other program it changes nothing. Offsets are no sizes, as no key tells of them.
class FixedSizes {
 public:
  explicit FixedSizes(const Program& program);

  bool is_fixed(int number) const { return number < 0 || fixed_[static_cast<size_t>(number)]; }
  // Whether an argument is, or has, a number that may be another one at the same sizes.
  bool is_other(const Argument& argument) const { return !others_of(argument).empty(); }
  // Those that it is or has.
  std::vector<int> others_of(const Argument& argument) const;
  bool takes_others(const Step& step) const;
  // Those of the numbers.
  std::vector<int> others(const std::vector<int>& numbers) const;
  // Whether an exit is none where the sizes are what they were.
  bool settle(const Step& step) const;
  // A step is about to run, and its numbers were worked out.
  void note(const Step& step, const NumberValues& now);
  // What the step gives has the looks of now, and the sizes that it takes are constants.
  void fix(const std::vector<at::Tensor>& registers, Step* step) const;
  // The numbers of the program, those that are fixed as constants.
  Numbers fixed() const;
  // The first step works them out.
  void give(std::vector<Step>* steps) const;

 private:
  void fix_argument(Argument* argument) const;

  const Program& program_;
  std::vector<char> fixed_;  // by number
  NumberValues now_;
};

}  // namespace lazytrace
