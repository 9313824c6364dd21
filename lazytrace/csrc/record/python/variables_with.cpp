#include "record/python/variables_with.h"

#include <algorithm>

#include "cpython/frame.h"
#include "cpython/put_in_place.h"

namespace lazytrace {

VariablesWith::VariablesWith(PyObject* object, const void* below) : object_(object), below_(below) {
  for (Frame f = Frame::current(); f && f.address() != below; f = f.previous())
    for (PyObject** place : f.places(false))
      if (*place == object && std::find(places_.begin(), places_.end(), place) == places_.end())
        places_.push_back(place);
}

void VariablesWith::put(PyObject* other) {
  for (PyObject** place : places_) Py_SETREF(*place, Py_NewRef(other));
}

void VariablesWith::put_on_stacks(PyObject* other) {
  for (Frame f = Frame::current(); f && f.address() != below_; f = f.previous())
    for (PyObject** place : f.places(true))
      if (*place == object_) Py_SETREF(*place, Py_NewRef(other));
}

void VariablesWith::put_within(PyObject* other, const std::function<bool(PyObject*)>& was_there) {
  put(other);
  PutInPlace places(object_, other, was_there);
  for (Frame f = Frame::current(); f && f.address() != below_; f = f.previous())
    for (PyObject** place : f.places(false))
      if (*place) places.within(*place);
}

}  // namespace lazytrace
