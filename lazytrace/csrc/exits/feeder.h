// Hands back what the steps of a replay that went no further have given, while the function runs again.
#pragma once

#include <c10/util/FunctionRef.h>

#include <memory>
#include <string>

#include "exits/resume.h"

namespace lazytrace {

// The function must ask for the same operators on the same registers: anything else is a divergence, which is
// raised and never papered over. Resuming after a side exit in this way was tried first in lazytrace's
// design.
//
// Ownership: shares the Resume with whoever started the recording. Operators are fed without the GIL.
class Feeder {
 public:
  explicit Feeder(std::shared_ptr<Resume> resume) : resume_(std::move(resume)) {}

  // Whether the next step has run already.
  bool active() const { return at_ <= resume_->step; }
  const Step& expected() const { return resume_->program->steps[at_]; }
  bool at_exit() const { return at_ == resume_->step; }
  // How many steps have run already.
  size_t steps() const { return resume_->step + 1; }
  // The next one behind at most so many that read numbers, and those that stand for `.data`, or null.
  const Step* behind_reads(size_t reads) const;
  // Whether an opaque one of this name has run from here on.
  bool comes_to(const std::string& name) const;
  // Whether the next step reads this number.
  bool reads(int id, const Number& number) const;
  // Whether the step at the exit has warned: Python is warned again when it is fed.
  bool warned() const { return !resume_->given.warnings.empty(); }
  void advance() { ++at_; }

  // How `made`, recorded just now, is not the step that ran, the same operator on the same arguments; or "".
  std::string difference(const Step& made) const;
  // The same of the registers of the results; not asked of the exit itself.
  std::string difference_of_results(const Step& made) const;
  // Whether it is that step but for which numbers its arguments are, as they have the values that those had;
  // `value`: of a number of the recording.
  bool is_alike(const Step& made, c10::function_ref<c10::IValue(int)> value) const;
  // Whether its results are those but for which numbers they are.
  bool gives_alike(const Step& made) const;

  // What the step gave, put on the stack. An exception that it raised is raised again.
  void give(torch::jit::Stack* stack) const;
  // What an opaque function returned. Needs the GIL.
  py::object value() const;
  // What was made for its call, where it has changed some of that, or has given it back; or null.
  const MadeParts* parts() const;
  // Of the step at the exit.
  EarlierState* earlier() const { return resume_->given.earlier.get(); }
  bool keeps_parts() const { return at_exit() && resume_->given.keeps; }

  // Python made this tensor itself (`x.data`), and goes on with it.
  void replace(int reg, const at::Tensor& tensor);

  const at::Tensor& held(int reg) const { return resume_->registers[static_cast<size_t>(reg)]; }
  bool holds(int reg, const at::Tensor& tensor) const { return resume_->registers[reg].is_same(tensor); }

  // What the step at the exit gave. Its shape is "" where it is as it was recorded, "!" where it fits none.
  const Given& given() const { return resume_->given; }

  // What the replay has made for the call (Access::Made); null where it has come to none.
  py::object made_anew(size_t which) const {
    return which < resume_->made.size() ? resume_->made[which] : py::object();
  }

  // How the trace names what it has found.
  const GuardTree::Paths& paths() const { return resume_->paths; }

  // How many hooks the steps that have run have set on this leaf of before the call.
  size_t hooks_on(const at::Tensor& leaf) const;

  // What a step has given is what the state is found to hold, at this call: the replay has it by two
  // registers.
  void finds_given() { two_names_ = true; }
  // Whether it has such a tensor by this register, too, as what it has found.
  bool found(int reg, const at::Tensor& tensor) const;
  // The tensor of state for which this holds; undefined where there is none.
  at::Tensor captured(c10::function_ref<bool(const at::Tensor&)> is_it) const;

  std::string diverged;  // how the function went another way; empty: it did not

 private:
  // Whether they are one tensor of two names.
  bool is_one(int reg, int other) const;
  bool same_argument(const Argument& a, const Argument& b) const;
  bool same_registers(const Result& a, const Result& b) const;
  c10::IValue result(const Result& result) const;
  const OpaqueResult* opaque_result() const;  // of the next step; null where it has given nothing

  std::shared_ptr<Resume> resume_;
  size_t at_ = 0;
  bool two_names_ = false;
};

}  // namespace lazytrace
