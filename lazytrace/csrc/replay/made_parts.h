// What a replay has made for the call of a step, and whether its code has changed that.
#pragma once

#include <utility>
#include <vector>

#include "program/value_tree.h"

namespace lazytrace {

// The lists, dicts, sets, objects and variables among what was made of a tree. The function has others of its
// own, which it may read behind the step.
//
// Holds them, and what they held. Needs the GIL.
class MadeParts {
 public:
  MadeParts(const Tree& tree, PyObject* made) { add(tree, made); }
  // The first that is not what it was, borrowed; null where there is none.
  PyObject* changed() const;

 private:
  void add(const Tree& tree, PyObject* made);
  void add_items(const Tree& tree, PyObject* made);
  void add_object(const Tree& tree, PyObject* made);
  void add_function(const Tree& tree, PyObject* made);
  void keep(PyObject* part);

  std::vector<std::pair<py::object, py::object>> parts_;
};

}  // namespace lazytrace
