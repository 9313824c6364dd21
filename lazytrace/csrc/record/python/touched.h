// What Python code of a step has written to.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <vector>

#include "support/address_map.h"

namespace lazytrace {

namespace py = pybind11;

// An object that nobody else holds goes when it is due, as its end may show; its address may be another one's
// then. Needs the GIL.
class Touched {
 public:
  // One that is not there.
  void add(PyObject* object);
  bool count(const void* object) const;
  // How many were added.
  size_t added() const { return order_.size(); }
  bool empty() const { return order_.empty(); }
  // Whether one that was added since there were so many is there, and not for this alone; or another that it
  // leads to was written through it.
  // `goes_with_result(object)`: whether the one reference to it is that of the step's result.
  bool any_left_since(size_t added, const std::function<bool(PyObject*)>& goes_with_result) const;
  // Whether it holds for one that has not gone.
  template <typename F>
  bool any(F wanted) const {
    return entries_.any([&](const void* object) { return count(object) && wanted(object); });
  }
  // Those that nobody else holds may go now, up to one at whose end code would run. That one, or null.
  PyObject* next_end();
  // What it holds of those that have no weak references.
  const std::vector<py::object>& held() const { return held_; }
  // At the end of the call they go when it is due.
  void let_go() { held_.clear(); }

 private:
  struct One {
    py::object weak;  // empty where the type has none: then it is held
    bool gone = false;
  };
  // Another object may be at its address by now.
  struct Added {
    const void* at;
    bool owns;  // what was written to is its own, and no part of something that it leads to
  };

  AddressMap<One> entries_;
  std::vector<py::object> held_;
  std::vector<Added> order_;  // the newest last
};

}  // namespace lazytrace
