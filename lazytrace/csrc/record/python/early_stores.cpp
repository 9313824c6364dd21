#include "record/python/early_stores.h"

#include "cpython/callee.h"
#include "cpython/ends.h"
#include "cpython/frame.h"
#include "cpython/namespaces.h"
#include "cpython/objects.h"
#include "cpython/text_carrier.h"
#include "record/python/code_facts.h"

namespace lazytrace {

namespace {
constexpr char kSetAttribute[] = "set_attribute";

PyObject* set_attribute(PyObject*, PyObject* args) {
  PyObject *object, *name, *value;
  if (!PyArg_UnpackTuple(args, kSetAttribute, 3, 3, &object, &name, &value)) return nullptr;
  if (PyObject_GenericSetAttr(object, name, value) < 0) return nullptr;
  Py_RETURN_NONE;
}

// What the steps call, for as long as the process.
PyObject* function() {
  static PyMethodDef method{kSetAttribute, set_attribute, METH_VARARGS, nullptr};
  static PyObject* const made = PyCFunction_New(&method, self_of_steps());
  return made;
}

PyObject* ignore(PyObject*, PyObject*) { Py_RETURN_NONE; }

// What is called in the place of a setter: nothing is left to do.
PyObject* ignoring() {
  static PyMethodDef method{"ignore", ignore, METH_VARARGS, nullptr};
  static PyObject* const made = PyCFunction_New(&method, nullptr);
  return made;
}

bool changes_at_each_call(PyObject* value) {
  return is_followed(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value);
}
}  // namespace

// What the instruction changes is nothing that anybody keeps.
void EarlyStores::turn_aside() {
  PyObject* instead = callee_ ? Py_NewRef(ignoring()) : new_namespace();
  PyObject** place = callee_ ? callee_ : object_;
  Py_SETREF(*place, instead);
}

bool EarlyStores::sets(PyObject* object, PyObject* value) const {
  if (!value_ || *value_ != value) return false;
  Frame setter = Frame::current();
  // The method of a module lies between.
  if (callee_) setter = setter.previous();
  if (!setter || (code_flags(setter.code()) & kTorchs)) return false;
  return callee_ ? MethodWrapper::of(*callee_)->self == object : *object_ == object;
}

// A new list or dict that lies on the stack alone, with nothing in it: each replay makes another.
bool EarlyStores::may_adopt(PyObject* value) const {
  bool empty = PyList_CheckExact(value) ? PyList_GET_SIZE(value) == 0
                                        : PyDict_CheckExact(value) && PyDict_GET_SIZE(value) == 0;
  return empty && Py_REFCNT(value) == 1 && around_->provenance->may_adopt(value);
}

bool EarlyStores::may_store(PyObject* object, PyObject* dict, PyObject* name, PyObject* value) const {
  Recorder* recorder = around_->recorder;
  if (!sets(object, value)) return false;
  if (recorder->stopped() || recorder->inside_operator() || recorder->in_block()) return false;
  const Provenance* provenance = around_->provenance;
  if (provenance->known(object) < 0 || provenance->is_fresh(object)) return false;
  bool plain = is_tensor(value) || is_immutable(value) || may_adopt(value);
  if (!plain || !recorder->takes_steps()) return false;
  // What a replay has done is done, whatever lies there by now. It may be of a recording from before.
  if (recorder->feeding()) return recorder->expects(name_of(object, name));
  // Numbers that change at each call are followed as writes.
  if (changes_at_each_call(value) && !provenance->touched_attribute(object, name)) return false;
  if (around_->writes->wrote(dict, name)) return false;
  PyObject* before = PyDict_GetItemWithError(dict, name);
  return !before || !runs_code_at_its_end(before);
}

// Of the step that sets it.
std::string EarlyStores::name_of(PyObject* object, PyObject* name) const {
  return kSetAttribute + around_->words_for(object, name);
}

bool EarlyStores::store(PyObject* object, PyObject* name, PyObject* value) {
  PyObject** dict = _PyObject_GetDictPtr(object);
  if (!dict || !*dict || !may_store(object, *dict, name, value)) return false;
  has_any_ = true;
  if (!active_) return false;
  Recorder* recorder = around_->recorder;
  Provenance* provenance = around_->provenance;
  bool fed = recorder->feeding();
  if (PyList_CheckExact(value) || PyDict_CheckExact(value)) value = provenance->adopt(value, value_);
  auto args = py::make_tuple(py::handle(object), py::handle(name), py::handle(value));
  OpaqueCall call(*around_, function(), "", args.ptr(), nullptr, false, true);
  call.sets_attribute(around_->words_for(object, name));
  call.is_told();
  call.shows_what_it_touches();
  provenance->touch_attribute(object, name);
  provenance->place(*dict, name, value);
  if (fed) recorder->fed_value();
  call.finish(Py_None);
  if (fed) turn_aside();
  return true;
}

}  // namespace lazytrace
