// What a functools.lru_cache holds, read without calling it.
#pragma once

#include <Python.h>

namespace lazytrace {

// All need the GIL, and run no Python code where the key is made of values that cannot change.
bool is_lru_cache(PyObject* v);
// The result under a key as lru_cache_make_key() of _functoolsmodule.c makes it; borrowed, or null.
PyObject* cached_result(PyObject* cache, PyObject* key);
// Whether it holds so few that calls soon drop what others have made.
bool holds_few(PyObject* cache);
// Whether it is full and seldom asked for what it holds, as one that is called with a few keys by turns.
bool drops_entries(PyObject* cache);
// What calls that find the entry do to the cache: they are counted, and it becomes the last that a full cache
// drops.
void use_cached(PyObject* cache, PyObject* key, int times);
// The function that it calls where it has no entry; borrowed, or null.
PyObject* cached_function(PyObject* cache);
// Whether it tells arguments of other types apart.
bool tells_types_apart(PyObject* cache);
// What a call that finds no entry does: it is counted before the function runs, and what that gives is put
// under the arguments. `args`: a tuple whose hash runs no code of the user's, as that of cache_key(). What
// goes for a new entry may have a destructor. False with an exception set where there is no memory.
void count_miss(PyObject* cache);
bool put_cached(PyObject* cache, PyObject* args, PyObject* result);
// The key of a call; a new reference, or null where an argument could run code of the user's. One of types of
// `typing`, whose hash is Python code, is that of an entry, and found as itself. `names`: of the
// keywords, whose values are the last of `args`; or null.
PyObject* cache_key(PyObject* cache, PyObject* const* args, Py_ssize_t count, PyObject* names);
// Whether an argument could run code of the user's as part of a key: no entry is found for it, made or not.
bool key_runs_code(PyObject* const* args, Py_ssize_t count);

}  // namespace lazytrace
