#include "program/effect.h"

#include "cpython/objects.h"
#include "cpython/slots.h"
#include "cpython/values.h"

namespace lazytrace {

namespace {
int append_to_deque(PyObject* deque, PyObject* value) {
  static PyObject* name = PyUnicode_InternFromString("append");
  PyObject* none = PyObject_CallMethodOneArg(deque, name, value);
  Py_XDECREF(none);
  return none ? 0 : -1;
}

// What a list or dict holds from now on.
int set_content(PyObject* owner, PyObject* value) {
  if (PyList_Check(owner)) return PyList_SetSlice(owner, 0, PyList_GET_SIZE(owner), value);
  py::object empty = py::reinterpret_steal<py::object>(PyObject_CallMethod(owner, "clear", nullptr));
  if (!empty || PyDict_Check(owner)) return empty ? fill_mapping(owner, value) : -1;
  return py::reinterpret_steal<py::object>(PyObject_CallMethod(owner, "extend", "O", value)) ? 0 : -1;
}

int set_item(PyObject* dict, PyObject* key, PyObject* value) {
  return PyODict_Check(dict) ? PyODict_SetItem(dict, key, value) : PyDict_SetItem(dict, key, value);
}

int remove_item(PyObject* dict, PyObject* key) {
  return PyODict_Check(dict) ? PyODict_DelItem(dict, key) : PyDict_DelItem(dict, key);
}

int set_entry(PyObject* owner, PyObject* key, PyObject* value) {
  if (PyDict_Check(owner)) return set_item(owner, key, value);
  Py_ssize_t index = PyLong_AsSsize_t(key);
  if (PyErr_Occurred()) return -1;
  return PyList_SetItem(owner, index, Py_NewRef(value));
}

int drop_all(PyObject* list) {
  if (PyList_Check(list)) return PyList_SetSlice(list, 0, PyList_GET_SIZE(list), nullptr);
  PyObject* none = PyObject_CallMethod(list, "clear", nullptr);
  Py_XDECREF(none);
  return none ? 0 : -1;
}

// Somebody else may have emptied it meanwhile.
int drop(PyObject* list, bool last) {
  if (PyList_Check(list)) {
    Py_ssize_t size = PyList_GET_SIZE(list), at = last ? size - 1 : 0;
    return size ? PyList_SetSlice(list, at, at + 1, nullptr) : 0;
  }
  PyObject* taken = PySequence_Size(list) ? PyObject_CallMethod(list, last ? "pop" : "popleft", nullptr)
                                          : Py_NewRef(Py_None);
  Py_XDECREF(taken);
  return taken ? 0 : -1;
}
}  // namespace

py::object Effect::take_out(PyObject* owner_now) const {
  PyObject* dict = container(owner_now);
  py::object before = PyDict_Check(dict) ? held(dict) : py::object();
  if (before && remove_item(dict, key.ptr()) < 0) throw py::error_already_set();
  return before;
}

void Effect::apply(PyObject* owner_now, PyObject* value) const {
  int failed = -1;
  py::object before = moves ? take_out(owner_now) : py::object();  // goes behind what takes its place
  switch (kind) {
    case Kind::Attribute:
      failed = PyModule_Check(owner_now) ? PyDict_SetItem(PyModule_GetDict(owner_now), key.ptr(), value)
                                         : PyObject_GenericSetAttr(owner_now, key.ptr(), value);
      break;
    case Kind::Item:
      failed = set_item(owner_now, key.ptr(), value);
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
    case Kind::Content:
      failed = set_content(owner_now, value);
      break;
    case Kind::Class:
      failed = PyType_Type.tp_setattro(owner_now, key.ptr(), value);
      break;
    case Kind::Type:
      failed = PyObject_SetAttrString(owner_now, "__class__", value);
      break;
    case Kind::Entry:
      failed = set_entry(owner_now, PyTuple_GET_ITEM(value, 0), PyTuple_GET_ITEM(value, 1));
      break;
    case Kind::Drop:
      failed = index == kAll ? drop_all(owner_now) : drop(owner_now, index < 0);
      break;
  }
  if (failed < 0) throw py::error_already_set();
}

PyObject* Effect::container(PyObject* owner_now) const {
  if (kind == Kind::Cell) return PyTuple_GET_ITEM(PyFunction_GET_CLOSURE(owner_now), index);
  if (kind != Kind::Attribute) return owner_now;
  if (PyModule_Check(owner_now)) return PyModule_GetDict(owner_now);
  if (is_tensor(owner_now)) make_namespace(owner_now);
  PyObject** dict = is_slot(owner_now, key.ptr()) ? nullptr : _PyObject_GetDictPtr(owner_now);
  return dict && *dict ? *dict : owner_now;
}

py::object Effect::held(PyObject* container) const {
  if (kind == Kind::Content) return content_of(container);
  if (kind == Kind::Append)
    return PySequence_Size(container) ? py::reinterpret_steal<py::object>(
                                            PySequence_GetItem(container, PySequence_Size(container) - 1))
                                      : py::object();
  PyObject* found = nullptr;
  if (kind == Kind::At && index < PyList_GET_SIZE(container)) found = PyList_GET_ITEM(container, index);
  if (kind == Kind::Entry && PyList_Check(container)) {
    Py_ssize_t at = PyLong_AsSsize_t(key.ptr());
    if (PyErr_Occurred()) PyErr_Clear(), at = -1;
    if (at >= 0 && at < PyList_GET_SIZE(container)) found = PyList_GET_ITEM(container, at);
    return py::reinterpret_borrow<py::object>(found);
  }
  if (kind == Kind::Attribute && !PyDict_Check(container)) return held_by_slot(container, key.ptr());
  if (kind == Kind::Item || kind == Kind::Attribute || kind == Kind::Entry)
    found = PyDict_GetItemWithError(container, key.ptr());
  if (kind == Kind::Cell) found = PyCell_GET(container);
  if (kind == Kind::Type) found = reinterpret_cast<PyObject*>(Py_TYPE(container));
  if (kind == Kind::Class)
    found = PyDict_GetItemWithError(reinterpret_cast<PyTypeObject*>(container)->tp_dict, key.ptr());
  return py::reinterpret_borrow<py::object>(found);
}

namespace {
// The first entry of a deque that another one pushes out, or null.
py::object pushed_out(PyObject* deque) {
  if (PyList_Check(deque)) return {};
  static PyObject* const name = PyUnicode_InternFromString("maxlen");
  py::object limit = py::reinterpret_steal<py::object>(PyObject_GetAttr(deque, name));
  Py_ssize_t size = PySequence_Size(deque);
  bool full = limit && PyLong_Check(limit.ptr()) && size > 0 && PyLong_AsSsize_t(limit.ptr()) == size;
  if (!limit) PyErr_Clear();
  return full ? py::reinterpret_steal<py::object>(PySequence_GetItem(deque, 0)) : py::object();
}
}  // namespace

py::object Effect::taken(PyObject* container) const {
  if (kind == Kind::Append) return pushed_out(container);
  if (kind == Kind::Drop && index != kAll)
    return py::reinterpret_steal<py::object>(entry_of_list(container, index));
  return kind == Kind::Content || kind == Kind::Drop ? py::reinterpret_borrow<py::object>(container)
                                                     : held(container);
}

void Effect::put_back(PyObject* container, PyObject* before) const {
  int failed = -1;
  if (kind == Kind::Attribute && !PyDict_Check(container)) {
    if (PyObject_GenericSetAttr(container, key.ptr(), before) < 0) throw py::error_already_set();
    return;
  }
  switch (kind) {
    case Kind::Attribute:
    case Kind::Item:
      failed = before ? set_item(container, key.ptr(), before) : remove_item(container, key.ptr());
      break;
    case Kind::Append: {
      py::object last = py::reinterpret_steal<py::object>(PyObject_CallMethod(container, "pop", nullptr));
      failed = last ? 0 : -1;
      break;
    }
    case Kind::Cell:
      failed = PyCell_Set(container, before);
      break;
    default:
      return apply(container, before);
  }
  if (failed < 0) throw py::error_already_set();
}

namespace {
bool same_entry(PyObject* a, PyObject* b) {
  return a == b || (a && b && is_immutable(a) && is_immutable(b) && same_immutable(a, b));
}
}  // namespace

bool same_content(PyObject* a, PyObject* b) {
  if (PyObject_Size(a) != PyObject_Size(b)) return false;
  if (PyList_Check(a)) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(a); ++i)
      if (!same_entry(PyList_GET_ITEM(a, i), PyList_GET_ITEM(b, i))) return false;
    return true;
  }
  PyObject *key, *value, *other_key, *other;
  for (Py_ssize_t at = 0, there = 0;
       PyDict_Next(a, &at, &key, &value) && PyDict_Next(b, &there, &other_key, &other);)
    if (!same_entry(key, other_key) || !same_entry(value, other)) return false;
  return true;
}

py::object content_of(PyObject* container) {
  PyObject* copy = PyDict_Check(container)   ? ordered_items(container)
                   : PyList_Check(container) ? PyList_GetSlice(container, 0, PyList_GET_SIZE(container))
                                             : PySequence_List(container);
  if (!copy) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(copy);
}

}  // namespace lazytrace
