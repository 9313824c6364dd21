// Writes to Python state that a replay has made before its program is done.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <utility>
#include <vector>

#include "program/program.h"

namespace lazytrace {

// Python code that runs in the middle of a program finds the state as the function has left it by then. At
// the end, or where the function must run again, which makes its writes itself, all is as it was before the
// call.
//
// Holds containers and values until it is cleared. Needs the GIL.
class EarlyWrites {
 public:
  void make(const WrittenByThen& written, PyObject* owner, py::object value);
  // Once the program is done, whose writes come next. A key stays where it was added: one that Python code
  // has added since lies behind it.
  void settle();
  // Before the function runs again. False where its keys would come behind those that Python code has added.
  bool take_back();
  void clear() { made_.clear(); }
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
  void put_back(const Made& made) const;

  std::vector<Made> made_;
  std::vector<std::pair<py::object, py::object>> lifted_;  // dicts, and what they held, in order
};

}  // namespace lazytrace
