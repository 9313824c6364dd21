// Which tensors of a recording may have other sizes at the next call.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "record/operators/number_recorder.h"
#include "torch/facts.h"

namespace lazytrace {

// Of a recording that follows sizes; for any other it answers that nothing is loose. Numbers are followed in
// either, unless nobody asked for it. Touches no Python object.
class Sizes {
 public:
  using Lifted = std::vector<std::pair<size_t, Argument>>;

  explicit Sizes(Program* program) : program_(program) {}
  ~Sizes() { end(); }
  Sizes(const Sizes&) = delete;
  Sizes& operator=(const Sizes&) = delete;

  // From now on numbers are followed, and sizes.
  void follow_numbers(NumberRecorder::Owner owner);
  void follow();
  bool follows() const { return program_->dynamic; }
  // Null when nobody follows numbers, or the recording was given up.
  NumberRecorder* numbers() const { return numbers_ && numbers_->live() ? numbers_.get() : nullptr; }
  // The same, of which somebody may ask what its carriers stood for.
  const NumberRecorder* ended_numbers() const { return numbers_.get(); }
  // What runs from here on is given plain numbers.
  void end() {
    if (numbers_) numbers_->end();
  }

  // Takes the origins out of the arguments of an operator.
  Lifted lift(const c10::FunctionSchema& schema, torch::jit::Stack* stack) {
    return numbers_ && numbers_->has_carriers() ? numbers_->lift(schema, stack) : Lifted();
  }
  // The numbers that a step works out: those that were made since the last one.
  std::vector<int> take_new() { return numbers_ ? numbers_->take_new() : std::vector<int>(); }

  void set(int reg, bool loose);
  bool is_loose(int reg) const {
    return reg >= 0 && static_cast<size_t>(reg) < loose_.size() && loose_[static_cast<size_t>(reg)];
  }

  // An operator is about to run: whether its results are loose, which is so until the next one. `varies`:
  // their sizes follow from values.
  void begin(const Step& step, bool varies);
  // An opaque function instead.
  void begin_opaque() { results_are_loose_ = follows(); }
  bool results_are_loose() const { return results_are_loose_; }
  // Whether at other sizes a step may give another number of tensors or dimensions, or its argument itself.
  bool may_differ(const OperatorFacts& facts, const Step& step) const;
  // How many operators were recorded so far, and the name of the last one.
  size_t operators() const { return operators_; }
  const std::string& last_operator() const { return last_operator_; }

 private:
  Program* program_;
  std::shared_ptr<NumberRecorder> numbers_;
  std::vector<char> loose_;  // by register
  bool results_are_loose_ = false;
  size_t operators_ = 0;
  std::string last_operator_;
};

}  // namespace lazytrace
