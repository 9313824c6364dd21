#include "record/python/originals.h"

#include <pybind11/pybind11.h>

#include "cpython/carried_iterator.h"
#include "cpython/objects.h"
#include "record/python/code_facts.h"

namespace lazytrace {

namespace {

constexpr int kDeepest = 12;
constexpr Py_ssize_t kMost = 1 << 16;  // entries that are looked at

// What goes through a container in C.
bool is_iterator_of_c(PyObject* value) {
  return PyIter_Check(value) && !PyGen_CheckExact(value) && Py_TYPE(value)->tp_traverse &&
         !PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE);
}

}  // namespace

PyObject* Originals::original_of(PyObject* value) const {
  PyObject* const* found = originals_.find(value);
  return found ? *found : nullptr;
}

void Originals::put_back(PyObject** place) {
  if (!*place) return;
  if (PyObject* original = original_of(*place))
    Py_SETREF(*place, Py_NewRef(original));
  else
    put_back_inside(*place, 0);
}

// Where keys would be hashed or compared by code of the user's, the numbers stay, which are equal.
void Originals::put_back_in_dict(PyObject* dict, int depth) {
  bool silent = has_silent_keys(dict);
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value);) {
    PyObject* original = original_of(value);
    if (!original) put_back_inside(value, depth);
    if (original && silent && PyDict_SetItem(dict, key, original) < 0) throw pybind11::error_already_set();
  }
}

void Originals::put_back_in_deque(PyObject* deque, int depth) {
  for (Py_ssize_t i = 0; i < PySequence_Size(deque); ++i) {
    auto value = pybind11::reinterpret_steal<pybind11::object>(PySequence_GetItem(deque, i));
    if (!value) throw pybind11::error_already_set();
    PyObject* original = original_of(value.ptr());
    if (!original) put_back_inside(value.ptr(), depth);
    if (original && PySequence_SetItem(deque, i, original) < 0) throw pybind11::error_already_set();
  }
}

void Originals::put_back_in_items(PyObject* sequence, int depth) {
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence); ++i) {
    PyObject** item = PySequence_Fast_ITEMS(sequence) + i;
    if (PyObject* original = *item ? original_of(*item) : nullptr)
      Py_SETREF(*item, Py_NewRef(original));
    else if (*item)
      put_back_inside(*item, depth);
  }
}

void Originals::put_back_in_iterator(PyObject* iterator, int depth) {
  struct Visit {
    Originals* originals;
    int depth;
  } visit{this, depth};
  auto enter = [](PyObject* part, void* with) {
    auto* one = static_cast<Visit*>(with);
    one->originals->put_back_inside(part, one->depth);
    return 0;
  };
  Py_TYPE(iterator)->tp_traverse(iterator, enter, &visit);
}

void Originals::put_back_in_function(PyObject* function, int depth) {
  auto* f = reinterpret_cast<PyFunctionObject*>(function);
  for (PyObject* part : {f->func_defaults, f->func_kwdefaults, f->func_dict})
    if (part) put_back_inside(part, depth);
  for (Py_ssize_t i = 0; f->func_closure && i < PyTuple_GET_SIZE(f->func_closure); ++i)
    put_back(&reinterpret_cast<PyCellObject*>(PyTuple_GET_ITEM(f->func_closure, i))->ob_ref);
}

// They are put where they lie, as a property or a descriptor of this name would run code of the user's.
void Originals::put_back_in_attributes(PyObject* object, int depth) {
  if (PyDict_Check(object)) put_back_in_dict(object, depth);
  if (PyList_Check(object)) put_back_in_items(object, depth);
  bool single = true;
  auto state = pybind11::reinterpret_steal<pybind11::object>(instance_state(object, &single));
  if (!state) throw pybind11::error_already_set();
  if (!single) return;
  pybind11::dict originals;
  PyObject *name, *value;
  for (Py_ssize_t at = 0; PyDict_Next(state.ptr(), &at, &name, &value);) {
    PyObject* original = original_of(value);
    if (!original) put_back_inside(value, depth);
    if (original && PyDict_SetItem(originals.ptr(), name, original) < 0) throw pybind11::error_already_set();
  }
  if (originals.size() && set_instance_state(object, originals.ptr()) < 0)
    throw pybind11::error_already_set();
}

// What code of the user's holds. False of anything else.
bool Originals::put_back_in_code(PyObject* value, int depth) {
  if (carry_no_more(value)) return true;
  bool function = PyFunction_Check(value), generator = PyGen_CheckExact(value);
  if (!function && !generator && !(is_rebuildable(value) && made_(value))) return false;
  if (depth > kDeepest || !seen_.insert(value)) return true;
  if (function) {
    put_back_in_function(value, depth + 1);
  } else if (!generator) {
    put_back_in_attributes(value, depth + 1);
  } else if (Frame waiting = Frame::waiting(value)) {
    for (PyObject** place : waiting.places(true)) put_back(place);
  }
  return true;
}

void Originals::put_back_inside(PyObject* value, int depth) {
  if (put_back_in_code(value, depth)) return;
  bool list = PyList_CheckExact(value) || PyTuple_Check(value);  // a class of tuples has them where all have
  bool dict = PyDict_CheckExact(value), deque = is_deque(value);
  bool iterator = !deque && is_iterator_of_c(value);
  if (!(list || dict || deque || iterator) || depth > kDeepest || !seen_.insert(value)) return;
  if (iterator) return put_back_in_iterator(value, depth + 1);
  if ((list ? PySequence_Fast_GET_SIZE(value) : PyObject_Size(value)) > kMost) return;
  if (dict) return put_back_in_dict(value, depth + 1);
  if (deque) return put_back_in_deque(value, depth + 1);
  put_back_in_items(value, depth + 1);
}

// Of our own code that runs nothing is asked.
void Originals::put_back(Frame top, Frame base) {
  if (originals_.empty()) return;
  for (Frame f = top; f && f != base; f = f.previous()) {
    if (is_own_code(f.code())) continue;
    for (PyObject** place : f.places(f == top)) put_back(place);
  }
}

}  // namespace lazytrace
