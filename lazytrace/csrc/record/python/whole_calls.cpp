#include "record/python/whole_calls.h"

#include "cpython/callee.h"
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

void WholeCalls::exchange(Frame f, const Operation& operation) {
  PyObject** callee = callee_of(f, operation);
  if (!callee || recorder_->stopped()) return;
  bool bound = PyMethod_Check(*callee);
  PyObject* const* step = steps().find(bound ? PyMethod_GET_FUNCTION(*callee) : *callee);
  if (!step) return;
  PyObject* instead = bound ? PyMethod_New(*step, PyMethod_GET_SELF(*callee)) : Py_NewRef(*step);
  if (!instead) throw py::error_already_set();
  Py_SETREF(*callee, instead);
}

}  // namespace lazytrace
