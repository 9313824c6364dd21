// The making of one opaque step: its arguments before the call, its result after.
#pragma once

#include <memory>
#include <optional>
#include <unordered_set>
#include <vector>

#include "program/effects.h"
#include "record/operators/recorder.h"
#include "record/python/exchange.h"
#include "record/python/pause.h"
#include "record/python/provenance.h"
#include "record/python/unseen.h"
#include "replay/made_parts.h"

namespace lazytrace {

// What a step stands in: who records, what is known of the objects around it, what was written so far.
struct Surroundings {
  Recorder* recorder;
  Provenance* provenance;
  Writes* writes;
  Pause* pause;
  Exchange* exchange;
  Unseen* unseen;

  // Which attribute a step of ours reads or sets, as its name says it: " self.gradient".
  std::string words_for(PyObject* object, PyObject* name) const;
};

// The `self` of functions of the core's own that steps call: there for as long as the process.
PyObject* self_of_steps();

// Pauses recorder and observer for as long as it lives. Needs the GIL.
class OpaqueCall {
 public:
  // `function`.`attribute`(*args, **kwargs) is what a replay calls; OpaqueStep says what `python` and
  // `feedable` mean. `watched`: all Python code that it calls will be watched.
  OpaqueCall(const Surroundings& around, PyObject* function, const std::string& attribute, PyObject* args,
             PyObject* kwargs, bool python, bool feedable, bool watched = false);
  ~OpaqueCall();
  // It writes to what no argument of it shows.
  void has_effects() { step_->effects = true; }
  // It draws random numbers that are none of torch's, which cannot be drawn again.
  void draws() { step_->effects = step_->draws = draws_ = true; }
  // What it gives always looks the same, or it raises.
  void is_told() { step_->told |= !step_->asks; }
  // What it gives is another thing at other calls, though nothing that it does shows that.
  void varies() { varies_ = true; }
  // The numbers in what it gives are other ones at each call, and are followed.
  void gives_numbers() { step_->gives_numbers = varies_ = true; }
  // And the truth values.
  void gives_flags() { step_->gives_flags = true; }
  // These, leaf by leaf, once it has finished: -1 where there is none.
  const std::vector<int>& numbers() const { return numbers_; }
  // It reads what an earlier step has changed, which may be anything.
  void reads_late(const std::string& where) { step_->late = true, step_->name += where; }
  // It is this custom function of autograd, whose code comes to operators alone.
  void is_pure(PyObject* function) { step_->pure = function; }
  // What it changes a function that runs again knows, too.
  void shows_what_it_touches() { shows_touched_ = true; }
  // Its Python code is watched (WatchedBlocks); this comes to custom functions of autograd, and to what is
  // found in these registers.
  void watch();
  void meet_function(const void* function);
  void uses(const std::vector<int>& registers);
  // It sets a hook, or takes one off, which is watched where a pass calls it.
  void is_hook() { step_->hook = true; }
  // It sets a hook (1), or takes one off (-1); `outside`: of a leaf of before the call.
  void hooks(int more, bool outside) {
    step_->hooks = more, step_->hooks_outside = outside;
    step_->effects |= outside;
  }
  // It makes handles of hooks, which torch counts on from this number that the function has written.
  void counts(PyObject* followed);
  // It sets the attribute of its first argument that has the name of the second, which is there in words.
  void sets_attribute(const std::string& where) {
    step_->sets = step_->effects = true;
    step_->name += where;
  }
  // It is a backward pass; `accumulates`: into the gradients of leaves.
  void is_backward(bool accumulates) {
    step_->engine = true;
    step_->accumulates = accumulates;
  }
  // Of an argument that nobody but the caller holds, who forgets it.
  void forgets(const at::Tensor& tensor) { unseen_.insert(around_.recorder->register_of(tensor)); }
  // Right before its code runs.
  void count_holders() { parts_.count_holders(); }
  // Its code has run in a replay: what that has changed of what it was given is changed in what this is
  // given.
  void fill_parts();
  // What it gave there: what was made for it there is what this is given.
  py::object fed_value();
  // Whether it runs Python code, and how it is called.
  bool runs_python() const { return step_->python; }
  bool is_watched() const { return step_->watched; }
  const std::string& name() const { return step_->name; }
  // What Python is to be given for the result: a number that is followed where it is one that is asked for.
  py::object finish(PyObject* result);

 private:
  void reach(PyObject* function);
  void add(PyObject* result);
  bool wrote_how_to_print() const;
  void show_writes(const Tree::Source& source, bool watched);
  std::optional<Tree> shown_by(const Writes::Write& write, const Tree::Source& source, py::object* value);
  bool hide_writes();
  void touch_parts();
  void take_over_parts(const MadeParts& theirs);
  void judge_parts(PyObject* result);
  void compare_looks();
  void add_as_before(PyObject* result);
  void touch_kept(const std::vector<py::object>& kept);

  Surroundings around_;
  std::shared_ptr<OpaqueStep> step_;
  py::object call_;  // (args, kwargs)
  HandedParts parts_;
  std::optional<MadeParts> made_;  // of what a replay makes for it, before its code has run
  std::vector<int> uses_, numbers_;
  std::unordered_set<int> unseen_;
  RandomMark random_mark_ = RandomMark::now();
  std::vector<std::pair<at::Tensor, uint32_t>> versions_;
  std::vector<std::pair<at::Tensor, TensorMeta>> looks_;
  std::vector<std::string> traits_;                       // of these, too
  std::vector<std::pair<at::Tensor, TensorMeta>> outer_;  // of what it may come to that was there before
  std::vector<py::object> shown_;                         // by write: what Python code finds there
  Provenance::TouchedSoFar touched_;
  GuardTree::Look read_before_;
  Modes modes_ = Modes::current();
  bool prints_ = false;                   // or logs, and gives nothing back
  bool draws_ = false;                    // random numbers that are none of torch's
  bool varies_ = false;                   // see varies()
  std::unordered_set<PyObject*> hidden_;  // containers that watched code must not ask, which the writes hold
  bool paused_ = true;
  bool shows_touched_ = false;
};

}  // namespace lazytrace
