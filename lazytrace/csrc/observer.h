// Watches the Python code of a recording, instruction by instruction, and keeps what it reads of the state
// around it.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "effects.h"
#include "guards.h"
#include "recorder.h"

struct _PyInterpreterFrame;

namespace lazytrace {

class OpaqueCall;
class FrameView;
enum class TensorState;

// The trace function of the thread that records. CPython calls it before each instruction with the operands
// on the frame's stack, so what is read is known exactly: the object, the name and the value. Each read of an
// object that was there before the call becomes a guard; each write to one makes the recording impure; an
// object that was made during the call needs neither.
//
// Ownership: holds what it saw until the recording ends, so that no address is used twice. Needs the GIL
// throughout. It never runs Python code of the user: all lookups go through the C structures.
class Observer {
 public:
  Observer(Recorder* recorder, GuardTree* tree);
  ~Observer();

  // Installs and removes the trace function; an older one (a debugger, coverage) goes on being called.
  void start();
  // False where somebody else replaced the trace function meanwhile.
  bool stop();

  // What a person has allowed to happen at recordings only: print() and logging.
  void ignore(bool print, bool logging) {
    ignore_print_ = print;
    ignore_logging_ = logging;
  }

  // Declares the function or an argument leaf; `structural`: a container whose contents the signature holds.
  void add_root(PyObject* object, Py_ssize_t index, bool structural);
  void add_input(PyObject* tensor, int reg);

  // The guard node through which `object` is reached, or -1.
  int known(PyObject* object) const;
  // The same, made where the object can be referenced weakly.
  int reach(PyObject* object);
  bool by_path(int node) const { return (*tree_)[node].access != Access::Weak; }
  bool made_here(PyObject* object) const { return is_fresh(object); }
  void refuse(const std::string& reason) { fail(reason); }
  // Whether an exception that is raised now could be caught by the Python code of the recording.
  bool would_catch();
  // How many objects the Python code of opaque steps has written to so far.
  size_t touched() const { return touched_.size(); }
  // Whether any of these was read before.
  bool touched_what_was_read() const;
  // Reads everything in a container that code which cannot be seen is handed.
  void read_deep(PyObject* object, int depth = 0);

  // Checks what only the end of the call can tell; `result` is what the function returned, and beside it all
  // that it has written.
  void finish(PyObject* result);
  // Writes to state so far; after settle_writes() those that a replay must make again.
  std::vector<Writes::Write>& writes() { return writes_.all(); }
  // Drops writes that leave what was there before, and refuses those that the next call would trip over.
  void settle_writes();
  // After it: all places that were written, those too that hold again what they held.
  std::vector<Effect>& written() { return written_; }

  // `watch_writes`: whether what runs meanwhile is Python code that may change state.
  void pause(bool watch_writes = false) {
    ++paused_;
    watch_writes_ = watch_writes;
  }
  void resume() {
    --paused_;
    watch_writes_ = false;
  }
  int paused() const { return paused_; }

  std::vector<py::object> take_codes();

 private:
  friend struct Instruction;

  static int trace(PyObject* self, PyFrameObject* frame, int what, PyObject* argument);
  void on_call(PyFrameObject* frame);
  void on_return(PyFrameObject* frame, PyObject* result);
  void on_instruction(PyFrameObject* frame);
  void note_place(const FrameView& view);
  void dispatch(_PyInterpreterFrame* f, int opcode, int oparg);
  void dispatch_reads(_PyInterpreterFrame* f, int opcode, int oparg);
  void dispatch_writes(_PyInterpreterFrame* f, int opcode, int oparg);
  void note_opaque_write(_PyInterpreterFrame* f, int opcode, int oparg);
  void note_initialized(_PyInterpreterFrame* f);
  void settle_pending(_PyInterpreterFrame* f);

  // Reads. Each leaves guards for what was found.
  int owner(PyObject* object);
  // Whether this was asked before in this recording: state does not change in one that is reusable.
  bool seen(const void* owner, PyObject* name);
  bool is_fresh(PyObject* object) const;
  void learn(int node, bool made, PyObject* value);
  void read_child(int node, Access access, PyObject* key, Py_ssize_t index, PyObject* value);
  void read_global(_PyInterpreterFrame* f, PyObject* name);
  void read_name(_PyInterpreterFrame* f, PyObject* name);
  void read_cell(_PyInterpreterFrame* f, int index);
  void read_attribute(PyObject* object, PyObject* name);
  void read_instance(PyObject* object, PyObject* name, PyObject* descriptor);
  void read_data_descriptor(PyObject* object, PyObject* name, PyObject* descriptor);
  void read_class(PyTypeObject* type, PyObject* name, PyObject* value);
  void read_special(PyObject* object, const char* name);
  void read_type_attribute(PyObject* type, PyObject* name);
  void read_super_attribute(PyObject* object, PyObject* name);
  void read_module_attribute(PyObject* module, PyObject* name);
  bool may_read(TensorState state, PyObject* tensor, bool argument) const;
  void read_tensor_attribute(PyObject* tensor, PyObject* name);
  void read_item(PyObject* object, PyObject* key);
  void read_dict_item(PyObject* dict, PyObject* key);
  void read_whole(PyObject* object);
  void read_length(PyObject* object);
  void read_iteration(PyObject* object);
  void read_identity(PyObject* a, PyObject* b);
  void read_contains(PyObject* container, PyObject* item);
  void read_context_manager(PyObject* object);
  void read_operand(PyObject* object);
  void read_binary(PyObject* left, PyObject* right, int operation);
  void read_foreign(PyObject* object);
  void read_self(int node, PyObject* object);
  void read_import(_PyInterpreterFrame* f, PyObject* name, PyObject* level);
  void read_warning_filters();
  void read_conversions(PyObject* object);
  void read_bases(PyObject* type);
  void read_function(PyObject* function);
  void advance(PyObject* iterator);

  // Writes.
  bool lasting(
      int root) const;  // whether a weak root outlives the call for sure: a module, class or function
  void write(PyObject* object, const std::string& what);
  // A write that a replay can make again, or else write(). `container`: the dict, list or cell that changes.
  void write_again(Effect::Kind kind, PyObject* object, PyObject* container, PyObject* key, Py_ssize_t index,
                   PyObject* value, const std::string& what);
  void enter_write(Effect effect, PyObject* container, PyObject* value, const std::string& what);
  bool read_as_other_number(int node, PyObject* key) const;
  void write_entry(PyObject* object, PyObject* name, PyObject* value, const std::string& what);
  void write_attribute(PyObject* object, PyObject* name, PyObject* value);
  void write_item(PyObject* object, PyObject* key, PyObject* value);
  void write_global(_PyInterpreterFrame* f, PyObject* name, PyObject* value);
  void write_cell(_PyInterpreterFrame* f, int index, PyObject* value);

  // Calls (calls.cpp).
  void call(PyObject* callable, PyObject* self, PyObject* const* args, Py_ssize_t count);
  void call_extended(PyObject* callable, PyObject* args, PyObject* kwargs);
  void call_function(PyObject* function, PyObject* self, PyObject* const* args, Py_ssize_t count);
  void call_type(PyTypeObject* type, PyObject* const* args, Py_ssize_t count);
  void call_builtin(PyObject* function, PyObject* const* args, Py_ssize_t count);
  void call_method(PyTypeObject* owner, const std::string& name, PyObject* self, PyObject* const* args,
                   Py_ssize_t count);
  void call_builtins_function(const std::string& name, PyObject* const* args, Py_ssize_t count);
  void call_tensor_method(const std::string& name, PyObject* const* args, Py_ssize_t count);
  void call_torch(const char* name, PyObject* const* args, Py_ssize_t count);
  void call_object_method(const std::string& name, PyObject* self, PyObject* const* args, Py_ssize_t count);
  void call_container_method(const std::string& name, PyObject* self, PyObject* const* args,
                             Py_ssize_t count);
  void call_context_variable(const std::string& name, PyObject* variable);
  void judge_callback(PyObject* callable);
  void call_operator_object(PyObject* callable, PyObject* const* args, Py_ssize_t count);
  void call_operator_function(const std::string& name, PyObject* const* args, Py_ssize_t count);
  void hand_over(PyObject* const* args, Py_ssize_t count);

  struct GlobalsNode {
    int node;
    Access access;
  };
  GlobalsNode globals_of(_PyInterpreterFrame* f);
  void fail(const std::string& reason);

  Recorder* recorder_;
  GuardTree* tree_;
  int paused_ = 0;
  bool watch_writes_ = false;
  Writes writes_;
  std::vector<Effect> written_;
  std::unordered_set<PyObject*> touched_;  // what opaque steps have written to
  bool started_ = false;
  Py_tracefunc older_ = nullptr;
  py::object older_argument_;
  Observer* outer_ = nullptr;
  bool collecting_ = false;

  std::unordered_map<PyObject*, int> known_;         // object -> guard node
  std::unordered_set<int> structural_;               // nodes whose contents the signature guards
  std::unordered_map<PyObject*, py::object> fresh_;  // made during the call -> weak reference
  std::unordered_map<PyObject*, int> input_;         // tensor argument -> register
  std::unordered_map<PyObject*, std::pair<int, Py_ssize_t>> cells_;
  std::unordered_set<PyObject*> shared_cells_;  // by several functions that were there before the call
  std::unordered_map<PyObject*, GlobalsNode> globals_;
  std::unordered_set<PyObject*> whole_;  // containers whose contents are all guarded
  std::unordered_map<_PyInterpreterFrame*, PyTypeObject*>
      pending_;  // frames whose next stack top is a new object
  struct Late {
    PyObject* object;
    py::object weak;  // empty: `held` keeps it
    py::object held;
    std::string what;
    Place place;
  };
  void remember_late(PyObject* object, const std::string& what);
  struct PairHash {
    size_t operator()(const std::pair<const void*, const void*>& p) const {
      return reinterpret_cast<size_t>(p.first) * 0x9E3779B97F4A7C15u ^ reinterpret_cast<size_t>(p.second);
    }
  };
  std::unordered_set<std::pair<const void*, const void*>, PairHash> seen_;
  std::vector<py::object> held_names_;
  py::object seen_code_, seen_bytes_;  // of the frame that ran last
  uintptr_t seen_flags_ = 0;
  std::vector<Late> late_;
  std::unordered_map<PyObject*, int> context_sets_;  // context variable -> sets that no reset has undone yet
  std::unordered_set<PyObject*> late_seen_;
  std::vector<py::object> held_;
  std::vector<py::object> codes_;
  PyObject* last_code_ = nullptr;
  bool own_place_ = false;               // whether a line outside installed packages has run
  _PyInterpreterFrame* base_ = nullptr;  // the frame that called the recorded function
  bool may_suppress_ = false;            // whether a context manager that may swallow exceptions was entered
  struct CodePlace {
    size_t operator()(const std::pair<PyCodeObject*, int>& p) const {
      return reinterpret_cast<size_t>(p.first) * 31 + static_cast<size_t>(p.second);
    }
  };
  std::unordered_map<std::pair<PyCodeObject*, int>, bool, CodePlace> catches_;
  bool ignore_print_ = false, ignore_logging_ = false;
  _PyInterpreterFrame* calling_ = nullptr;  // the frame that makes the call that is judged
  _PyInterpreterFrame* ignored_ = nullptr;  // until it goes on, or returns, nothing is recorded
  void begin_ignored(_PyInterpreterFrame* frame);
  void end_ignored();
  _PyInterpreterFrame* opaque_frame_ = nullptr;
  std::unique_ptr<OpaqueCall> opaque_;
  void begin_opaque(PyFrameObject* frame);
  void end_opaque(PyObject* result);
};

// What is known of a code object, kept with the code object itself.
enum CodeFlags : uintptr_t {
  kKnown = 1,
  kSkipped = 2,
  kUser = 4,
  kOpaque = 8,
  kInstalled = 16,
  kLogging = 32
};
uintptr_t code_flags(PyObject* code);
// Told by Python once: the folders of torch, of lazytrace and of the standard library, and the code objects
// that are opaque steps.
void configure_observer(const std::string& torch_folder, const std::string& own_folder,
                        const std::string& library_folder, const std::vector<py::object>& opaque_codes);

}  // namespace lazytrace
