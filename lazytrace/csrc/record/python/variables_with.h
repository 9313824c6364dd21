// The variables that hold an object, of the function and of what it has called.
#pragma once

#include <Python.h>

#include <functional>
#include <vector>

namespace lazytrace {

// Those of the frames down to `below`, and the cells that they have. Needs the GIL.
class VariablesWith {
 public:
  VariablesWith(PyObject* object, const void* below);
  Py_ssize_t count() const { return static_cast<Py_ssize_t>(places_.size()); }
  // What they hold by now; there must be one.
  PyObject* held() const { return *places_.front(); }
  // They hold the other one from now on.
  void put(PyObject* other);
  // So do the stacks, but for those of frames that code of C was called by.
  void put_on_stacks(PyObject* other);
  // So does all that variables lead to, but for what was there before the call.
  void put_within(PyObject* other, const std::function<bool(PyObject*)>& was_there);

 private:
  PyObject* object_;
  const void* below_;
  std::vector<PyObject**> places_;  // each once
};

}  // namespace lazytrace
