#include "program/effects.h"

#include <algorithm>

#include "program/value_tree.h"

namespace lazytrace {

namespace {
int append_to_deque(PyObject* deque, PyObject* value) {
  static PyObject* name = PyUnicode_InternFromString("append");
  PyObject* none = PyObject_CallMethodOneArg(deque, name, value);
  Py_XDECREF(none);
  return none ? 0 : -1;
}
}  // namespace

void Effect::apply(PyObject* owner_now, PyObject* value) const {
  int failed = -1;
  switch (kind) {
    case Kind::Attribute:
      failed = PyModule_Check(owner_now) ? PyDict_SetItem(PyModule_GetDict(owner_now), key.ptr(), value)
                                         : PyObject_GenericSetAttr(owner_now, key.ptr(), value);
      break;
    case Kind::Item:
      failed = PyDict_SetItem(owner_now, key.ptr(), value);
      break;
    case Kind::At:
      Py_INCREF(value);
      failed = PyList_SetItem(owner_now, index, value);
      break;
    case Kind::Append:
      failed = PyList_Check(owner_now) ? PyList_Append(owner_now, value) : append_to_deque(owner_now, value);
      break;
    case Kind::Cell:
      failed = PyCell_Set(PyTuple_GET_ITEM(PyFunction_GET_CLOSURE(owner_now), index), value);
      break;
  }
  if (failed < 0) throw py::error_already_set();
}

namespace {
bool same_key(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (!a || !b || !is_key(a) || !is_key(b)) return false;
  int equal = PyObject_RichCompareBool(a, b, Py_EQ);  // as a dict compares: 1, True and 1.0 are one key
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}
}  // namespace

const Writes::Slot* Writes::find(PyObject* container, PyObject* key, Py_ssize_t index) const {
  for (const Slot& slot : slots_)
    if (slot.container == container && slot.index == index && same_key(slot.key, key)) return &slot;
  return nullptr;
}

PyObject* Effect::container(PyObject* owner_now) const {
  if (kind == Kind::Cell) return PyTuple_GET_ITEM(PyFunction_GET_CLOSURE(owner_now), index);
  if (kind != Kind::Attribute) return owner_now;
  if (PyModule_Check(owner_now)) return PyModule_GetDict(owner_now);
  PyObject** dict = _PyObject_GetDictPtr(owner_now);
  return dict && *dict ? *dict : owner_now;
}

void Containers::add(PyObject* container, int object) {
  containers_.emplace_back(container, object);
  bits_ |= bit(container);
  cells_ |= PyCell_Check(container);
  dicts_ |= PyDict_Check(container);
}

bool Containers::belongs_to_another(PyObject* container, c10::function_ref<int()> number) const {
  if (!(bits_ & bit(container))) return false;
  return std::any_of(containers_.begin(), containers_.end(), [&](const std::pair<PyObject*, int>& one) {
    return one.first == container && one.second != number();
  });
}

bool Containers::any_in(PyObject* object, c10::function_ref<int()> number) const {
  if (belongs_to_another(object, number)) return true;
  if (cells_ && PyFunction_Check(object)) {
    PyObject* closure = PyFunction_GET_CLOSURE(object);
    for (Py_ssize_t i = 0; closure && i < PyTuple_GET_SIZE(closure); ++i)
      if (belongs_to_another(PyTuple_GET_ITEM(closure, i), number)) return true;
  }
  PyObject** dict = !dicts_ || PyType_Check(object) ? nullptr : _PyObject_GetDictPtr(object);
  return dict && *dict && belongs_to_another(*dict, number);
}

bool Writes::wrote(PyObject* container, PyObject* key) const {
  return !writes_.empty() && find(container, key, -1);
}

bool Writes::wrote(PyObject* container, Py_ssize_t index) const {
  return !writes_.empty() && find(container, nullptr, index);
}

void Writes::add(Write write) {
  PyObject* container = write.container.ptr();
  containers_.insert(container);
  if (write.effect.kind == Effect::Kind::Append) {
    appended_.insert(container);
    writes_.push_back(std::move(write));
    return;
  }
  PyObject* key = write.effect.key.ptr();
  if (const Slot* slot = find(container, key, write.effect.index)) {
    writes_[slot->write].value = std::move(write.value);
    writes_[slot->write].effect.last = write.effect.last;
    return;
  }
  slots_.push_back({container, key, write.effect.index, writes_.size()});
  writes_.push_back(std::move(write));
}

}  // namespace lazytrace
