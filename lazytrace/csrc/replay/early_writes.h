// Writes to Python state that a replay has made before its program is done.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <utility>
#include <vector>

#include "program/program.h"

namespace lazytrace {

// Keys of dicts in the order in which they were added, as it was at some moments: what is taken out and added
// once more comes last. Needs the GIL.
class KeyOrders {
 public:
  // Unless the dict was noted since `from`.
  void note(py::object dict, size_t from);
  // As it was last; other keys lie behind those.
  void restore() const;
  size_t size() const { return all_.size(); }
  void clear() { all_.clear(); }

 private:
  std::vector<std::pair<py::object, py::object>> all_;  // dicts, and their keys
};

// Python code that runs in the middle of a program finds the state as the function has left it by then. At
// the end, or where the function must run again, which makes its writes itself, all is as it was before the
// call.
//
// Holds containers and values until it is cleared. Needs the GIL.
class EarlyWrites {
 public:
  void make(const WrittenByThen& written, PyObject* owner, py::object value);
  // A step has written on to this place, as it does in each replay.
  void go_on(const WrittenByThen& written);
  // Once the program is done, whose writes come next. A key stays where it was added: one that Python code
  // has added since lies behind it.
  void settle();
  // Where a step has put something else by now than the function had written there before it. Of a list or a
  // deque all that it holds.
  struct Overwritten {
    Effect place;
    py::object owner;
    py::object before, now;  // null where nothing was, or is
  };
  // Before the function runs again, or another trace goes on. What others have written over stays.
  std::vector<Overwritten> take_back();
  void clear() { made_.clear(), orders_.clear(); }
  // Of keys that were taken out and lay before one that Python code has added.
  const KeyOrders& orders() const { return orders_; }
  // Whether nobody has written to the places meanwhile.
  bool stand() const;
  // For a look at the state as it was before the call.
  void lift();
  void put_down();

 private:
  struct Made {
    const WrittenByThen* written;
    py::object owner, container, before, value;
    bool stands() const;
    bool adds_key() const;
  };
  std::vector<Overwritten> overwritten(size_t before);
  void take_out(const Made& made, size_t before);

  std::vector<Made> made_;
  KeyOrders orders_;
};

}  // namespace lazytrace
