// What was made for the call of a step, and what its code has changed of that.
#pragma once

#include <utility>
#include <vector>

#include "program/value_tree.h"

namespace lazytrace {

// The lists, dicts, sets, objects and variables among what was made of a tree, or of which it was made, in an
// order that follows from the tree. Those of a replay are others than those of the function, which it may
// read behind the step. So are tuples, functions and what else only leads to such: they do not change, but
// who keeps one comes to what is in it.
//
// Holds them, and what they held. Needs the GIL.
class MadeParts {
 public:
  MadeParts(const Tree& tree, PyObject* made) { add(tree, made); }
  // Those that are not what they were, by their places; but for these.
  std::vector<int> changed(const std::vector<int>& known = {}) const;
  int size() const { return static_cast<int>(parts_.size()); }
  // The value, with others of the same tree in the places of these. What was made to hold them is changed.
  py::object exchanged(const MadeParts& others, const py::object& value) const;
  // All of them, with those that do not change.
  const std::vector<py::object>& all() const { return all_; }
  // Before the code of the step runs, and whether more hold one of them now, but for the places that the
  // result holds it in.
  void count_holders();
  bool are_kept(const std::vector<PyObject*>& by_result) const;
  // Whether some of these are such.
  bool have_any(const std::vector<PyObject*>& objects) const;
  PyObject* at(int place) const { return parts_[static_cast<size_t>(place)].first.ptr(); }
  // Changes others of the same tree, which are what they were, as these were changed. False where that cannot
  // be done.
  bool change(const MadeParts& others) const;

 private:
  void add(const Tree& tree, PyObject* made);
  void add_items(const Tree& tree, PyObject* made);
  void add_object(const Tree& tree, PyObject* made);
  void add_function(const Tree& tree, PyObject* made);
  void keep(PyObject* part);

  std::vector<std::pair<py::object, py::object>> parts_;
  std::vector<py::object> all_;
  std::vector<Py_ssize_t> holders_;
};

}  // namespace lazytrace
