#include "record/python/reads/late_reads.h"

#include "cpython/namespaces.h"
#include "cpython/objects.h"

namespace lazytrace {

namespace {
enum Which : int { kEntry, kAttribute, kWhole, kSlot, kStill };

// Where there is nothing: not a value that anybody keeps.
PyObject* nothing() { return Py_NewRef(Py_Ellipsis); }

PyObject* entry_of_namespace(PyObject* object, PyObject* name) {
  PyObject** dict = _PyObject_GetDictPtr(object);
  return dict && *dict ? PyDict_GetItemWithError(*dict, name) : nullptr;
}

PyObject* entry_of_container(PyObject* container, PyObject* key) {
  if (PyDict_Check(container)) return PyDict_GetItemWithError(container, key);
  Py_ssize_t index = PyList_Check(container) ? PyLong_AsSsize_t(key) : -1;
  if (index < 0 && PyList_Check(container)) index += PyList_GET_SIZE(container);
  bool within = index >= 0 && index < PyList_GET_SIZE(container);
  return within ? PyList_GET_ITEM(container, index) : nullptr;
}

// What the step finds, a new reference.
PyObject* find(int which, PyObject* object, PyObject* key) {
  if (which == kWhole)
    return PyDict_Check(object)   ? PyDict_Copy(object)
           : PyList_Check(object) ? PyList_GetSlice(object, 0, PyList_GET_SIZE(object))
                                  : nothing();
  if (which == kSlot) {
    PyObject* said = PyObject_GenericGetAttr(object, key);
    PyErr_Clear();
    return said ? said : nothing();
  }
  PyObject* found = which == kAttribute ? entry_of_namespace(object, key) : entry_of_container(object, key);
  PyErr_Clear();
  return found ? Py_NewRef(found) : nothing();
}

template <int which>
PyObject* find_again(PyObject*, PyObject* args) {
  PyObject *object, *key = nullptr;
  return PyArg_UnpackTuple(args, "read_again", 1, 2, &object, &key) ? find(which, object, key) : nullptr;
}

PyObject* holds_still(PyObject*, PyObject* args) {
  PyObject *object, *name, *held;
  if (!PyArg_UnpackTuple(args, "holds_still", 3, 3, &object, &name, &held)) return nullptr;
  return PyBool_FromLong(entry_of_namespace(object, name) == held);
}

// What the steps call, for as long as the process.
PyObject* function_of(int which) {
  static PyMethodDef methods[] = {{"read_entry_again", find_again<kEntry>, METH_VARARGS, nullptr},
                                  {"read_attribute_again", find_again<kAttribute>, METH_VARARGS, nullptr},
                                  {"read_contents_again", find_again<kWhole>, METH_VARARGS, nullptr},
                                  {"read_slot_again", find_again<kSlot>, METH_VARARGS, nullptr},
                                  {"holds_still", holds_still, METH_VARARGS, nullptr}};
  static PyObject* const functions[] = {PyCFunction_New(&methods[kEntry], self_of_steps()),
                                        PyCFunction_New(&methods[kAttribute], self_of_steps()),
                                        PyCFunction_New(&methods[kWhole], self_of_steps()),
                                        PyCFunction_New(&methods[kSlot], self_of_steps()),
                                        PyCFunction_New(&methods[kStill], self_of_steps())};
  return functions[which];
}

std::string name_of(int which) {
  return reinterpret_cast<PyCFunctionObject*>(function_of(which))->m_ml->ml_name;
}

bool is_plain_int_or_float(PyObject* value) { return PyLong_CheckExact(value) || PyFloat_CheckExact(value); }

// A number that Python code changes is another one at each call, and each would be a way of its own.
bool is_plain(PyObject* value) {
  if (is_plain_int_or_float(value)) return false;
  return is_tensor(value) || (is_immutable(value) && !is_enum_member(value));
}

// Whether a step can give it: tensors and values, and no object that others may change. What a container
// holds is a copy, made for whoever asks.
bool can_give(int which, PyObject* found) {
  PyObject *key, *value;
  bool plain = true;
  if (which == kWhole && PyList_CheckExact(found))
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(found); ++i) plain &= is_plain(PyList_GET_ITEM(found, i));
  else if (which == kWhole && PyDict_CheckExact(found))
    for (Py_ssize_t at = 0; PyDict_Next(found, &at, &key, &value);) plain &= is_key(key) && is_plain(value);
  else
    return is_plain(found) && found != Py_Ellipsis;
  return plain;
}
}  // namespace

bool LateReads::has_changed(PyObject* object, PyObject* written, PyObject* key) const {
  Recorder* recorder = around_->recorder;
  if (recorder->stopped() || recorder->inside_operator()) return false;
  Provenance* provenance = around_->provenance;
  bool attribute = object != written;
  // Of a namespace, too, the names are known that were set there.
  bool changed = attribute ? provenance->touched_attribute(object, key)
                 : key     ? provenance->touched_entry(object, key)
                           : provenance->touched(object);
  if (!recorder->feeding() && !changed) return false;
  if (provenance->known(object) < 0 || provenance->is_fresh(object)) return false;
  // What the step finds beside what was written by then, which lies there, too.
  const Writes& writes = *around_->writes;
  bool one = key && PyDict_Check(written) && !writes.appended_to(written);
  bool wrote = one ? writes.wrote(written, key) : writes.wrote_to(written);
  if (wrote || writes.took_over(written)) return false;
  return recorder->takes_steps();
}

std::string LateReads::where_is(int which, PyObject* object, PyObject* key) const {
  if (which != kAttribute && which != kSlot) return "";
  return around_->words_for(object, key);
}

bool LateReads::read(int which, PyObject* object, PyObject* key) {
  Recorder* recorder = around_->recorder;
  PyObject* function = function_of(which);
  auto found = py::reinterpret_steal<py::object>(find(which, object, key));
  if (!found) throw py::error_already_set();
  // Which one it is: others are read by themselves.
  std::string where = where_is(which, object, key);
  bool fed = recorder->feeding();
  bool number = is_plain_int_or_float(found.ptr());
  if (fed) {
    // Python reads it by itself: it must be what the replay has found there.
    if (!recorder->expects(name_of(which) + where)) return false;
    py::object given = recorder->fed_value();
    bool same = given.is(found) || (is_immutable(found.ptr()) && same_immutable(found.ptr(), given.ptr()));
    bool shown = !same && which == kAttribute && show(object, key, given.ptr());
    if (!same && !shown && which != kWhole) return false;
    found = given;
  } else if (!can_give(which, found.ptr()) && !(number && recorder->numbers())) {
    return false;
  }
  py::tuple args(key ? 2 : 1);
  args[0] = py::handle(object);
  if (key) args[1] = py::handle(key);
  OpaqueCall call(*around_, function, "", args.ptr(), nullptr, false, true);
  call.reads_late(where);
  if (number) call.gives_numbers();
  call.finish(found.ptr());
  bool attribute = which == kAttribute || which == kSlot;
  PyObject** dict = attribute ? _PyObject_GetDictPtr(object) : nullptr;
  around_->provenance->note_late_read(dict && *dict ? *dict : object, key);
  if (number && !recorder->stopped()) around_->exchange->expect(found.ptr(), call.numbers());
  return true;
}

// A key that a replay has, too: a value, or an object that it finds where the recording did.
bool LateReads::is_known_key(PyObject* key) const {
  if (is_key(key)) return true;
  Provenance* provenance = around_->provenance;
  if (!is_key_by_identity(key) || provenance->is_fresh(key)) return false;
  return (is_tensor(key) ? provenance->node_of_tensor(key) : provenance->known(key)) >= 0;
}

bool LateReads::read_entry(PyObject* container, PyObject* key) {
  bool dict = PyDict_CheckExact(container) || is_default_dict(container);
  bool list = PyList_CheckExact(container) && PyLong_CheckExact(key);
  if (!(dict && is_known_key(key)) && !list) return false;
  return has_changed(container, container, key) && read(kEntry, container, key);
}

// What an instruction of a function that runs again finds there, though later steps have set something else.
bool LateReads::show(PyObject* object, PyObject* name, PyObject* value) const {
  if (!shown_at_ || *shown_at_ != object) return false;
  PyObject* instead = new_namespace();
  Py_SETREF(*shown_at_, instead);
  if (PyObject_SetAttr(instead, name, value) < 0) throw py::error_already_set();
  return true;
}

// What the function itself has set by a step (EarlyStores). A list or dict of its own that steps may fill
// cannot be given by one: that it lies there still is asked.
bool LateReads::read_placed(PyObject* object, PyObject* dict, PyObject* name) {
  Recorder* recorder = around_->recorder;
  Provenance* provenance = around_->provenance;
  if (recorder->stopped() || provenance->known(object) < 0) return false;
  py::object value;
  Placed::How how = provenance->is_placed(dict, name, &value);
  bool fed = recorder->feeding(), sure = how == Placed::How::Surely;
  if (how == Placed::How::Not) return false;
  if (!sure && (!value || !provenance->is_adopted(value.ptr()) || !recorder->takes_steps())) return false;
  PyObject* held = PyDict_GetItemWithError(dict, name);
  bool there = value.is(py::handle(held));
  if (!sure) {
    std::string where = around_->words_for(object, name);
    if (fed) {
      if (!recorder->expects(name_of(kStill) + where)) return false;
      there = recorder->fed_value().ptr() == Py_True;
    }
    auto args = py::make_tuple(py::handle(object), py::handle(name), value);
    OpaqueCall call(*around_, function_of(kStill), "", args.ptr(), nullptr, false, true);
    call.reads_late(where);
    call.finish(there ? Py_True : Py_False);
    if (!there) return false;
  }
  // At another call the next step may have set it, which a function that runs again can only be shown there.
  if (!fed && !(shown_at_ && *shown_at_ == object))
    recorder->end_resuming("C code reads an attribute that the function has set by a step");
  if (fed && !value.is(py::handle(held)) && !show(object, name, value.ptr()))
    recorder->diverge("an attribute that a later step has set");
  return true;
}

bool LateReads::read_attribute(PyObject* object, PyObject* name) {
  PyObject** dict = _PyObject_GetDictPtr(object);
  if (!dict || !*dict || !PyDict_CheckExact(*dict) || !PyUnicode_CheckExact(name)) return false;
  if (PyType_Check(object) || PyModule_Check(object)) return false;
  if (read_placed(object, *dict, name)) return true;
  return has_changed(object, *dict, name) && read(kAttribute, object, name);
}

bool LateReads::read_slot(PyObject* object, PyObject* name) {
  Recorder* recorder = around_->recorder;
  if (recorder->stopped() || recorder->inside_operator() || !recorder->takes_steps()) return false;
  return read(kSlot, object, name);
}

bool LateReads::read_whole(PyObject* container) {
  if (!PyDict_CheckExact(container) && !PyList_CheckExact(container)) return false;
  return has_changed(container, container, nullptr) && read(kWhole, container, nullptr);
}

}  // namespace lazytrace
