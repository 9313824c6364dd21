// Where the texts come from that Python makes of numbers.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <unordered_map>
#include <vector>

#include "program/value_tree.h"

namespace lazytrace {

class NumberRecorder;

// Knows which of Python's strs was made of which followed numbers, and how: a replay that hands such a text
// on makes it anew. Whatever looks at its characters reads the numbers that it was made of.
//
// Ownership: holds the texts until the recording ends, so that their addresses are their own; borrows the
// recorder that holds it. Needs the GIL.
class TextRecorder {
 public:
  explicit TextRecorder(NumberRecorder* numbers) : numbers_(numbers) {}
  ~TextRecorder() { end(); }
  TextRecorder(const TextRecorder&) = delete;
  TextRecorder& operator=(const TextRecorder&) = delete;

  // What `function` gives for these: a text that follows the numbers and texts among them. `function` gives
  // the same str for equal arguments, and raises for none. None where no number that is followed, or
  // something else than numbers, strs and containers of them, is among them, or the result is no text that
  // can be followed.
  py::object follow(const py::object& function, const py::tuple& args);
  // How it was made; null of anything else.
  const Tree* find(PyObject* text) const;
  bool empty() const { return texts_.empty(); }
  // Reads the numbers of a text and makes it a str; nothing for other objects.
  void settle(PyObject* text);
  // The same of all texts that C code may come to from an object.
  void settle_inside(PyObject* object) { settle_inside(object, true); }
  // The same where C code hashes and compares it, which is for the methods of an object to do.
  void settle_in_key(PyObject* object) { settle_inside(object, false); }
  void settle_all();
  // Makes all texts plain; the program learns nothing.
  void end();

 private:
  void settle_inside(PyObject* object, bool behind_objects, int depth = 0);
  bool can_follow(PyObject* value, int depth = 0) const;

  NumberRecorder* numbers_;
  std::vector<PyObject*> texts_;  // owned
  std::unordered_map<PyObject*, Tree> trees_;
};

}  // namespace lazytrace
