// Which line of the user's code runs.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <utility>
#include <vector>

#include "program/program.h"

namespace lazytrace {

// Keeps the code objects alive that its places name. Needs the GIL.
class Places {
 public:
  // A call of a module's `forward` begins, which is reached through the guard node `module`, and ends;
  // `frame` tells it from others.
  void enter(const void* frame, int module, Place* place);
  void leave(const void* frame, Place* place);
  std::vector<Scope> take_scopes() { return std::move(scopes_); }

  // The place of the next operators, where the code is the user's: a person looks for a line of their own;
  // one of an installed package serves where there is none, as for a model of a library.
  void note(PyObject* code, int lasti, bool installed, Place* place) {
    if (installed && own_) return;
    own_ |= !installed;
    if (last_code_ != code) {
      last_code_ = code;
      codes_.push_back(py::reinterpret_borrow<py::object>(code));
    }
    *place = Place{code, lasti, place->scope};
  }
  std::vector<py::object> take_codes() { return std::move(codes_); }

 private:
  std::vector<py::object> codes_;
  PyObject* last_code_ = nullptr;
  bool own_ = false;  // whether a line outside installed packages has run
  std::vector<Scope> scopes_;
  std::vector<std::pair<const void*, int>> open_;  // frame and scope, innermost last
};

}  // namespace lazytrace
