#include "cpython/cached_entry.h"

#include <algorithm>

#include "cpython/lru_cache.h"
#include "cpython/objects.h"
#include "cpython/values.h"

namespace lazytrace {

bool is_plain_number(PyObject* value) {
  if (PyFloat_CheckExact(value)) return !is_nan(value);
  int overflow = 0;
  return PyLong_CheckExact(value) && (PyLong_AsLongLongAndOverflow(value, &overflow), !overflow);
}

namespace {
bool is_container(PyObject* value) {
  return PyTuple_CheckExact(value) || PyList_CheckExact(value) || PyDict_CheckExact(value);
}

// Puts them together again.
py::tuple put_together(const char** form, PyObject* leaves, Py_ssize_t* next) {
  py::list items;
  for (; **form && **form != ')'; ++*form) {
    if (**form == '.') {
      items.append(py::handle(PyTuple_GET_ITEM(leaves, (*next)++)));
      continue;
    }
    ++*form;
    items.append(put_together(form, leaves, next));
  }
  return py::tuple(items);
}

}  // namespace

py::object Rebuilding::of(PyObject* value, int depth) {
  if (depth > kDeepestEntry) throw NotGiven();
  if (!is_container(value)) return leaf(value);
  bool again = std::find(met_.begin(), met_.end(), value) != met_.end();
  if (again) throw NotGiven();
  if (!PyTuple_CheckExact(value)) met_.push_back(value);
  return made(PyDict_CheckExact(value) ? of_dict(value, depth) : of_items(value, depth), value);
}

py::object Rebuilding::of_items(PyObject* value, int depth) {
  py::list items;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
    items.append(of(PySequence_Fast_GET_ITEM(value, i), depth + 1));
  return PyTuple_CheckExact(value) ? py::object(py::tuple(items)) : items;
}

py::object Rebuilding::of_dict(PyObject* value, int depth) {
  py::dict items;
  PyObject *key, *item;
  for (Py_ssize_t at = 0; PyDict_Next(value, &at, &key, &item);) {
    if (!is_immutable(key) || is_enum_member(key)) throw NotGiven();
    items[py::handle(key)] = of(item, depth + 1);
  }
  return items;
}

py::object Giving::leaf(PyObject* value) {
  if (is_plain_number(value)) {
    size_t at = numbers_.size();
    numbers_.push_back(value);
    if (at < marks_.size() && marks_[at] == kFollowed) return py::reinterpret_borrow<py::object>(value);
    return py::str("#" + std::string(py::repr(value)));
  }
  if (PyUnicode_CheckExact(value)) return py::str("'") + py::reinterpret_borrow<py::str>(value);
  bool plain =
      is_immutable(value) && !is_enum_member(value) && !PyFloat_Check(value) && !PyTuple_Check(value);
  if (!plain) throw NotGiven();
  return py::reinterpret_borrow<py::object>(value);
}

py::object given(PyObject* result, const std::string& marks) {
  try {
    return Giving(marks).of(result);
  } catch (const NotGiven&) {
    return {};
  }
}

constexpr Py_ssize_t kBeforeLeaves = 3;
Entry entry_of(PyObject* args) {
  const char* form = PyUnicode_AsUTF8(PyTuple_GET_ITEM(args, 1));
  if (!form) throw py::error_already_set();
  Py_ssize_t next = kBeforeLeaves;
  py::tuple call = put_together(&form, args, &next);
  PyObject* cache = PyTuple_GET_ITEM(args, 0);
  Entry entry{py::reinterpret_steal<py::object>(
      cache_key(cache, &PyTuple_GET_ITEM(call.ptr(), 0), PyTuple_GET_SIZE(call.ptr()), nullptr))};
  PyErr_Clear();
  if (entry.key) entry.result = cached_result(cache, entry.key.ptr());
  return entry;
}

PyObject* look_up_entry(PyObject*, PyObject* args) {
  try {
    Entry entry = entry_of(args);
    py::object found;
    if (entry.result) found = given(entry.result, text_of(PyTuple_GET_ITEM(args, 2)));
    return found ? found.release().ptr() : Py_NewRef(Py_Ellipsis);
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
}

void use_entry(PyObject* args) {
  if (Entry entry = entry_of(args); entry.result) use_cached(PyTuple_GET_ITEM(args, 0), entry.key.ptr(), 1);
}

}  // namespace lazytrace
