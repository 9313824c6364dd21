// Entries of lists, tuples and deques in state, of ranges and of constant numbers, at a place that is
// followed: one that was drawn, that an operator gave, or a counter.
#pragma once

#include <Python.h>

#include "cpython/frame.h"
#include "cpython/operations.h"
#include "record/python/opaque_call.h"
#include "record/python/reads/live_lists.h"

namespace lazytrace {

class Unseen;

// Each place would be a way of its own, with guards on what lies there. Instead a step takes the entry, and
// what it gives is compared like the result of any other: tensors by their looks, constants as they are.
// Numbers are followed. Before the instruction a list with that entry alone lies in the place of the
// container on the stack.
//
// An array of numpy is given as a tensor of its memory, and counts as one that the call has made.
//
// A tuple with numbers is another object while it is recorded, and none is taken apart that is returned or
// kept: a replay would make one of its own. Needs the GIL; runs no Python code of the user.
class DrawnEntries {
 public:
  DrawnEntries(const Surroundings* around, LiveLists* lists, Unseen* unseen)
      : around_(around), lists_(lists), unseen_(unseen) {}

  // False where the instruction is left as it is.
  bool before(Frame f, const Operation& operation);

 private:
  py::object table_of(PyObject* container) const;
  bool may_take(PyObject* container) const;
  bool follow(PyObject** place) const;
  py::object take(PyObject* container, PyObject* place);

  const Surroundings* around_;
  LiveLists* lists_;
  Unseen* unseen_;
};

}  // namespace lazytrace
