#include "record/python/log_call.h"

#include "cpython/hide_frames.h"
#include "record/python/code_facts.h"
#include "support/address_map.h"

namespace lazytrace {

namespace {
AddressMap<PyObject*>& logging_steps() {
  static auto* known = new AddressMap<PyObject*>();
  return *known;
}
PyObject *frames_for_log = nullptr, *log_function = nullptr;

py::object log_as(const py::object& log, const py::args& call, const py::object& exc_info,
                  bool (*hidden)(PyObject*)) {
  py::tuple args = call[py::slice(LogCall::kArguments, static_cast<py::ssize_t>(call.size()), 1)];
  HideFrames hide(hidden);
  return log(call[LogCall::kLogger], call[LogCall::kLevel], call[LogCall::kMessage], args, exc_info,
             call[LogCall::kExtra], call[LogCall::kStackInfo], call[LogCall::kStackLevel]);
}

bool is_ours(PyObject* code) { return code_flags(code) & (kOwn | kThrough | kStandsIn); }
}  // namespace

PyObject* LogCall::functions[LogCall::kKinds] = {};

PyObject* LogCall::step_of(PyObject* method) {
  PyObject* const* step = logging_steps().find(method);
  return step ? *step : nullptr;
}

void LogCall::configure(const py::dict& by_function, const py::object& as_called_from,
                        const py::object& log) {
  frames_for_log = Py_NewRef(as_called_from.ptr());
  log_function = Py_NewRef(log.ptr());
  for (auto [function, step] : by_function)
    logging_steps()[Py_NewRef(function.ptr())] = Py_NewRef(step.ptr());
  for (PyObject*& one : functions) one = py::cpp_function(&LogCall::again, py::name("log")).release().ptr();
}

py::object LogCall::now(const py::args& call, const py::object& exc_info) {
  return log_as(py::reinterpret_borrow<py::object>(log_function), call, exc_info, is_ours);
}

py::object LogCall::again(const py::args& call) {
  py::object log = py::reinterpret_borrow<py::object>(frames_for_log)(call[kFrames]);
  return log_as(log, call, py::none(), is_engine_code);
}

}  // namespace lazytrace
