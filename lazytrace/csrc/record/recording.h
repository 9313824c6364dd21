// One recording from start to verdict.
#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "guard/guards.h"
#include "record/operators/recorder.h"
#include "record/python/log_call.h"
#include "record/python/observer.h"
#include "record/python/opaque_call.h"
#include "record/python/watched_blocks.h"
#include "signature/signature.h"
#include "trace/trace.h"

namespace lazytrace {

// What sets a hook at each replay, and now; both give its handle.
struct HookCalls {
  py::object again, now;
};

// What takes a hook off at each replay, by its place among those of the tensor, what does so now, and what
// finds that place.
struct UnhookCalls {
  py::object again, now, find;
};

// The sizes of arguments that a program reads before anything else, as (register, dimension).
std::vector<std::pair<int, int64_t>> fixed_sizes(const Program& program);

// Calls a function that finds behind it who called the traced one, and no frame of lazytrace. Null where it
// raises.
PyObject* call_as_caller(const py::object& function, const py::tuple& args, const py::dict& kwargs);

// Ownership: made and destroyed by the thread that records, with the GIL.
class Recording {
 public:
  // `resume`: a replay has run the first steps, which are fed to the function instead of being run again.
  // `dynamic`: sizes may differ from call to call, so Python is given numbers that are followed. `numbers`:
  // so it is for what item() gives. `loose_numbers`: and for ints and floats that are passed.
  explicit Recording(Call& call, std::shared_ptr<Resume> resume = nullptr, bool dynamic = false,
                     bool numbers = false, bool loose_numbers = false);
  ~Recording();
  static Recording* active();
  // Whether the function runs again over steps that have run.
  bool feeding() const { return recorder_.feeding(); }

  // Runs the function for real. Its exceptions pass through unchanged; nothing stays switched. Raises
  // Diverged where a function that resumes does not ask for the steps that have run.
  py::object run(py::object function, py::tuple args, py::dict kwargs);
  // Numbers in state at these paths, from roots of these names, may differ from call to call, and so may
  // those that code reads and sets in one line, but not at the paths `fixed`. Before run(); a function that
  // resumes follows those that its first steps followed, and what it reads after them.
  void follow_state(const std::vector<std::string>& paths, const std::vector<std::string>& names,
                    const std::vector<std::string>& fixed = {}) {
    recorder_.note_state(paths, names);
    observer_.follow_state(names);
    observer_.leave_state(fixed);
  }
  // The paths of numbers that the call has changed, for which the recording is no use.
  std::vector<std::string> varying(const std::vector<std::string>& names) const {
    return observer_.varying(names);
  }
  std::vector<std::string> stiff(const std::vector<std::string>& names) const {
    return observer_.stiff(names);
  }
  // What is put in the place of None, or None in the place of what, is kept. Before run().
  void keep_turns() { observer_.keep_turns(); }
  // Why there is no trace: 1 that something took the place of None, 2 that None did; 0 anything else.
  int turned() const { return static_cast<int>(observer_.turn()); }
  // The sizes of these dimensions of arguments are read before the function runs. Before run(); a function
  // that resumes reads those that its first steps have read so.
  void fix_sizes(std::vector<std::pair<at::Tensor, int64_t>> sizes) {
    if (!recorder_.feeding()) fixed_ = std::move(sizes);
  }
  void ignore(bool print, bool logging) { observer_.ignore(print, logging); }
  // The numpy arrays of the call.
  Unseen* unseen() { return observer_.unseen(); }
  // Whether a read has led to the object.
  bool was_reached(PyObject* object) const { return observer_.known(object) >= 0; }
  // The trace, or null with reason() and where() set.
  // `prove`: whether the trace will be asked to prove itself, and so keeps the result until then.
  std::shared_ptr<Trace> finish(py::object result, bool prove = true);
  // What the passes took in finish().
  double seconds_lowering() const { return seconds_lowering_; }
  // `told`: its result always looks as it does now, or it raises. `draws`: random numbers, none of torch's.
  // A cache has no entry for a call, so that its function runs; what that has made is put there.
  void begin_entry(const py::object& cache);
  py::object keep_entry(const py::object& cache, const py::tuple& args, const py::object& made);
  py::object opaque(py::object wrapper, const std::string& attribute, py::object function, py::tuple args,
                    py::dict kwargs, bool python, bool told = false, bool draws = false);
  // The same for a call of logging.Logger._log(), which LogCall says with what, but for the frames.
  void log(const py::tuple& what, const py::object& exc_info, LogCall::Kind kind);
  // The same for a function of torch that stays whole.
  py::object whole(py::object function, py::tuple args, py::dict kwargs);
  // The same for activation checkpointing. What it is given to call is watched, where that is allowed and
  // `switches`, what says how it works, are guarded.
  py::object checkpoint(py::object function, const py::object& switches, py::tuple args, py::dict kwargs);
  // Its function is watched.
  py::object watched(const py::object& function, const py::tuple& args, const py::dict& kwargs);
  void watch_blocks() { watches_blocks_ = true; }
  // Whether what a step calls is watched.
  bool may_watch() const;
  const std::shared_ptr<WatchedBlocks>& blocks();
  bool has_watched() const { return blocks_ != nullptr; }
  // Whether what it has seen there is why it has failed.
  bool failed_in_block() const { return recorder_.failed_in_block(); }
  // Attributes are set where the function sets them, by steps.
  void store_early() { observer_.store_early(); }
  // Whether the function has set any that a step may set.
  bool may_store_early() const { return observer_.may_store_early(); }
  // An operator with a kernel in Python is a step, and not what that kernel comes to.
  void take_operators_whole() { observer_.take_operators_whole(); }
  // Whether what such a kernel does is why it has failed.
  bool failed_in_operator() const { return recorder_.failed_in_operator(); }
  // Whether it goes on behind an operator that is a step and had changed Python state, and has failed for
  // that.
  bool failed_behind_change() const { return recorder_.failed_behind_change(); }
  void read_level_of_loggers();
  // The same for torch's function that runs autograd's engine.
  py::object backward(py::object run, py::tuple args, py::dict kwargs);
  // Whether the hooks of a node are watched while the pass runs that comes to it: the call has set them, or
  // they are of a leaf of before the call, and guarded. `dicts`: where they lie.
  bool watches_hooks(torch::autograd::Node& node, std::vector<py::dict>* dicts);
  // Which hooks a leaf of before the call has is guarded. False where there are others than Python's.
  bool guards_hooks(const at::Tensor& leaf, int reg, bool watched);
  // Tensor.register_hook.
  py::object hook(const HookCalls& calls, py::object tensor, py::object hook);
  // RemovableHandle.remove, of a handle that hook() has given.
  void unhook(const UnhookCalls& calls, const py::object& handle);
  // Tensor.retain_grad, which is a hook of torch's own.
  void retain_gradient(const py::object& now, py::object tensor);
  // Backward hooks of a module: `now` sets those of its inputs, then of its outputs, on tensors that a node
  // has made; `again` is called with both at each replay.
  void module_inputs(const py::object& now, py::object hook, py::object made);
  void module_outputs(const py::object& again, const py::object& now, py::object hook, py::object made);

  // A torch.Generator for a device. None where it cannot be made anew by each replay.
  py::object make_generator(const py::object& device);

  // Where print() writes to is guarded for its class.
  void look_at_stdout();

  // Calls a function of ours that is no part of the recording.
  py::object aside(py::object function);

  std::string reason() const { return recorder_.reason(); }
  py::object as_it_would_be(py::object result);
  py::tuple where() const;
  void fail(const std::string& reason) { recorder_.fail(reason); }

 private:
  // Neither operators nor Python code are looked at for as long as it lives.
  struct Aside {
    Recording* recording;
    explicit Aside(Recording* r) : recording(r) { r->recorder_.pause(), r->observer_.pause(); }
    ~Aside() { recording->recorder_.resume(), recording->observer_.resume(); }
  };
  bool can_hook(const py::object& tensor, bool leaves);
  bool can_hook_leaf(const at::Tensor& tensor);
  bool is_pure(const py::object& function, const py::tuple& args, const py::dict& kwargs);
  py::object forward_alone(const py::object& cls, const py::tuple& args);
  bool follows_backward(const std::vector<at::Tensor>& roots, const py::tuple& args, const py::dict& kwargs);
  py::object batched_backward(const std::vector<at::Tensor>& roots, int64_t level, const py::tuple& args,
                              const py::dict& kwargs);
  py::object transformed_backward(const std::vector<at::Tensor>& roots, const py::object& run,
                                  const py::tuple& args, const py::dict& kwargs, bool follows);
  py::object make_opaque(OpaqueCall* call, py::object function, py::tuple args, py::dict kwargs);
  py::object call(py::object function, py::tuple args, py::dict kwargs);
  void put_carriers(PyObject* function, py::tuple* args, py::dict* kwargs);
  static void place_numbers(Program* program, const std::vector<int>& renamed,
                            const std::vector<py::object>& found);
  void read_fixed_sizes();
  void read_sizes_at_end(const py::object& result);
  py::tuple all_that_is_left(const py::object& result);
  Tree take_apart(PyObject* result, std::vector<std::pair<int, at::Tensor>>* tensors);
  void fix_scalars(const std::vector<PyObject*>& scalars);
  void fix_followed(const std::unordered_set<PyObject*>& carriers);
  bool renumber(Trace* trace, Program* program);
  void fix_state(const Trace& trace, const Program& program);
  void fix_owners(const Trace& trace, const Program& program);
  void judge_early_writes(Trace* trace, const Program& program);

  double seconds_lowering_ = 0;
  std::shared_ptr<Family> family_;
  Recorder recorder_;
  GuardTree tree_;
  Observer observer_;
  bool watches_blocks_ = false;
  std::shared_ptr<WatchedBlocks> blocks_;
  bool replaced_ = false;
  bool settled_ = false;    // the writes
  py::list module_inputs_;  // (hook, tensors)
  // Of a hook that the function has set. Its tensor goes when it is due.
  struct SetHook {
    SetHook(const at::Tensor& of, bool is_watched, py::object hooks_before)
        : tensor(of.getIntrusivePtr()), watched(is_watched), before(std::move(hooks_before)) {}
    bool outside() const { return static_cast<bool>(before); }
    bool is_of(const at::Tensor& other) const { return tensor.lock().get() == other.unsafeGetTensorImpl(); }
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    bool watched;
    py::object before;  // the hooks that the tensor had before the call; null where it was not there
  };
  void know_handle(const py::object& handle, SetHook set);
  py::tuple hooks_before(const at::Tensor& leaf, bool accumulated) const;
  int read_hooks(const at::Tensor& leaf, bool accumulated);
  bool leaves_hooks() const;
  py::list hook_handles_;
  std::vector<SetHook> set_hooks_;                  // by handle
  c10::SmallVector<Call::PassedNumber, 4> passed_;  // that Python is given carriers for
  bool passes_constants_ = false;                   // in containers, which are guarded where they are read
  std::vector<std::pair<at::Tensor, int64_t>> fixed_;
};

}  // namespace lazytrace
