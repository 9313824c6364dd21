#include "cpython/cached_entry.h"

#include <algorithm>

#include "cpython/carrier.h"
#include "cpython/lru_cache.h"
#include "cpython/objects.h"
#include "cpython/text_carrier.h"
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

// The same of a value as TakingApart writes it down.
py::object make_again(const char** form, PyObject* leaves, Py_ssize_t* next) {
  char kind = *(*form)++;
  if (kind == '.') return py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(leaves, (*next)++));
  py::list items;
  while (**form != ')') items.append(make_again(form, leaves, next));
  ++*form;
  if (kind == '[') return items;
  if (kind == '(') return py::tuple(items);
  py::dict entries;
  for (size_t i = 0; i + 1 < items.size(); i += 2) entries[items[i]] = items[i + 1];
  return entries;
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

namespace {
class Giving : public Rebuilding {
 protected:
  py::object leaf(PyObject* value) override {
    if (is_plain_number(value)) return py::reinterpret_borrow<py::object>(value);
    bool plain =
        is_immutable(value) && !is_enum_member(value) && !PyFloat_Check(value) && !PyTuple_Check(value);
    if (!plain) throw NotGiven();
    return py::reinterpret_borrow<py::object>(value);
  }
};
}  // namespace

py::object given(const Entry& entry) {
  if (!entry.result) return py::reinterpret_borrow<py::object>(kNoEntry);
  try {
    py::object found = Giving().of(entry.result);
    if (found.ptr() != kNoEntry) return found;
  } catch (const NotGiven&) {
  }
  return py::reinterpret_borrow<py::object>(kNotGiven);
}

// What stands before the leaves: the cache and the form of the arguments, and that of what a function has
// made.
constexpr Py_ssize_t kBeforeLeaves = 2, kBeforeKept = 3;

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
    return given(entry_of(args)).release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
}

namespace {
// Which is the same object in each replay: a tuple of constants may be one of state.
bool is_constant(PyObject* value, int depth) {
  if (!PyTuple_CheckExact(value))
    return !is_followed(value) && is_immutable(value) && !is_enum_member(value) && !PyTuple_Check(value) &&
           !is_nan(value);
  bool all = depth <= kDeepestEntry;
  for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(value); ++i)
    all = is_constant(PyTuple_GET_ITEM(value, i), depth + 1);
  return all;
}
}  // namespace

void TakingApart::add(PyObject* value, int depth) {
  if (depth > kDeepestEntry) throw NotGiven();
  bool number = is_carrier(value) && !is_scalar_carrier(value);
  if (number || is_constant(value, depth) || (is_container(value) && lasts_(value))) {
    form_ += '.';
    return leaves_.append(py::handle(value));
  }
  if (!is_container(value) || std::count(containers_.begin(), containers_.end(), value)) throw NotGiven();
  containers_.push_back(value);
  form_ += PyTuple_CheckExact(value) ? '(' : PyList_CheckExact(value) ? '[' : '{';
  if (PyDict_CheckExact(value)) {
    PyObject *key, *item;
    for (Py_ssize_t at = 0; PyDict_Next(value, &at, &key, &item);) {
      if (is_container(key) || is_followed(key)) throw NotGiven();
      add(key, depth + 1);
      add(item, depth + 1);
    }
  } else {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
      add(PySequence_Fast_GET_ITEM(value, i), depth + 1);
  }
  form_ += ')';
}

PyObject* begin_entry(PyObject*, PyObject* args) {
  count_miss(PyTuple_GET_ITEM(args, 0));
  return Py_NewRef(Py_None);
}

PyObject* keep_entry(PyObject*, PyObject* args) {
  try {
    const char* key = PyUnicode_AsUTF8(PyTuple_GET_ITEM(args, 1));
    const char* result = PyUnicode_AsUTF8(PyTuple_GET_ITEM(args, 2));
    if (!key || !result) return nullptr;
    Py_ssize_t next = kBeforeKept;
    py::tuple call = put_together(&key, args, &next);
    py::object made = make_again(&result, args, &next);
    return put_cached(PyTuple_GET_ITEM(args, 0), call.ptr(), made.ptr()) ? Py_NewRef(Py_None) : nullptr;
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
}

}  // namespace lazytrace
