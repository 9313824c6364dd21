#include "record/python/whole_calls.h"

#include <utility>
#include <vector>

#include "cpython/callee.h"
#include "record/python/asked.h"
#include "record/python/code_facts.h"
#include "record/python/log_call.h"
#include "support/address_map.h"

namespace lazytrace {

namespace {
// function -> what is called in its place; both are kept for the life of the process.
AddressMap<PyObject*>& steps() {
  static auto* known = new AddressMap<PyObject*>();
  return *known;
}
}  // namespace

void configure_whole_calls(const py::dict& by_function) {
  for (auto [function, step] : by_function) {
    Py_INCREF(function.ptr());
    steps()[function.ptr()] = Py_NewRef(step.ptr());
  }
}

namespace {
std::vector<PyTypeObject*>& scripted_classes() {
  static auto* known = new std::vector<PyTypeObject*>();
  return *known;
}
PyObject *scripted_step = nullptr, *print_step = nullptr;
PyObject* print_function = nullptr;
}  // namespace

void configure_scripted_calls(const py::tuple& classes, const py::object& step) {
  for (py::handle cls : classes)
    scripted_classes().push_back(reinterpret_cast<PyTypeObject*>(Py_NewRef(cls.ptr())));
  scripted_step = Py_NewRef(step.ptr());
}

void configure_print(const py::object& function, const py::object& step) {
  print_function = Py_NewRef(function.ptr());
  print_step = Py_NewRef(step.ptr());
}

bool is_step_of_ours(PyObject* function) {
  return function && (function == scripted_step || function == print_step);
}

void WholeCalls::exchange_unseen(Frame f, const Operation& operation, bool prints) {
  PyObject** callee = callee_of(f, operation);
  if (!callee || !*callee || recorder_->stopped()) return;
  if (*callee == print_function && prints) return replace(callee, print_step, nullptr);
  for (PyTypeObject* cls : scripted_classes()) {
    if (!Py_IS_TYPE(*callee, cls)) continue;
    PyObject* instead = PyMethod_New(scripted_step, *callee);
    if (!instead) throw py::error_already_set();
    Py_SETREF(*callee, instead);
    return;
  }
}

namespace {
// The function that is called, and what it is bound to, or null.
std::pair<PyObject*, PyObject*> taken_apart(PyObject* callee) {
  if (!PyMethod_Check(callee)) return {callee, nullptr};
  return {PyMethod_GET_FUNCTION(callee), PyMethod_GET_SELF(callee)};
}

// Of arguments that stand on the stack one by one.
AskedCall asked_by(Frame f, const Operation& operation) {
  if (operation.action != Action::Calls) return {};
  bool method = f.peek(operation.first);
  int count = operation.third + method;
  return asked_call(*callee_of(f, operation), f.top(count), count);
}
}  // namespace

bool WholeCalls::exchanges(PyObject* function) const { return steps().find(function) != nullptr; }

void WholeCalls::exchange(Frame f, const Operation& operation) {
  PyObject** callee = callee_of(f, operation);
  if (!callee || recorder_->stopped()) return;
  if (AskedCall call = asked_by(f, operation); call.asked && recorder_->numbers())
    return replace(callee, call.asked->step, call.self);
  auto [function, self] = taken_apart(*callee);
  if (PyObject* const* step = steps().find(function)) replace(callee, *step, self);
}

void WholeCalls::exchange_logging(Frame f, const Operation& operation) {
  PyObject** callee = callee_of(f, operation);
  if (!callee || recorder_->stopped() || (code_flags(f.code()) & kStandsIn)) return;
  auto [function, self] = taken_apart(*callee);
  if (PyObject* step = LogCall::step_of(function)) replace(callee, step, self);
}

void WholeCalls::replace(PyObject** callee, PyObject* step, PyObject* self) {
  PyObject* instead = self ? PyMethod_New(step, self) : Py_NewRef(step);
  if (!instead) throw py::error_already_set();
  Py_SETREF(*callee, instead);
}

}  // namespace lazytrace
