#include "record/python/observer.h"

#include <opcode.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <cstring>

#include "cpython/exception_table.h"
#include "cpython/frame.h"
#include "cpython/objects.h"
#include "cpython/values.h"
#include "program/value_tree.h"
#include "record/python/opaque_call.h"

namespace lazytrace {

// ---------------------------------------------------------------- code objects
namespace {

std::string torch_folder, own_folder, library_folder;
std::unordered_set<PyObject*> opaque_codes;  // kept alive by the modules that define them
Py_ssize_t code_slot = -1;

struct TrustedCode {
  const char* file;
  const char* name;
};
const TrustedCode kTrusted[] = {
#define TRUSTED(file, name, why) {file, name},
#include "torch/trusted_code.def"
#undef TRUSTED
};

bool trusted(const std::string& file, const std::string& name) {
  if (!own_folder.empty() && file.compare(0, own_folder.size(), own_folder) == 0) return true;
  if (file.compare(0, torch_folder.size(), torch_folder) != 0) return false;
  std::string inside = file.substr(torch_folder.size());
  for (const TrustedCode& row : kTrusted) {
    size_t n = std::strlen(row.file);
    bool here = inside.compare(0, n, row.file) == 0 && (inside.size() == n || inside[n] == '/');
    if (here && (!*row.name || name == row.name)) return true;
  }
  return false;
}

}  // namespace

void configure_observer(const std::string& torch, const std::string& own, const std::string& library,
                        const std::vector<py::object>& codes) {
  torch_folder = torch;
  own_folder = own;
  library_folder = library;
  for (auto& code : codes) opaque_codes.insert(code.ptr());
  for (auto& code : codes) Py_INCREF(code.ptr());
  if (code_slot < 0)
    code_slot = _PyEval_RequestCodeExtraIndex([](void* facts) { delete static_cast<CodeFacts*>(facts); });
}

namespace {
uintptr_t flags_of(PyObject* code) {
  std::string file = text_of(reinterpret_cast<PyCodeObject*>(code)->co_filename);
  uintptr_t flags = 0;
  if (trusted(file, text_of(reinterpret_cast<PyCodeObject*>(code)->co_qualname))) flags |= kSkipped;
  if (!own_folder.empty() && file.compare(0, own_folder.size(), own_folder) == 0) flags |= kOwn;
  // Lines of torch and of the standard library are watched, but a person looks for the line of theirs that
  // led there.
  bool library = file.compare(0, library_folder.size(), library_folder) == 0 &&
                 file.find("site-packages") == std::string::npos;
  bool nobodys = file == "<lazytrace>" || file.compare(0, 8, "<frozen ") == 0;
  if (file.compare(0, torch_folder.size(), torch_folder) != 0 && !(flags & kSkipped) && !library && !nobodys)
    flags |= kUser;
  // What torch.compile returns is entered here; naming the file does not import dynamo, which costs a second.
  bool compiled = text_of(reinterpret_cast<PyCodeObject*>(code)->co_name) == "compile_wrapper" &&
                  file == torch_folder + "_dynamo/eval_frame.py";
  if (file.find("site-packages") != std::string::npos) flags |= kInstalled;
  if (file == library_folder + "logging/__init__.py") flags |= kLogging;
  if (opaque_codes.count(code) || compiled) flags |= kOpaque;
  return flags;
}

CodeFacts* facts_of(PyObject* code) {
  void* extra = nullptr;
  _PyCode_GetExtra(code, code_slot, &extra);
  if (extra) return static_cast<CodeFacts*>(extra);
  auto* facts = new CodeFacts;
  facts->flags = flags_of(code);
  _PyCode_SetExtra(code, code_slot, facts);
  return facts;
}

// What these do touches the stack and the locals of their frame, and objects that they make.
bool is_harmless(int opcode) {
  switch (opcode) {
    case NOP:
    case POP_TOP:
    case PUSH_NULL:
    case RESUME:
    case CACHE:
    case COPY:
    case SWAP:
    case LOAD_CONST:
    case LOAD_FAST:
    case STORE_FAST:
    case DELETE_FAST:
    case JUMP_FORWARD:
    case JUMP_BACKWARD:
    case JUMP_BACKWARD_NO_INTERRUPT:
    case RETURN_VALUE:
    case BUILD_TUPLE:
    case BUILD_LIST:
    case BUILD_STRING:
    case BUILD_SLICE:
    case MAKE_CELL:
    case COPY_FREE_VARS:
    case LOAD_CLOSURE:
    case PRECALL:
    case POP_EXCEPT:
    case PUSH_EXC_INFO:
    case LOAD_ASSERTION_ERROR:
    case LIST_APPEND:
    case RETURN_GENERATOR:
    case YIELD_VALUE:
    case LIST_TO_TUPLE:
    case POP_JUMP_FORWARD_IF_NONE:
    case POP_JUMP_FORWARD_IF_NOT_NONE:
    case POP_JUMP_BACKWARD_IF_NONE:
    case POP_JUMP_BACKWARD_IF_NOT_NONE:
      return true;
    default:
      return false;
  }
}

// A new container on the stack; the empty tuple is one object for all.
bool builds_container(int opcode, int oparg) {
  return opcode == BUILD_LIST || opcode == BUILD_MAP || opcode == BUILD_SET ||
         opcode == BUILD_CONST_KEY_MAP || opcode == BUILD_SLICE || opcode == LIST_TO_TUPLE ||
         (opcode == BUILD_TUPLE && oparg > 0);
}

void decode(PyCodeObject* code, CodeFacts* facts) {
  // The code as it was compiled: the running copy has adapted instructions in it.
  py::object bytes = py::reinterpret_steal<py::object>(PyCode_GetCode(code));
  const auto* first = reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(bytes.ptr()));
  auto count = static_cast<size_t>(PyBytes_GET_SIZE(bytes.ptr())) / 2;
  facts->operations.resize(count);
  facts->memos.resize(1);
  for (size_t i = 0; i < count; ++i) {
    const unsigned char* at = first + 2 * i;
    int opcode = at[0], oparg = at[1];
    while (opcode == EXTENDED_ARG) {  // the instruction that it extends has no event of its own
      at += 2;
      opcode = at[0];
      oparg = oparg << 8 | at[1];
    }
    Operation& operation = facts->operations[i];
    operation.opcode = static_cast<uint8_t>(opcode);
    operation.oparg = oparg;
    operation.harmless = is_harmless(opcode);
    operation.builds = builds_container(opcode, oparg);
    if (opcode != LOAD_GLOBAL || facts->memos.size() > UINT16_MAX) continue;
    operation.memo = static_cast<uint16_t>(facts->memos.size());
    facts->memos.emplace_back();
  }
}
}  // namespace

uintptr_t code_flags(PyObject* code) { return facts_of(code)->flags; }

namespace {
// The observer of this thread: looked up at every instruction, where unpacking a capsule would show in the
// time of a recording.
thread_local Observer* watching = nullptr;

// An exception may be on its way while a frame is left; what the observer asks must not meet it.
class KeepError {
 public:
  KeepError() : set_(PyErr_Occurred() != nullptr) {
    if (set_) PyErr_Fetch(&type_, &value_, &traceback_);
  }
  ~KeepError() {
    if (set_) PyErr_Restore(type_, value_, traceback_);
  }

 private:
  bool set_;
  PyObject *type_ = nullptr, *value_ = nullptr, *traceback_ = nullptr;
};
}  // namespace

// ---------------------------------------------------------------- life
Observer::Observer(Recorder* recorder, GuardTree* tree) : recorder_(recorder), tree_(tree) {
  static uint64_t recordings = 0;  // counted with the GIL
  number_ = ++recordings;
  late_.reserve(64);
  held_.reserve(1024);
  held_names_.reserve(256);
  asked_.reserve(256);
}

Observer::~Observer() { stop(); }

void Observer::start() {
  PyThreadState* thread = PyThreadState_Get();
  base_ = current_frame();
  older_ = thread->c_tracefunc;
  older_argument_ = py::reinterpret_borrow<py::object>(thread->c_traceobj);
  outer_ = watching;
  watching = this;
  // A collection in the middle would run finalizers as if the function had called them.
  collecting_ = PyGC_Disable();
  PyEval_SetTrace(&Observer::trace, Py_None);
  started_ = true;
}

bool Observer::stop() {
  if (!started_) return true;
  started_ = false;
  watching = outer_;
  if (collecting_) PyGC_Enable();
  bool ours = PyThreadState_Get()->c_tracefunc == &Observer::trace;
  if (ours) PyEval_SetTrace(older_, older_argument_.ptr());
  return ours;
}

std::vector<py::object> Observer::take_codes() { return std::move(codes_); }

void Observer::fail(const std::string& reason) { recorder_->fail(reason); }

void Observer::add_root(PyObject* object, Py_ssize_t index, bool structural) {
  int node = tree_->root(index);
  known_.emplace(object, node);
  held_.push_back(py::reinterpret_borrow<py::object>(object));
  if (!structural) {
    tree_->expect(node, object);
    return PyMethod_Check(object) ? read_method(node, object) : void();
  }
  structural_.resize(static_cast<size_t>(node) + 1, 0);
  structural_.back() = 1;
}

void Observer::add_input(PyObject* tensor, int reg) {
  input_.emplace(tensor, reg);
  held_.push_back(py::reinterpret_borrow<py::object>(tensor));
}

int Observer::known(PyObject* object) const {
  const int* found = known_.find(object);
  if (!found || *found < 0) return -1;
  const Guard& guard = (*tree_)[*found];
  return guard.access != Access::Weak || still_alive(guard.weak, object) ? *found : -1;
}

int Observer::reach(PyObject* object) {
  int node = known(object);
  if (node >= 0) return node;
  bool lasts = PyType_Check(object) &&
               !PyType_HasFeature(reinterpret_cast<PyTypeObject*>(object), Py_TPFLAGS_HEAPTYPE);
  return lasts || is_enum_member(object) ? tree_->weak(object) : owner(object);
}

bool Observer::is_fresh(PyObject* object) const { return fresh_addresses_.count(object); }

bool Observer::touched_what_was_read() const {
  return touched_.any([&](const void* object) { return known_.count(object) || cells_.count(object); });
}

bool Observer::would_catch() {
  if (may_suppress_) return true;
  py::gil_scoped_acquire gil;
  for (_PyInterpreterFrame* f = current_frame(); f && f != base_; f = f->previous) {
    int at = _PyInterpreterFrame_LASTI(f);
    auto [known, missing] = catches_.try_emplace({f->f_code, at});
    if (missing) known->second = ExceptionTable(f->f_code).catches(at);
    if (known->second) return true;
  }
  return false;
}

// ---------------------------------------------------------------- events
int Observer::trace(PyObject*, PyFrameObject* frame, int what, PyObject* argument) try {
  Observer* observer = watching;
  if (!observer) return 0;
  if (!observer->recorder_->stopped() || observer->paused_ || what == PyTrace_RETURN) {
    if (what ==
        PyTrace_OPCODE) {  // no exception is on its way before an instruction, and nobody else listens
      observer->on_instruction(frame);
      return 0;
    }
    KeepError keep;
    if (what == PyTrace_CALL) observer->on_call(frame);
    if (what == PyTrace_RETURN) observer->on_return(frame, argument);
  } else if (what == PyTrace_CALL || what == PyTrace_OPCODE) {
    FrameView(frame).trace_instructions(false);  // the verdict stands: run on at full speed
  }
  if (observer->older_ && what != PyTrace_OPCODE)
    return observer->older_(observer->older_argument_.ptr(), frame, what, argument);
  return 0;
} catch (py::error_already_set& error) {  // a function that resumes went another way
  error.restore();
  return -1;
}

namespace {
// What dataclasses have written for a class of torch, called by code of torch that is not watched.
bool is_generated_for_trusted(_PyInterpreterFrame* f) {
  if (!f->previous || text_of(f->f_code->co_filename) != "<string>") return false;
  uintptr_t flags = code_flags(reinterpret_cast<PyObject*>(f->previous->f_code));
  PyObject* module = PyDict_GetItemString(f->f_globals, "__name__");
  return (flags & (kSkipped | kOwn)) == kSkipped && module && text_of(module).compare(0, 6, "torch.") == 0;
}

// Whether calling the type makes a new object, whatever its __init__ does: __new__ and the metaclass are C
// code.
bool makes_new(PyTypeObject* type) {
  if (type == &PyFunction_Type) return true;
  static PyObject *make = PyUnicode_InternFromString("__new__"),
                  *call = PyUnicode_InternFromString("__call__");
  PyObject *new_method = _PyType_Lookup(type, make), *meta_call = _PyType_Lookup(Py_TYPE(type), call);
  return new_method && PyCFunction_Check(new_method) && meta_call &&
         Py_IS_TYPE(meta_call, &PyWrapperDescr_Type);
}
}  // namespace

void Observer::on_call(PyFrameObject* frame) {
  FrameView view(frame);
  auto* f = view.interpreter_frame();
  forget_pending(f);
  uintptr_t flags = code_flags(view.code());
  if (!paused_ && ignore_logging_ && (flags & kLogging)) begin_ignored(f);
  if (!paused_ && !(flags & kSkipped) && runs_aside(f)) begin_aside(f);
  if (is_generated_for_trusted(f)) flags |= kSkipped;
  bool watch = (!paused_ || watch_writes_) && !(flags & kSkipped);
  view.trace_instructions(watch);
  if (!older_) view.trace_lines(false);
  if (paused_) return;
  if (flags & kOpaque) return begin_opaque(frame);
  if ((flags & kSkipped) && !(flags & kOwn)) return enter_trusted(f);
  if (!watch) return;
  note_new_arguments(f);
  note_initialized(f);
  if (f->f_func) meet_function(f);
}

namespace {
// The first argument of a frame that begins, or null.
PyObject* first_argument(_PyInterpreterFrame* f, int index = 0) {
  PyObject* value = f->f_code->co_argcount > index ? f->localsplus[index] : nullptr;
  return value && PyCell_Check(value) ? PyCell_GET(value) : value;
}
}  // namespace

// Trusted code is not watched, so what it is handed and what it holds counts as read, where code enters it
// that is no such code itself.
void Observer::enter_trusted(_PyInterpreterFrame* f) {
  _PyInterpreterFrame* caller = f->previous;
  if (!f->f_func || !caller) return;
  uintptr_t flags = code_flags(reinterpret_cast<PyObject*>(caller->f_code));
  if ((flags & kSkipped) && !(flags & kOwn)) return;
  consume_function(reinterpret_cast<PyObject*>(f->f_func));
  PyCodeObject* code = f->f_code;
  int count = code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) +
              ((code->co_flags & CO_VARKEYWORDS) != 0);
  for (int i = 0; i < count; ++i) {
    PyObject* value = f->localsplus[i];
    if (value && PyCell_Check(value)) value = PyCell_GET(value);
    consume(value, Consumer::Trusted);
  }
}

// A function that no read has led to was found by C code: a special method of the class of its first
// argument, which is guarded like one that Python code asks for. Any other is not known to be found again.
void Observer::meet_function(_PyInterpreterFrame* f) {
  auto* function = reinterpret_cast<PyObject*>(f->f_func);
  hashing_tensor_ = false;
  PyObject* self = first_argument(f);
  PyObject* name = f->f_code->co_name;
  if (known(function) < 0 && !is_fresh(function) && self) {
    if (_PyType_Lookup(Py_TYPE(self), name) == function) {
      read_class(Py_TYPE(self), name, function);
    } else if (PyType_Check(self)) {
      auto* type = reinterpret_cast<PyTypeObject*>(self);
      if (PyObject* found = _PyType_Lookup(type, name)) read_class(type, name, found);
    }
  }
  // What an operator calls, a replay has it call again: kernels and hooks in Python.
  if (recorder_->inside_operator() && known(function) < 0 && !is_fresh(function)) return;
  if (self && is_tensor(self)) hashing_tensor_ = text_of(name) == "__hash__";
  read_function(function);
}

bool Observer::runs_aside(_PyInterpreterFrame* f) const {
  // A handler of signals is given the frame that it interrupts.
  PyObject* interrupted = f->previous ? reinterpret_cast<PyObject*>(f->previous->frame_obj) : nullptr;
  for (int i = 1; interrupted && i < 3; ++i)
    if (first_argument(f, i) == interrupted) return true;
  PyObject* first = first_argument(f);
  // What is destroyed was there before the call: a replay that drops it destroys it, too.
  if (first && text_of(f->f_code->co_name) == "__del__") return !is_fresh(first) && makes_new(Py_TYPE(first));
  return first && PyWeakref_CheckRef(first) && PyWeakref_GET_OBJECT(first) == Py_None &&
         f->f_code->co_argcount == 1;
}

void Observer::note_c_callee(_PyInterpreterFrame* f, bool passes_on) { passes_on_[f] = passes_on; }

bool Observer::goes_to_c(_PyInterpreterFrame* f) const {
  _PyInterpreterFrame* caller = f->previous;
  if (!caller || caller == base_) return false;
  auto* code = reinterpret_cast<PyObject*>(caller->f_code);
  uintptr_t flags = code_flags(code);
  if (flags & kOwn) return false;
  if (flags & kSkipped) return true;
  CodeFacts* facts = facts_of(code);
  if (facts->operations.empty()) return true;
  int at = _PyInterpreterFrame_LASTI(caller);
  switch (facts->operations[static_cast<size_t>(std::max(at, 0))].opcode) {
    case CALL:
    case CALL_FUNCTION_EX:
    case FOR_ITER:
    case SEND:
    case LIST_EXTEND:
    case UNPACK_SEQUENCE:
    case UNPACK_EX: {
      const bool* passes = passes_on_.find(caller);
      return passes && !*passes;
    }
    case SET_UPDATE:
    case DICT_UPDATE:
    case DICT_MERGE:
    case CONTAINS_OP:
    case BINARY_OP:  // "%(a)s" % mapping
    case FORMAT_VALUE:
      return true;
    default:
      return false;
  }
}

void Observer::on_return(PyFrameObject* frame, PyObject* result) {
  FrameView view(frame);
  if (exchange_) exchange_->settle_call(view.interpreter_frame());
  if (ignored_ == view.interpreter_frame()) end_ignored();
  if (aside_ == view.interpreter_frame()) end_aside();
  forget_pending(view.interpreter_frame());
  if (opaque_frame_ == view.interpreter_frame()) end_opaque(result);
  if (result && !paused_ && !recorder_->stopped() && !is_immutable(result) &&
      goes_to_c(view.interpreter_frame()))
    consume(result, Consumer::Compares);
  // A generator may be run on by somebody else.
  view.trace_instructions(false);
  view.trace_lines(true);
}

void Observer::begin_ignored(_PyInterpreterFrame* frame) {
  ignored_ = frame;
  recorder_->pause();
  pause();
}

void Observer::end_ignored() {
  ignored_ = nullptr;
  recorder_->resume();
  resume();
}

// What is no part of the function's work is no part of the recording; what it writes, the function must not
// go on to read.
void Observer::begin_aside(_PyInterpreterFrame* frame) {
  aside_ = frame;
  recorder_->pause();
  pause(true);
}

void Observer::end_aside() {
  aside_ = nullptr;
  recorder_->resume();
  resume();
}

// The tuple behind *args and the dict behind **kwargs are made for the call.
void Observer::note_new_arguments(_PyInterpreterFrame* f) {
  PyCodeObject* code = f->f_code;
  int at = code->co_argcount + code->co_kwonlyargcount;
  for (int flag : {CO_VARARGS, CO_VARKEYWORDS}) {
    if (!(code->co_flags & flag)) continue;
    PyObject* made = f->localsplus[at++];
    if (made && PyCell_Check(made)) made = PyCell_GET(made);
    if (made && Py_SIZE(made)) fresh_addresses_.insert(made);
    if (made && PyDict_Check(made)) fresh_addresses_.insert(made);
  }
}

// Defaults and closure cells of a function that was there before the call.
void Observer::read_function(PyObject* function) {
  if (is_fresh(function)) return;
  int node = owner(function);
  if (node < 0) return;
  // Read once, as long as nothing was written to that its defaults may hold.
  auto at = static_cast<size_t>(node);
  if (read_functions_.size() <= at) read_functions_.resize(at + 256, 0);
  if (read_functions_[at] && writes_.empty() && touched_.empty()) return;
  read_functions_[at] = 1;
  auto* f = reinterpret_cast<PyFunctionObject*>(function);
  // The root alone has its defaults in the signature, and its globals by itself.
  bool root = (*tree_)[node].access == Access::Root && (*tree_)[node].index == 0;
  if (!root) read_globals_of(node, function);
  static PyObject *positional = PyUnicode_InternFromString("__defaults__"),
                  *by_keyword = PyUnicode_InternFromString("__kwdefaults__");
  for (PyObject* name : {positional, by_keyword}) {
    PyObject* value = name == positional ? f->func_defaults : f->func_kwdefaults;
    if (root) continue;
    read_child(node, Access::Attribute, name, -1, value ? value : Py_None);
    if (value) consume(value, Consumer::Reads);
  }
  PyObject* closure = PyFunction_GET_CLOSURE(function);
  for (Py_ssize_t i = 0; closure && i < PyTuple_GET_SIZE(closure); ++i) {
    PyObject* cell = PyTuple_GET_ITEM(closure, i);
    auto [known, first] = cells_.emplace(cell, std::make_pair(node, i));
    if (first) held_.push_back(py::reinterpret_borrow<py::object>(cell));
    if (known->first != node) shared_cells_.insert(cell);
  }
}

// Functions with one code can have other globals each.
void Observer::read_globals_of(int node, PyObject* function) {
  if (!by_path(node)) return;
  PyObject* globals = PyFunction_GET_GLOBALS(function);
  globals_node(globals, function);
  read_child(node, Access::Globals, nullptr, -1, globals);
}

void Observer::expect_new(_PyInterpreterFrame* f, PyTypeObject* type) {
  for (auto& [frame, made] : pending_)
    if (frame == f) {
      made = type;
      return;
    }
  pending_.emplace_back(f, type);
}

void Observer::forget_pending(_PyInterpreterFrame* f) {
  for (size_t i = pending_.size(); i-- > 0;)
    if (pending_[i].first == f) pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
}

PyTypeObject* Observer::pending_of(_PyInterpreterFrame* f) const {
  for (auto& [frame, type] : pending_)
    if (frame == f) return type;
  return nullptr;
}

// By its address: a weak reference would show. No object of before the call can lie where one of this call
// has lain.
void Observer::note_fresh(PyObject* made) {
  fresh_addresses_.insert(made);
  static PyObject* destructor_name = PyUnicode_InternFromString("__del__");
  if (_PyType_Lookup(Py_TYPE(made), destructor_name)) fresh_[made] = weak_reference(made);
}

// The object is new from the first line of its __init__ on.
void Observer::note_initialized(_PyInterpreterFrame* f) {
  PyTypeObject* type = f->previous ? pending_of(f->previous) : nullptr;
  if (!type || text_of(f->f_code->co_name) != "__init__") return;
  PyObject* self = f->f_code->co_argcount > 0 ? f->localsplus[0] : nullptr;
  if (self && PyCell_Check(self)) self = PyCell_GET(self);
  if (self && Py_TYPE(self) == type && makes_new(type) && known(self) < 0) note_fresh(self);
}

void Observer::settle_pending(_PyInterpreterFrame* f) {
  if (expect_class_ == f) {
    expect_class_ = nullptr;
    PyObject* made = f->stacktop > f->f_code->co_nlocalsplus ? peek(f, 1) : nullptr;
    if (made && PyType_Check(made) && known(made) < 0) note_fresh(made);
  }
  PyTypeObject* type = pending_of(f);
  if (!type) return;
  forget_pending(f);
  if (f->stacktop <= f->f_code->co_nlocalsplus) return;
  PyObject* made = peek(f, 1);
  if (made && Py_TYPE(made) == type && makes_new(type) && known(made) < 0) note_fresh(made);
}

// A person looks for a line of their own; one of an installed package serves where there is none, as for a
// model of a library.
void Observer::note_place(const FrameView& view) {
  bool installed = seen_facts_->flags & kInstalled;
  if (installed && own_place_) return;
  own_place_ |= !installed;
  if (last_code_ != view.code()) {
    last_code_ = view.code();
    codes_.push_back(py::reinterpret_borrow<py::object>(last_code_));
  }
  recorder_->place = Place{last_code_, view.lasti()};
}

void Observer::on_instruction(PyFrameObject* frame) {
  FrameView view(frame);
  if (ignored_ == view.interpreter_frame()) end_ignored();
  if ((paused_ && !watch_writes_) || recorder_->stopped()) return;
  auto* f = view.interpreter_frame();
  if (view.code() != seen_code_.ptr()) enter(view.code());
  const Operation& operation = seen_facts_->operations[static_cast<size_t>(view.instruction())];
  if (exchange_) exchange_->settle_call(f);
  if (built_in_ == f && !paused_) fresh_addresses_.insert(peek(f, 1));
  built_in_ = operation.builds ? f : nullptr;
  if ((!pending_.empty() || expect_class_) && !paused_) settle_pending(f);
  if (operation.harmless) return;
  if (paused_) return note_opaque_write(f, operation.opcode, operation.oparg);
  if (seen_facts_->flags & kUser) note_place(view);
  bool exchanges = exchange_ && !recorder_->inside_operator();
  if (exchanges) exchange_->before(f, operation);
  dispatch(f, operation);
  if (exchanges) exchange_->after();
}

void Observer::enter(PyObject* code) {
  seen_code_ = py::reinterpret_borrow<py::object>(code);
  seen_facts_ = facts_of(code);
  if (seen_facts_->operations.empty()) decode(reinterpret_cast<PyCodeObject*>(code), seen_facts_);
}

// What Python code inside an opaque step writes to: the function must not go on to read it, for its guards
// are checked before.
void Observer::note_opaque_write(_PyInterpreterFrame* f, int opcode, int oparg) {
  PyObject* target = nullptr;
  if (opcode == STORE_ATTR || opcode == DELETE_ATTR) target = peek(f, 1);
  if (opcode == STORE_SUBSCR || opcode == DELETE_SUBSCR) target = peek(f, 2);
  if (opcode == STORE_GLOBAL || opcode == DELETE_GLOBAL) target = f->f_globals;
  if (opcode == STORE_DEREF || opcode == DELETE_DEREF) target = f->localsplus[oparg];
  if (opcode == BINARY_OP && oparg >= 13) target = peek(f, 2);
  if (opcode == CALL) {
    PyObject* method = peek(f, oparg + 2);
    PyObject* callable = method ? method : peek(f, oparg + 1);
    PyObject* first = method ? peek(f, oparg + 1) : oparg ? peek(f, oparg) : nullptr;
    if (PyCFunction_Check(callable)) target = PyCFunction_GET_SELF(callable);
    if (!target || PyModule_Check(target)) target = first;
    if (PyFunction_Check(callable)) target = nullptr;
  }
  if (!target || is_tensor(target) || is_immutable(target) || PyModule_Check(target) || PyType_Check(target))
    return;
  if (touched_.insert(target)) held_.push_back(py::reinterpret_borrow<py::object>(target));
}

// ---------------------------------------------------------------- instructions
namespace {
// Whether calling it, or iterating over it, gives Python what Python code gives back, as it is.
bool hands_on(PyObject* callee) {
  if (PyFunction_Check(callee) || PyGen_CheckExact(callee) || PyCoro_CheckExact(callee)) return true;
  if (PyMethod_Check(callee)) return hands_on(PyMethod_GET_FUNCTION(callee));
  if (PyType_Check(callee)) return is_python_class(reinterpret_cast<PyTypeObject*>(callee));
  if (std::strcmp(Py_TYPE(callee)->tp_name, "functools.partial") == 0) return true;
  return is_python_class(Py_TYPE(callee));
}
}  // namespace

void Observer::dispatch(_PyInterpreterFrame* f, const Operation& operation) {
  int opcode = operation.opcode, oparg = operation.oparg;
  switch (opcode) {
    case BUILD_CONST_KEY_MAP:
    case RERAISE:
    case RAISE_VARARGS:
    case WITH_EXCEPT_START:
      return;
    case BUILD_SET:
      for (int i = 1; i <= oparg; ++i) use_as_key(peek(f, i));
      return;
    case BUILD_MAP:
      for (int i = 0; i < oparg; ++i) use_as_key(peek(f, 2 * i + 2));
      return;
    case SET_ADD:
      return use_as_key(peek(f, 1));
    case MAP_ADD:
      return use_as_key(peek(f, 2));
    case CHECK_EXC_MATCH:
      return consume(peek(f, 1), Consumer::Reads);
    case LOAD_GLOBAL:
      return operation.memo
                 ? read_global_again(f, name_at(f, oparg >> 1), &seen_facts_->memos[operation.memo])
                 : read_global(f, name_at(f, oparg >> 1));
    case LOAD_ATTR:
    case LOAD_METHOD:
      return read_attribute_again(peek(f, 1), name_at(f, oparg));
    case UNARY_NOT:
    case JUMP_IF_FALSE_OR_POP:
    case JUMP_IF_TRUE_OR_POP:
    case POP_JUMP_FORWARD_IF_FALSE:
    case POP_JUMP_FORWARD_IF_TRUE:
    case POP_JUMP_BACKWARD_IF_FALSE:
    case POP_JUMP_BACKWARD_IF_TRUE: {
      PyObject* asked = peek(f, 1);
      return asked == Py_True || asked == Py_False || asked == Py_None ? void() : read_length(asked);
    }
    case MAKE_FUNCTION:
      expect_new(f, &PyFunction_Type);
      return;
    case KW_NAMES:
      keyword_names_ = PyTuple_GET_ITEM(f->f_code->co_consts, oparg);
      return;
    case CALL: {
      calling_ = f;
      PyObject* method = peek(f, oparg + 2);
      note_c_callee(f, hands_on(method ? method : peek(f, oparg + 1)));
      PyObject** args = f->localsplus + f->stacktop - oparg;
      if (method)
        call(method, *(args - 1), args - 1, oparg + 1);
      else
        call(*(args - 1), nullptr, args, oparg);
      keyword_names_ = nullptr;
      PyObject* callee = method ? method : *(args - 1);
      if (PyType_Check(callee)) expect_new(f, reinterpret_cast<PyTypeObject*>(callee));
      return;
    }
    case CALL_FUNCTION_EX:
      calling_ = f;
      note_c_callee(f, hands_on(peek(f, oparg & 1 ? 3 : 2)));
      if (PyType_Check(peek(f, oparg & 1 ? 3 : 2)))
        expect_new(f, reinterpret_cast<PyTypeObject*>(peek(f, oparg & 1 ? 3 : 2)));
      return call_extended(peek(f, oparg & 1 ? 3 : 2), peek(f, oparg & 1 ? 2 : 1),
                           oparg & 1 ? peek(f, 1) : nullptr);
    case STORE_ATTR:
    case DELETE_ATTR:
    case STORE_SUBSCR:
    case DELETE_SUBSCR:
    case STORE_GLOBAL:
    case DELETE_GLOBAL:
    case STORE_NAME:
    case DELETE_NAME:
    case STORE_DEREF:
    case DELETE_DEREF:
      return dispatch_writes(f, opcode, oparg);
    default:
      return dispatch_reads(f, opcode, oparg);
  }
}

void Observer::dispatch_reads(_PyInterpreterFrame* f, int opcode, int oparg) {
  switch (opcode) {
    case LOAD_NAME:
      return read_name(f, name_at(f, oparg));
    case LOAD_BUILD_CLASS: {
      static PyObject* name = PyUnicode_InternFromString("__build_class__");
      return read_global(f, name);
    }
    case LOAD_DEREF:
    case LOAD_CLASSDEREF:
      return read_cell(f, oparg);
    case IMPORT_FROM:
      return read_attribute(peek(f, 1), name_at(f, oparg));
    case BINARY_SUBSCR:
      return read_item(peek(f, 2), peek(f, 1));
    case GET_ITER:
    case GET_YIELD_FROM_ITER:
      return read_iteration(peek(f, 1));
    case UNPACK_SEQUENCE:
    case UNPACK_EX:
    case LIST_EXTEND:
      note_c_callee(f, hands_on(peek(f, 1)));
      return read_iteration(peek(f, 1));
    case SET_UPDATE:
    case DICT_UPDATE:
    case DICT_MERGE:
      consume(peek(f, 1), Consumer::Compares);
      return read_iteration(peek(f, 1));
    case FOR_ITER:
      note_c_callee(f, hands_on(peek(f, 1)));
      return advance(peek(f, 1));
    case SEND:
      note_c_callee(f, true);
      return advance(peek(f, 2));
    case CONTAINS_OP:
      return read_contains(peek(f, 1), peek(f, 2));
    case IS_OP:
      return read_identity(peek(f, 2), peek(f, 1));
    case COMPARE_OP: {
      for (PyObject* operand : {peek(f, 1), peek(f, 2)}) {
        if (is_numpy_array(operand)) return fail("computes with a numpy array");
        consume(operand, Consumer::Compares);
      }
      return;
    }
    case BINARY_OP:
      return read_binary(peek(f, 2), peek(f, 1), oparg);
    case UNARY_NEGATIVE:
    case UNARY_POSITIVE:
    case UNARY_INVERT:
      return read_operand(peek(f, 1));
    case FORMAT_VALUE:
      return consume(peek(f, oparg & 4 ? 2 : 1), Consumer::Text);
    case GET_LEN:
      return read_length(peek(f, 1));
    case BEFORE_WITH:
      read_context_manager(peek(f, 1));
      read_special(peek(f, 1), "__enter__");
      return read_special(peek(f, 1), "__exit__");
    case IMPORT_NAME:
      return read_import(f, name_at(f, oparg), peek(f, 2));
    case MATCH_MAPPING:
    case MATCH_SEQUENCE:
      return read_length(peek(f, 1));
    case MATCH_KEYS:
      return consume(peek(f, 2), Consumer::Compares);
    default:
      fail("runs an instruction that lazytrace does not follow (opcode " + std::to_string(opcode) + ")");
  }
}

void Observer::dispatch_writes(_PyInterpreterFrame* f, int opcode, int oparg) {
  switch (opcode) {
    case STORE_ATTR:
      return write_attribute(peek(f, 1), name_at(f, oparg), peek(f, 2));
    case DELETE_ATTR:
      return write_attribute(peek(f, 1), name_at(f, oparg), nullptr);
    case STORE_SUBSCR:
      return write_item(peek(f, 2), peek(f, 1), peek(f, 3));
    case DELETE_SUBSCR:
      return write_item(peek(f, 2), peek(f, 1), nullptr);
    case STORE_GLOBAL:
      return write_global(f, name_at(f, oparg), peek(f, 1));
    case DELETE_GLOBAL:
      return write_global(f, name_at(f, oparg), nullptr);
    case STORE_NAME:
    case DELETE_NAME:
      if (f->f_locals == f->f_globals) fail("runs the body of a module");
      return;
    case STORE_DEREF:
      return write_cell(f, oparg, peek(f, 1));
    default:
      return write_cell(f, oparg, nullptr);
  }
}

void Observer::read_binary(PyObject* left, PyObject* right, int operation) {
  bool in_place = operation >= 13;
  // `%` writes text; `-`, `&`, `|` and `^` of sets compare.
  Consumer how = operation % 13 == 6 ? Consumer::Text : Consumer::Compares;
  for (PyObject* operand : {left, right})
    if (is_numpy_array(operand)) return fail("computes with a numpy array");
  consume(right, how);
  if (in_place && !is_tensor(left) && !is_immutable(left) && c_base(Py_TYPE(left)) != &PyBaseObject_Type &&
      !PyTuple_Check(left)) {
    read_specials(Py_TYPE(left));
    return write(left, [&] { return "changes a " + type_name(left) + " in place"; });
  }
  consume(left, how);
}

// torch's own context managers run in code that is not watched; one that is kept in state is read whole.
void Observer::read_context_manager(PyObject* object) {
  may_suppress_ |= is_python_class(Py_TYPE(object)) && !is_torch_class(Py_TYPE(object));
  int node = known(object);
  if (node < 0 || !is_python_class(Py_TYPE(object))) return;
  py::object dict = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(object, nullptr));
  if (!dict) return PyErr_Clear();
  read_child(node, Access::Namespace, nullptr, -1, dict.ptr());
  read_whole(dict.ptr());
}

// ---------------------------------------------------------------- provenance
Observer::Late* Observer::remember_late(PyObject* object) {
  if (!late_seen_.insert(object)) return nullptr;
  Late late{object, weak_reference(object), {}, true, "", recorder_->place};
  if (!late.weak) late.held = py::reinterpret_borrow<py::object>(object);
  late_.push_back(std::move(late));
  return &late_.back();
}

void Observer::remember_read(PyObject* object) { remember_late(object); }

void Observer::remember_write(PyObject* object, Wording what) {
  Late* late = remember_late(object);
  if (!late) return;
  late->read = false;
  late->what = what();
}

int Observer::owner(PyObject* object) {
  if (touched_.count(object)) fail("reads a " + type_name(object) + " that an opaque function has changed");
  int node = known(object);
  if (node >= 0) return node;
  if (is_tensor(object) || is_immutable(object) || is_fresh(object)) return -1;
  // What classes of C are made of never changes.
  if ((Py_IS_TYPE(object, &PyMethodDescr_Type) || Py_IS_TYPE(object, &PyWrapperDescr_Type)) &&
      !PyType_HasFeature(reinterpret_cast<PyDescrObject*>(object)->d_type, Py_TPFLAGS_HEAPTYPE))
    return -1;
  // Nothing that was read has led to it. What this call has made is gone at its end, or part of the result.
  remember_read(object);
  return -1;
}

int Observer::class_node(PyTypeObject* type) {
  auto* object = reinterpret_cast<PyObject*>(type);
  int node = known(object);
  if (node >= 0 || is_fresh(object)) return node;
  node = tree_->weak(object);
  known_[object] = node;
  return node;
}

int Observer::module_node(PyObject* module) {
  int node = known(module);
  if (node >= 0) return node;
  return known_[module] = tree_->weak(module);
}

int Observer::node_of_tensor(PyObject* tensor) {
  int node = known(tensor);
  const int* argument = node < 0 ? input_.find(tensor) : nullptr;
  if (!argument) return node;
  bool first;
  node = tree_->child(-1, Access::Input, nullptr, *argument, &first);
  known_.emplace(tensor, node);
  return node;
}

void Observer::learn(int node, bool made, PyObject* value) {
  if (!made) return;
  tree_->expect(node, value);
  Expect expected = (*tree_)[node].expect;
  // Immutable values are kept as constants, and members of enums by their identity.
  if (!value || expected == Expect::Constant || is_enum_member(value)) return;
  if (expected == Expect::Tensor) {
    if (const int* input = input_.find(value))
      (*tree_)[node].same_input = *input;
    else
      recorder_->explain(THPVariable_Unpack(value), node, is_parameter(value));
  }
  int before = known(value);
  if (before >= 0) {
    if (before < node) (*tree_)[node].same = before;
    return;
  }
  if (is_fresh(value)) return;
  known_[value] = node;
  held_.push_back(py::reinterpret_borrow<py::object>(value));
  if (PyMethod_Check(value)) read_method(node, value);
}

// A bound method is its function and its object.
void Observer::read_method(int node, PyObject* method) {
  static PyObject *function = PyUnicode_InternFromString("__func__"),
                  *self = PyUnicode_InternFromString("__self__");
  read_child(node, Access::Attribute, function, -1, PyMethod_GET_FUNCTION(method));
  read_child(node, Access::Attribute, self, -1, PyMethod_GET_SELF(method));
}

void Observer::read_child(int node, Access access, PyObject* key, Py_ssize_t index, PyObject* value) {
  bool made;
  int child = tree_->child(node, access, key, index, &made);
  learn(child, made, value);
}

// ---------------------------------------------------------------- names
Observer::GlobalsNode Observer::globals_of(_PyInterpreterFrame* f) {
  return globals_node(f->f_globals, reinterpret_cast<PyObject*>(f->f_func));
}

// `function`: one that has these globals, or null.
Observer::GlobalsNode Observer::globals_node(PyObject* globals, PyObject* function) {
  if (const GlobalsNode* found = globals_.find(globals)) return *found;
  GlobalsNode result{-1, Access::Item};
  PyObject* name = PyDict_GetItemString(globals, "__name__");
  PyObject* module = name && PyUnicode_Check(name) ? PyDict_GetItem(PyImport_GetModuleDict(), name) : nullptr;
  if (module && PyModule_Check(module) && PyModule_GetDict(module) == globals) {
    result = {module_node(module), Access::Instance};
  } else if (function) {
    int node = owner(function);
    if (node >= 0) {
      bool made;
      result.node = tree_->child(node, Access::Globals, nullptr, -1, &made);
    }
  }
  if (result.node < 0) fail("reads global names of a function that cannot be reached again");
  held_.push_back(py::reinterpret_borrow<py::object>(globals));
  known_.emplace(globals, result.node);
  if (result.access == Access::Instance && result.node >= 0) {
    bool made;
    known_[globals] = tree_->child(result.node, Access::Namespace, nullptr, -1, &made);
  }
  return globals_[globals] = result;
}

// `seen` asks the same of the whole recording; this of one instruction, and without a search.
void Observer::read_global_again(_PyInterpreterFrame* f, PyObject* name, GlobalMemo* memo) {
  if (memo->recording == number_ && memo->globals == f->f_globals && touched_.empty()) return;
  if (touched_.empty()) *memo = {number_, f->f_globals};
  read_global(f, name);
}

void Observer::read_global(_PyInterpreterFrame* f, PyObject* name) {
  if (touched_.empty() && seen(f->f_globals, name)) return;
  GlobalsNode globals = globals_of(f);
  if (globals.node < 0) return;
  if (writes_.wrote(f->f_globals, name)) return;
  if (touched_.count(f->f_globals))
    fail("reads the global " + text_of(name) + " after an opaque function has set globals");
  PyObject* value = PyDict_GetItemWithError(f->f_globals, name);
  read_child(globals.node, globals.access, name, -1, value);
  if (value) return;
  PyObject* builtins = PyImport_AddModule("builtins");  // borrowed
  if (PyModule_GetDict(builtins) != f->f_builtins) return fail("runs with builtins of its own");
  read_child(module_node(builtins), Access::Instance, name, -1, PyDict_GetItemWithError(f->f_builtins, name));
}

void Observer::read_name(_PyInterpreterFrame* f, PyObject* name) {
  if (f->f_locals && f->f_locals != f->f_globals && PyDict_Check(f->f_locals) &&
      PyDict_GetItemWithError(f->f_locals, name))
    return;
  read_global(f, name);
}

void Observer::read_cell(_PyInterpreterFrame* f, int index) {
  PyObject* cell = f->localsplus[index];
  if (!cell || !PyCell_Check(cell)) return;
  if (touched_.count(cell)) fail("reads a variable that an opaque function has changed");
  if (writes_.wrote_to(cell)) return;
  const std::pair<int, Py_ssize_t>* found = cells_.find(cell);
  if (!found && shared_cells_.empty()) return;  // one of this call
  // Two functions share it now; each may have one of its own at the next call.
  if (shared_cells_.count(cell) && f->f_func && !is_fresh(reinterpret_cast<PyObject*>(f->f_func))) {
    int first = f->f_code->co_nlocalsplus - f->f_code->co_nfreevars;
    int function = owner(reinterpret_cast<PyObject*>(f->f_func));
    if (index >= first && function >= 0)
      read_child(function, Access::Cell, nullptr, index - first, PyCell_GET(cell));
  }
  if (found) read_child(found->first, Access::Cell, nullptr, found->second, PyCell_GET(cell));
}

void Observer::read_module_attribute(PyObject* module, PyObject* name) {
  if (!PyModule_CheckExact(module)) {
    // A module with a class of its own: torch.backends and others have properties.
    PyObject* descriptor = _PyType_Lookup(Py_TYPE(module), name);
    read_class(Py_TYPE(module), name, descriptor);
    if (descriptor && Py_TYPE(descriptor)->tp_descr_set)
      return read_data_descriptor(module, name, descriptor);
  }
  int node = owner(module);
  if (node < 0) return;
  if (writes_.wrote(PyModule_GetDict(module), name)) return;
  PyObject* value = PyDict_GetItemWithError(PyModule_GetDict(module), name);
  read_child(node, Access::Instance, name, -1, value);
  if (value) return;
  py::str fallback("__getattr__");
  PyObject* getter = PyDict_GetItemWithError(PyModule_GetDict(module), fallback.ptr());
  if (getter) read_child(node, Access::Instance, fallback.ptr(), -1, getter);
}

// `import a.b`: what sys.modules has under the name and under its first part.
void Observer::read_import(_PyInterpreterFrame* f, PyObject* name, PyObject* level) {
  std::string full = text_of(name);
  if (Py_ssize_t up = PyLong_AsSsize_t(level); up > 0) {
    PyObject* package = PyDict_GetItemString(f->f_globals, "__package__");
    std::string base = package ? text_of(package) : "";
    for (; up > 1; --up) base = base.substr(0, base.rfind('.') == std::string::npos ? 0 : base.rfind('.'));
    full = full.empty() ? base : base + "." + full;
  }
  PyObject* system = PyImport_AddModule("sys");
  bool made;
  int modules = tree_->child(module_node(system), Access::Instance, py::str("modules").ptr(), -1, &made);
  learn(modules, made, PyImport_GetModuleDict());
  for (const std::string& one : {full.substr(0, full.find('.')), full}) {
    py::str key(one);
    read_child(modules, Access::Item, key.ptr(), -1,
               PyDict_GetItemWithError(PyImport_GetModuleDict(), key.ptr()));
  }
}

// ---------------------------------------------------------------- attributes
bool Observer::asked(const void* owner, const void* what) {
  size_t hash =
      spread(reinterpret_cast<uintptr_t>(owner)) * 31 ^ spread(reinterpret_cast<uintptr_t>(what) << 4);
  auto same = [&](int at) { return asked_[static_cast<size_t>(at)] == std::make_pair(owner, what); };
  if (asked_index_.find(hash, same) >= 0) return true;
  asked_index_.add(hash, static_cast<int>(asked_.size()));
  asked_.emplace_back(owner, what);
  return false;
}

bool Observer::seen(const void* owner, PyObject* name) {
  if (asked(owner, name)) return true;
  held_names_.push_back(
      py::reinterpret_borrow<py::object>(name));  // a computed name must not lend its address to the next
  return false;
}

void Observer::read_class(PyTypeObject* type, PyObject* name, PyObject* value) {
  if (seen(type, name)) return;
  int node = class_node(type);
  if (node < 0) return;
  bool made;
  int child = tree_->child(node, Access::Class, name, -1, &made);
  learn(child, made, value);
  if (!made || !value) return;
  // What hides behind a descriptor is reached through it.
  const char* inner = nullptr;
  if (Py_IS_TYPE(value, &PyProperty_Type)) inner = "fget";
  if (Py_IS_TYPE(value, &PyClassMethod_Type) || Py_IS_TYPE(value, &PyStaticMethod_Type)) inner = "__func__";
  py::str key(inner ? inner : "__wrapped__");
  bool proxy =
      !inner && _PyType_Lookup(Py_TYPE(value), key.ptr()) && !PyFunction_Check(value) && !PyType_Check(value);
  if (!inner && !proxy) return;
  py::object target = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(value, key.ptr()));
  if (!target) return PyErr_Clear();
  read_child(child, Access::Attribute, key.ptr(), -1, target.ptr());
}

void Observer::read_special(PyObject* object, const char* name) {
  PyTypeObject* type = Py_TYPE(object);
  if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) || asked(type, name)) return;
  // Names are literals of this file: interned once by address.
  static auto* interned = new std::unordered_map<const char*, PyObject*>();
  PyObject*& key = (*interned)[name];
  if (!key) key = PyUnicode_InternFromString(name);
  read_special(type, key);
}

namespace {
bool overrides_getattribute(PyTypeObject* type) {
  if (type->tp_getattro == PyObject_GenericGetAttr) return false;
  static PyObject* name = PyUnicode_InternFromString("__getattribute__");
  PyObject* found = _PyType_Lookup(type, name);
  return found && PyFunction_Check(found);
}
bool generic_lookup(PyTypeObject* type) {
  if (type->tp_getattro == PyObject_GenericGetAttr) return true;
  // A Python class with __getattr__ looks up generically first; its slot is the one that nn.Module has.
  static const getattrofunc hook = [] {
    py::object module = py::module_::import("torch.nn").attr("Module");
    return reinterpret_cast<PyTypeObject*>(module.ptr())->tp_getattro;
  }();
  return type->tp_getattro == hook && c_base(type)->tp_getattro == PyObject_GenericGetAttr;
}
}  // namespace

void Observer::read_attribute(PyObject* object, PyObject* name) {
  PyTypeObject* type = Py_TYPE(object);
  if (is_tensor(object)) return read_tensor_attribute(object, name);
  if (PyModule_Check(object)) return read_module_attribute(object, name);
  if (PyType_Check(object)) return read_type_attribute(object, name);
  if (Py_IS_TYPE(object, &PySuper_Type)) return read_super_attribute(object, name);
  if (overrides_getattribute(type)) return read_special(object, "__getattribute__");
  PyObject* descriptor = _PyType_Lookup(type, name);
  if (!generic_lookup(type)) {
    if (is_numpy_array(object)) return fail("reads ." + text_of(name) + " of a numpy array");
    if (PyMethod_Check(object)) {
      int node = owner(object);
      py::object value = py::reinterpret_steal<py::object>(PyObject_GetAttr(object, name));
      if (!value) return PyErr_Clear();
      if (node >= 0 && (*tree_)[node].access != Access::Weak)
        read_child(node, Access::Attribute, name, -1, value.ptr());
      return;
    }
    return fail("reads ." + text_of(name) + " of a " + type_name(object));
  }
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
    read_special(object, "__getattribute__");
    read_class(type, name, descriptor);
  } else {
    know_static(descriptor);
  }
  if (descriptor && Py_TYPE(descriptor)->tp_descr_set) return read_data_descriptor(object, name, descriptor);
  read_instance(object, name, descriptor);
}

void Observer::read_namespace(PyObject* object) {
  int node = owner(object);
  PyObject* dict = PyObject_GenericGetDict(object, nullptr);
  if (node >= 0 && dict) read_child(node, Access::Namespace, nullptr, -1, dict);
  Py_XDECREF(dict);
  PyErr_Clear();
}

void Observer::read_instance(PyObject* object, PyObject* name, PyObject* descriptor) {
  PyObject** dict = _PyObject_GetDictPtr(object);
  PyObject* value = dict && *dict ? PyDict_GetItemWithError(*dict, name) : nullptr;
  if (value && writes_.wrote(*dict, name)) return;
  int node = !dict ? -1 : is_enum_member(object) ? tree_->weak(object) : owner(object);
  if (node >= 0) read_child(node, Access::Instance, name, -1, value);
  if (value || descriptor) return;
  read_special(object, "__getattr__");
  static PyObject* fallback = PyUnicode_InternFromString("__getattr__");
  PyObject* getter = _PyType_Lookup(Py_TYPE(object), fallback);
  // class Config(dict): __getattr__ = dict.__getitem__
  if (getter && !PyFunction_Check(getter) && !PyType_Check(getter))
    call(getter, nullptr, std::array<PyObject*, 2>{object, name}.data(), 2);
}

void Observer::read_data_descriptor(PyObject* object, PyObject* name, PyObject* descriptor) {
  if (Py_IS_TYPE(descriptor, &PyProperty_Type)) {
    PyObject* getter = PyObject_GetAttrString(descriptor, "fget");
    if (getter && !PyFunction_Check(getter)) fail("reads ." + text_of(name) + ", a property made in C");
    Py_XDECREF(getter);
    return;
  }
  bool member = Py_IS_TYPE(descriptor, &PyMemberDescr_Type),
       computed = Py_IS_TYPE(descriptor, &PyGetSetDescr_Type);
  if (!member && !computed) {
    // A Python descriptor shows itself in its __get__; one written in C must be known.
    if (PyType_HasFeature(Py_TYPE(descriptor), Py_TPFLAGS_HEAPTYPE))
      return read_special(descriptor, "__get__");
    if (PyTuple_Check(object)) return read_whole(object);  // the fields of a named tuple
    return fail("reads ." + text_of(name) + " of a " + type_name(object));
  }
  std::string text = text_of(name);
  if (text == "__dict__") return read_namespace(object);
  if (text == "__weakref__") return fail("reads the weak references of a " + type_name(object));
  int node = owner(object);
  if (text == "__class__") {
    class_node(Py_TYPE(object));
    return node >= 0
               ? read_child(node, Access::Type, nullptr, -1, reinterpret_cast<PyObject*>(Py_TYPE(object)))
               : void();
  }
  py::object value = py::reinterpret_steal<py::object>(
      Py_TYPE(descriptor)->tp_descr_get(descriptor, object, reinterpret_cast<PyObject*>(Py_TYPE(object))));
  if (!value) PyErr_Clear();
  if (computed && value && !is_immutable(value.ptr()) && !is_tensor(value.ptr())) {
    // One that is made at each access shows memory that no guard knows.
    py::object again = py::reinterpret_steal<py::object>(
        Py_TYPE(descriptor)->tp_descr_get(descriptor, object, reinterpret_cast<PyObject*>(Py_TYPE(object))));
    if (!again) PyErr_Clear();
    if (again.ptr() != value.ptr()) return fail("reads ." + text + " of a " + type_name(object));
  }
  if (node >= 0) read_child(node, Access::Attribute, name, -1, value.ptr());
}

void Observer::read_type_attribute(PyObject* object, PyObject* name) {
  auto* type = reinterpret_cast<PyTypeObject*>(object);
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) owner(object);
  PyTypeObject* meta = Py_TYPE(object);
  PyObject* meta_value = _PyType_Lookup(meta, name);
  if (PyType_HasFeature(meta, Py_TPFLAGS_HEAPTYPE) && meta->tp_getattro != PyType_Type.tp_getattro &&
      overrides_getattribute(meta))
    return read_special(object, "__getattribute__");
  if (meta_value && Py_TYPE(meta_value)->tp_descr_set && !Py_IS_TYPE(meta_value, &PyProperty_Type)) {
    if (text_of(name) == "__dict__") return fail("reads the __dict__ of a class");
    py::object found =
        py::reinterpret_steal<py::object>(PyObject_GetAttr(object, name));  // __name__, __mro__ and the like
    if (!found) return PyErr_Clear();
    if (int node = is_python_class(type) ? owner(object) : -1; node >= 0)
      read_child(node, Access::Attribute, name, -1, found.ptr());
    return PyTuple_Check(found.ptr()) ? read_whole(found.ptr()) : void();
  }
  if (PyType_HasFeature(meta, Py_TPFLAGS_HEAPTYPE)) read_class(meta, name, meta_value);
  PyObject* value = _PyType_Lookup(type, name);
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE))
    read_class(type, name, value);
  else
    know_static(value);
  if (!value && !meta_value) read_special(object, "__getattr__");
}

// What a class of C has never changes.
void Observer::know_static(PyObject* value) {
  if (value && Py_IS_TYPE(value, &PyStaticMethod_Type)) {
    py::object inner = py::reinterpret_steal<py::object>(PyObject_GetAttrString(value, "__func__"));
    value = inner.ptr();  // the class keeps it
    PyErr_Clear();
  }
  if (value && is_free_builtin(value) && known(value) < 0) known_[value] = tree_->weak(value);
}

void Observer::read_super_attribute(PyObject* object, PyObject* name) {
  py::object start =
      py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(object, py::str("__thisclass__").ptr()));
  py::object type =
      py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(object, py::str("__self_class__").ptr()));
  if (!start || !type || !PyType_Check(type.ptr())) return PyErr_Clear();
  PyObject* mro = reinterpret_cast<PyTypeObject*>(type.ptr())->tp_mro;
  bool after = false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); ++i) {
    auto* cls = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro, i));
    if (after) {
      PyObject* value = PyDict_GetItemWithError(cls->tp_dict, name);
      int node = PyType_HasFeature(cls, Py_TPFLAGS_HEAPTYPE) ? class_node(cls) : -1;
      if (node >= 0)
        read_child(node, Access::Own, name, -1, value);
      else
        know_static(value);
      if (value) return;
    }
    after |= reinterpret_cast<PyObject*>(cls) == start.ptr();
  }
}

enum class TensorState { Plain, Hidden, Leaf, GradFn, Data };

namespace {

// What torch keeps beside the values of a tensor, and may change while neither shape nor dtype does. By
// interned name.
TensorState tensor_state(PyObject* name) {
  static const auto* known = [] {
    auto* table = new std::unordered_map<PyObject*, TensorState>();
    for (const char* hidden : {"grad", "_grad", "_version", "_base", "output_nr", "_backward_hooks",
                               "_post_accumulate_grad_hooks", "_cdata", "retains_grad", "name", "volatile"})
      (*table)[PyUnicode_InternFromString(hidden)] = TensorState::Hidden;
    (*table)[PyUnicode_InternFromString("is_leaf")] = TensorState::Leaf;
    (*table)[PyUnicode_InternFromString("grad_fn")] = TensorState::GradFn;
    (*table)[PyUnicode_InternFromString("data")] = TensorState::Data;
    return table;
  }();
  py::object held = py::reinterpret_borrow<py::object>(name);
  PyObject* interned = held.release().ptr();
  PyUnicode_InternInPlace(&interned);
  auto found = known->find(interned);
  Py_DECREF(interned);
  return found == known->end() ? TensorState::Plain : found->second;
}

}  // namespace

bool Observer::may_read(TensorState state, PyObject* tensor, bool argument) const {
  // Made by an operator of this call: what autograd knows of it follows from the call.
  bool made = !argument && known(tensor) < 0;
  if (state == TensorState::Leaf) return made || argument;
  return state == TensorState::GradFn && made && !THPVariable_Unpack(tensor).grad_fn();
}

void Observer::read_tensor_attribute(PyObject* tensor, PyObject* name) {
  recorder_->saw(THPVariable_Unpack(tensor));
  bool argument = input_.count(tensor);
  PyObject* descriptor = _PyType_Lookup(Py_TYPE(tensor), name);
  read_class(Py_TYPE(tensor), name, descriptor);
  TensorState state = tensor_state(name);
  if (state == TensorState::Data) return recorder_->saw_data(THPVariable_Unpack(tensor));
  if (state != TensorState::Plain && !may_read(state, tensor, argument))
    return fail("reads ." + text_of(name) + " of a tensor");
  if (!descriptor || !Py_TYPE(descriptor)->tp_descr_set) read_tensor_entry(tensor, name, descriptor);
}

// What was put on the tensor itself under the name of a method, or of nothing that its class has.
void Observer::read_tensor_entry(PyObject* tensor, PyObject* name, PyObject* descriptor) {
  PyObject** dict = _PyObject_GetDictPtr(tensor);
  PyObject* value = dict && *dict ? PyDict_GetItemWithError(*dict, name) : nullptr;
  if (!value && descriptor) return;  // a method
  int node = node_of_tensor(tensor);
  if (node >= 0) return read_child(node, Access::Instance, name, -1, value);
  if (value) fail("reads ." + text_of(name) + ", an attribute that was put on a tensor");
}

namespace {
// What read_attribute() will do again for the next object of this class, or for this module or class.
Memo::Kind kind_of(PyObject* object, PyObject* name, PyObject* descriptor) {
  if (PyModule_Check(object) || PyType_Check(object)) return Memo::Kind::Itself;
  PyTypeObject* type = Py_TYPE(object);
  bool data = descriptor && Py_TYPE(descriptor)->tp_descr_set;
  if (is_tensor(object)) {
    if (tensor_state(name) != TensorState::Plain) return Memo::Kind::Nothing;
    return data ? Memo::Kind::Tensor : Memo::Kind::Method;
  }
  if (Py_IS_TYPE(object, &PySuper_Type)) return Memo::Kind::Nothing;
  if (overrides_getattribute(type)) return Memo::Kind::Settled;
  if (!generic_lookup(type)) return Memo::Kind::Nothing;
  if (!data) return Memo::Kind::Instance;
  if (Py_IS_TYPE(descriptor, &PyProperty_Type)) return Memo::Kind::Settled;
  bool computed = Py_IS_TYPE(descriptor, &PyGetSetDescr_Type);
  return computed && text_of(name) == "__dict__" ? Memo::Kind::Namespace : Memo::Kind::Nothing;
}

uint64_t version_of(PyTypeObject* type) {
  return PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0;
}

// One for each (object, name) of the last recordings, whoever comes last: asked and filled with the GIL.
Memo& memo_of(const void* object, PyObject* name) {
  static auto* memos = new std::array<Memo, 1024>();
  size_t place = spread(reinterpret_cast<uintptr_t>(object)) * 31 + spread(reinterpret_cast<uintptr_t>(name));
  return (*memos)[place & (memos->size() - 1)];
}
}  // namespace

// read_attribute() without what it has done in this recording already. CPython gives a class and a dict
// another version at each change, and no version twice: where the version is that of the memo, the class or
// the module is the same, and so is what it has under the name.
void Observer::read_attribute_again(PyObject* object, PyObject* name) {
  PyTypeObject* type = Py_TYPE(object);
  Memo& of_type = memo_of(type, name);
  if (of_type.kind != Memo::Kind::Itself && holds(of_type, type, name, version_of(type)))
    return repeat(of_type, object, name);
  bool module = PyModule_Check(object), itself = PyType_Check(object);
  // What a module or a class has is its own.
  PyObject* dict = module ? PyModule_GetDict(object) : nullptr;
  auto version_now = [&] {
    return module ? reinterpret_cast<PyDictObject*>(dict)->ma_version_tag
                  : version_of(itself ? reinterpret_cast<PyTypeObject*>(object) : type);
  };
  const void* key = module ? dict : itself ? object : reinterpret_cast<PyObject*>(type);
  Memo& memo = memo_of(key, name);
  if (memo.kind == Memo::Kind::Itself && (module || itself) && holds(memo, key, name, version_now())) return;
  read_attribute(object, name);
  PyObject* descriptor = module || itself ? nullptr : _PyType_Lookup(type, name);
  uint64_t version = version_now();
  Memo::Kind kind = version ? kind_of(object, name, descriptor) : Memo::Kind::Nothing;
  memo = {kind, number_, key, version, py::reinterpret_borrow<py::object>(name), descriptor};
}

bool Observer::holds(const Memo& memo, const void* object, PyObject* name, uint64_t version) const {
  return memo.recording == number_ && memo.object == object && memo.name.ptr() == name &&
         memo.version == version && memo.kind != Memo::Kind::Nothing && touched_.empty();
}

void Observer::repeat(const Memo& memo, PyObject* object, PyObject* name) {
  switch (memo.kind) {
    case Memo::Kind::Nothing:
    case Memo::Kind::Itself:
    case Memo::Kind::Settled:
      return;
    case Memo::Kind::Instance:
      return read_instance(object, name, memo.descriptor);
    case Memo::Kind::Namespace:
      return read_namespace(object);
    case Memo::Kind::Tensor:
      return recorder_->saw(THPVariable_Unpack(object));
    case Memo::Kind::Method:
      recorder_->saw(THPVariable_Unpack(object));
      return read_tensor_entry(object, name, memo.descriptor);
  }
}

// ---------------------------------------------------------------- containers
void Observer::read_dict_item(PyObject* dict, PyObject* key) {
  int node = owner(dict);
  if (node < 0 || structural(node)) return;
  if (!PyUnicode_CheckExact(key) && !is_key(key)) return read_whole(dict);
  if (writes_.wrote(dict, key)) return;
  read_child(node, Access::Item, key, -1, PyDict_GetItemWithError(dict, key));
}

void Observer::use_as_key(PyObject* key) { consume(key, Consumer::Compares, 1); }

void Observer::read_item(PyObject* object, PyObject* key) {
  if (!is_immutable(key)) use_as_key(key);
  read_special(object, "__getitem__");
  if (is_tensor(object)) return;
  PyTypeObject* type = Py_TYPE(object);
  if (PyDict_Check(object)) {
    static PyObject* name = PyUnicode_InternFromString("__getitem__");
    PyObject* getter = _PyType_Lookup(type, name);
    if (getter && PyFunction_Check(getter)) return;
    bool plain = PyDict_CheckExact(object) || (is_key(key) && PyDict_Contains(object, key) == 1);
    PyErr_Clear();
    if (!plain && known(object) >= 0)
      return write(object, [&] { return "looks up a missing key of a " + type_name(object); });
    return read_dict_item(object, key);
  }
  if (PyList_Check(object) || PyTuple_Check(object)) {
    int node = owner(object);
    if (node < 0 || structural(node)) return;
    if (!PyLong_Check(key)) return read_whole(object);
    if (writes_.appended_to(object)) return fail("reads a list that it has appended to");
    Py_ssize_t index = PyLong_AsSsize_t(key), size = PySequence_Fast_GET_SIZE(object);
    if (index < 0 || index >= size) tree_->expect_length(node, object);
    if (index < 0) index += size;
    if (index < 0 || index >= size) return PyErr_Clear();
    if (writes_.wrote(object, index)) return;
    return read_child(node, Access::At, nullptr, index, PySequence_Fast_GET_ITEM(object, index));
  }
  read_operand(object);
}

void Observer::read_length(PyObject* object) {
  read_special(object, "__bool__");
  read_special(object, "__len__");
  if (is_tensor(object) || is_immutable(object)) return;
  if (c_base(Py_TYPE(object)) != &PyBaseObject_Type && !PyDict_Check(object) && !PyList_Check(object) &&
      !PyTuple_Check(object) && !PyAnySet_Check(object))
    return consume(object, Consumer::Reads);
  if (!PyDict_Check(object) && !PyList_Check(object) && !PyTuple_Check(object) && !PyAnySet_Check(object))
    return;
  int node = owner(object);
  if (node < 0 || structural(node)) return;
  if (writes_.wrote_to(object)) return fail("reads a " + type_name(object) + " that it has written to");
  tree_->expect_length(node, object);
}

void Observer::read_whole(PyObject* object) {
  if (!PyDict_Check(object) && !PyList_Check(object) && !PyTuple_Check(object) && !PyAnySet_Check(object))
    return;
  int node = owner(object);
  if (node < 0 || structural(node)) return;
  if (writes_.wrote_to(object)) return fail("reads a " + type_name(object) + " that it has written to");
  if (!whole_.insert(object)) return;
  Py_ssize_t size = PyDict_Check(object)     ? PyDict_GET_SIZE(object)
                    : PyAnySet_Check(object) ? PySet_GET_SIZE(object)
                                             : PySequence_Fast_GET_SIZE(object);
  if (size > 10000) return fail("reads a container with " + std::to_string(size) + " entries");
  tree_->expect_length(node, object);
  if (PyList_Check(object) || PyTuple_Check(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i)
      read_child(node, Access::At, nullptr, i, PySequence_Fast_GET_ITEM(object, i));
    return;
  }
  py::object iterator = py::reinterpret_steal<py::object>(c_base(Py_TYPE(object))->tp_iter(object));
  py::list keys;
  while (PyObject* key = PyIter_Next(iterator.ptr())) {
    keys.append(py::reinterpret_steal<py::object>(key));
    if (!is_key(key)) return fail("reads a container with a " + type_name(key) + " as a key");
    if (PyType_Check(key)) class_node(reinterpret_cast<PyTypeObject*>(key));  // compared with the keys
  }
  (*tree_)[node].keys = py::tuple(keys);
  if (PyDict_Check(object))
    for (auto key : keys)
      read_child(node, Access::Item, key.ptr(), -1, PyDict_GetItemWithError(object, key.ptr()));
}

void Observer::read_iteration(PyObject* object) {
  read_special(object, "__iter__");
  read_special(object, "__getitem__");
  if (is_tensor(object) || is_immutable(object)) return;
  if (PyIter_Check(object)) return advance(object);
  if (c_base(Py_TYPE(object)) == &PyBaseObject_Type) return owner(object), void();
  if (!PyDict_Check(object) && !PyList_Check(object) && !PyTuple_Check(object) && !PyAnySet_Check(object))
    return consume(object, Consumer::Reads);
  read_whole(object);
}

void Observer::advance(PyObject* iterator) {
  if (is_tensor(iterator)) return;
  read_special(iterator, "__next__");
  int node = owner(iterator);
  static PyObject* name = PyUnicode_InternFromString("__next__");
  PyObject* next = _PyType_Lookup(Py_TYPE(iterator), name);
  if (next && PyFunction_Check(next)) return;  // shows itself
  if (node >= 0 && by_path(node)) fail("advances an iterator that was there before the call");
}

void Observer::read_contains(PyObject* container, PyObject* item) {
  read_special(container, "__contains__");
  read_special(container, "__iter__");
  if (is_tensor(container)) return consume(item, Consumer::Reads);
  consume(item, Consumer::Compares);
  if (is_immutable(container)) return;
  if (PyDict_Check(container) && is_key(item)) return read_dict_item(container, item);
  if (PyIter_Check(container)) advance(container);
  consume(container, Consumer::Compares);
}

void Observer::read_operand(PyObject* object) {
  if (is_numpy_array(object)) return fail("computes with a numpy array");
  consume(object, Consumer::Compares);
}

namespace {
// Values of which there is one object in a process.
bool is_single(PyObject* v) {
  if (v == Py_None || v == Py_True || v == Py_False || v == Py_Ellipsis || v == Py_NotImplemented)
    return true;
  if (PyLong_CheckExact(v)) {
    int overflow;
    long value = PyLong_AsLongAndOverflow(v, &overflow);
    return !overflow && value >= -5 && value <= 256;
  }
  return is_enum_member(v) || THPDtype_Check(v) || THPLayout_Check(v) || THPMemoryFormat_Check(v);
}
}  // namespace

void Observer::read_identity(PyObject* a, PyObject* b) {
  // Which object such a value is, its guard holds as well.
  if (is_single(a) || is_single(b)) return;
  bool values = is_immutable(a) && is_immutable(b);
  if (values) return fail("compares the identity of two values of type " + type_name(a));
  compare_as_itself(a);
  compare_as_itself(b);
}

void Observer::read_self(int node, PyObject* object) {
  bool made;
  int child = tree_->child(node, Access::Self, nullptr, -1, &made);
  if (made) tree_->expect_identity(child, object);
}

// ---------------------------------------------------------------- writes
bool Observer::lasting(int root) const {
  PyObject* holder = (*tree_)[root].raw;
  return still_alive((*tree_)[root].weak, holder) &&
         (PyModule_Check(holder) || PyType_Check(holder) || PyFunction_Check(holder));
}

void Observer::write(PyObject* object, Wording what) {
  if (is_fresh(object)) return;
  int node = known(object);
  if (node >= 0) {
    int root = tree_->root_of(node);
    PyObject* holder = (*tree_)[root].access == Access::Weak ? (*tree_)[root].raw : nullptr;
    return !holder || lasting(root) ? fail(what()) : remember_write(holder, what);
  }
  remember_write(object, what);
}

// Whether an entry was read under a key that is equal to this int, but of another type.
bool Observer::read_as_other_number(int node, PyObject* key) const {
  py::object number = py::reinterpret_steal<py::object>(PyNumber_Float(key));
  long value = PyLong_AsLong(key);
  if (PyErr_Occurred()) {
    PyErr_Clear();
    return true;
  }
  return tree_->find(node, Access::Item, number.ptr(), -1) >= 0 ||
         ((value == 0 || value == 1) && tree_->find(node, Access::Item, value ? Py_True : Py_False, -1) >= 0);
}

void Observer::enter_write(Effect effect, PyObject* container, PyObject* value, const std::string& what) {
  static const Access kAccess[] = {Access::Instance, Access::Item, Access::At, Access::At, Access::Cell};
  Access access = kAccess[static_cast<size_t>(effect.kind)];
  Writes::Write one;
  if (exchange_) exchange_->leave(value);
  if (effect.kind != Effect::Kind::Append)
    one.before = tree_->find(effect.owner, access, effect.key.ptr(), effect.index);
  one.effect = std::move(effect);
  one.container = py::reinterpret_borrow<py::object>(container);
  one.value = py::reinterpret_borrow<py::object>(value);
  one.what = what;
  one.place = recorder_->place;
  writes_.add(std::move(one));
}

void Observer::write_again(Effect::Kind kind, PyObject* object, PyObject* container, PyObject* key,
                           Py_ssize_t index, PyObject* value, Wording what) {
  if (is_fresh(object)) return;
  if (recorder_->inside_operator()) return fail(what());
  int node = known(object);
  if (node < 0) return write(object, what);
  int root = tree_->root_of(node);
  if ((*tree_)[root].access == Access::Weak && !lasting(root)) return write(object, what);
  Guard& guard = (*tree_)[node];
  if (kind == Effect::Kind::Item && PyLong_CheckExact(key) && read_as_other_number(node, key))
    return fail(what());
  bool grows =
      kind == Effect::Kind::Append || (kind == Effect::Kind::Item && !PyDict_Contains(container, key));
  if (grows && guard.length >= 0) return fail(what());  // its length was read
  if (kind == Effect::Kind::At && !structural(node)) tree_->expect_length(node, object);
  enter_write({kind, node, key ? py::reinterpret_borrow<py::object>(key) : py::object(), index}, container,
              value, what());
}

// An entry of the instance __dict__. Writing what is there already changes nothing, as long as it is there:
// that is guarded like a read.
void Observer::write_entry(PyObject* object, PyObject* name, PyObject* value, Wording what) {
  PyObject** dict = _PyObject_GetDictPtr(object);
  PyObject* before = PyDict_GetItemWithError(*dict, name);
  bool same = before && is_immutable(value) && same_immutable(before, value);
  if (same && known(object) >= 0 && !writes_.wrote(*dict, name))
    return read_child(owner(object), Access::Instance, name, -1, before);
  write_again(Effect::Kind::Attribute, object, *dict, name, -1, value, what);
}

void Observer::settle_writes() {
  std::vector<Writes::Write> kept;
  for (Writes::Write& one : writes_.all()) written_.push_back(one.effect);
  for (Writes::Write& one : writes_.all()) {
    const Guard* before = one.before >= 0 ? &(*tree_)[one.before] : nullptr;
    PyObject* value = one.value.ptr();
    if (one.effect.kind == Effect::Kind::Cell && shared_cells_.count(one.container.ptr())) {
      recorder_->place = one.place;
      return fail(one.what + " that other functions share");
    }
    bool constant = before && before->expect == Expect::Constant;
    if (constant && is_immutable(value) && same_immutable(before->value.ptr(), value)) continue;
    if (before && before->expect == Expect::Identity && before->raw == value) continue;
    if (before && !is_tensor(value) && known(value) == one.before) continue;
    // The guard on what was read there would fail at the next call, and at each one after.
    bool tensors = before && before->expect == Expect::Tensor && is_tensor(value);
    if (before && before->expect != Expect::Anything && !tensors) {
      recorder_->place = one.place;
      return fail(one.what);
    }
    kept.push_back(std::move(one));
  }
  writes_.all() = std::move(kept);
}

void Observer::write_attribute(PyObject* object, PyObject* name, PyObject* value) {
  auto what = [&] { return (value ? "sets ." : "deletes .") + text_of(name) + " of a " + type_name(object); };
  if (is_tensor(object)) return fail(what());
  PyObject* descriptor = _PyType_Lookup(Py_TYPE(object), name);
  if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE)) {
    read_special(object, value ? "__setattr__" : "__delattr__");
    static PyObject* setter = PyUnicode_InternFromString("__setattr__");
    PyObject* own = _PyType_Lookup(Py_TYPE(object), setter);
    if (own && PyFunction_Check(own)) return;  // its body will be seen
    if (own && own != PyDict_GetItemWithError(PyBaseObject_Type.tp_dict, setter)) return write(object, what);
    read_class(Py_TYPE(object), name, descriptor);
    if (descriptor && Py_IS_TYPE(descriptor, &PyProperty_Type)) {
      py::object target = py::reinterpret_steal<py::object>(PyObject_GetAttrString(descriptor, "fset"));
      if (target && PyFunction_Check(target.ptr())) return;
    }
  }
  PyObject** dict = PyType_Check(object) ? nullptr : _PyObject_GetDictPtr(object);
  bool plain = value && dict && *dict && !(descriptor && Py_TYPE(descriptor)->tp_descr_set);
  plain ? write_entry(object, name, value, what) : write(object, what);
}

void Observer::write_item(PyObject* object, PyObject* key, PyObject* value) {
  read_special(object, value ? "__setitem__" : "__delitem__");
  if (!is_immutable(key)) use_as_key(key);
  if (is_tensor(object)) return consume(value, Consumer::Reads);
  if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE)) {
    static PyObject* name = PyUnicode_InternFromString("__setitem__");
    PyObject* own = _PyType_Lookup(Py_TYPE(object), name);
    if (own && PyFunction_Check(own)) return;
  }
  auto said = [&] {
    return (value ? "sets [" : "deletes [") + short_repr(is_immutable(key) ? key : Py_Ellipsis) + "] of a " +
           type_name(object);
  };
  if (value && PySlice_Check(key)) consume(value, Consumer::Reads);  // whose items go into the list
  // 1, True and 1.0 are one key and nan is none: these are left to eager calls.
  bool simple = PyUnicode_CheckExact(key) || PyLong_CheckExact(key) || key == Py_None;
  if (value && PyDict_CheckExact(object) && simple) {
    PyObject* before = PyDict_GetItemWithError(object, key);
    bool same = before && is_immutable(value) && same_immutable(before, value);
    if (same && !writes_.wrote(object, key)) return read_dict_item(object, key);
    return write_again(Effect::Kind::Item, object, object, key, -1, value, said);
  }
  if (value && PyList_CheckExact(object) && PyLong_CheckExact(key)) {
    Py_ssize_t index = PyLong_AsSsize_t(key), size = PyList_GET_SIZE(object);
    if (PyErr_Occurred()) {  // no list is as long as that
      PyErr_Clear();
      index = size;
    }
    if (writes_.appended_to(object)) return fail("writes to a list that it has appended to");
    if (index < 0) index += size;
    if (index >= 0 && index < size)
      return write_again(Effect::Kind::At, object, object, nullptr, index, value, said);
    return read_length(object);  // an IndexError, as long as the list is as short as that
  }
  write(object, said);
}

void Observer::write_global(_PyInterpreterFrame* f, PyObject* name, PyObject* value) {
  PyObject* before = PyDict_GetItemWithError(f->f_globals, name);
  if (value && before && is_immutable(value) && same_immutable(before, value) &&
      !writes_.wrote(f->f_globals, name))
    return read_global(f, name);
  GlobalsNode globals = value ? globals_of(f) : GlobalsNode{-1, Access::Item};
  std::string what = "sets the global " + text_of(name);
  if (globals.node < 0 || recorder_->inside_operator()) return fail(what);
  Effect::Kind kind = globals.access == Access::Instance ? Effect::Kind::Attribute : Effect::Kind::Item;
  enter_write({kind, globals.node, py::reinterpret_borrow<py::object>(name), -1}, f->f_globals, value, what);
}

void Observer::write_cell(_PyInterpreterFrame* f, int index, PyObject* value) {
  PyObject* cell = f->localsplus[index];
  if (!cell || !PyCell_Check(cell) || !cells_.count(cell)) return;
  PyObject* before = PyCell_GET(cell);
  if (value && before && is_immutable(value) && same_immutable(before, value) && !writes_.wrote_to(cell))
    return read_cell(f, index);
  if (!value) return fail("deletes a variable of an enclosing function");
  if (recorder_->inside_operator()) return fail("sets a variable of an enclosing function");
  auto [function, place] = cells_[cell];
  enter_write({Effect::Kind::Cell, function, {}, place}, cell, value,
              "sets a variable of an enclosing function");
}

// ---------------------------------------------------------------- the end
void Observer::finish(PyObject* result) {
  for (auto& [variable, sets] : context_sets_)
    if (sets != 0) fail("sets a context variable");
  // What hangs on an object that only weak references lead to must not be kept alive by having been looked
  // at.
  std::vector<int> roots = tree_->roots();
  std::vector<char> lasts(roots.size(), 1);
  for (size_t i = 0; i < roots.size(); ++i)
    if (roots[i] == static_cast<int>(i) && (*tree_)[roots[i]].access == Access::Weak)
      lasts[i] = lasting(roots[i]);
  known_.each([&](const void*, int& node) {
    if (node >= 0 && roots[node] != node && !lasts[roots[node]]) node = -1;
  });
  for (auto& object : held_) {
    const int* node = known_.find(object.ptr());
    if (!node || *node < 0) object = py::object();
  }
  std::vector<PyObject*> returned;
  if (result) Tree::containers(result, &returned);
  static PyObject* destructor_name = PyUnicode_InternFromString("__del__");
  fresh_.each([&](const void* key, py::object& weak) {
    auto* object = static_cast<PyObject*>(const_cast<void*>(key));
    if (!weak || !still_alive(weak, object) || !_PyType_Lookup(Py_TYPE(object), destructor_name)) return;
    // One that is part of a cycle: the collector destroys it later.
    if (std::find(returned.begin(), returned.end(), object) == returned.end())
      fail("makes a " + type_name(object) + " whose destructor runs after the call");
  });
  // One that only another of them holds goes with it.
  for (bool progress = true; progress;) {
    progress = false;
    for (Late& late : late_) {
      if (!late.held || Py_REFCNT(late.object) > 1) continue;
      late.object = nullptr;
      late.held = py::object();
      progress = true;
    }
  }
  for (Late& late : late_) {
    if (recorder_->failed()) return;
    if (!late.object) continue;
    bool gone = late.weak ? !still_alive(late.weak, late.object) : Py_REFCNT(late.object) <= 1;
    if (gone || is_fresh(late.object)) continue;
    if (std::find(returned.begin(), returned.end(), late.object) != returned.end()) continue;
    int node = late.read ? known(late.object) : -1;
    if (node >= 0 && by_path(node)) continue;
    recorder_->place = late.place;
    fail(late.read ? "reads a " + type_name(late.object) + " of unknown origin" : late.what);
  }
}

}  // namespace lazytrace
