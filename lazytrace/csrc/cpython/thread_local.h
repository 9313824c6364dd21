// Attributes of `threading.local`: a dict for each thread.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace lazytrace {

namespace py = pybind11;

// Whether attributes of the object are looked up and set as `threading.local` does.
bool is_thread_local(PyObject* object);

// What such an object has in this thread. Null where the thread has not asked it for anything yet: its class
// may make that in Python. Runs no Python code.
py::object attributes_in_thread(PyObject* object);

}  // namespace lazytrace
