// What goes through a list or a deque as Python does, and gives something else for some of its entries.
#pragma once

#include <pybind11/pybind11.h>

namespace lazytrace {

namespace py = pybind11;

// An iterator over `list`, whose changes it sees. For an entry that is the one of `plain` (a list) at the
// same place it gives that of `carried`. Needs the GIL; throws what making it raises.
py::object carried_iterator(py::object list, py::list plain, py::list carried);
// What it gives instead, borrowed; null of anything else.
PyObject* carried_entries(PyObject* iterator);
// From now on it gives what there is. False of anything else.
bool carry_no_more(PyObject* iterator);

}  // namespace lazytrace
