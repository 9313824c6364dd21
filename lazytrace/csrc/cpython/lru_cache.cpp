#include "cpython/lru_cache.h"

#include <torch/csrc/utils/pybind.h>

#include <vector>

#include "cpython/imports.h"
#include "cpython/values.h"

namespace lazytrace {

namespace py = pybind11;

namespace {

// CPython 3.11, Modules/_functoolsmodule.c.
struct Link {
  PyObject_HEAD Link *previous, *next;
  Py_hash_t hash;
  PyObject *key, *result;
};

struct Cache {
  Link root;  // holds the object's own head
  void* wrapper;
  int typed;
  PyObject* entries;
  Py_ssize_t hits;
  PyObject* function;
  Py_ssize_t limit;  // -1: none
  Py_ssize_t misses;
  PyObject* keyword_mark;
};

// Whether finding the value in a dict runs code of the user's; an object without an __eq__ is found as
// itself.
bool runs_no_code(PyObject* v) {
  PyTypeObject* type = Py_TYPE(v);
  return is_key(v) || (type->tp_hash == PyBaseObject_Type.tp_hash &&
                       type->tp_richcompare == PyBaseObject_Type.tp_richcompare);
}

PyTypeObject* cache_type() {
  static auto* type =
      reinterpret_cast<PyTypeObject*>(from_module("functools", "_lru_cache_wrapper").release().ptr());
  return type;
}

// Asked of a cache of our own: whether the structures are as they are written down above.
bool known_layout() {
  static const bool known = [] {
    py::object function = from_module("operator", "index");
    py::object made = from_module("functools", "lru_cache")(4)(function);
    made(7);
    auto* cache = reinterpret_cast<Cache*>(made.ptr());
    if (cache->function != function.ptr() || cache->limit != 4 || !PyDict_CheckExact(cache->entries))
      return false;
    PyObject* entry = PyDict_GetItem(cache->entries, py::int_(7).ptr());
    return entry && reinterpret_cast<Link*>(entry)->result &&
           PyLong_CheckExact(reinterpret_cast<Link*>(entry)->result);
  }();
  return known;
}

}  // namespace

bool is_lru_cache(PyObject* v) { return Py_IS_TYPE(v, cache_type()); }

PyObject* cached_result(PyObject* v, PyObject* key) {
  if (!is_lru_cache(v) || !known_layout()) return nullptr;
  auto* cache = reinterpret_cast<Cache*>(v);
  PyObject* entry = cache->entries ? PyDict_GetItemWithError(cache->entries, key) : nullptr;
  PyErr_Clear();
  return entry && cache->limit >= 0 ? reinterpret_cast<Link*>(entry)->result : entry;
}

bool drops_entries(PyObject* v) {
  if (!known_layout()) return false;
  constexpr Py_ssize_t kFew = 8;  // a larger one has the entry the next time, if it was full of others
  auto* cache = reinterpret_cast<Cache*>(v);
  bool full = cache->limit >= 0 && cache->limit <= kFew &&
              (!cache->entries || PyDict_GET_SIZE(cache->entries) == cache->limit);
  return full && cache->misses > 2 * cache->limit && cache->misses > cache->hits;
}

void use_cached(PyObject* v, PyObject* key, int times) {
  if (!cached_result(v, key)) return;
  auto* cache = reinterpret_cast<Cache*>(v);
  cache->hits += times;
  if (cache->limit < 0) return;
  auto* link = reinterpret_cast<Link*>(PyDict_GetItemWithError(cache->entries, key));
  link->previous->next = link->next;
  link->next->previous = link->previous;
  Link *root = &cache->root, *last = root->previous;
  last->next = root->previous = link;
  link->previous = last;
  link->next = root;
}

PyObject* cache_key(PyObject* v, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  if (!known_layout()) return nullptr;
  auto* cache = reinterpret_cast<Cache*>(v);
  Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0, positional = count - named;
  for (Py_ssize_t i = 0; i < count; ++i)
    if (!runs_no_code(args[i])) return nullptr;
  if (!cache->typed && !named && count == 1 && (PyUnicode_CheckExact(args[0]) || PyLong_CheckExact(args[0])))
    return Py_NewRef(args[0]);
  std::vector<PyObject*> parts(args, args + positional);
  if (named) parts.push_back(cache->keyword_mark);
  for (Py_ssize_t i = 0; i < named; ++i) {
    parts.push_back(PyTuple_GET_ITEM(names, i));
    parts.push_back(args[positional + i]);
  }
  if (cache->typed)
    for (Py_ssize_t i = 0; i < count; ++i) parts.push_back(reinterpret_cast<PyObject*>(Py_TYPE(args[i])));
  PyObject* key = PyTuple_New(static_cast<Py_ssize_t>(parts.size()));
  for (size_t i = 0; key && i < parts.size(); ++i)
    PyTuple_SET_ITEM(key, static_cast<Py_ssize_t>(i), Py_NewRef(parts[i]));
  return key;
}

}  // namespace lazytrace
