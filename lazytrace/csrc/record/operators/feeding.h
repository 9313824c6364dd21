// A function that runs again: what Python asks for is compared with the steps that have run, and is given
// what they gave.
#pragma once

#include <c10/util/FunctionRef.h>

#include <memory>
#include <string>
#include <vector>

#include "exits/feeder.h"
#include "record/operators/lent.h"
#include "record/operators/number_recorder.h"
#include "record/operators/origins.h"
#include "record/operators/own_regions.h"

namespace lazytrace {

// The class of what is raised where a function that resumes goes another way; not an Exception, so that
// ordinary handlers let it through. Needs the GIL.
PyObject* divergence_type();

// Ownership: shares the Resume with whoever started the recording. Operators are fed without the GIL.
class Feeding {
 public:
  // `place`: of the recorder, which goes on to change it.
  Feeding(Origins* origins, const Place* place, OwnRegions* regions)
      : origins_(origins), place_(place), regions_(regions), lent_(origins) {}
  ~Feeding() { turn_back(); }

  void begin(std::shared_ptr<Resume> resume);
  // Whether the next step has run already.
  bool active() const { return feeder_ && feeder_->active(); }
  const Step& expected() const { return feeder_->expected(); }
  // Whether the next step reads this number.
  bool reads(int id, const Number& number) const { return feeder_->reads(id, number); }
  // Whether the next step took the `.data` of this tensor.
  bool took_data_of(const at::Tensor& tensor) const {
    return active() && expected().kind == Step::Kind::Data &&
           feeder_->holds(expected().arguments[0].reg, tensor);
  }
  bool at_exit() const { return feeder_->at_exit(); }
  // What the replay has made for the call (Access::Made); or null.
  py::object made_anew(size_t which) const { return feeder_ ? feeder_->made_anew(which) : py::object(); }
  // The next step where it takes off a hook of this tensor, or null.
  const Step* unhooks(const at::Tensor& tensor) const {
    bool is = active() && expected().opaque && expected().opaque->hooks < 0;
    return is && feeder_->holds(expected().arguments[0].reg, tensor) ? &expected() : nullptr;
  }
  // The backward pass that the replay has run here.
  const OpaqueStep* pass() const {
    bool is = active() && expected().opaque && expected().opaque->engine;
    return is ? expected().opaque.get() : nullptr;
  }
  // How the trace that has run names what it has found. While it feeds.
  const GuardTree::Paths& paths() const { return feeder_->paths(); }
  // How many hooks the steps that have run have set on this leaf of before the call.
  size_t hooks_on(const at::Tensor& leaf) const { return feeder_ ? feeder_->hooks_on(leaf) : 0; }
  size_t steps() const { return feeder_->steps(); }
  // The tensor of state for which this holds; undefined where there is none.
  at::Tensor captured(c10::function_ref<bool(const at::Tensor&)> is_it) const {
    return feeder_ ? feeder_->captured(is_it) : at::Tensor();
  }
  // The step did nothing, and is not asked for.
  void skip() { advance(); }
  // Whether the step at the exit has warned.
  bool warned() const { return at_exit() && feeder_->warned(); }

  // Raises where the step that was asked for is not the one that ran. False: it is, but for which numbers its
  // values are, as the function has come to them by another path; then no program is made of the recording.
  bool expect(const Step& made, const NumberRecorder* numbers) const;
  void expect_opaque() const;
  // As the feeder's.
  void finds_given() {
    if (feeder_) feeder_->finds_given();
  }
  bool found(int reg, const at::Tensor& tensor) const { return active() && feeder_->found(reg, tensor); }
  // Whether it is the step that ran, or is so but for which numbers its values are.
  bool meets(const Step& made, const NumberRecorder* numbers) const;
  // Whether the next step is an opaque one of this name, behind at most so many that read numbers.
  bool expects(const std::string& name, size_t reads) const {
    const Step* step = active() ? feeder_->behind_reads(reads) : nullptr;
    return step && step->opaque && step->opaque->name == name;
  }
  bool expects_print(size_t reads) const;
  bool comes_to(const std::string& name) const { return active() && feeder_->comes_to(name); }
  [[noreturn]] void diverge(const std::string& how) const;
  // How the function left the steps that had run; "" where it did not. Call after the run.
  std::string divergence() const;

  // What the step gave, or raised; after an exception the next step is a new one.
  void give(torch::jit::Stack* stack);
  // A tensor that a later step has turned, or will turn: Python is given it as it looked behind this one.
  void turn(const Result& expected, const c10::IValue& value) const;
  py::object value();
  const MadeParts* parts() const { return feeder_->parts(); }
  bool keeps_parts() const { return feeder_->keeps_parts(); }
  // State that the step at the exit has changed; null where there is none, or nothing is fed.
  EarlierState* earlier() const { return feeder_ ? feeder_->earlier() : nullptr; }
  // Of a step that ran a block which was watched: it has the registers that it had, though nobody comes to
  // what they are for. How many registers there must be.
  int meet_block(Step* step) const;
  // A value that Python is given for a result: which register it is, and what it required when it was made.
  void meet(const Result& expected, const c10::IValue& value) const;
  void note_gradients(const Result& expected, const c10::IValue& value) const;
  // Python made this tensor itself (`x.data`), and goes on with it.
  void replace(int reg, const at::Tensor& tensor) { feeder_->replace(reg, tensor); }

  // Makes of the step that was asked for the one that ran, and goes on to the next. False as above.
  bool take_over(Step* step, const NumberRecorder* numbers);

  // The function has ended, wherever it was by then.
  void leave_region() { region_.end(); }
  Lent& lent() { return lent_; }
  const Lent& lent() const { return lent_; }

 private:
  // One that steps have turned in place, as it looks behind all of them.
  struct Turned {
    at::Tensor tensor;
    TensorMeta look;
  };
  bool is_alike(const Step& made, const NumberRecorder* numbers) const;
  void take_over_opaque(Step* step) const;
  void turn_back();
  void advance();

  Origins* origins_;
  const Place* place_;
  OwnRegions* regions_;
  mutable KeptRegion region_;  // until the function has come to the exit, or goes another way
  std::unique_ptr<Feeder> feeder_;
  Lent lent_;
  std::vector<Turned> turned_;
};

}  // namespace lazytrace
