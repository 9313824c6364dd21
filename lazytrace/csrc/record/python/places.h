// Which line of the user's code runs.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <vector>

#include "program/program.h"

namespace lazytrace {

// Keeps the code objects alive that its places name. Needs the GIL.
class Places {
 public:
  // The place of the next operators, where the code is the user's: a person looks for a line of their own;
  // one of an installed package serves where there is none, as for a model of a library.
  void note(PyObject* code, int lasti, bool installed, Place* place);
  std::vector<py::object> take_codes() { return std::move(codes_); }

 private:
  std::vector<py::object> codes_;
  PyObject* last_code_ = nullptr;
  bool own_ = false;  // whether a line outside installed packages has run
};

}  // namespace lazytrace
