// What the function has set by steps, and what steps have read for it, as long as nobody sets it again.
#pragma once

#include <Python.h>
#include <torch/csrc/utils/pybind.h>

#include <vector>

#include "cpython/objects.h"

namespace lazytrace {

// By namespace and name. Needs the GIL; runs no Python code.
class Placed {
 public:
  // Whether what was set lies there still: for sure, or as long as the Python code of the steps since then
  // does not set it in another call.
  enum class How : uint8_t { Not, Maybe, Surely };

  // `kernels`: how many operators with kernels in Python have run by now.
  void set(PyObject* dict, PyObject* name, PyObject* value, size_t kernels);
  // An entry, or all for a null name. A function that runs again must find it there.
  void note_read(PyObject* container, PyObject* name);
  // `value`: what was set, but for a tensor that may have gone since.
  How find(PyObject* dict, PyObject* name, size_t kernels, py::object* value);
  // A step that runs Python code comes next.
  void doubt();
  // What lies in these, of which one may be null, under this name, or all for a null one, is set now. Whether
  // there is anything of that here, and whether the function has read it.
  enum class Replaced : uint8_t { Nothing, Unread, Read };
  Replaced replace(PyObject* object, PyObject* dict, PyObject* name);
  void clear() { all_.clear(); }

 private:
  struct One {
    PyObject* dict;   // held by its object
    py::object name;  // None for all
    py::object value;
    size_t kernels;
    bool read, doubted, late;
  };
  std::vector<One> all_;
};

}  // namespace lazytrace
