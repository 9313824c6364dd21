// Writes down every operator that Python calls on this thread, as a Program.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "exits/feeder.h"
#include "program/program.h"
#include "record/operators/number_recorder.h"
#include "torch/facts.h"
#include "torch/overrides.h"
#include "torch/random_mark.h"
#include "torch/record_key.h"

namespace lazytrace {

// The class of what is raised where a function that resumes goes another way; not an Exception, so that
// ordinary handlers let it through. Needs the GIL.
PyObject* divergence_type();

// What exchanges the tensors behind two Python objects. Told by Python once.
void configure_swap(py::object swap);

// One recording of one thread. on_operator() runs without the GIL and touches no Python object; everything
// else needs it. Tensors are told apart by TensorImpl; a weak reference to each keeps its address from being
// used again, and nothing alive.
class Recorder {
 public:
  Recorder();
  ~Recorder() {
    if (numbers_made_) numbers_made_->end();
  }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // From now on sizes may differ from call to call: Python is given numbers that are followed. Before the first
  // input.
  void follow_sizes();
  // The numbers of a recording that follows sizes and has not been given up, or null.
  NumberRecorder* numbers() const { return numbers_made_ && numbers_made_->live() ? numbers_made_.get() : nullptr; }
  // Whether the size of this tensor may differ; the recording is given up where its origin is not known.
  bool is_loose(const at::Tensor& tensor);
  // The number that `tensor` answers; -1: its size is what it was.
  int size_number(Number::Kind kind, const at::Tensor& tensor, int64_t which = 0);
  // Compares all sizes and strides of the tensor from now on.
  void pin(const at::Tensor& tensor);
  // How many operators were recorded so far, and the name of the last one.
  size_t operators() const { return operators_; }
  const std::string& last_operator() const { return last_operator_; }

  // The recorder that is active on this thread, or null.
  static Recorder* active();

  // The steps up to a side exit have run: they are fed to Python instead of being run again. Before run().
  void feed(std::shared_ptr<Resume> resume) { feeder_ = std::make_unique<Feeder>(std::move(resume)); }
  // Whether Python code that runs now was called by an operator: a hook, which a replay calls by itself.
  bool inside_operator() const { return inside_operator_ > 0; }
  bool feeding() const { return feeder_ && feeder_->active(); }
  // How the function that ran again left the steps that had run; "" where it did not. Call after the run.
  std::string divergence() const;
  // What an opaque function has returned, or raised.
  py::object fed_value();
  // Whether the next step to be fed is an opaque one; anything else is a divergence.
  void expect_opaque();

  void add_input(const at::Tensor& tensor);
  // Declares that `tensor` can be fetched again from guard node `node`; it becomes a register once it is
  // used. `exact`: its guard compares its sizes, too.
  void explain(const at::Tensor& tensor, int node, bool exact);

  // An operator inside an opaque step.
  void note_hidden(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void on_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

  // Stops and starts recording around a call that becomes one opaque step.
  void pause();
  void resume();
  bool paused() const { return paused_ > 0; }
  void add_opaque(std::shared_ptr<OpaqueStep> step, const std::vector<int>& uses, PyObject* result);

  // `source.data`, which makes a tensor behind the dispatcher, was read.
  void saw_data(const at::Tensor& source) {
    saw(source);
    data_of_.push_back(source);
  }
  // A tensor that Python holds is looked at: of a resumed function it may be a copy of what it was fed.
  void saw(const at::Tensor& tensor) {
    auto* impl = tensor.unsafeGetTensorImpl();
    if (!lent_.empty() && !known_.count(impl) && !explained_.count(impl)) lent_register(tensor);
  }

  // The register of a tensor, made where its origin is known; -1 where it is not.
  int register_of(const at::Tensor& tensor);
  // The same for a result of the function: an `empty` that nothing wrote is then a literal.
  int output_register(const at::Tensor& tensor);
  // Whether a register holds an argument or captured state, whose Python object a replay gives back.
  bool was_there(int reg) const;
  // The first reason wins. From then on operators run as if nobody recorded, and the key of the recorder is
  // off for code that asks which are on.
  void fail(const std::string& reason);
  bool failed() const { return !reason_.empty(); }
  // Whether recording has no purpose any more. A feeding goes on: what has run must not run again.
  bool stopped() const { return failed() && !feeding(); }
  const std::string& reason() const { return reason_; }
  Place failed_at() const { return failed_at_; }

  // The place in the user's code that the next operators belong to. Set by the observer, with the GIL.
  Place place;
  // Whether the Python code that is running would catch an exception. Takes the GIL.
  std::function<bool()> would_catch = [] { return false; };
  // Whether the function has written to Python state by now.
  std::function<bool()> has_written = [] { return false; };
  // Stops watching Python code, or goes on.
  std::function<void(bool)> look_away = [](bool) {};

  // Hands over the program. `outputs`: registers that must survive to the end. `nodes[slot]`: guard node of
  // each capture.
  std::shared_ptr<Program> finish(const std::vector<int>& outputs);
  const std::vector<int>& capture_nodes() const { return capture_nodes_; }
  void mark_random() { program_->random = true; }
  const Program& program() const { return *program_; }

 private:
  friend class RecordingScope;
  using Lifted = std::vector<std::pair<size_t, Argument>>;

  void run_plain(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  // The same for an operator that is recorded: says what ends that.
  void run_watched(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void note_kernel(const c10::OperatorHandle& op, Step* step);
  void read_number(int id, int64_t value);
  void fix_sizes(const std::vector<c10::IValue>& arguments, Lifted* lifted);
  void note_loose(const OperatorFacts& facts, const std::vector<c10::IValue>& arguments, Step* step);
  bool is_loose_register(int reg) const;
  void judge_hooks();
  void record_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack, Lifted lifted);
  void feed_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack, Step step);
  void note_blank(const OperatorFacts& facts, const Step& step, const c10::IValue& made);
  void note_size(const c10::IValue& value);
  static void note_bases(const std::vector<c10::IValue>& arguments, const torch::jit::Stack& stack,
                         Step* step);
  void note_exit(const OperatorFacts& facts, const std::vector<c10::IValue>& arguments, Step* step);
  bool is_data(const at::Tensor& tensor) const;
  void know_again(int reg, const at::Tensor& tensor);
  int lent_register(const at::Tensor& tensor);
  void restore_lent(torch::jit::Stack* stack, size_t count);
  void note_fed_opaque(const OpaqueStep& ran, Step* step);
  void note_fed_gradients(const Result& expected, const c10::IValue& value);
  // From the next step on, Python code that runs again would not see what it saw.
  void end_resuming(const std::string& why);
  // Appends a step; while feeding, the one that has run. Raises where they differ.
  void push(Step step);
  int at_step() const { return static_cast<int>(program_->steps.size()); }
  void expect_same(const std::string& difference);
  [[noreturn]] void diverge(const std::string& how);
  bool encode_all(const c10::OperatorHandle& op, const OperatorFacts& facts,
                  const std::vector<c10::IValue>& values, Lifted lifted, Step* step);
  bool encode(const c10::Argument& schema, const c10::IValue& value, Argument* argument, bool view,
              bool written);
  bool encode_tensor(const at::Tensor& tensor, Argument* argument, bool copied);
  Result decode(const c10::IValue& value);
  Result decode_tensor(const at::Tensor& tensor);
  std::shared_ptr<const TensorMeta> meta_of(const at::Tensor& tensor);
  at::Tensor number_of(const at::Tensor& tensor);
  int new_register(const at::Tensor& tensor, bool external, bool loose);
  int data_register(const at::Tensor& tensor);
  static bool shape_depends_on_values(const OperatorFacts& facts, const std::vector<c10::IValue>& arguments);
  void note_modes(Step* step);
  void note_requires_grad(const at::Tensor& tensor, int reg);
  void note_effects(const c10::OperatorHandle& op, const OperatorFacts& facts,
                    const torch::jit::Stack& arguments, Step* step);
  void note_written(const at::Tensor& tensor, Step* step);
  // A tensor made by `empty` whose memory something else than a recorded operator filled.
  void use_blank(const at::Tensor& tensor, bool view, bool overwritten);
  void make_literal(int step, const at::Tensor& tensor);
  void fill(int step, at::Tensor literal);
  bool made_by_factory(int reg) const;
  bool is_external(const at::Tensor& tensor) const;
  void drop_unused(const std::vector<int>& outputs);
  void place_exits();
  void judge_length();
  void place_inputs(const std::vector<int>& outputs);
  void place_frees(const std::vector<int>& outputs);

  struct Known {
    int reg;
    bool requires_grad;
    c10::weak_intrusive_ptr<c10::TensorImpl> keep;
  };

  std::shared_ptr<Program> program_;
  std::unordered_map<c10::TensorImpl*, Known> known_;
  struct Explained {
    int node;
    bool exact;
  };
  std::unordered_map<c10::TensorImpl*, Explained> explained_;
  std::shared_ptr<NumberRecorder> numbers_made_;
  std::vector<char> loose_;  // by register
  size_t operators_ = 0;
  std::string last_operator_;
  bool loose_results_ = false;  // of the operator that is being recorded
  std::vector<at::Tensor> explained_keep_;
  std::unordered_set<c10::StorageImpl*> external_;
  struct Blank {
    int step;
    bool touched;
  };
  std::unordered_map<c10::StorageImpl*, Blank> blank_;
  std::vector<c10::Storage> keep_storage_;
  std::vector<at::Tensor> data_of_;
  std::vector<std::shared_ptr<const TensorMeta>> metas_;
  std::vector<at::Tensor> numbers_;
  std::vector<int> capture_nodes_;
  Modes modes_;
  const SavedHooks saved_hooks_ = saved_hooks();
  const bool overridden_ = aten_is_overridden();
  const uint64_t registrations_ = kernel_registrations();
  const bool below_;                      // whether the function itself was called below autograd
  const std::optional<bool> invariants_;  // whether torch checks sparse tensors, around the call
  bool nested_ = false;                   // inside another recording, which goes on when this one gives up
  RandomMark random_mark_ = RandomMark::now();
  std::unique_ptr<Feeder> feeder_;
  std::vector<std::pair<at::Tensor, int>> lent_;  // what was fed to Python and is no view, with its register
  bool changed_ = false;                          // whether a step so far must not be done again
  int inside_operator_ = 0;
  size_t elements_ = 0;     // of all arguments and results so far
  bool only_cpu_ = true;    // whether all of these are on the CPU
  bool only_plain_ = true;  // whether none of them is of a subclass that runs Python code
  int paused_ = 0;
  bool after_opaque_ = false;   // whether a Python function was called as one step
  bool hidden_varies_ = false;  // whether an operator inside the opaque step reads values
  std::string unresumable_why_;
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
