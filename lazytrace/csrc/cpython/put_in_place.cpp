#include "cpython/put_in_place.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cpython/ends.h"
#include "cpython/objects.h"

namespace lazytrace {

PutInPlace::PutInPlace(PyObject* object, PyObject* other, std::function<bool(PyObject*)> leaves_alone)
    : object_(object),
      other_(other),
      leaves_alone_(std::move(leaves_alone)),
      hashable_(Py_TYPE(object)->tp_hash != PyObject_HashNotImplemented) {}

void PutInPlace::within(PyObject* root) {
  std::vector<std::pair<PyObject*, bool>> left{{root, false}};
  while (!left.empty()) {
    auto [one, may_be_key] = left.back();
    left.pop_back();
    if (!one || one == object_ || one == other_ || !PyObject_IS_GC(one) || PyType_Check(one) ||
        PyModule_Check(one) || is_tensor(one) || !met_.insert(one) || leaves_alone_(one))
      continue;
    in_one(one, may_be_key || Py_REFCNT(one) > 1);
    std::vector<PyObject*> parts = goes_with(one);
    if (PyFunction_Check(one))
      parts.insert(parts.end(), {PyFunction_GET_DEFAULTS(one), PyFunction_GET_KW_DEFAULTS(one)});
    bool has_keys = PyDict_Check(one) || PyAnySet_Check(one);
    for (PyObject* part : parts) left.emplace_back(part, has_keys);
  }
}

// No key and no entry is added, so what is gone through stays what it is.
void PutInPlace::in_one(PyObject* holder, bool may_be_key) {
  PyObject *key, *value;
  Py_hash_t hash;  // which is known, so no key is asked for it
  for (Py_ssize_t at = 0; PyDict_Check(holder) && _PyDict_Next(holder, &at, &key, &value, &hash);)
    if (value == object_) _PyDict_SetItem_KnownHash(holder, key, other_, hash);
  for (Py_ssize_t i = 0; PyList_Check(holder) && i < PyList_GET_SIZE(holder); ++i)
    if (PyList_GET_ITEM(holder, i) == object_) PyList_SetItem(holder, i, Py_NewRef(other_));
  if (PyTuple_Check(holder) && !(hashable_ && may_be_key)) in_tuple(holder);
  if (PyCell_Check(holder) && PyCell_GET(holder) == object_) PyCell_Set(holder, other_);
  if (is_deque(holder))
    for (Py_ssize_t i = 0; i < PySequence_Size(holder); ++i) {
      PyObject* item = PySequence_GetItem(holder, i);
      Py_XDECREF(item);  // the deque holds it
      if (item == object_) PySequence_SetItem(holder, i, other_);
    }
  if (is_rebuildable(holder)) in_attributes(holder);
  PyErr_Clear();  // where something cannot be set it is found there later
}

void PutInPlace::in_tuple(PyObject* tuple) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i)
    if (PyTuple_GET_ITEM(tuple, i) == object_) {
      PyTuple_SET_ITEM(tuple, i, Py_NewRef(other_));
      Py_DECREF(object_);
    }
}

void PutInPlace::in_attributes(PyObject* holder) {
  std::vector<PyObject*> parts = parts_of(holder);
  if (std::find(parts.begin(), parts.end(), object_) == parts.end()) return;
  PyObject* state = instance_state(holder);
  if (!state) return;
  PyObject *name, *value;
  for (Py_ssize_t at = 0; PyDict_Next(state, &at, &name, &value);)
    if (value == object_) PyDict_SetItem(state, name, other_);
  set_instance_state(holder, state);
  Py_DECREF(state);
}

}  // namespace lazytrace
