#include "record/python/watcher.h"

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <utility>

#include "cpython/callee.h"
#include "cpython/imports.h"
#include "cpython/inline_cache.h"
#include "cpython/numpy_arithmetic.h"
#include "cpython/objects.h"
#include "cpython/text_carrier.h"
#include "cpython/traceback_frames.h"
#include "cpython/values.h"
#include "guard/guards.h"
#include "signature/ambient.h"
#include "support/reasons.h"

namespace lazytrace {

namespace {

// The watcher of this thread: looked up at every instruction, where unpacking a capsule would show in the
// time of a recording.
thread_local Watcher* watching = nullptr;

// An exception may be on its way while a frame is left; what the watcher asks must not meet it.
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

void Watcher::start() {
  PyThreadState* thread = PyThreadState_Get();
  base_ = Frame::current();
  older_ = thread->c_tracefunc;
  older_argument_ = py::reinterpret_borrow<py::object>(thread->c_traceobj);
  outer_ = watching;
  watching = this;
  before_ = least_ = -1;
  // A collection in the middle would run finalizers as if the function had called them.
  collecting_ = PyGC_Disable();
  PyEval_SetTrace(&Watcher::trace, Py_None);
  started_ = true;
}

bool Watcher::stop() {
  if (!started_) return true;
  started_ = false;
  watching = outer_;
  collect_again();
  bool ours = PyThreadState_Get()->c_tracefunc == &Watcher::trace;
  if (ours) PyEval_SetTrace(older_, older_argument_.ptr());
  return ours;
}

// Where the verdict stands, so that code which asks whether garbage is collected, or sets that, finds what
// holds.
void Watcher::collect_again() {
  if (std::exchange(collecting_, false)) PyGC_Enable();
}

// The verdict stands. What the function drops from now on goes when it is due.
bool Watcher::let_go() {
  if (!around_.provenance->settle_replaced()) return false;
  around_.provenance->judge_replaced();
  collect_again();
  auto made = [&](PyObject* v) { return around_.provenance->is_fresh(v); };
  around_.exchange->put_originals_back(Frame::current(), base_, around_.writes->all(), made);
  around_.provenance->let_go();
  around_.writes->all().clear();
  unseen_->let_go();
  return true;
}

// Few frames are there for every call.
void Watcher::read_depth() {
  constexpr int kFew = 50;
  int depth = before_ - least_;
  if (depth > kFew) around_.provenance->read_child(-1, Access::FramesLeft, nullptr, depth, Py_True);
}

bool Watcher::would_catch() {
  py::gil_scoped_acquire gil;
  // What a handler has in hand becomes the context of what is raised in it, and a replay has no such
  // exception.
  if (handlers_.any_waits() || around_.provenance->handles_its_own()) return true;
  // What has been called last; printing and arithmetic raise none of the exceptions that this decides about.
  bool torchs = around_.recorder->last_operator().rfind("aten::", 0) == 0;
  return handlers_.would_run(Frame::current(), base_, torchs);
}

py::tuple Watcher::frames() const {
  py::list rows;
  for (Frame f = Frame::current(); f && f != base_; f = f.previous()) {
    if (code_flags(f.code()) & (kOwn | kStandsIn | kThrough)) continue;
    PyCodeObject* code = f.code_object();
    PyObject* module = PyDict_GetItemString(f.globals(), "__name__");
    rows.append(py::make_tuple(py::handle(code->co_filename), py::handle(code->co_name),
                               py::handle(code->co_qualname), PyCode_Addr2Line(code, f.lasti()),
                               module && PyUnicode_CheckExact(module) ? py::handle(module) : py::str("")));
  }
  return py::tuple(rows);
}

namespace {
// A handler, and whoever writes down what was raised, finds the frames that it would find.
void hide_ours(PyObject* raised) {
  PyObject* traceback = PyTuple_GET_SIZE(raised) == 3 ? PyTuple_GET_ITEM(raised, 2) : nullptr;
  if (traceback && PyTraceBack_Check(traceback)) drop_frames_below(traceback, stands_for_code);
}
}  // namespace

int Watcher::trace(PyObject*, PyFrameObject* frame, int what, PyObject* argument) try {
  Watcher* watcher = watching;
  if (!watcher) return 0;
  if (!watcher->around_.recorder->stopped() || watcher->around_.pause->active() || what == PyTrace_RETURN) {
    // No exception is on its way before an instruction, and nobody else listens.
    if (what == PyTrace_OPCODE) return watcher->on_instruction(frame), 0;
    KeepError keep;
    if (what == PyTrace_CALL) watcher->on_call(frame);
    if (what == PyTrace_RETURN) watcher->on_return(frame, argument);
    if (what == PyTrace_EXCEPTION) watcher->on_exception(frame, argument);
  } else if ((what == PyTrace_CALL || what == PyTrace_OPCODE) && !stands_for_code(Frame(frame).code())) {
    if (watcher->let_go()) trace_instructions(frame, false);  // the verdict stands: run on at full speed
  }
  if (what == PyTrace_EXCEPTION && !stands_for_code(Frame(frame).code())) hide_ours(argument);
  if (watcher->older_ && what != PyTrace_OPCODE)
    return watcher->older_(watcher->older_argument_.ptr(), frame, what, argument);
  return 0;
} catch (py::error_already_set& error) {  // a function that resumes went another way
  error.restore();
  return -1;
}

namespace {
// Whether the code was written by other code, for a module whose name begins so.
bool is_generated_for(Frame f, const std::string& begin) {
  if (text_of(f.code_object()->co_filename) != "<string>") return false;
  PyObject* module = PyDict_GetItemString(f.globals(), "__name__");
  return module && text_of(module).compare(0, begin.size(), begin) == 0;
}
// By dataclasses, for a class of torch.
bool is_generated_for_torch(Frame f) { return is_generated_for(f, "torch."); }
// What makes a named tuple.
bool makes_named_tuple(Frame f) { return is_generated_for(f, "namedtuple_"); }

uintptr_t caller_flags(Frame f) { return f.previous() ? code_flags(f.previous().code()) : 0; }
}  // namespace

namespace {
// An operator of torch's that takes functions, as torch.cond() comes to: Python code looks for its kernel by
// the keys that are switched on, and knows none for that of a recording.
bool calls_higher_order(Frame f) {
  static PyObject* const code =
      py::object(from_module("torch._ops", "HigherOrderOperator").attr("__call__").attr("__code__"))
          .release()
          .ptr();
  return f.code() == code;
}

std::string name_of_operator(Frame f) {
  PyObject* self = f.argument(0);
  return self ? "torch.ops.higher_order." + text_of(py::str(py::handle(self)).ptr()) : "";
}
}  // namespace

void Watcher::on_call(PyFrameObject* frame) {
  Frame f(frame);
  if (before_ < 0) before_ = least_ = frames_left() + 1;  // the function's own
  least_ = std::min(least_, frames_left());
  around_.exchange->deliver(Frame());
  handlers_.enter(f);
  new_objects_->forget(f);
  Pause& pause = *around_.pause;
  uintptr_t flags = code_flags(f.code()), caller = caller_flags(f);
  if (!pause.active() && asides_->allows_logging() && (flags & kLogging)) asides_->ignore(f);
  if (!pause.active() && (flags & kBookkeeping))
    (flags & kUser) ? note_aside(f) : asides_->ignore_bookkeeping(f);
  if (asides_->keeps_books() && (flags & kUser))
    around_.recorder->fail(say(reason::InBookkeeping, text_of(f.code_name())));
  if (!pause.active() && !(flags & kSkipped) && asides_->runs_aside(f)) asides_->step_aside(f);
  if ((flags & kStacks) && !pause.active() && torch::autograd::AnomalyMode::is_enabled())
    around_.recorder->fail(say(reason::AnomalyMode));
  if (is_trusted(caller) && is_generated_for_torch(f)) flags |= kSkipped;
  bool watch = !pause.blind() && !(flags & kSkipped);
  flags_->enter(f, watch);
  trace_instructions(frame, watch);
  if (!older_) trace_lines(frame, false);
  if (calls_higher_order(f)) around_.recorder->fail(say(reason::CallsFunction, name_of_operator(f)));
  if (pause.active()) return;
  if (is_kernel(f)) {
    kernels_.insert(f.address());
    return trace_instructions(frame, false);
  }
  modules_->on_call(f);
  if (flags & kOpaque) return begin_opaque(frame);
  if (is_trusted(flags)) return f.previous() && !is_trusted(caller) ? enter_trusted(f) : meet_trusted(f);
  if (!watch) return;
  new_objects_->enter(f);
  if (f.function()) enter_function(f);
  enter_module(f);
  if (modules_->enter(f)) trace_instructions(frame, false);
}

// Its operators are recorded, and it is the same for as long as the process. No read has led to a function
// that C code has called.
bool Watcher::is_kernel(Frame f) const {
  if (!around_.recorder->inside_transformed() || !f.previous()) return false;
  uintptr_t flags = code_flags(f.code());
  if (kernels_.count(f.previous().address()))
    return !(flags & (kUser | kOpaque | kOwn)) || is_generated_for_torch(f) || makes_named_tuple(f);
  return (flags & kTorchs) && !(flags & kOpaque) && f.function() &&
         around_.provenance->known(f.function()) < 0 && !around_.provenance->is_fresh(f.function());
}

// What it is given counts as read, and what it writes must not be.
void Watcher::note_aside(Frame f) {
  for (int i = 0; i < f.code_object()->co_argcount; ++i) around_.exchange->hand_over(f.variable(i));
  asides_->step_aside(f);
}

// Steps say which module made them.
void Watcher::enter_module(Frame f) {
  static PyObject* const forward = PyUnicode_InternFromString("forward");
  if (f.code_name() != forward || !f.argument(0)) return;
  PyObject* self = f.argument(0);
  static PyObject* const module = from_module("torch.nn", "Module").release().ptr();
  if (!PyType_IsSubtype(Py_TYPE(self), reinterpret_cast<PyTypeObject*>(module))) return;
  places_.enter(f.address(), around_.provenance->known(self), &around_.recorder->place);
}

// Trusted code is not watched, so what it is handed and what it holds counts as read, where code enters it
// that is no such code itself.
void Watcher::enter_trusted(Frame f) {
  if (!(code_flags(f.code()) & kDispatches)) around_.recorder->lost_sight();
  if (!f.function()) return;
  new_objects_->enter_trusted(f);
  Provenance& provenance = *around_.provenance;
  if (provenance.known(f.function()) < 0 && !provenance.is_fresh(f.function()))
    functions_->find_in_module(f.function());
  functions_->consume_function(f.function());
  PyCodeObject* code = f.code_object();
  int count = code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) +
              ((code->co_flags & CO_VARKEYWORDS) != 0);
  for (int i = 0; i < count; ++i) consumption_->consume(f.variable(i), Consumer::Trusted);
}

// One that trusted code was handed: what torch.vmap() gives has the same code for all functions.
void Watcher::meet_trusted(Frame f) {
  if (f.previous() && f.function() && around_.provenance->known(f.function()) >= 0)
    functions_->consume_function(f.function());
}

void Watcher::enter_function(Frame f) {
  PyObject* function = f.function();
  Provenance& provenance = *around_.provenance;
  PyObject* self = f.argument(0);
  bool met = provenance.known(function) >= 0 || provenance.is_fresh(function);
  // What it stands for is guarded where that was called.
  if (!met && (code_flags(f.code()) & (kThrough | kStandsIn))) return provenance.note_made(function);
  if (!met && self) meet_function(f, self);
  bool imports = code_flags(f.code()) & kImports;
  bool trusted = is_trusted(caller_flags(f));
  if (!met && provenance.known(function) < 0 && (imports || trusted)) functions_->find_in_module(function);
  if (!met && provenance.known(function) < 0 && trusted)
    functions_->find_among_globals(function, f.previous().globals());
  // What an operator calls, a replay has it call again: kernels and hooks in Python.
  if (around_.recorder->inside_operator() && provenance.known(function) < 0 && !provenance.is_fresh(function))
    return;
  static PyObject* const hash = PyUnicode_InternFromString("__hash__");
  if (self && is_tensor(self) && is_text(f.code_name(), hash) && asked_by_c(f)) protocols_->hash_tensor(f);
  functions_->read_function(function, !is_trusted(code_flags(f.code())));
}

namespace {
bool is_getter_of(PyObject* property, PyObject* function) {
  if (!property || !Py_IS_TYPE(property, &PyProperty_Type)) return false;
  static PyObject* const name = PyUnicode_InternFromString("fget");
  py::object getter = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(property, name));
  if (!getter) throw py::error_already_set();
  return getter.ptr() == function;
}
}  // namespace

// A function that no read has led to was found by C code: a special method of the class of its first
// argument, which is guarded like one that Python code asks for. Any other is not known to be found again.
void Watcher::meet_function(Frame f, PyObject* self) {
  PyObject* function = f.function();
  PyObject* name = f.code_name();
  PyObject* own = _PyType_Lookup(Py_TYPE(self), name);
  // Or one that computes an attribute: an import asks what its module is a part of.
  if (own == function || is_getter_of(own, function)) {
    classes_->read_class(Py_TYPE(self), name, own);
  } else if (PyType_Check(self)) {
    auto* type = reinterpret_cast<PyTypeObject*>(self);
    if (PyObject* found = _PyType_Lookup(type, name)) classes_->read_class(type, name, found);
  }
}

bool Watcher::goes_to_c(Frame f, PyObject* result) const {
  Frame caller = f.previous();
  if (!caller || caller == base_) return false;
  CodeFacts* facts = facts_of(caller.code());
  if (facts->flags & kOwn) return false;
  if ((facts->flags & kSkipped) || facts->operations.empty()) return true;
  return instructions_->goes_to_c(caller, *facts, result);
}

// Whether somebody gets what the frame gives back whose instructions are not seen.
bool Watcher::hands_out(Frame f, PyObject* result) const {
  Frame caller = f.previous();
  if (!caller || caller == base_ || goes_to_c(f, result)) return true;
  return stands_for_code(caller.code()) && !stands_for_code(f.code());
}

namespace {
// Of a decorator's `def wrapper(*args)`, too.
PyObject* first_argument(Frame f) {
  PyCodeObject* code = f.code_object();
  if (code->co_argcount || !(code->co_flags & CO_VARARGS)) return f.argument(0);
  PyObject* rest = f.variable(code->co_kwonlyargcount);
  return rest && PyTuple_Check(rest) && PyTuple_GET_SIZE(rest) ? PyTuple_GET_ITEM(rest, 0) : nullptr;
}

// Whether it was called in the middle of an instruction that may take what it gives for a number. Those that
// call, and those that get an attribute or the next item, hand it on.
bool is_called_aside(Frame f) {
  Frame caller = f.previous();
  CodeFacts* facts = caller ? facts_of(caller.code()) : nullptr;
  if (!facts || facts->operations.empty()) return false;
  const Operation& now = facts->operations[static_cast<size_t>(std::max(caller.instruction(), 0))];
  static constexpr Action kHandOn[] = {
      Action::Calls,    Action::CallsWith, Action::ReadsAttribute, Action::ImportsAttribute,
      Action::Advances, Action::Sends,     Action::Unpacks};
  return !is_inline_cache(now) &&
         std::find(std::begin(kHandOn), std::end(kHandOn), now.action) == std::end(kHandOn);
}

// Methods whose result C code takes for a number without asking it, whatever the function is called itself. A
// function that is no method of its first argument may stand for any of these.
bool must_be_plain(Frame f) {
  static PyObject* const names[] = {
      PyUnicode_InternFromString("__float__"), PyUnicode_InternFromString("__int__"),
      PyUnicode_InternFromString("__index__"), PyUnicode_InternFromString("__complex__"),
      PyUnicode_InternFromString("__hash__"),  PyUnicode_InternFromString("__length_hint__")};
  static PyObject* const call = PyUnicode_InternFromString("__call__");
  PyObject* self = first_argument(f);
  auto finds = [&](PyObject* name) { return self && _PyType_Lookup(Py_TYPE(self), name) == f.function(); };
  bool named = std::any_of(std::begin(names), std::end(names),
                           [&](PyObject* name) { return is_text(f.code_name(), name) || finds(name); });
  if (named) return true;
  bool method = finds(f.code_name()) && !is_text(f.code_name(), call);
  for (py::handle name : self ? special_names(Py_TYPE(self)) : py::tuple())
    method |= !is_text(name.ptr(), call) && finds(name.ptr());
  // What our own methods of numbers give is followed.
  bool ours = code_flags(f.code()) & (kOwn | kStandsIn);
  return !ours && !method && is_called_aside(f);
}
}  // namespace

// Whether no Python code has called the function by itself.
bool Watcher::asked_by_c(Frame f) const {
  Frame caller = f.previous();
  CodeFacts* facts = caller ? facts_of(caller.code()) : nullptr;
  if (!facts || facts->operations.empty()) return true;
  const Operation& now = facts->operations[static_cast<size_t>(std::max(caller.instruction(), 0))];
  // A frame that the interpreter has entered by itself leaves its caller behind the cache of the call.
  if (is_inline_cache(now)) return false;
  return (now.action != Action::Calls && now.action != Action::CallsWith) || goes_to_c(f, Py_None);
}

// Whether C code gets what the frame gives back, which takes no other object for a str. Ours takes the items
// of a generator one by one.
bool Watcher::is_taken_for_a_str(Frame f) const {
  Frame caller = f.previous();
  if ((code_flags(f.code()) & kOwn) || caller == base_) return false;
  bool generator = f.code_object()->co_flags & CO_GENERATOR;
  if (generator && caller && (code_flags(caller.code()) & kOwn)) return false;
  return asked_by_c(f);
}

void Watcher::on_return(PyFrameObject* frame, PyObject* result) {
  Frame f(frame);
  around_.exchange->deliver(Frame());
  around_.exchange->settle_call(f);
  modules_->on_return(f);
  handlers_.leave(f, !result);
  protocols_->leave(f);
  asides_->leave(f);
  places_.leave(f.address(), &around_.recorder->place);
  new_objects_->forget(f);
  if (flags_->any() && result && hands_out(f, result)) flags_->settle_inside(result);
  flags_->leave(f, result);
  if (opaque_frame_ == f) end_opaque(result);
  if (kernels_.erase(f.address())) return trace_lines(frame, true);
  bool watched = result && !around_.pause->active() && !around_.recorder->stopped();
  if (code_flags(f.code()) & kBookkeeping) watched = false;  // it is for torch alone
  if (watched && is_carrier(result) && must_be_plain(f)) around_.exchange->hand_over(result);
  // C code that has asked for a str takes no other object for one.
  if (watched && is_text(result) && is_taken_for_a_str(f)) around_.recorder->numbers()->settle(result);
  // What our own methods of numbers give back is followed.
  // So is what a generator gives that stands in for a list: what goes through it keeps it, or hands it on.
  bool stands_in = (code_flags(f.code()) & kStandsIn) && (f.code_object()->co_flags & CO_GENERATOR);
  bool ours = stands_in || (code_flags(f.code()) & kOwn);
  bool number = watched && is_carrier(result) && !ours;
  // So is an array, and a tensor: what has been exchanged would have given one to C code without a frame.
  if (ours && result && (is_numpy_array(result) || is_tensor(result))) watched = false;
  // What C code makes of these may hang on settings of the thread or the process.
  bool computes =
      watched && (PyLong_CheckExact(result) || PyTuple_CheckExact(result) || holds_numpy_scalar(result));
  if (watched && (!is_immutable(result) || number || computes) && goes_to_c(f, result)) {
    Exchange::Returning returning(around_.exchange, f.previous());
    consumption_->consume(result, Consumer::Compares);
  }
  // A generator may be run on by somebody else.
  trace_instructions(frame, false);
  trace_lines(frame, true);
}

namespace {
// Whether it was raised in a frame that is looked at itself, below the one that the exception is in by now.
// The instruction does not tell: where frames are evaluated by a function of somebody else's, it stands at
// the call until that returns, and behind it otherwise.
bool came_from_below(PyObject* raised) {
  PyObject* traceback = PyTuple_GET_SIZE(raised) == 3 ? PyTuple_GET_ITEM(raised, 2) : nullptr;
  if (!traceback || !PyTraceBack_Check(traceback)) return false;
  auto* deepest = reinterpret_cast<PyTracebackObject*>(traceback);
  if (!deepest->tb_next) return false;
  while (deepest->tb_next) deepest = deepest->tb_next;
  CodeFacts* facts = facts_of(Frame(deepest->tb_frame).code());
  return !facts->operations.empty() || (facts->flags & kOwn);
}
}  // namespace

void Watcher::on_exception(PyFrameObject* frame, PyObject* raised) {
  PyObject* type = PyTuple_Check(raised) ? PyTuple_GET_ITEM(raised, 0) : nullptr;
  // How deep the function gets hangs on its caller, and a recording needs frames of its own.
  if (type == PyExc_RecursionError) return around_.recorder->fail(say(reason::MeetsRecursionLimit));
  if (type != PyExc_TypeError || came_from_below(raised)) return;
  CodeFacts* facts = facts_of(Frame(frame).code());
  if (facts->operations.empty()) return;
  Action action = facts->operations[static_cast<size_t>(std::max(Frame(frame).instruction(), 0))].action;
  if (action == Action::Calls || action == Action::CallsWith) around_.provenance->note_failed_call();
}

// What a factory gave while its step was fed is given back its tensor before anything is done with it: an
// operator that writes to it returns what it was called with. Code that is not watched may show the same
// memory to others.
void Watcher::see_lent(Frame f) {
  bool fed = std::exchange(fed_, around_.recorder->feeding());
  if (!fed || around_.pause->active() || !around_.recorder->lends() || !f.has_stack()) return;
  PyObject* given = f.peek(1);
  if (given && THPVariable_Check(given)) around_.recorder->saw(THPVariable_Unpack(given));
}

void Watcher::on_instruction(PyFrameObject* frame) {
  Frame f(frame);
  around_.exchange->deliver(f);
  asides_->before_instruction(f);
  if (around_.pause->blind() || around_.recorder->stopped()) return;
  see_lent(f);
  if (!around_.pause->active()) around_.provenance->settle_replaced();
  if (around_.provenance->give_up_for_ends() && around_.recorder->stopped()) return (void)let_go();
  if (f.code() != seen_code_.ptr()) enter(f.code());
  const Operation& operation = seen_facts_->operations[static_cast<size_t>(f.instruction())];
  around_.exchange->settle_call(f);
  if (flags_->any()) {
    flags_->before(f, operation, instructions_->keyword_names());
    if (around_.recorder->stopped()) return (void)let_go();
  }
  bool paused = around_.pause->active();
  new_objects_->before(f, operation.builds, paused);
  if (operation.harmless()) return;
  if (paused) return instructions_->note_opaque_write(f, operation);
  if (const std::string& ended = around_.provenance->behind_destructor(); !ended.empty()) {
    around_.recorder->fail(ended);
    return (void)let_go();
  }
  if (seen_facts_->flags & kUser)
    places_.note(f.code(), f.lasti(), seen_facts_->flags & kInstalled, &around_.recorder->place);
  PyObject** calls = callee_of(f, operation);
  if (calls) whole_calls_->exchange_unseen(f, operation, !asides_->allows_print());
  if (operation.action == Action::GetsItem) default_dicts_->exchange(f, operation);
  bool apart = !around_.recorder->inside_operator();
  bool exchanges = around_.exchange->follows() && apart;
  PyObject** callee = apart ? calls : nullptr;
  PyObject* asked = callee ? *callee : nullptr;
  bool told = (callee || (exchanges && asks_modes(operation.action))) && function_mode_listens();
  if (callee && exchanges && !told) instructions_->read_arrays(f, operation);
  if (callee && !told) unseen_->exchange(f, operation);
  if (exchanges && !told && exchange_operands(f, operation)) return;
  if (flags_->any()) flags_->look(f, operation, instructions_->keyword_names());
  if (exchanges) {
    handle_keys_.exchange(f, operation);
    around_.exchange->before(f, operation, told, instructions_->keyword_names());
  }
  around_.provenance->note_renewal(operation.renews);
  if (exchanges && around_.exchange->looks_for_number())
    protocols_->read_members(*f.place(operation.first));
  else
    instructions_->dispatch(f, operation, seen_facts_);
  around_.provenance->note_renewal(false);
  if (around_.recorder->stopped()) let_go();
  if (exchanges) {
    around_.exchange->after();
    if (around_.provenance->has_live()) lists_->exchange();
  }
  if (apart && unseen_->has_arrays()) unseen_->exchange_shape(f, operation);
  // What stands in for C code gives its result to this frame, whoever evaluates frames.
  if (callee && *callee != asked && PyFunction_Check(*callee)) instructions_->note_callee(f, true);
  gradients_->exchange(f, operation);
  if (calls) whole_calls_->exchange(f, operation);
  if (calls && !asides_->allows_logging()) whole_calls_->exchange_logging(f, operation);
  // Somebody who looks on sees all frames.
  if (!older_ && operation.action == Action::ReadsAttribute) modules_->exchange(f, operation);
}

namespace {
// Whether Instructions::take_numbers() has anything to do with it.
bool takes_numbers(Action action) {
  return action == Action::Merges || action == Action::SetsItem || action == Action::Calls ||
         action == Action::GetsItem || action == Action::Iterates || action == Action::Operates;
}
}  // namespace

// Whether what is exchanged before the instruction hangs on the modes of torch's functions: of most
// instructions nothing is.
bool Watcher::asks_modes(Action action) const {
  return takes_numbers(action) || around_.exchange->asks_modes(action) || unseen_->has_arrays() ||
         around_.provenance->has_live();
}

// Whether the instruction does something else instead, which is seen.
bool Watcher::exchange_operands(Frame f, const Operation& operation) {
  if (unseen_->has_arrays()) {
    unseen_->exchange_made(f, operation);
    if (unseen_->exchange_operands(f, operation)) return true;
  }
  if (!instructions_->names_keywords()) cached_->before(f, operation);
  if (!drawn_->before(f, operation) && around_.provenance->has_live()) lists_->before(f, operation);
  if (takes_numbers(operation.action)) instructions_->take_numbers(f, operation);
  return false;
}

void Watcher::enter(PyObject* code) {
  seen_code_ = py::reinterpret_borrow<py::object>(code);
  seen_facts_ = decoded_facts_of(code);
}

// ---------------------------------------------------------------- steps that are found by their code object
namespace {
PyObject* local(Frame f, const char* name) {
  PyObject* names = f.code_object()->co_localsplusnames;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
    if (text_of(PyTuple_GET_ITEM(names, i)) != name) continue;
    return f.variable(static_cast<int>(i));
  }
  return nullptr;
}
}  // namespace

void Watcher::begin_opaque(PyFrameObject* frame) {
  Frame f(frame);
  PyObject *cls = local(f, "cls"), *args = local(f, "args"), *kwargs = local(f, "kwargs");
  if (!args || !PyTuple_Check(args))
    return around_.recorder->fail("calls a compiled function in a way that lazytrace does not know");
  // C code has called it inside a block: a replay runs the block.
  around_.recorder->refuse_in_block();
  if (around_.recorder->stopped()) return;
  // Not taken to have effects of its own beside writes to tensors and random numbers, which are seen: where
  // its result has another shape, the call runs again from the start.
  PyObject* function = cls ? cls : f.function();
  if (NumberRecorder* numbers = around_.recorder->numbers()) {
    numbers->settle_inside(args);
    numbers->settle_inside(kwargs);
  }
  opaque_ = std::make_unique<OpaqueCall>(around_, function, cls ? "apply" : "", args, kwargs, true, false);
  opaque_frame_ = f;
}

void Watcher::end_opaque(PyObject* result) {
  opaque_frame_ = Frame();
  if (result)
    opaque_->finish(result);
  else
    around_.recorder->fail("a function that stays whole raised");
  opaque_.reset();
}

}  // namespace lazytrace
