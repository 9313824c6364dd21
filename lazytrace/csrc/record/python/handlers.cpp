#include "record/python/handlers.h"

#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "cpython/bytecode.h"
#include "cpython/imports.h"
#include "cpython/objects.h"
#include "record/python/code_facts.h"

namespace lazytrace {

namespace {

PyTypeObject* class_of_contextlib(const char* name) {
  py::object cls = from_module("contextlib", name);
  return reinterpret_cast<PyTypeObject*>(cls.release().ptr());  // never freed, as the module
}

// What an instance has under the name, borrowed, or null. Runs no code of its class.
PyObject* attribute_of(PyObject* instance, const char* name) {
  py::object dict = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(instance, nullptr));
  if (!dict) return PyErr_Clear(), nullptr;
  return PyDict_GetItemString(dict.ptr(), name);
}

bool is_empty_dict(PyObject* dict) { return dict && PyDict_Check(dict) && PyDict_GET_SIZE(dict) == 0; }

// Whether a call of a module has hooks that run whatever is raised. They are read at the call, as all hooks
// are.
bool has_hooks_called_always(Frame f) {
  PyObject* of_all = PyDict_GetItemString(f.globals(), "_global_forward_hooks_always_called");
  PyObject* module = f.variable(0);
  return !is_empty_dict(of_all) || !module ||
         !is_empty_dict(attribute_of(module, "_forward_hooks_always_called"));
}

}  // namespace

const ExceptionTable::Around& Handlers::around(Frame f, int instruction) {
  auto [known, missing] = known_.try_emplace({f.code_object(), instruction});
  if (missing) {
    known->second = ExceptionTable(f.code_object()).around(instruction);
    if (code_flags(f.code()) & kRestores) known->second.handler = false;
  }
  return known->second;
}

bool Handlers::would_run(Frame innermost, Frame base, bool torchs) {
  unwinding_.begin(torchs);
  for (Frame f = innermost; f && f != base; f = f.previous())
    if (would_run(f, true)) return true;
  return !unwinding_.puts_back_all();
}

// `now`: for what is raised with the variables as they are.
bool Handlers::would_run(Frame f, bool now) {
  // Each turn leads out of one handler.
  for (int at = f.instruction(); at >= 0;) {
    const ExceptionTable::Around& here = around(f, at);
    if (std::any_of(here.exits.begin(), here.exits.end(),
                    [&](int height) { return acts(f.above_bottom(height)); }))
      return true;
    if (!here.handler) return false;
    if ((code_flags(f.code()) & kRunsHooks) && !has_hooks_called_always(f)) return false;
    at = now ? unwinding_.passes(f, here.at) : -1;
  }
  return true;
}

void Handlers::leave(Frame f, bool raises) {
  waiting_.erase(f.address());
  if (!(f.code_object()->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR))) return;
  bool waits = !raises && yields(f.code_object(), f.instruction());
  if (waits && would_run(f, false)) waiting_.insert(f.address());
}

// Of the `__exit__` that a `with` block will call. Those in C, and torch's own, put back what they switched,
// and pass exceptions on.
bool Handlers::acts(PyObject* exit) {
  if (PyCFunction_Check(exit)) return false;
  if (!PyMethod_Check(exit) || !PyFunction_Check(PyMethod_GET_FUNCTION(exit))) return true;
  PyObject* self = PyMethod_GET_SELF(exit);
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(PyMethod_GET_FUNCTION(exit)));
  if (does_nothing(code)) return false;
  if (is_torch_class(Py_TYPE(self)) && code_flags(reinterpret_cast<PyObject*>(code)) & kTorchs) return false;
  static PyTypeObject* const generator_manager = class_of_contextlib("_GeneratorContextManager");
  static PyTypeObject* const exit_stack = class_of_contextlib("ExitStack");
  if (Py_TYPE(self) == exit_stack) return any_of_stack_acts(attribute_of(self, "_exit_callbacks"));
  PyObject* generator = Py_TYPE(self) == generator_manager ? attribute_of(self, "gen") : nullptr;
  Frame waiting = generator ? Frame::waiting(generator) : Frame();
  return !waiting || yields_for_another(waiting.code_object(), waiting.instruction()) ||
         would_run(waiting, false);
}

// Of the pairs that an ExitStack keeps: whether it is no coroutine, and what it will call.
bool Handlers::any_of_stack_acts(PyObject* stack) {
  if (!stack || !is_deque(stack)) return true;
  for (py::handle pair : py::reinterpret_borrow<py::iterable>(stack)) {
    if (!PyTuple_CheckExact(pair.ptr()) || PyTuple_GET_SIZE(pair.ptr()) != 2) return true;
    if (acts(PyTuple_GET_ITEM(pair.ptr(), 1))) return true;
  }
  return false;
}

}  // namespace lazytrace
