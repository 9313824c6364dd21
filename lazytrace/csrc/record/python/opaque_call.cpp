#include "record/python/opaque_call.h"

#include <torch/csrc/autograd/python_variable.h>

#include "cpython/frame.h"
#include "cpython/objects.h"

namespace lazytrace {

OpaqueCall::OpaqueCall(Recorder* recorder, Observer* observer, PyObject* function,
                       const std::string& attribute, PyObject* args, PyObject* kwargs, bool python,
                       bool feedable)
    : recorder_(recorder), observer_(observer), step_(std::make_shared<OpaqueStep>()) {
  step_->name = text_of(py::str(py::getattr(function, "__qualname__", py::str(type_name(function)))).ptr());
  step_->attribute = attribute;
  step_->python = python;
  step_->feedable = feedable;
  step_->function.kind = Tree::Kind::State;
  step_->function.index = observer->reach(function);
  if (step_->function.index < 0) recorder->fail("calls " + step_->name + ", which cannot be reached again");
  auto tensor = [&](PyObject* v) {
    const at::Tensor& t = THPVariable_Unpack(v);
    int reg = recorder->output_register(t);
    if (reg >= 0) {
      uses_.push_back(reg);
      looks_.emplace_back(t, TensorMeta::of(t));
      if (!t.is_inference()) versions_.emplace_back(t, t._version());
    }
    return reg;
  };
  auto state = [&](PyObject* v) {
    bool bound = PyCFunction_Check(v) && !is_free_builtin(v);
    int node = bound || PyTuple_CheckExact(v) || PyDict_CheckExact(v) || PyList_CheckExact(v)
                   ? observer->known(v)
                   : observer->reach(v);
    return node;
  };
  try {
    py::object kw = kwargs ? py::reinterpret_borrow<py::object>(kwargs) : py::dict();
    py::tuple call = py::make_tuple(py::reinterpret_borrow<py::object>(args), kw);
    step_->call = Tree::of(call.ptr(), {tensor, state});
  } catch (const std::runtime_error& error) {
    recorder->fail("calls " + step_->name + " with an argument that cannot be made again");
  }
  // It would see the state as it was before the call: a replay writes when its program is done.
  if (python && !observer_->writes().empty())
    recorder_->fail("calls " + step_->name + " after writing to Python state that it may read");
  touched_ = observer_->touched();
  recorder_->pause();
  observer_->pause(python);
}

OpaqueCall::~OpaqueCall() {
  if (!paused_) return;
  paused_ = false;
  recorder_->resume();
  observer_->resume();
}

void OpaqueCall::finish(PyObject* result) {
  if (recorder_->stopped()) return;
  if (recorder_->feeding()) return recorder_->add_opaque(step_, uses_, result);
  step_->touches = observer_->touched() != touched_;
  step_->confuses = step_->touches && observer_->touched_what_was_read();
  step_->confuses |= Modes::current() != modes_;  // a function that is fed its result would not switch them
  for (auto& [tensor, look] : looks_) step_->confuses |= !look.matches(tensor);
  step_->random = random_mark_ != RandomMark::now();
  for (auto& [tensor, version] : versions_) step_->effects |= tensor._version() != version;
  recorder_->add_opaque(step_, uses_, result);
}

// ---------------------------------------------------------------- steps that are found by their code object
namespace {
PyObject* local(_PyInterpreterFrame* f, const char* name) {
  PyObject* names = f->f_code->co_localsplusnames;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
    if (text_of(PyTuple_GET_ITEM(names, i)) != name) continue;
    PyObject* value = f->localsplus[i];
    return value && PyCell_Check(value) ? PyCell_GET(value) : value;
  }
  return nullptr;
}
}  // namespace

void Observer::begin_opaque(PyFrameObject* frame) {
  auto* f = FrameView(frame).interpreter_frame();
  PyObject *cls = local(f, "cls"), *args = local(f, "args"), *kwargs = local(f, "kwargs");
  if (!args || !PyTuple_Check(args))
    return fail("calls a compiled function in a way that lazytrace does not know");
  // Not taken to have effects of its own beside writes to tensors and random numbers, which are seen: where
  // its result has another shape, the call runs again from the start.
  PyObject* function = cls ? cls : reinterpret_cast<PyObject*>(f->f_func);
  opaque_ =
      std::make_unique<OpaqueCall>(recorder_, this, function, cls ? "apply" : "", args, kwargs, true, false);
  opaque_frame_ = f;
}

void Observer::end_opaque(PyObject* result) {
  opaque_frame_ = nullptr;
  if (result)
    opaque_->finish(result);
  else
    fail("a function that stays whole raised");
  opaque_.reset();
}

}  // namespace lazytrace
