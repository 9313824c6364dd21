#include "call/matcher.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <chrono>

#include "cpython/imports.h"
#include "record/recording.h"
#include "replay/workspace.h"

namespace lazytrace {

namespace {
PyObject* disabled_variable = nullptr;

bool is_disabled() {
  PyObject* value = nullptr;
  if (!disabled_variable || PyContextVar_Get(disabled_variable, Py_False, &value) < 0) {
    PyErr_Clear();
    return false;
  }
  Py_XDECREF(value);  // True or False: somebody else holds it
  return value == Py_True;
}

// torch.compiler.is_compiling(): a flag among the module's globals. Asked again when any of them has changed.
bool is_compiling() {
  static PyObject* globals = PyModule_GetDict(module_of_name("torch.compiler").release().ptr());
  static PyObject* name = PyUnicode_InternFromString("_is_compiling_flag");
  static uint64_t version = 0;
  static bool compiling = false;
  uint64_t now = reinterpret_cast<PyDictObject*>(globals)->ma_version_tag;
  if (now != version) {
    PyObject* flag = PyDict_GetItemWithError(globals, name);
    compiling = flag && flag != Py_False;
    version = now;
  }
  return compiling;
}
}  // namespace

void configure_disabled(py::object variable) { disabled_variable = variable.release().ptr(); }

bool must_step_aside() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
         torch::jit::tracer::isTracing() || is_compiling();
}

py::tuple packed(const Passed& passed) {
  py::tuple args(passed.count);
  for (Py_ssize_t i = 0; i < passed.count; ++i) args[i] = py::handle(passed.positional[i]);
  py::dict kwargs;
  for (Py_ssize_t i = 0; i < passed.named(); ++i)
    kwargs[py::handle(PyTuple_GET_ITEM(passed.names, i))] = py::handle(passed.values[i]);
  return py::make_tuple(args, kwargs);
}

TraceTable* Matcher::table_of(PyObject* instance) const {
  if (!instance) return own_.get();
  auto found = instances_.find(instance);
  // The object that is there now may be another one than that which died there.
  if (found == instances_.end() || PyWeakref_GET_OBJECT(found->second.reference.ptr()) != instance)
    return nullptr;
  return found->second.table.get();
}

void Matcher::enter(py::object instance, py::object reference, std::shared_ptr<TraceTable> table) {
  instances_[instance.ptr()] = {std::move(reference), std::move(table)};
}

void Matcher::leave(size_t instance) { instances_.erase(reinterpret_cast<PyObject*>(instance)); }

namespace {
bool tells_eager_calls = false;

// The plain function, counted and timed.
PyObject* run_plain(const Matcher::Callee& callee, const Passed& passed, EagerCount* eager) {
  struct Clock {
    EagerCount* count;
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
    ~Clock() {
      ++count->calls;
      count->seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
  } clock{eager};
  return PyObject_Vectorcall(callee.function, passed.positional, static_cast<size_t>(passed.count),
                             passed.names);
}
}  // namespace

void tell_eager_calls(bool tell) { tells_eager_calls = tell; }

PyObject* Matcher::call(const Callee& callee, const Passed& passed) {
  if (!enabled || Recording::active() || must_step_aside() || is_disabled()) return nullptr;
  TraceTable* table = table_of(callee.instance);
  if (!table) return nullptr;
  std::shared_ptr<EagerCount> eager;
  {
    WorkspaceLease space;
    Call& call = *space->call;
    if (!signature_->bind(&call, callee.function, passed, callee.defaults)) return nullptr;
    PyObject* result = nullptr;
    bool asks = call.unsupported.empty() && !table->is_aside();
    if (asks && ask_all(callee, passed, table, &space, &result)) return result;
    if (tells_eager_calls) return nullptr;
    bool has_key = call.unsupported.empty();
    eager = table->eager(has_key ? call.key.view() : std::string_view(call.unsupported), has_key);
  }
  return eager ? run_plain(callee, passed, eager.get()) : nullptr;
}

// Traces for these very sizes and numbers first, then those that fit others.
bool Matcher::ask_all(const Callee& callee, const Passed& passed, TraceTable* table, WorkspaceLease* lease,
                      PyObject** result) {
  Call& call = *(*lease)->call;
  if (ask(callee, passed, table, call.key.view(), lease, result)) return true;
  for (int loose = 1; loose <= (Call::kSizes | Call::kNumbers); ++loose) {
    if (!table->has(loose) || call.loose_in(loose) != loose) continue;
    // Asking may give the workspace's call away; a key that was found is asked for no more.
    Key& key = (*lease)->other_key;
    call.put_key(loose, &key);
    if (ask(callee, passed, table, key.view(), lease, result)) return true;
  }
  return false;
}

// Whether a trace has answered, or has run and Python must see to the rest.
bool Matcher::ask(const Callee& callee, const Passed& passed, TraceTable* table, std::string_view key,
                  WorkspaceLease* lease, PyObject** result) {
  Workspace& space = **lease;
  Call& call = *space.call;
  auto traces = table->find(key);
  if (!traces) return false;
  for (auto& trace : *traces) {
    Answer answer;
    try {
      answer = trace->replay(call, &space);
    } catch (...) {
      *result = go_on(callee, passed, std::move(space.call), *trace, py::cast(Raised{caught()}));
      return true;
    }
    const Trace& last = answer.other ? *answer.other : *trace;
    if (answer.result && !table->comes_first(last, answer.other != nullptr)) {
      hits_->add();
      table->mark(last);
      *result = answer.result.release().ptr();
      return true;
    }
    // A guard that does not hold: nothing has run yet.
    if (!answer.result && answer.miss.step < 0) continue;
    *result = go_on(callee, passed, std::move(space.call), *trace, to_python(std::move(answer)));
    return true;
  }
  return false;
}

// Operators have run: Python must know how they ended.
PyObject* Matcher::go_on(const Callee& callee, const Passed& passed, std::unique_ptr<Call> call,
                         const Trace& trace, py::object outcome) {
  static PyObject* name = PyUnicode_InternFromString("go_on");
  py::tuple both = packed(passed);
  py::object instance = callee.instance ? py::reinterpret_borrow<py::object>(callee.instance) : py::none();
  py::object number = py::int_(trace.number), taken = py::cast(std::move(call));
  return PyObject_CallMethodObjArgs(callee.engine, name, instance.ptr(), both[0].ptr(), both[1].ptr(),
                                    taken.ptr(), number.ptr(), outcome.ptr(), nullptr);
}

}  // namespace lazytrace
