// What a functools cache holds for an argument that is followed, as for the shape of a tensor.
#pragma once

#include <Python.h>

#include "cpython/frame.h"
#include "cpython/operations.h"
#include "record/python/opaque_call.h"

namespace lazytrace {

// Each size would be a way of its own, with a guard on the entry for it. Instead a step looks the entry up,
// as the call would, and what it gives is compared like the result of any other: its structure, and constants
// as they are. Numbers in it are followed where another entry has others. Where there is no entry the
// function would run, so a replay leaves there.
//
// Python is given lists, tuples and dicts of its own with these numbers, which may be neither written to nor
// kept: those of the cache would be. Needs the GIL; runs no Python code of the user.
class CachedEntries {
 public:
  explicit CachedEntries(const Surroundings* around) : around_(around) {}

  // Before a call without keywords: puts what gives the entry in the place of the cache, and nothing in that
  // of the arguments.
  void before(Frame f, const Operation& operation);

 private:
  py::object take(PyObject* cache, PyObject* const* args, Py_ssize_t count);
  bool can_reach(PyObject* cache, const py::list& leaves) const;

  const Surroundings* around_;
};

// Whether the step looks an entry up.
bool looks_up_entry(const OpaqueStep& step);

}  // namespace lazytrace
