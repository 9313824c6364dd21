// Writes down every operator that Python calls on this thread, as a Program.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "program/program.h"
#include "record/operators/blanks.h"
#include "record/operators/conditions.h"
#include "record/operators/feeding.h"
#include "record/operators/origins.h"
#include "record/operators/resuming.h"
#include "record/operators/shared_values.h"
#include "record/operators/sizes.h"
#include "record/operators/workload.h"
#include "torch/facts.h"
#include "torch/memory.h"
#include "torch/random_mark.h"
#include "torch/record_key.h"

namespace lazytrace {

// One recording of one thread. on_operator() runs without the GIL and touches no Python object; everything
// else needs it.
class Recorder {
 public:
  Recorder();
  Recorder(const Recorder&) = delete;  // its parts point to each other
  Recorder& operator=(const Recorder&) = delete;

  // From now on Python is given numbers that are followed in place of what `item()` gives, and with `sizes`
  // of sizes, which may differ from call to call. Before the first input. `arguments`: the program fits
  // calls with other ints and floats.
  void follow_numbers(bool sizes, bool arguments);
  // Numbers in state that the observer follows from here on: a function that resumes has read what it read
  // before as the steps did that have run.
  void note_state(const std::vector<std::string>& paths, const std::vector<std::string>& names);
  void follow_from_here(const std::string& path) {
    program_->state_paths.emplace(path, program_->steps.size());
  }
  // Whether the number at this path is followed where it is read now.
  bool follows_state(const std::string& path) const {
    auto found = program_->state_paths.find(path);
    return found != program_->state_paths.end() && program_->steps.size() >= found->second;
  }
  const GuardTree::Paths& paths_then() const { return feeding_.paths(); }
  bool follows_state() const { return !program_->state_paths.empty(); }
  // Numbers in state that a replay must find as they were, though they are followed, and what is wrong where
  // the call writes to one.
  struct FixedState {
    std::vector<int> numbers;
    std::string otherwise;
    Place place;
  };
  const std::vector<FixedState>& fixed_state() const { return fixed_state_; }
  // How many kernels of Python have run.
  size_t python_kernels() const { return python_kernels_; }
  // Whether an operator ran whose kernels Python gives, or may give.
  bool hangs_on_kernels() const { return hangs_on_kernels_; }
  // The numbers of a recording that follows them and has not been given up, or null.
  NumberRecorder* numbers() const { return sizes_.numbers(); }
  const NumberRecorder* ended_numbers() const { return sizes_.ended_numbers(); }
  bool follows_sizes() const { return sizes_.follows(); }
  // Whether Python holds any number that is followed, or may come to one without having called item().
  bool follows_any() const { return numbers() && (follows_sizes() || numbers()->has_carriers()); }
  // Calls `ask`, which is expected to call item() of the tensor: the number that it gave, or -1 of a value
  // that is not followed.
  int item_number(const at::Tensor& tensor, const std::function<void()>& ask);
  // Whether the size of this tensor may differ; the recording is given up when its origin is not known.
  bool is_loose(const at::Tensor& tensor);
  // The number that `tensor` answers; -1: its size is what it was.
  int size_number(Number::Kind kind, const at::Tensor& tensor, int64_t which = 0);
  // Compares all sizes and strides of the tensor from now on.
  void pin(const at::Tensor& tensor);
  // How many operators a recording that follows sizes has seen, and the name of the last one.
  size_t operators() const { return sizes_.operators(); }
  const std::string& last_operator() const { return sizes_.last_operator(); }

  // The recorder that is active on this thread, or null.
  static Recorder* active();

  // The steps up to a side exit have run: they are fed to Python instead of being run again. Before run().
  void feed(std::shared_ptr<Resume> resume);
  // Whether Python code that runs now was called by an operator: a hook, which a replay calls by itself.
  bool inside_operator() const { return inside_operator_ > 0; }
  bool inside_other_operator() const { return inside_other_operator_ > 0; }  // one that is none of torch's
  // The same of an operator on tensors of a transform, whose own operators are recorded.
  bool inside_transformed() const { return inside_transformed_ > 0; }
  bool feeding() const { return feeding_.active(); }
  // The switches of torch/switches.def that the function has set to what they were not before the call.
  Switches& switches() { return switches_; }
  OwnRegions& regions() { return regions_; }
  // The function has ended, whether it has come to the side exit or not.
  void leave_region() { feeding_.leave_region(); }
  // How the function that ran again left the steps that had run; "" where it did not. Call after the run.
  std::string divergence() const { return feeding_.divergence(); }
  // The function has run again to its end. What the replay read besides has changed nothing.
  void leave_out_last_reads();
  // What an opaque function has returned, or raised.
  py::object fed_value() { return feeding_.value(); }
  // What it was given, where it has changed some of that; or null.
  const MadeParts* fed_parts() const { return feeding_.parts(); }
  bool feeds_kept_parts() const { return feeding_.keeps_parts(); }
  // State that the step has changed at which the replay has left, and that the function reads again before
  // it; null where there is none. And whether that step is the next one.
  EarlierState* earlier() const { return feeding_.earlier(); }
  bool feeds_exit() const { return feeding() && feeding_.at_exit(); }
  [[noreturn]] void diverge(const std::string& how) const { feeding_.diverge(how); }
  // Whether the next step to be fed is an opaque one; anything else is a divergence.
  void expect_opaque() const { feeding_.expect_opaque(); }
  // Whether it is this one, behind at most so many reads of numbers.
  bool comes_to(const std::string& name) const { return feeding_.comes_to(name); }
  bool expects(const std::string& name, size_t reads = 0) const { return feeding_.expects(name, reads); }
  // A print() of all of its arguments, where it may be one for each of several objects.
  bool expects_print(size_t reads) const { return feeding_.expects_print(reads); }

  void add_input(const at::Tensor& tensor);
  // Declares that `tensor` can be fetched again from guard node `node`; it becomes a register once it is
  // used. `exact`: its guard compares its sizes, too.
  void explain(const at::Tensor& tensor, int node, bool exact);
  // The same of a generator of random numbers.
  void explain(const at::Generator& generator, int node) { origins_.explain(generator, node); }
  // Of a function that runs again: what the replay has made for it (Access::Made); or null.
  py::object made_anew(size_t which) const { return feeding_.made_anew(which); }
  // From the next step on, Python code that runs again would not see what it saw.
  void end_resuming(const std::string& why) { resuming_.end(why); }
  void ask_version(const at::Tensor& tensor) { resuming_.ask_version(tensor); }

  // Whether an operator inside the last opaque step has looked at values.
  bool hidden_varies() const { return resuming_.hidden_varies(); }
  // Whatever it has come to, the function gives nothing back.
  void forget_hidden() { resuming_.begin_opaque(); }
  // What it gives hangs on values all the same.
  void note_hidden() { resuming_.add_hidden(true); }
  // Within an opaque step: the observer watches the Python code that runs from here on, and what would be a
  // step fails the recording.
  void begin_block() { block_ = {paused_, {}}; }
  // What of before the call operators were given since, as registers.
  std::vector<int> end_block() { return std::exchange(block_, {}).uses; }
  bool in_block() const { return paused_ && block_.paused == paused_; }
  // The step that runs now is a backward pass, which sets gradients.
  void enter_pass(bool enters) { in_pass_ = enters; }
  // What comes here is more than reading state and running operators.
  void refuse_in_block();
  // Whether a call becomes a step.
  bool takes_steps();
  // A backward pass may come to this custom function of autograd: its code comes to operators alone.
  void know_pure(const void* function) { pure_.insert(function); }
  // An operator inside an opaque step. Whether its answer is one of those that blocks hang on.
  bool note_hidden(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void note_answer(bool answer) { answers_.push_back(answer); }
  // Those since they were taken last.
  std::vector<bool> take_answers() { return std::exchange(answers_, {}); }
  void on_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

  // Stops and starts recording around a call that becomes one opaque step.
  void pause();
  void resume();
  bool paused() const { return paused_ > 0; }
  // `uses`: registers of the tensors that it is given. `unseen`: those of them that no code of the user's
  // holds once the call is over. `knows_parts`: a replay knows what of `given` it has made.
  // Gives the number that its result is, where it is followed, or -1.
  std::vector<int> add_opaque(std::shared_ptr<OpaqueStep> step, const std::vector<int>& uses,
                              const std::unordered_set<int>& unseen, PyObject* result, PyObject* given,
                              bool knows_parts);
  // The opaque step that was added last has switched modes: a step behind it says to which.
  void note_switched();

  // `tensor.grad` is read: what Python is to be given, which of a function that runs again is what it was
  // given the first time.
  at::Tensor read_gradient(const at::Tensor& tensor);
  // `tensor.grad` is set, or deleted where `value` is undefined. False: that was done already.
  bool write_gradient(const at::Tensor& tensor, const at::Tensor& value);
  // `tensor.requires_grad = value` of a tensor that was there before the call. False: it is nothing that a
  // replay could do, and nothing has been recorded.
  bool write_requires_grad(const at::Tensor& tensor, bool value);
  // `tensor.data = value`, which Python does once it is recorded. False: it is nothing that a replay could
  // do, and nothing has been recorded.
  bool write_data(const at::Tensor& tensor, const at::Tensor& value);
  // Python code comes that may set the `.data` of any tensor: what was read of that so far, and no step has
  // seen yet, shows the memory of before it.
  void settle_read_data();
  // What it was when the call began, where the call has set it.
  std::optional<bool> requires_grad_before(const at::Tensor& tensor) const {
    auto found = flags_.find(tensor.unsafeGetTensorImpl());
    return found == flags_.end() ? std::nullopt : std::optional<bool>(found->second);
  }
  // C code has read or set a gradient by itself: when the function runs again, it would do so once more.
  void gradient_in_c() {
    if (!feeding()) resuming_.end("C code reads or sets .grad");
  }
  // What a backward pass from these tensors does, which is run as one opaque step.
  struct Backward {
    bool python;     // runs Python code, or may at the next call
    bool effects;    // changes the gradients of tensors that were there before
    bool elsewhere;  // runs in a thread of a GPU, in parts
    bool watched;    // what it runs of Python code are blocks and hooks that are watched
    std::vector<std::pair<at::Tensor, int>> leaves;  // of before the call, with their registers
  };
  // `watches`: whether the hooks of a node are watched while they run, and can be told from others.
  Backward look_ahead(const std::vector<at::Tensor>& roots, bool accumulates,
                      c10::function_ref<bool(torch::autograd::Node&)> watches);
  // The hooks of this leaf, given by its register, are guarded.
  void note_hooked(int reg);
  // The next step where that has run already, and takes off a hook of this tensor, or null.
  const Step* fed_unhook(const at::Tensor& tensor) const { return feeding_.unhooks(tensor); }
  // How many hooks a replay has set on this one before the function ran again.
  size_t hooks_fed(const at::Tensor& leaf) const { return feeding_.hooks_on(leaf); }
  // Whether the operators of a backward pass may be steps of their own: all of its nodes come from operators
  // that were seen, and a replay tells apart what this call does.
  bool follows_way(const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>& inputs);

  // `source.data`, which makes a tensor behind the dispatcher, was read. A kernel that does so is part of its
  // operator, and does not run where the function runs again.
  void saw_data(const at::Tensor& source) {
    saw(source);
    if (!inside_operator()) origins_.read_data(source);
  }
  // A tensor that Python holds is looked at: of a resumed function it may be a copy of what it was fed.
  // Whether it has a register, or can be fetched.
  bool knows(const at::Tensor& tensor) const { return origins_.knows(tensor); }
  // Whether the call has made the tensor, and nobody had it before.
  bool made(const at::Tensor& tensor) {
    const Origins::Known* known = origins_.known(tensor);
    return known && !was_there(known->reg) && !origins_.is_explained(tensor) && !is_drawn(tensor);
  }
  // Whether the call has made its memory, too, and writes to it in recorded steps alone.
  bool made_with_memory(const at::Tensor& tensor) {
    // Of what a replay has made, later steps may have written to it by now.
    bool hidden =
        (feeding() && version_of(tensor) != 0) || resuming_.after_opaque() || resuming_.after_block();
    return !hidden && made(tensor) && !is_gradient(tensor) && !origins_.is_external(tensor);
  }
  // Whether the call has found or set it as the gradient of another one.
  bool is_gradient(const at::Tensor& tensor) {
    const Origins::Known* known = origins_.known(tensor);
    return known && gradients_.count(known->reg);
  }
  // Whether the tensor requires gradients by now. A function that runs again is handed tensors of which a
  // later step may have made that.
  bool requires_gradients(const at::Tensor& tensor);
  // Code that was not watched has put attributes on a tensor of the call's own: other ones at another call.
  void note_decorated(int reg) { decorated_.insert(reg); }
  bool is_decorated(const at::Tensor& tensor) {
    const Origins::Known* known = origins_.known(tensor);
    return known && decorated_.count(known->reg);
  }
  // What lay at a place that is followed: see Origins.
  bool draw(const at::Tensor& tensor) { return origins_.draw(tensor); }
  bool is_drawn(const at::Tensor& tensor) const { return origins_.is_drawn(tensor); }
  // Python code asks what autograd knows of a tensor, or may ask.
  void saw_gradients(const at::Tensor& tensor);
  // The same of all tensors from now on: code that is not watched has them.
  void lost_sight() { sees_gradients_ = false; }
  // Whether `saw` has something to look for.
  bool lends() const { return !feeding_.lent().empty(); }
  void saw(const at::Tensor& tensor) {
    if (feeding_.lent().empty() || origins_.knows(tensor)) return;
    if (origins_.sources_of(tensor).empty()) feeding_.lent().find(tensor);  // the .data of one is none
  }

  // The register of a tensor, made where its origin is known; -1 where it is not.
  int register_of(const at::Tensor& tensor);
  // The same for a result of the function: an `empty` that nothing wrote is then a literal.
  int output_register(const at::Tensor& tensor);
  // What the call has come to of tensors that were there before it.
  std::vector<at::Tensor> outer() const { return origins_.outer(); }
  // Whether a register holds an argument or captured state, whose Python object a replay gives back.
  bool was_there(int reg) const { return origins_.was_there(reg); }
  // Of a function that resumes: the tensor of state for which this holds that its steps were given. Undefined
  // where there is none.
  at::Tensor captured_before(c10::function_ref<bool(const at::Tensor&)> is_it) const {
    return feeding_.captured(is_it);
  }
  // The first reason wins. From then on operators run as if nobody recorded, and the key of the recorder is
  // off for code that asks which are on.
  void fail(const std::string& reason);
  // For what a kernel in Python does of an operator that is none of torch's, where that shows when it has
  // ended, or before it runs.
  void fail_in_operator(const std::string& reason);
  bool failed() const { return !reason_.empty(); }
  // Whether recording has no purpose any more. A feeding goes on: what has run must not run again.
  bool stopped() const { return failed() && !feeding(); }
  // Tensors that it has seen may go when they are due.
  void let_go() {
    if (stopped()) origins_.clear();
  }
  const std::string& reason() const { return reason_; }
  // Whether it was code of a block that has failed it.
  bool failed_in_block() const { return failed_in_block_; }
  // Whether it has failed while an operator ran that is none of torch's.
  bool failed_in_operator() const { return failed_in_operator_; }
  // Whether it has failed as an operator that is a step had changed Python state when it was recorded.
  bool failed_behind_change() const { return failed_behind_change_; }
  Place failed_at() const { return failed_at_; }

  // The select that was just recorded stands for the index at this place of `x[...]`.
  void note_index(int place) {
    if (program_->steps.empty() || stopped()) return;
    Step& step = program_->steps.back();
    bool selects = step.op.schema().name() == "aten::select" && step.arguments.size() == 3;
    if (selects && step.arguments[2].kind == Argument::Kind::Number) step.index = place;
  }

  // Behind which step there was none that could see state of Python's.
  int64_t last_seeing_node() const {
    const auto& steps = program_->steps;
    auto sees = [](const Step& step) { return step.kind == Step::Kind::Opaque || step.effect; };
    auto at = std::find_if(steps.rbegin(), steps.rend(), sees);
    return at == steps.rend() ? -1 : at->node;
  }
  // Which node the last step has.
  int64_t last_node() const { return program_->steps.empty() ? -1 : program_->steps.back().node; }

  // The place in the user's code that the next operators belong to. Set by the observer, with the GIL.
  Place place;
  // Whether the Python code that is running would catch an exception. Takes the GIL.
  std::function<bool()> would_catch = [] { return false; };
  // The same, without regard to writes to Python state, which it would find after the exception.
  std::function<bool()> catches = [] { return false; };
  // Whether the function has written to Python state by now.
  std::function<bool()> has_written = [] { return false; };
  // Stops watching Python code, or goes on.
  std::function<void(bool)> look_away = [](bool) {};

  // Hands over the program, which is as it is saved and listed. `outputs`: registers that must survive to the
  // end. `nodes[slot]`: guard node of each capture.
  std::shared_ptr<Program> finish(const std::vector<int>& outputs);
  // A backward pass builds a graph.
  void grows() { program_->grows = true; }
  const std::vector<int>& capture_nodes() const { return origins_.capture_nodes(); }

 private:
  friend class RecordingScope;

  struct Block {
    int paused = 0;
    std::vector<int> uses;
  };
  void note_in_block(const std::vector<c10::IValue>& arguments, bool takes_numbers);
  void run_plain(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void transform(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                 const Sizes::Lifted& lifted);
  void refuse_constants(const std::vector<c10::IValue>& arguments, const torch::jit::Stack& stack,
                        const Step& step);
  // Runs what an operator does that is recorded, or whose parts are: says what ends that.
  void run_watched(const c10::OperatorHandle& op, c10::function_ref<void()> run);
  bool may_turn(const at::Tensor& tensor, const Step& turning);
  void note_kernel(const c10::OperatorHandle& op, Step* step);
  void judge_hooks();
  void record_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack, Sizes::Lifted lifted);
  void read_number(int id, const c10::IValue& value);
  void fix_sizes(const std::vector<c10::IValue>& arguments, Sizes::Lifted* lifted);
  void note_memory(const std::vector<c10::IValue>& arguments, Step* step);
  void feed_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack, Step step);
  void give(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void note_blank(const OperatorFacts& facts, const Step& step, const c10::IValue& made);
  void read_fed_blanks(const std::vector<c10::IValue>& arguments);
  void read_blanks(const std::vector<c10::IValue>& arguments, const torch::jit::Stack& stack, size_t returns);
  void note_bases(const OperatorFacts& facts, const std::vector<c10::IValue>& arguments,
                  const torch::jit::Stack& stack, Step* step);
  // In place. That a tensor comes to require gradients leaves it its memory.
  void note_changed_look(bool changed) {
    program_->changes_looks |= changed;
    moves_memory_ |= changed;
  }
  void note_resized(const at::Tensor& tensor, const c10::OperatorHandle& op);
  void note_owner(const OperatorFacts& facts, const Step& step);
  bool gives_its_number(const at::Tensor& tensor, const Step& step) const;
  bool raises_by_itself();
  bool leaves_out_reads();
  void expect(const Step& step);
  void fail_to_resume(const Step& step);
  void note_given(const Step& step);
  void note_gone(Step* step);
  void note_catching(const std::string& name, Step* step);
  void note_exit(const OperatorFacts& facts, const std::vector<c10::IValue>& arguments, Step* step);
  // Appends a step; while feeding, the one that has run. Raises where they differ.
  void push(Step step);
  int at_step() const { return static_cast<int>(program_->steps.size()); }
  bool encode_all(const c10::OperatorHandle& op, const OperatorFacts& facts,
                  const std::vector<c10::IValue>& values, Sizes::Lifted lifted, Step* step);
  bool encode(const c10::Argument& schema, const c10::IValue& value, Argument* argument, bool view,
              bool written);
  bool encode_tensor(const at::Tensor& tensor, Argument* argument, bool copied);
  Result decode(const c10::IValue& value, const Step& step);
  Result decode_tensor(const at::Tensor& tensor);
  int data_register(const at::Tensor& tensor);
  void settle_read_data(const at::Tensor& tensor, int of);
  bool is_its_data(const at::Tensor& tensor, int of, const at::Tensor& value);
  int add_data(const at::Tensor& tensor, const at::Tensor& source, int from);
  void note_modes(Step* step);
  void note_requires_grad(const at::Tensor& tensor, int reg);
  // Whether a step has made a tensor that was known before require gradients.
  void note_gradients(const at::Tensor& tensor);
  // Code that runs again must not find a tensor that has come to require gradients in a step before.
  void settle_flags();
  void note_written_gradients(const c10::Argument& schema, const c10::IValue& value);
  void note_effects(const c10::OperatorHandle& op, const OperatorFacts& facts,
                    const torch::jit::Stack& arguments, Step* step);
  void note_written(const at::Tensor& tensor, Step* step);
  void meet_gradient(const at::Tensor& tensor, int reg);
  void note_unmet(const at::Tensor& leaf);
  Step gradient_step(Step::Kind kind, const at::Tensor& tensor);
  // A tensor made by `empty` whose memory something else than a recorded operator filled.
  void use_blank(const at::Tensor& tensor, bool view, bool overwritten);
  void make_literal(int step, const at::Tensor& tensor);
  void fill(int step, at::Tensor literal);
  bool made_by_factory(int reg) const;
  int answer(PyObject* value, const std::string& name);
  void note_workload();
  void work_out_rest();

  std::shared_ptr<Program> program_ = std::make_shared<Program>();
  Origins origins_{program_.get()};
  Sizes sizes_{program_.get()};
  Blanks blanks_;
  OwnRegions regions_{program_.get()};
  Feeding feeding_{&origins_, &place, &regions_};
  SharedValues shared_;
  Resuming resuming_{program_.get()};
  Workload workload_;
  const Conditions conditions_;
  Modes modes_;
  Switches switches_;
  // What `requires_grad` of tensors that were there before the call was, where it was set.
  std::unordered_map<const c10::TensorImpl*, bool> flags_;
  std::unordered_set<int> met_gradients_;  // registers whose gradient was read or changed so far
  std::unordered_set<int> gradients_;      // registers of gradients that were read or set so far
  using Weakly = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  std::vector<Weakly> entry_values_;
  // A leaf without a register when a backward pass began, and what its gradient was.
  struct Unmet {
    Weakly leaf, value;
    std::shared_ptr<const TensorMeta> meta;
  };
  std::unordered_map<const c10::TensorImpl*, Unmet> unmet_;
  std::unordered_set<int> own_;    // registers with memory that the call has made, at all sizes
  bool moves_memory_ = false;      // a tensor may show other memory since, as by `.data =`
  std::unordered_set<int> views_;  // registers with memory that was there before the call, at all sizes
  AutogradGraph::Functions pure_;
  std::unordered_set<int> decorated_;  // registers
  size_t made_ = 0;                    // bytes, since it was looked for what is gone
  std::unordered_set<int> given_;      // registers of what opaque steps and gradients have given
  bool hooks_ran_ = false;             // in a backward pass
  // Memory of the tensors of which Python code knows whether they require gradients.
  std::unordered_set<const c10::StorageImpl*> seen_gradients_;
  bool sees_gradients_ = true;
  // Tensors that have come to require gradients, each with its step, and of which nobody has asked that
  // since.
  std::vector<std::pair<int, Weakly>> flagged_;
  bool nested_ = false;  // inside another recording, which goes on when this one gives up
  RandomMark random_mark_ = RandomMark::now();
  bool wants_item_ = false;
  int item_ = -1;
  int inside_operator_ = 0, inside_other_operator_ = 0;
  int inside_transformed_ = 0;
  int paused_ = 0;
  Block block_;
  std::vector<std::pair<int, Weakly>> block_leaves_;  // that operators in blocks were given
  std::vector<bool> answers_;
  bool failed_in_block_ = false, failed_in_operator_ = false, failed_behind_change_ = false;
  bool in_pass_ = false;
  size_t python_kernels_ = 0;
  bool hangs_on_kernels_ = false;
  std::vector<FixedState> fixed_state_;
  OwnNodes own_nodes_;
  std::string reason_;
  Place failed_at_;
};

// Makes `recorder` the active one of this thread for as long as it lives. RAII: also on exceptions.
class RecordingScope {
 public:
  explicit RecordingScope(Recorder* recorder);
  ~RecordingScope();
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;

 private:
  Recorder* before_;
  bool included_;
};

}  // namespace lazytrace
