#include "record/python/variables_with.h"

#include <algorithm>

#include "cpython/frame.h"

namespace lazytrace {

VariablesWith::VariablesWith(PyObject* object, const void* below) {
  for (Frame f = Frame::current(); f && f.address() != below; f = f.previous())
    for (PyObject** place : f.places(false))
      if (*place == object && std::find(places_.begin(), places_.end(), place) == places_.end())
        places_.push_back(place);
}

void VariablesWith::put(PyObject* other) {
  for (PyObject** place : places_) Py_SETREF(*place, Py_NewRef(other));
}

}  // namespace lazytrace
