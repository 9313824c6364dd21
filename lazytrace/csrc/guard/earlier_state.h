// Python state that a step has changed at this call, though not when it was recorded.
#pragma once

#include <Python.h>
#include <torch/csrc/utils/pybind.h>

#include <vector>

#include "program/effect.h"

namespace lazytrace {

namespace py = pybind11;

// What the function has read before the step, and reads again where it runs again: while that is so, each
// place shows what it had when the call began, and from the step on what the step has left there.
//
// Holds the owners, and both values of each place. Needs the GIL, at its end, too.
class EarlierState {
 public:
  EarlierState() = default;
  EarlierState(const EarlierState&) = delete;
  EarlierState& operator=(const EarlierState&) = delete;
  ~EarlierState() { hide(); }
  // The place has had this before; null where it had nothing. It shows it from now on. False where that
  // cannot be done.
  bool add(Effect place, PyObject* owner, py::object before);
  // The same of a place that the function writes to itself, so that it has something else by then; `now` is
  // what the step has left there.
  bool add_own(Effect place, PyObject* owner, py::object before, py::object now);
  bool empty() const { return places_.empty(); }
  void show();
  // False where somebody has written to one of the places meanwhile.
  bool hide();

 private:
  struct Place {
    Effect effect;
    py::object owner, before, now;
    bool own = false;
  };

  bool is_own(const Place& place) const;

  // Whether the place has what it had before.
  static bool stands(const Place& place);
  static void put(const Place& place, const py::object& value);
  static py::object merged(const Place& place);
  // Shows what the step has left there. False where somebody has written to it meanwhile.
  bool leave(const Place& place);

  std::vector<Place> places_;
  bool shows_ = true;
};

}  // namespace lazytrace
