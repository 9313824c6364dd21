// What a functools cache holds for an argument that is followed, as for the shape of a tensor.
#pragma once

#include <Python.h>

#include "cpython/frame.h"
#include "cpython/operations.h"
#include "record/python/opaque_call.h"

namespace lazytrace {

// Each size would be a way of its own, with a guard on the entry for it. Instead a step looks the entry up,
// as the call would, and what it gives is compared like the result of any other: its structure, and constants
// as they are. Numbers in it are followed. Where there is no entry a replay takes another way, on which the
// function runs as code of the user's that is watched, and two steps do to the cache what its call does: one
// counts that, and one puts the entry there.
//
// Python is given lists, tuples and dicts of its own with these numbers, which may be neither written to nor
// kept: those of the cache would be. Needs the GIL; runs no Python code of the user.
class CachedEntries {
 public:
  explicit CachedEntries(const Surroundings* around) : around_(around) {}

  // Before a call without keywords: puts what gives the entry in the place of the cache, and nothing in that
  // of the arguments.
  void before(Frame f, const Operation& operation);
  // The arguments of the step that puts there what the function has made; none where a step cannot.
  py::object kept_by_step(const py::object& cache, const py::tuple& args, const py::object& made) const;
  // What the function has made is not what the cache holds.
  void stand_for_kept(const py::object& cache, const py::tuple& args, const py::object& made);

 private:
  py::object take(PyObject* cache, PyObject* const* args, Py_ssize_t count);
  py::object watched(PyObject* cache) const;
  bool can_reach(PyObject* cache, const py::list& leaves) const;
  void stand_for(PyObject* made, PyObject* kept);
  bool is_own(PyObject* container) const;
  bool lasts(PyObject* container) const;

  const Surroundings* around_;
};

// What the step calls that counts a call without an entry, and the one that puts the entry there.
PyObject* entry_beginner();
PyObject* entry_keeper();

}  // namespace lazytrace
