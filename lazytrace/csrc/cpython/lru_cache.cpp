#include "cpython/lru_cache.h"

#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <utility>
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

// A pattern of `re` is compared by its code and its text, which may be of a class of the user's.
bool is_plain_pattern(PyObject* v) {
  static PyObject* const type = from_module("re", "Pattern").release().ptr();
  if (reinterpret_cast<PyObject*>(Py_TYPE(v)) != type) return false;
  auto text = py::reinterpret_steal<py::object>(PyObject_GetAttrString(v, "pattern"));
  if (!text) PyErr_Clear();
  return text && (PyUnicode_CheckExact(text.ptr()) || PyBytes_CheckExact(text.ptr()));
}

// Whether finding the value in a dict runs no code of the user's; an object without an __eq__ is found as
// itself.
bool runs_no_code(PyObject* v) {
  PyTypeObject* type = Py_TYPE(v);
  bool by_identity =
      type->tp_hash == PyBaseObject_Type.tp_hash && type->tp_richcompare == PyBaseObject_Type.tp_richcompare;
  return by_identity || is_key(v) || is_plain_pattern(v);
}

// What `typing` makes of types, which caches of its own keep: Union[int, str], Tuple[int, ...].
bool is_of_typing(PyObject* v) {
  PyTypeObject* type = Py_TYPE(v);
  static PyObject* const join = from_module("types", "UnionType").release().ptr();
  if (type == &Py_GenericAliasType || reinterpret_cast<PyObject*>(type) == join) return true;
  if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return false;
  static PyObject* const base = from_module("typing", "_GenericAlias").release().ptr();
  if (!PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(base))) return false;
  // One of its own, whatever module another one says that it is of.
  PyObject* typing = PyImport_AddModule("typing");
  return PyDict_GetItemString(PyModule_GetDict(typing), type->tp_name) == reinterpret_cast<PyObject*>(type);
}

// Whether all that would run code is such types, in tuples, too.
bool is_made_of_types(PyObject* v, int depth = 0) {
  constexpr int kDeepest = 4;
  if (runs_no_code(v) || is_of_typing(v)) return true;
  bool all = PyTuple_CheckExact(v) && depth < kDeepest;
  for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(v); ++i)
    all = is_made_of_types(PyTuple_GET_ITEM(v, i), depth + 1);
  return all;
}

// Whether two keys are one, as far as identity and values that cannot change tell.
bool same_key(PyObject* a, PyObject* b) {
  if (a == b) return true;
  bool tuples = PyTuple_CheckExact(a) && PyTuple_CheckExact(b) && PyTuple_GET_SIZE(a) == PyTuple_GET_SIZE(b);
  if (!tuples) return is_immutable(a) && is_immutable(b) && same_immutable(a, b);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i)
    if (!same_key(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
  return true;
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

namespace {
// The entry whose key is this very object.
PyObject* entry_under(const Cache& cache, PyObject* object) {
  PyObject *key, *entry;
  for (Py_ssize_t at = 0; cache.entries && PyDict_Next(cache.entries, &at, &key, &entry);)
    if (key == object) return entry;
  return nullptr;
}

PyObject* entry_of(const Cache& cache, PyObject* key) {
  if (!cache.entries) return nullptr;
  bool tuple = PyTuple_CheckExact(key);
  for (Py_ssize_t i = 0; tuple && i < PyTuple_GET_SIZE(key); ++i)
    if (!runs_no_code(PyTuple_GET_ITEM(key, i))) return entry_under(cache, key);
  PyObject* entry = PyDict_GetItemWithError(cache.entries, key);
  PyErr_Clear();
  return entry;
}
}  // namespace

PyObject* cached_result(PyObject* v, PyObject* key) {
  if (!is_lru_cache(v) || !known_layout()) return nullptr;
  auto* cache = reinterpret_cast<Cache*>(v);
  PyObject* entry = entry_of(*cache, key);
  return entry && cache->limit >= 0 ? reinterpret_cast<Link*>(entry)->result : entry;
}

bool holds_few(PyObject* v) {
  constexpr Py_ssize_t kFew = 8;  // a larger one has the entry the next time, if it was full of others
  auto* cache = reinterpret_cast<Cache*>(v);
  return known_layout() && cache->limit >= 0 && cache->limit <= kFew;
}

bool drops_entries(PyObject* v) {
  if (!holds_few(v)) return false;
  auto* cache = reinterpret_cast<Cache*>(v);
  bool full = !cache->entries || PyDict_GET_SIZE(cache->entries) == cache->limit;
  return full && cache->misses > 2 * cache->limit && cache->misses > cache->hits;
}

void use_cached(PyObject* v, PyObject* key, int times) {
  if (!cached_result(v, key)) return;
  auto* cache = reinterpret_cast<Cache*>(v);
  cache->hits += times;
  if (cache->limit < 0) return;
  auto* link = reinterpret_cast<Link*>(entry_of(*cache, key));
  link->previous->next = link->next;
  link->next->previous = link->previous;
  Link *root = &cache->root, *last = root->previous;
  last->next = root->previous = link;
  link->previous = last;
  link->next = root;
}

PyObject* cached_function(PyObject* v) {
  return known_layout() ? reinterpret_cast<Cache*>(v)->function : nullptr;
}

bool tells_types_apart(PyObject* v) { return !known_layout() || reinterpret_cast<Cache*>(v)->typed; }

void count_miss(PyObject* v) {
  if (known_layout()) ++reinterpret_cast<Cache*>(v)->misses;
}

namespace {
// What a cache calls in the place of its function, once: from then on it has that again, as destructors and
// other threads may call it. `self`: the cache, its function, and what that gave.
PyObject* hand_over(PyObject* self, PyObject*, PyObject*) {
  auto* cache = reinterpret_cast<Cache*>(PyTuple_GET_ITEM(self, 0));
  PyObject* instead = std::exchange(cache->function, Py_NewRef(PyTuple_GET_ITEM(self, 1)));
  Py_DECREF(instead);  // who calls it holds it, too
  return Py_NewRef(PyTuple_GET_ITEM(self, 2));
}
}  // namespace

bool put_cached(PyObject* v, PyObject* args, PyObject* result) {
  static PyMethodDef method = {"result",
                               reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(hand_over)),
                               METH_VARARGS | METH_KEYWORDS, nullptr};
  auto* cache = reinterpret_cast<Cache*>(v);
  auto key = py::reinterpret_steal<py::object>(
      cache_key(v, PySequence_Fast_ITEMS(args), PyTuple_GET_SIZE(args), nullptr));
  if (!key) return true;
  if (cached_result(v, key.ptr())) {  // another call has come first
    return cache->limit >= 0 || PyDict_SetItem(cache->entries, key.ptr(), result) == 0;
  }
  auto parts = py::reinterpret_steal<py::object>(PyTuple_Pack(3, v, cache->function, result));
  auto instead = py::reinterpret_steal<py::object>(parts ? PyCFunction_New(&method, parts.ptr()) : nullptr);
  if (!instead) return false;
  --cache->misses;  // counted before its function ran
  PyObject* own = std::exchange(cache->function, Py_NewRef(instead.ptr()));
  auto given = py::reinterpret_steal<py::object>(PyObject_Call(v, args, nullptr));
  if (cache->function == instead.ptr()) Py_DECREF(std::exchange(cache->function, Py_NewRef(own)));
  Py_DECREF(own);
  return static_cast<bool>(given);
}

bool key_runs_code(PyObject* const* args, Py_ssize_t count) {
  return !std::all_of(args, args + count, [](PyObject* arg) { return is_made_of_types(arg); });
}

PyObject* cache_key(PyObject* v, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  if (!known_layout() || key_runs_code(args, count)) return nullptr;
  auto* cache = reinterpret_cast<Cache*>(v);
  Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0, positional = count - named;
  bool plain = std::all_of(args, args + count, runs_no_code);
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
  if (plain || !key) return key;
  py::object own = py::reinterpret_steal<py::object>(key);
  PyObject *other, *entry;
  for (Py_ssize_t at = 0; PyDict_Next(cache->entries, &at, &other, &entry);)
    if (same_key(other, key)) return Py_NewRef(other);
  return nullptr;
}

}  // namespace lazytrace
