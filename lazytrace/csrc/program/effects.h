// What a recording changes in the Python state around it, where a replay can do the same after its program.
#pragma once

#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/utils/pybind.h>

#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "program/effect.h"
#include "program/program.h"

namespace lazytrace {

// The containers that the writes of a recording change in this call, each with the object that it was reached
// through, as a number.
class Containers {
 public:
  void add(PyObject* container, int object);
  // Whether one of them is the object, its __dict__ or one of its closure cells, and belongs to another
  // object than the number says. A replay asks this of each object that it has looked at.
  bool any_in(PyObject* object, c10::function_ref<int()> number) const {
    if (bits_ & bit(object) && belongs_to_another(object, number)) return true;
    return (cells_ && PyFunction_Check(object) && any_in_closure(object, number)) ||
           (dicts_ && Py_TYPE(object)->tp_dictoffset != 0 && is_dict_of(object, number));
  }

 private:
  static uint64_t bit(PyObject* container) {
    return uint64_t{1} << (reinterpret_cast<uintptr_t>(container) >> 4 & 63);
  }
  bool belongs_to_another(PyObject* container, c10::function_ref<int()> number) const;
  bool any_in_closure(PyObject* function, c10::function_ref<int()> number) const;
  bool is_dict_of(PyObject* object, c10::function_ref<int()> number) const;

  c10::SmallVector<std::pair<PyObject*, int>, 16> containers_;
  uint64_t bits_ = 0;  // most objects are none of them, which these bits say
  bool cells_ = false, dicts_ = false;
};

// The writes of one recording in their order. Only the last to each place counts; what a place held before
// the call is known where it was read.
//
// Ownership: holds containers and values until the recording ends. Needs the GIL.
class Writes {
 public:
  struct Write {
    Effect effect;
    py::object container;  // identifies the place with key or index: the dict, list or cell that changes
    py::object value;
    int before = -1;  // the guard node of the place, where it was read before it was first written
    // What was there before the call; null where nothing was. Of a Content: a copy of the list or dict. Of
    // what went with its destructor: its class.
    py::object original;
    py::object taken;  // of an entry that is followed: what is there no more
    std::string what;
    Place place;
    bool shown = false;  // Python code of a step has seen it
    // Whether the entry is gone: the call had added it, or, where it moves, has taken it out. Then it has no
    // value.
    bool is_taken_back() const { return !value && effect.kind != Effect::Kind::Content; }
    // What `value` held when it was written, with what is held in that; borrowed, compared only.
    std::vector<PyObject*> content;
  };

  void add(Write write);

  bool empty() const { return writes_.empty(); }
  // Whether the entry was written, so that reading it says nothing of the state before the call.
  bool wrote(PyObject* container, PyObject* key) const;
  bool wrote(PyObject* container, Py_ssize_t index) const;
  bool wrote_to(PyObject* container) const { return containers_.count(container) > 0; }
  bool appended_to(PyObject* list) const { return appended_.count(list) > 0; }
  // Whether all that it holds is one write by now.
  bool took_over(PyObject* container) const { return taken_over_.count(container) > 0; }

  // What was put behind the entries of a list as the `place`-th is this instead, if nobody can tell and
  // no step that sees it was between, of which `node` is the last. False where it is not that simple.
  bool fill(PyObject* list, Py_ssize_t place, py::object value, int64_t node);
  // The write of this entry of a dict, or null.
  Write* find_entry(PyObject* dict, PyObject* key);
  // It is gone behind the step `node`.
  void take_back(Write* write, int64_t node);
  // Whether an entry of this dict was taken out that was there before the call; whether this one is missing
  // now for what the call has done, so that it says nothing of what was there before.
  bool moved_in(PyObject* dict) const;
  bool is_out(PyObject* dict, PyObject* key) const;

  // A copy of what a list or dict held before it was first written to.
  py::object before(PyObject* container) const;
  // Its writes so far become one.
  void take_over(Write write);
  // Of a dict or a list: the keys that are followed are what they were in the recording.
  void fix_keys(PyObject* container);
  // A container that was taken over changes again behind the step `node`.
  void change(PyObject* container, int64_t node);

  // How often something was written so far.
  size_t changes() const { return changes_; }

  // A step comes that may raise: looks whether written containers hold what they did when they were written.
  void watch();

  std::vector<Write>& all() { return writes_; }
  const std::vector<Write>& all() const { return writes_; }

 private:
  struct Slot {
    PyObject* container;
    PyObject* key;  // compared by value
    Py_ssize_t index;
    size_t write;
  };
  void index();
  void add_slot(size_t write);
  void add_again(size_t taken_back, Write write);
  const Slot* find(PyObject* container, PyObject* key, Py_ssize_t index) const;
  static void note_content(Write* write);

  std::vector<Write> writes_;
  size_t changes_ = 0;
  std::vector<Slot> slots_;
  std::unordered_multimap<int64_t, size_t> by_hash_;  // -> of those, which
  std::vector<size_t> odd_;                           // the others
  std::unordered_set<PyObject*> containers_, appended_;
  std::unordered_map<PyObject*, size_t> taken_over_;  // -> its write
  int serials_ = 0;
};

}  // namespace lazytrace
