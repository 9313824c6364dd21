// What a reusable recording becomes: guards, a program with its plan and the shape of the result.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exits/resume.h"
#include "flat/course.h"
#include "guard/guards.h"
#include "program/effects.h"
#include "replay/loan.h"
#include "signature/signature.h"
#include "trace/counters.h"

namespace lazytrace {

struct Workspace;
class Flattening;

// Why a trace did not answer a call.
struct Miss {
  int node = -1;         // the guard that failed
  int step = -1;         // the step whose result differed
  bool effects = false;  // whether something had been changed by then that must not be done again
  std::string found;
  int64_t trace = -1;              // the number of the trace whose step it was
  std::shared_ptr<Resume> resume;  // null: the function can only run from the start
};

// What listings call a kind of step.
const char* kind_name(Step::Kind kind);

// A hit that another trace than the one asked has finished, as Python sees it.
struct Branched {
  int64_t trace;  // its number
  py::object result;
};

class Trace;

// What a trace says to a call: its result, or why it has none.
struct Answer {
  py::object result;                   // of a hit
  std::shared_ptr<const Trace> other;  // that has finished the hit after a side exit
  Miss miss;
};

// The result, a Branched or a Miss.
py::object to_python(Answer answer);

// All that a hit needs. Immutable, so any thread may use it. Holds nothing of the user's alive; destroy it
// with the GIL.
class Trace {
 public:
  // Needs the GIL, and lets go of it while operators run. `space`: memory to work in, but for its call.
  Answer replay(const Call& call, Workspace* space) const;
  // The same for Python: the result of the call, a Branched or a Miss.
  py::object replay(const Call& call) const;
  // Runs the program on the arguments of the recording, and says how the result differs; empty where it does
  // not.
  // Not asked of a recording that has changed anything.
  std::string prove(const Call& call);
  // Only the guards: -1, or the node that fails.
  int check(const Call& call) const;
  // The paths of the numbers in state that keep a call from it by nothing but their values.
  std::vector<std::string> differing_numbers(const Call& call, const std::vector<std::string>& names) const;
  // The paths of those that are as large as a tensor that the program makes of none: other calls may want
  // another one.
  std::vector<std::string> sizing_numbers(const std::vector<std::string>& names) const;
  // Whether it is known what the program has written to Python state when a step runs, given by its node.
  bool knows_writes(int64_t node) const;
  // Whether the sizes of what the step gives follow from values.
  bool gives_sizes(int step) const;
  // Whether it compares a number that says how large a result is.
  bool measures(int step) const;
  // Whether the guard `node` is about a place that the program itself writes, among others that it writes
  // tensors to.
  bool carries(int node) const;
  // Whether all that keeps a call from the guard `node` is the size of a tensor.
  bool differs_in_size(int node, const Call& call) const;
  // What the value that a step has read hangs on: the paths of numbers in state, and the names of arguments.
  std::pair<std::vector<std::string>, std::vector<std::string>> numbers_behind(int step) const;
  py::tuple explain(int node, const Call& call, const std::vector<std::string>& names) const;

  // The same of all guards that fail.
  py::list explain_all(const Call& call, const std::vector<std::string>& names) const;

  const Program& program() const { return *program_; }
  // Of several, the one that tells most.
  const FlatCourse& flat() const { return courses_.first(); }
  // For how many sizes it has a flat form that answers.
  size_t flat_forms() const { return courses_.ready(); }
  // For how many sizes it has a plan of their own.
  size_t plans_at_sizes() const { return courses_.at_sizes(); }
  size_t guards() const { return tree_.size() - tree_.left_out(); }
  // How many guards on state a promise leaves out.
  size_t unguarded() const { return tree_.left_out(); }
  // State is promised not to change, or that is taken back. `first_argument`: the first root that is no
  // state.
  void promise(Py_ssize_t first_argument);
  void doubt() { tree_.doubt(); }
  // Whether a replay may change tensors or objects that were there before, arguments among them.
  bool changes_state() const;
  // One row per step, for listings: (kind, operator, arguments, results, modes, file, line).
  py::list rows() const { return rows_of(*plan_); }
  // That of one step. Throws std::out_of_range where there is none.
  py::dict row(size_t step) const { return row_of(*plan_, step); }
  // The same of the flat form that answers its calls; empty where there is none.
  py::list flat_rows() const;
  py::list guard_rows(const std::vector<std::string>& names) const;
  py::list output_registers() const;
  // All that a graph of the program needs, as plain values (see lazytrace/programs/program.py).
  py::dict data(const std::vector<std::string>& names) const;
  // What the guards find for a call: the captured tensors, and by node the objects that results, writes and
  // opaque steps need. None where a guard does not hold.
  py::object found(const Call& call) const;

  int64_t number = -1;  // given by whoever keeps it
  // Changed with the GIL only.
  mutable uint64_t used = 0;  // when it was last hit, by the clock of its table
  mutable uint64_t hits = 0;
  // Lets other traces with the same first steps go on with this one.
  static void join(const std::shared_ptr<Trace>& trace);

 private:
  friend class Recording;
  static py::dict row_of(const Plan& plan, size_t step);
  static py::list rows_of(const Plan& plan);
  // A node whose object is by now one that the program writes to, though it was another; -1: none.
  int aliased(const GuardTree::Values& values) const;
  // A tensor of the state that is by now an argument or another one, though it was not; -1: none.
  int merged(const Call& call, const GuardTree::Values& values) const;
  // The owner of a place of which a write takes away what would be seen to go; -1: none.
  int ending(const Call& call, const GuardTree::Values& values) const;
  // A tensor that has hooks by now, which a backward pass would call; -1: none.
  int hooked(const Call& call, const GuardTree::Values& values) const;
  class TensorsBefore {
   public:
    TensorsBefore(const Trace& trace, const Call& call, const GuardTree::Values& values)
        : trace_(trace), call_(call), values_(values) {}
    const at::Tensor& of(int reg);

   private:
    const Trace& trace_;
    const Call& call_;
    const GuardTree::Values& values_;
    size_t last_ = 0;
  };
  // A tensor whose gradient is not what it was when the recorded call began; -1: none.
  // The steps up to `after` have run.
  int regraded(const Call& call, const GuardTree::Values& values, int after) const;
  int node_of(int reg) const;
  void hold(GuardTree::Values* values) const;
  int prepare(const Call& call, std::vector<at::Tensor>* registers, Loan* loan, GuardTree::Values* values,
              int after = -1) const;
  // Puts the numbers that the call and its guards bring in their places.
  void give_numbers(const Call& call, const GuardTree::Values& values, NumberValues* numbers) const;
  void fill(const Plan& plan, const Call& call, std::vector<at::Tensor>* registers, Loan* loan,
            const GuardTree::Values& values) const;
  std::shared_ptr<FlatCourse> course(const std::vector<at::Tensor>& registers) const;
  std::optional<Answer> replay_flat(const Call& call, Workspace* space, Loan* loan, FlatCourse* flat,
                                    std::optional<Outcome>* exit) const;
  std::optional<Answer> replay_at_sizes(const Call& call, Workspace* space, Loan* loan,
                                        FlatCourse* flat) const;
  Outcome run_at_sizes(const Call& call, Workspace* space, FlatCourse* flat) const;
  void fill_again(const Call& call, Workspace* space, Loan* loan) const;
  Outcome run(const Call& call, Workspace* space, FlatCourse* flat) const;
  std::vector<int> outputs() const;
  void await_pass(const std::vector<at::Tensor>& registers, FlatCourse* flat) const;
  Outcome run_watched(const Call& call, Workspace* space, FlatCourse* flat) const;
  Outcome run_shadowed(const Call& call, Workspace* space, FlatCourse* flat) const;
  void settle(Flattening* flattening, FlatCourse* flat) const;
  Outcome run_compared(const Call& call, Workspace* space, FlatCourse* flat) const;
  py::object end(Workspace* space) const;
  Outcome run_to_prove(const Call& call, const GuardTree::Values& values, std::vector<at::Tensor>* registers,
                       Witness* witness = nullptr) const;
  std::shared_ptr<EarlierState> earlier(const Call& call, const GuardTree::Values& values,
                                        const std::vector<EarlyWrites::Overwritten>& overwritten) const;
  at::Tensor unwritten_elements(const Call& call, int reg) const;
  // Whether the result, and all that is written, are values that never change.
  bool written_whole() const { return output_.kind == Tree::Kind::Constant; }
  Interpreter interpreter(const Call& call, Workspace* space) const;
  void write_before(int64_t node, const Workspace& space) const;
  std::shared_ptr<const Trace> go_on(const Trace& from, const Outcome& outcome, const Call& call,
                                     std::vector<at::Tensor>* registers, Loan* loan,
                                     GuardTree::Values* values) const;
  Miss miss(const Call& call, const Trace& at, Outcome outcome,
            const std::vector<EarlyWrites::Overwritten>& overwritten, Workspace* space) const;

  // After the tree was given.
  void note_loose();
  void note_sets();
  void take_plan(std::shared_ptr<const Plan> plan) {
    plan_ = std::move(plan);
    program_ = &plan_->program();
  }

  std::shared_ptr<const Plan> plan_;
  const Program* program_ = nullptr;  // of the plan: each replay asks for it
  std::shared_ptr<Family> family_;
  GuardTree tree_;
  Tree output_;  // (the result, what is written...)
  std::vector<Effect> effects_;
  // For each, weakly: the class of what went there with its destructor; or null.
  std::vector<py::object> gone_;
  // What steps set: of the object at a node, an attribute.
  std::vector<std::pair<int, py::object>> sets_;
  Counters counters_;
  std::vector<int> needed_;      // nodes whose values are used after the guards were checked
  std::vector<int> weak_;        // nodes that weak references have led to
  std::vector<int> cached_;      // nodes of entries of functools caches, in the order of their last uses
  std::vector<Effect> written_;  // these, and writes that left what was there
  bool suits_sizes_ = false;     // whether it may have plans of single sizes
  bool asks_ = false;            // whether Python code that it calls may change what it depends on
  std::vector<int> loose_;       // registers of captured tensors that may have other sizes
  mutable FlatCourses courses_;
  std::vector<std::pair<int, at::Tensor>> first_;  // what eager returned, until it has been proved
};

// Traces that begin with the same steps: the branches of one tree of side exits. They share it, and it holds
// none of them. Needs the GIL.
class Family {
 public:
  void add(const std::shared_ptr<Trace>& trace);
  // Those that share all steps before this one, newest first.
  std::vector<std::shared_ptr<Trace>> through(size_t step, int64_t node) const;
  // How many results of this step have a trace.
  size_t branches(size_t step, int64_t node) const;
  // The same of all steps together whose number says how large a result is, of which one more each than the
  // first counts.
  size_t measured() const;

 private:
  std::vector<std::weak_ptr<Trace>> members_;
};

}  // namespace lazytrace
