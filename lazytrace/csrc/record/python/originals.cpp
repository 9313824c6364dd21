#include "record/python/originals.h"

#include <pybind11/pybind11.h>

#include "cpython/objects.h"
#include "record/python/code_facts.h"

namespace lazytrace {

namespace {

constexpr int kDeepest = 4;
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

void Originals::put_back_in_dict(PyObject* dict, int depth) {
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value);) {
    PyObject* original = original_of(value);
    if (!original) put_back_inside(value, depth);
    if (original && PyDict_SetItem(dict, key, original) < 0) throw pybind11::error_already_set();
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

void Originals::put_back_inside(PyObject* value, int depth) {
  bool list = PyList_CheckExact(value) || PyTuple_CheckExact(value);
  bool dict = PyDict_CheckExact(value), deque = is_deque(value);
  bool iterator = !deque && is_iterator_of_c(value);
  if (!(list || dict || deque || iterator) || depth > kDeepest || !seen_.insert(value)) return;
  if (iterator) {
    struct Visit {
      Originals* originals;
      int depth;
    } visit{this, depth + 1};
    auto enter = [](PyObject* part, void* with) {
      auto* one = static_cast<Visit*>(with);
      one->originals->put_back_inside(part, one->depth);
      return 0;
    };
    Py_TYPE(value)->tp_traverse(value, enter, &visit);
    return;
  }
  if (PyObject_Size(value) > kMost) return;
  if (dict) return put_back_in_dict(value, depth + 1);
  if (deque) return put_back_in_deque(value, depth + 1);
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) {
    PyObject** item = PySequence_Fast_ITEMS(value) + i;
    if (PyObject* original = *item ? original_of(*item) : nullptr)
      Py_SETREF(*item, Py_NewRef(original));
    else if (*item)
      put_back_inside(*item, depth + 1);
  }
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
