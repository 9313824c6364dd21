// Operands on the stack of a frame that others take the place of.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <utility>
#include <vector>

namespace lazytrace {

namespace py = pybind11;

// They are noted while an instruction is judged, and change places once it is: the judgement sees what Python
// gave. Needs the GIL.
class Swaps {
 public:
  void note(PyObject** place, py::object made) { all_.emplace_back(place, std::move(made)); }
  bool empty() const { return all_.empty(); }
  void make() {
    for (auto& [place, made] : all_) Py_SETREF(*place, made.release().ptr());
    all_.clear();
  }
  void drop() { all_.clear(); }

 private:
  std::vector<std::pair<PyObject**, py::object>> all_;
};

}  // namespace lazytrace
