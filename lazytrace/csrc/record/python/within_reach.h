// What the functions of a call come to by their variables, of what the call has made.
#pragma once

#include <Python.h>

#include <functional>

#include "cpython/frame.h"
#include "support/address_map.h"

namespace lazytrace {

// As it is when it is made. Borrows what it has met, by address. Needs the GIL.
class WithinReach {
 public:
  // Of the frames that run above `below`. What was there before the call is not gone into.
  WithinReach(const void* below, const std::function<bool(PyObject*)>& was_there);
  bool has(PyObject* object) const { return !whole_ || met_.count(object); }

 private:
  void meet(PyObject* object, const std::function<bool(PyObject*)>& was_there);

  AddressSet met_;
  bool whole_ = true;  // or too much to go through
};

}  // namespace lazytrace
