// Runs a Plan: the operators in order, the GIL released, each result compared with the recording.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cpython/cached_entry.h"
#include "cpython/lru_cache.h"
#include "passes/plan.h"
#include "replay/early_writes.h"
#include "replay/emptied.h"
#include "replay/set_tensors.h"
#include "replay/witness.h"
#include "torch/recycler.h"
#include "torch/shells.h"
#include "torch/storage.h"

namespace lazytrace {

class Flattened;
class EarlierState;
class MadeParts;

// What one step gave: its results as they lay on the stack, what an opaque function returned, or what was
// raised; and the warnings that it gave, which nobody has been told of yet.
struct Given {
  std::vector<c10::IValue> results;
  py::object value;
  std::string shape;         // of that value, as it was given
  std::vector<bool> others;  // as in OpaqueStep, if the shape is known
  // What was made for its call, where it has changed some of that or gives it back.
  std::shared_ptr<MadeParts> parts;
  bool keeps = false;  // it keeps some of that, which the function may still come to
  // State that it has changed, and that the function reads again before it.
  std::shared_ptr<EarlierState> earlier;
  std::exception_ptr error;
  std::vector<c10::Warning> warnings;
};

// The exception that is being handled, to be rethrown later: what Python raised is taken out of the error
// indicator of the thread, so that Python code may run before that. Takes the GIL. Call it in a catch block.
std::exception_ptr caught();

// Tells Python of the warnings, as torch's bindings do once an operator has run. Takes the GIL; throws what
// the filters of `warnings` make of it.
void tell(const std::vector<c10::Warning>& warnings);

// How a replay ended. A difference leaves the registers as they were before the results of the step that
// differed. Destroy it with the GIL.
struct Outcome {
  int step = -1;      // the step that differed, or -1
  std::string found;  // what was found instead, as text
  Given given;        // by that step
  bool begun = true;  // false: the step was not run, as it would not do what was recorded
  bool confused =
      false;           // whether Python code of an opaque step has changed what was read, or how tensors look
  bool late = false;   // that code has changed state, of which the function has read nothing before it
  bool moved = false;  // or some that the function has read before it, and nothing else
  KeptRegion region;   // of autocast, in which it stopped
  bool ok() const { return step < 0; }
};

// What an opaque step has given.
struct OpaqueResult {
  size_t step;
  py::object value;
  std::shared_ptr<MadeParts> parts;  // what was made for its call, where it gives some of that back
};
using OpaqueResults = std::vector<OpaqueResult>;

// What a run has done that is not done twice in a call: where it is given up, or rehearsed, another run
// follows.
struct DoneOnce {
  struct Told {
    int64_t node;              // of a step that has told somebody something
    std::exception_ptr error;  // that it has raised, and that the run which follows has not; else null
  };
  struct Drawn {
    int64_t node;     // of a step that has drawn random numbers
    at::Tensor copy;  // of what it gave, or shuffled
  };
  struct Used {
    int64_t node;  // of a step that has looked an entry of a functools cache up
    py::object cache, key;
  };
  struct Stray {
    int64_t node = -1;                // of a step that cannot be done again, which has led a run away
    std::shared_ptr<PyObject> value;  // what it gave
  };
  std::vector<int> answered;  // numbers that were asked for
  std::vector<Told> told;
  std::vector<Drawn> drawn;
  std::vector<Used> used;
  size_t counted = 0;  // of these, which the caches know of
  Stray stray;
  // A call that makes an entry may drop another one: which one follows from the uses before it.
  void count_uses() {
    for (; counted < used.size(); ++counted)
      use_cached(used[counted].cache.ptr(), used[counted].key.ptr(), 1);
  }
  bool may_follow = false;  // another run: what is drawn is kept for it
  void clear() {
    answered.clear(), told.clear(), drawn.clear(), used.clear();
    counted = 0;
    stray = {};
    may_follow = false;
  }
};

// What a run works in; kept from run to run by one thread.
struct InterpreterMemory {
  torch::jit::Stack stack;
  NumberValues numbers;  // of the program, those that are worked out so far
  Recycler recycler;
  Shells shells;
  Looks looks;
  at::Tensor scalar;  // of no dimensions, for a number that an operator takes as a tensor
  SetTensors set;
  Emptied emptied;
  DoneOnce done;
};

class Interpreter {
 public:
  // `state`: values of the guard nodes for opaque steps, borrowed for the length of the run. `opaque` takes
  // the results of the opaque steps, for a function that must run again, and `early` what was written before
  // them. `memory`: to work in.
  Interpreter(const Plan& plan, std::vector<at::Tensor>& registers, const std::vector<PyObject*>& state,
              OpaqueResults& opaque, EarlyWrites& early, InterpreterMemory& memory)
      : plan_(plan),
        program_(plan.program()),
        registers_(registers),
        state_(state),
        opaque_(opaque),
        early_(early),
        stack_(memory.stack),
        numbers_(memory.numbers),
        recycler_(memory.recycler),
        shells_(memory.shells),
        looks_(memory.looks),
        scalar_(memory.scalar),
        set_(memory.set),
        emptied_(memory.emptied),
        done_(memory.done) {}

  // How to ask whether the Python state that the program depends on is what it was when the call began, but
  // for what a step has changed: gives the first guard node that leads to something else, or -1.
  void ask_state_by(std::function<int(const Behind&)> moved) { state_moved_ = std::move(moved); }

  // Call with the GIL held; it is released while operators run. Starts at step `from`, which with `given` has
  // run already. Exceptions of operators pass through where the function cannot be resumed and something was
  // changed. Under a witness each step runs as it was recorded. `region`: of autocast, which it goes on in.
  Outcome run(size_t from = 0, const Given* given = nullptr, Witness* witness = nullptr,
              KeptRegion region = {});

  // The step that runs, or has raised.
  size_t at() const { return at_; }

  // Whether the results of a step are as this step of another trace expects. Needs the GIL.
  static bool fits(const Step& step, const Given& given, std::vector<at::Tensor>& registers);
  // Whether the step reads a gradient, and was given a tensor that the program knows as something else.
  static bool finds_held(const Plan& plan, size_t at, const Given& given,
                         const std::vector<at::Tensor>& registers);

 private:
  bool step(const Step& step, const StepPlan& planned, size_t at);
  bool call(const Step& step, const StepPlan& planned, size_t at);
  bool shortcut(const Step& step, const Lowered& way);
  bool looks_same(int reg) const {
    return plan_.looks.empty() ? !program_.dynamic : looks_.is_known_same(reg);
  }
  std::exception_ptr index_error(const Step& step) const;
  bool work_out(const Step& step);
  bool work_out_slowly(int id);
  bool writes_as_recorded(const Step& step);
  bool is_outer(const at::Tensor& tensor) const;
  bool may_be_quiet(const Step& step, const StepPlan& planned) const;
  bool warned(size_t at);
  bool opaque(const Step& step, size_t at);
  bool ask_number(const Step& step, size_t at);
  bool is_told(const Step& step, size_t at);
  bool is_drawn(const Step& step);
  bool takes_stray(const Step& step);
  void call_own(const Step& step);
  void note_use(const Step& step);
  void note_use(const Step& step, PyObject* cache, const Entry& entry);
  bool take_cached(const Step& step, size_t at);
  bool take_entry(const Step& step, size_t at);
  py::object answers(const Step& step);
  bool shows_outer(const Flattened& flattened);
  bool takes_again(const Step& step, const Flattened& flattened);
  std::optional<int> moved_by(const OpaqueStep& step, const Behind& known) const;
  bool moves_late(const Step& s, size_t at) const;
  void judge_state(const Step& s, size_t at, const std::vector<int>& turned, bool raised);
  bool has_filled(const Step& s, const MadeParts& parts);
  bool take(const Step& step, const Given& given);
  bool matches_value(const Step& step, const Flattened& flattened);
  void leave_with(Flattened* given, bool knows_parts);
  void store_value(const Step& step, const Flattened& flattened);
  c10::IValue number(int id) const {
    return to_ivalue(program_.numbers[static_cast<size_t>(id)], numbers_[static_cast<size_t>(id)]);
  }
  void push(const Argument& argument, bool moves);
  void push_list(const Argument& argument);
  void push_numbers(const Argument& argument);
  bool gradient(const Step& step);
  bool is_held(const at::Tensor& tensor) const;
  bool set_gradient(const Step& step);
  bool is_argument(const at::Tensor& tensor) const;
  bool matches(const Result& result, const c10::IValue& value);
  bool matches_tensor(const Result& result, const at::Tensor& tensor);
  void store(const Result& result, c10::IValue&& value);
  void store_tensor(const Result& result, at::Tensor tensor);

  const Plan& plan_;
  const Program& program_;
  std::vector<at::Tensor>& registers_;
  const std::vector<PyObject*>& state_;
  OpaqueResults& opaque_;
  EarlyWrites& early_;
  torch::jit::Stack& stack_;
  NumberValues& numbers_;
  const Step* running_ = nullptr;
  size_t at_ = 0;
  std::vector<int> gradients_;  // registers of those that were read so far
  Recycler& recycler_;
  Shells& shells_;
  Looks& looks_;
  at::Tensor& scalar_;
  SetTensors& set_;
  Emptied& emptied_;
  DoneOnce& done_;
  // Collects what operators warn of: it belongs to Python, which may raise it.
  struct Warnings final : c10::WarningHandler {
    void process(const c10::Warning& warning) override { all.push_back(warning); }
    std::vector<c10::Warning> all;
  };

  Warnings warnings_;
  Witness* witness_ = nullptr;
  bool alone_ = true;      // whether no other thread may set gradients meanwhile
  bool shortcuts_ = true;  // whether steps may run otherwise than they were recorded
  // Where entries of containers are taken: what memory they must not show, and those that were taken so far.
  struct Taken {
    std::unordered_set<const c10::StorageImpl*> outer;
    std::vector<MemoryRange> ranges;
    std::vector<at::Tensor> entries;
  };
  std::unique_ptr<Taken> taken_;
  py::object value_;
  std::string shape_;                 // of it, where it differs
  std::vector<bool> others_;          // the same
  std::shared_ptr<MadeParts> parts_;  // see Given::parts
  bool keeps_ = false;                // see Given::keeps
  std::string found_;
  std::exception_ptr error_;  // that working out a number has raised
  bool confused_ = false;
  bool late_ = false;   // it has changed state that is read behind it alone
  bool moved_ = false;  // or some that was read before it
  std::function<int(const Behind&)> state_moved_;
};

// Equality of values that Python can see: a nan is one of the same sign, 0.0 is not -0.0.
bool same_value(const c10::IValue& a, const c10::IValue& b);

}  // namespace lazytrace
