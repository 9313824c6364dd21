// What identifies a call: the structure of its arguments, what each leaf looks like from outside, and the
// ambient state.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace lazytrace {

namespace py = pybind11;

// One call taken apart. Borrows from the arguments: valid while args and kwargs live. Needs the GIL.
struct Call {
  std::string key;  // equal exactly for calls of one signature
  std::vector<PyObject*>
      roots;  // [0] the function, then what guards may start from: opaque leaves and containers
  std::vector<bool> structural;     // per root: whether the key holds its contents
  std::vector<at::Tensor> tensors;  // in order of appearance
  std::vector<PyObject*> tensor_objects;
  std::string unsupported;  // why this call cannot be keyed, or empty
  py::object keep;          // what binding made anew (the tuple of *args, the defaults)

  py::bytes key_bytes() const { return py::bytes(key); }
};

// Binds and flattens the calls of one function.
class Signature {
 public:
  // names: positional parameters, then keyword-only ones. A function whose parameters cannot be known has
  // none and both stars.
  Signature(std::vector<std::string> names, int positional_only, int positional, bool star, bool double_star);

  // `defaults`: dict name -> default. nullptr where the arguments do not fit (the function itself says how).
  std::unique_ptr<Call> bind(py::object function, py::tuple args, py::dict kwargs, py::dict defaults) const;

 private:
  struct Flattener;
  std::vector<py::object> names_;
  int positional_only_, positional_;
  bool star_, double_star_;
};

// The ambient part of the key: modes, default dtype, flags. Appended to `key`; returns why it cannot be
// keyed, or "".
std::string append_ambient(std::string* key);

// Names and values of the ambient state, for reports.
py::dict describe_ambient();

}  // namespace lazytrace
