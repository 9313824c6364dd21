#include "record/python/variables_with.h"

#include <algorithm>

#include "cpython/frame.h"
#include "support/address_map.h"

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

namespace {
// Goes through lists and dicts, each once, and puts one object in the place of another.
class Replacing {
 public:
  Replacing(PyObject* object, PyObject* other, const std::function<bool(PyObject*)>& was_there)
      : object_(object), other_(other), was_there_(was_there) {}

  void within(PyObject* container) {
    bool dict = PyDict_CheckExact(container);
    if (!(dict || PyList_CheckExact(container)) || !met_.insert(container) || was_there_(container)) return;
    PyObject *key, *value;
    for (Py_ssize_t at = 0; dict && PyDict_Next(container, &at, &key, &value);)
      // No key is added, so what is gone through stays what it is.
      value == object_ ? (void)PyDict_SetItem(container, key, other_) : within(value);
    for (Py_ssize_t i = 0; !dict && i < PyList_GET_SIZE(container); ++i) {
      value = PyList_GET_ITEM(container, i);
      value == object_ ? (void)PyList_SetItem(container, i, Py_NewRef(other_)) : within(value);
    }
  }

 private:
  PyObject *object_, *other_;
  const std::function<bool(PyObject*)>& was_there_;
  AddressSet met_;
};
}  // namespace

void VariablesWith::put_within(PyObject* other, const std::function<bool(PyObject*)>& was_there) {
  put(other);
  Replacing replacing(object_, other, was_there);
  for (Frame f = Frame::current(); f && f.address() != below_; f = f.previous())
    for (PyObject** place : f.places(false))
      if (*place) replacing.within(*place);
}

}  // namespace lazytrace
