// Watches the Python code of a recording, instruction by instruction, and keeps what it reads of the state
// around it.
#pragma once

#include <c10/util/FunctionRef.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "guard/guards.h"
#include "program/effects.h"
#include "record/operators/recorder.h"
#include "record/python/exchange.h"
#include "support/address_map.h"

struct _PyInterpreterFrame;

namespace lazytrace {

class OpaqueCall;
class FrameView;
struct CodeFacts;
struct Operation;
struct GlobalMemo;
struct Memo;
enum class TensorState;

// What a piece of C code does with what it is handed.
enum class Consumer : uint8_t {
  Reads,     // takes values out of it
  Compares,  // and asks which objects are equal: without an __eq__ these are the same ones
  Text,      // and writes it as text
  Trusted,   // is code of torch that is not watched: it reads attributes, too
};

enum class Does : uint8_t;

// What a write is called in a reason: put into words only where somebody will read them.
using Wording = c10::function_ref<std::string()>;

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

  // Python is given numbers that are followed in place of sizes.
  void follow_sizes() { exchange_ = std::make_unique<Exchange>(recorder_); }

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
  // Reads everything that code which cannot be seen could take from what it is handed.
  void consume(PyObject* object, Consumer how, int depth = 0);

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
  static int trace(PyObject* self, PyFrameObject* frame, int what, PyObject* argument);
  void on_call(PyFrameObject* frame);
  void on_return(PyFrameObject* frame, PyObject* result);
  void on_instruction(PyFrameObject* frame);
  void enter(PyObject* code);
  void note_place(const FrameView& view);
  void dispatch(_PyInterpreterFrame* f, const Operation& operation);
  void dispatch_reads(_PyInterpreterFrame* f, int opcode, int oparg);
  void dispatch_writes(_PyInterpreterFrame* f, int opcode, int oparg);
  void note_opaque_write(_PyInterpreterFrame* f, int opcode, int oparg);
  void note_initialized(_PyInterpreterFrame* f);
  void settle_pending(_PyInterpreterFrame* f);

  // Whether what the frame gives back goes to C code, or to code of torch that is not watched.
  bool goes_to_c(_PyInterpreterFrame* frame) const;
  // Whether the frame was not called by the code that runs: a signal handler, a destructor, a callback of a
  // weak reference.
  bool runs_aside(_PyInterpreterFrame* frame) const;
  void enter_trusted(_PyInterpreterFrame* f);
  void know_static(PyObject* value);
  void meet_function(_PyInterpreterFrame* f);
  void note_c_callee(_PyInterpreterFrame* f, bool passes_on);

  // Reads. Each leaves guards for what was found.
  // The node of an object that was there before the call, or -1: then it shows at the end whether it was.
  int owner(PyObject* object);
  // The node of the class of an object, which is guarded with the object.
  int class_node(PyTypeObject* type);
  int module_node(PyObject* module);
  int node_of_tensor(PyObject* tensor);
  void read_specials(PyTypeObject* type);
  void read_special(PyTypeObject* type, PyObject* name);
  void consume_parts(PyObject* object, Consumer how, int depth);
  void consume_container(PyObject* object, Consumer how, int depth);
  void consume_instance(PyObject* object, int depth);
  void consume_function(PyObject* function);
  void compare_as_itself(PyObject* object);
  void name_by_address(PyObject* object);
  // An object is looked up in a dict or a set.
  void use_as_key(PyObject* key);
  void read_classes(PyObject* object, PyObject* classes, bool subclass);
  void hash_object(PyObject* object);
  void identify(PyObject* object);
  void read_format(PyObject* const* args, Py_ssize_t count);
  void read_bound_self(PyObject* function, PyObject* self);
  void read_method(int node, PyObject* method);
  // Whether this was asked before in this recording: state does not change in one that is reusable.
  bool seen(const void* owner, PyObject* name);
  bool asked(const void* owner, const void* what);
  bool structural(int node) const {
    return static_cast<size_t>(node) < structural_.size() && structural_[static_cast<size_t>(node)];
  }
  bool is_fresh(PyObject* object) const;
  void learn(int node, bool made, PyObject* value);
  void read_child(int node, Access access, PyObject* key, Py_ssize_t index, PyObject* value);
  void read_global(_PyInterpreterFrame* f, PyObject* name);
  void read_name(_PyInterpreterFrame* f, PyObject* name);
  void read_cell(_PyInterpreterFrame* f, int index);
  void read_global_again(_PyInterpreterFrame* f, PyObject* name, GlobalMemo* memo);
  void read_attribute_again(PyObject* object, PyObject* name);
  bool holds(const Memo& memo, const void* object, PyObject* name, uint64_t version) const;
  void repeat(const Memo& memo, PyObject* object, PyObject* name);
  void read_namespace(PyObject* object);
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
  void read_tensor_entry(PyObject* tensor, PyObject* name, PyObject* descriptor);
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
  void read_self(int node, PyObject* object);
  void read_import(_PyInterpreterFrame* f, PyObject* name, PyObject* level);
  void read_warning_filters();
  void read_bases(PyObject* type);
  void read_function(PyObject* function);
  void advance(PyObject* iterator);

  // Writes.
  bool lasting(
      int root) const;  // whether a weak root outlives the call for sure: a module, class or function
  void write(PyObject* object, Wording what);
  // A write that a replay can make again, or else write(). `container`: the dict, list or cell that changes.
  void write_again(Effect::Kind kind, PyObject* object, PyObject* container, PyObject* key, Py_ssize_t index,
                   PyObject* value, Wording what);
  void enter_write(Effect effect, PyObject* container, PyObject* value, const std::string& what);
  bool read_as_other_number(int node, PyObject* key) const;
  void write_entry(PyObject* object, PyObject* name, PyObject* value, Wording what);
  void write_attribute(PyObject* object, PyObject* name, PyObject* value);
  void write_item(PyObject* object, PyObject* key, PyObject* value);
  void write_global(_PyInterpreterFrame* f, PyObject* name, PyObject* value);
  void write_cell(_PyInterpreterFrame* f, int index, PyObject* value);

  // Calls (calls.cpp).
  void call(PyObject* callable, PyObject* self, PyObject* const* args, Py_ssize_t count);
  void call_extended(PyObject* callable, PyObject* args, PyObject* kwargs);
  void call_function(PyObject* function, PyObject* self, PyObject* const* args, Py_ssize_t count);
  void call_type(PyTypeObject* type, PyObject* const* args, Py_ssize_t count);
  void call_type_itself(PyObject* const* args, Py_ssize_t count);
  void call_builtin(PyObject* function, PyObject* const* args, Py_ssize_t count);
  void call_descriptor(PyObject* callable, PyObject* const* args, Py_ssize_t count);
  void call_slot_wrapper(PyObject* callable, PyObject* const* args, Py_ssize_t count);
  void call_cache(PyObject* callable, PyObject* const* args, Py_ssize_t count);
  void call_partial(PyObject* callable, PyObject* const* args, Py_ssize_t count);
  void call_instance(PyObject* callable, PyObject* const* args, Py_ssize_t count);
  void call_method(PyTypeObject* owner, const std::string& name, PyObject* self, PyObject* const* args,
                   Py_ssize_t count);
  void call_tensor_method(const std::string& name, PyObject* const* args, Py_ssize_t count);
  void call_torch(const char* name, PyObject* const* args, Py_ssize_t count);
  void call_object_method(const std::string& name, PyObject* self, PyObject* const* args, Py_ssize_t count);
  void call_container_method(PyTypeObject* type, const std::string& name, PyObject* self,
                             PyObject* const* args, Py_ssize_t count);
  void call_context_variable(const std::string& name, PyObject* variable);
  void call_operator_object(PyObject* callable, PyObject* const* args, Py_ssize_t count);
  // What a row of callables.def says.
  void perform(Does does, const std::string& name, PyObject* const* args, Py_ssize_t count);
  void perform_on_objects(Does does, const std::string& name, PyObject* const* args, Py_ssize_t count);
  void judge_callback(PyObject* callable);
  void judge_method_callback(PyTypeObject* type, const std::string& name, PyObject* self);
  void set_plain_attribute(PyObject* self, PyObject* name, PyObject* value);
  void hand_over(PyObject* const* args, Py_ssize_t count, Consumer how);
  static std::string type_text(PyTypeObject* type);

  struct GlobalsNode {
    int node;
    Access access;
  };
  GlobalsNode globals_of(_PyInterpreterFrame* f);
  GlobalsNode globals_node(PyObject* globals, PyObject* function);
  void read_globals_of(int node, PyObject* function);
  void fail(const std::string& reason);

  Recorder* recorder_;
  GuardTree* tree_;
  std::unique_ptr<Exchange> exchange_;  // null: sizes are what they are
  int paused_ = 0;
  bool watch_writes_ = false;
  Writes writes_;
  std::vector<Effect> written_;
  AddressSet touched_;  // what opaque steps have written to
  bool started_ = false;
  Py_tracefunc older_ = nullptr;
  py::object older_argument_;
  Observer* outer_ = nullptr;
  bool collecting_ = false;

  uint64_t number_;                          // of this recording, among all of this process
  AddressMap<int> known_;                    // object -> guard node
  std::vector<char> structural_;             // by node: whether the signature guards its contents
  AddressMap<py::object> fresh_;             // made during the call -> weak reference
  AddressSet fresh_addresses_;               // of objects that were made during the call
  _PyInterpreterFrame* built_in_ = nullptr;  // the frame whose last instruction made a container
  AddressMap<int> input_;                    // tensor argument -> register
  AddressMap<std::pair<int, Py_ssize_t>> cells_;
  AddressSet shared_cells_;  // by several functions that were there before the call
  AddressMap<GlobalsNode> globals_;
  AddressSet whole_;                  // containers whose contents are all guarded
  std::vector<char> read_functions_;  // by node: functions whose defaults and cells are known
  // Frames whose next stack top is a new object; few at once.
  std::vector<std::pair<_PyInterpreterFrame*, PyTypeObject*>> pending_;
  void expect_new(_PyInterpreterFrame* f, PyTypeObject* type);
  void forget_pending(_PyInterpreterFrame* f);
  PyTypeObject* pending_of(_PyInterpreterFrame* f) const;
  // The frame whose next stack top is a class that it has made, or null.
  _PyInterpreterFrame* expect_class_ = nullptr;
  // By frame: whether the callee of its current instruction hands on what Python code gives back.
  AddressMap<bool> passes_on_;
  PyObject* keyword_names_ = nullptr;  // of the call that comes next, borrowed from its code
  bool hashing_tensor_ = false;
  struct Late {
    PyObject* object;
    py::object weak;  // empty: `held` keeps it
    py::object held;
    bool read;  // what was done, or else `what`
    std::string what;
    Place place;
  };
  void remember_read(PyObject* object);
  void remember_write(PyObject* object, Wording what);
  Late* remember_late(PyObject* object);
  std::vector<std::pair<const void*, const void*>> asked_;  // (owner, name), once each
  HashedNumbers asked_index_;
  std::vector<py::object> held_names_;
  py::object seen_code_;  // of the frame that ran last
  CodeFacts* seen_facts_ = nullptr;
  std::vector<Late> late_;
  std::unordered_map<PyObject*, int> context_sets_;  // context variable -> sets that no reset has undone yet
  AddressSet late_seen_;
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
  _PyInterpreterFrame* aside_ = nullptr;    // until it returns, what runs is not the function's work
  void begin_aside(_PyInterpreterFrame* frame);
  void end_aside();
  void note_fresh(PyObject* made);
  void note_new_arguments(_PyInterpreterFrame* f);
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
  kLogging = 32,
  kOwn = 64
};
uintptr_t code_flags(PyObject* code);

// Code of lazytrace itself.
inline bool is_own_code(PyObject* code) { return code_flags(code) & kOwn; }

// What the observer keeps in mind of an attribute that it has seen read. Good for one recording.
struct Memo {
  enum class Kind : uint8_t {
    Nothing,
    Itself,     // a module or a class that was asked itself: nothing
    Settled,    // of an instance: all that is read is its class
    Instance,   // the class, and the entry of the instance
    Namespace,  // the class, and the instance's __dict__
    Tensor,     // the class, of a tensor
    Method,     // the same, and what may have been put on the tensor itself
  } kind = Kind::Nothing;
  uint64_t recording = 0;
  const void* object =
      nullptr;  // the class, of an instance; the __dict__ of a module; a class that was asked
  uint64_t version = 0;
  py::object name;
  PyObject* descriptor = nullptr;  // borrowed: what the class has under the name, in this version
};

// The globals that an instruction has read a name of, and in which recording.
struct GlobalMemo {
  uint64_t recording = 0;
  PyObject* globals = nullptr;
};

// One instruction, with the bytes of EXTENDED_ARG before it taken in.
struct Operation {
  uint8_t opcode = 0;
  bool builds = false;    // puts a new container on the stack
  bool harmless = false;  // reads nothing of what was there before the call, writes nothing, calls nothing
  uint16_t memo = 0;      // 0: none
  int oparg = 0;
};

struct CodeFacts {
  uintptr_t flags = 0;
  std::vector<Operation> operations;  // by instruction; empty until the code is watched
  std::vector<GlobalMemo> memos;
};
// Told by Python once: the folders of torch, of lazytrace and of the standard library, and the code objects
// that are opaque steps.
void configure_observer(const std::string& torch_folder, const std::string& own_folder,
                        const std::string& library_folder, const std::vector<py::object>& opaque_codes);

}  // namespace lazytrace
