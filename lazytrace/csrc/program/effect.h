// One write to Python state that a program makes again.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstdint>

namespace lazytrace {

namespace py = pybind11;

// One write that is made again at each replay: `owner.key = v`, `owner[key] = v`, `owner.append(v)`. Content
// is all that a list or dict holds, Class an attribute of a class, Type the class of an object. Drop takes
// the first entry of a list or a deque away, or its last, or all of them. Entry is `owner[k] = v` of a dict
// or a list with a k that is followed: its value is the tuple (k, v).
struct Effect {
  enum class Kind : uint8_t {
    Attribute,
    Item,
    At,
    Append,
    Cell,
    Content,
    Class,
    Drop,
    Entry,
    Type
  } kind = Kind::Attribute;
  int owner = -1;  // guard node
  py::object key;  // Attribute, Item, Class; of an Entry what it was in the recording
  // At, Cell. Drop: which entry of before the call it is, counted from the end where it is negative; or kAll.
  Py_ssize_t index = -1;
  static constexpr Py_ssize_t kAll = PY_SSIZE_T_MIN;
  int serial = -1;  // among all that a recording has written
  // The steps before the first and the last write to the place, as Step::node.
  int64_t first = -1, last = -1;
  // Attribute, Item: it was taken out before it was set, so that it lies behind all other keys.
  bool moves = false;
  // Whether a list, tuple or dict that was written held at each step that could have raised what it holds in
  // the end.
  bool steady = false;

  // Whether the place had what it has in the end, or what it had before the call, when this step ran.
  bool settled_at(int64_t node) const { return node <= first || last < node; }

  // Does it. Needs the GIL; throws what Python raises.
  void apply(PyObject* owner_now, PyObject* value) const;
  // The dict, list or cell that changes; borrowed.
  PyObject* container(PyObject* owner_now) const;
  // What is there in that container; null where nothing is. Of a Content a copy, of an
  // Append the last entry.
  py::object held(PyObject* container) const;
  // What the write takes away from where it was; null where it only adds.
  py::object taken(PyObject* container) const;
  // Takes the key out of its dict, and gives what was there, or null.
  py::object take_out(PyObject* owner_now) const;
  // Makes it what held() gave. Throws what Python raises.
  void put_back(PyObject* container, PyObject* before) const;
};

// A list or dict of what a list, deque or dict holds, in its order.
py::object content_of(PyObject* container);
// Whether two of these, of one kind, hold the same objects in one order.
bool same_content(PyObject* a, PyObject* b);

}  // namespace lazytrace
