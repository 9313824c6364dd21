// One object in the places of another, wherever a call holds that.
#pragma once

#include <Python.h>

#include <functional>

#include "support/address_map.h"

namespace lazytrace {

// Goes through lists, dicts, deques, tuples, variables of functions and attributes, each object once, though
// not into classes, modules and tensors. A tuple is changed only where no dict and no set can have it as a
// key, as it has no hash, or nobody else holds it: then nobody sees that it holds another. Needs the GIL;
// runs no Python code.
class PutInPlace {
 public:
  // `leaves_alone`: what is not gone into.
  PutInPlace(PyObject* object, PyObject* other, std::function<bool(PyObject*)> leaves_alone);
  void within(PyObject* root);

 private:
  void in_one(PyObject* holder, bool may_be_key);
  void in_tuple(PyObject* tuple);
  void in_attributes(PyObject* holder);

  PyObject *object_, *other_;
  std::function<bool(PyObject*)> leaves_alone_;
  bool hashable_;
  AddressSet met_;
};

}  // namespace lazytrace
