// What Python goes on with where a recording has ended before its function: the objects that it would have.
#pragma once

#include <Python.h>

#include <functional>
#include <utility>

#include "cpython/frame.h"
#include "support/address_map.h"

namespace lazytrace {

// Carriers of state that were retired are equal to the numbers and texts that they stood for, and other
// objects. So the variables of the functions that run are given those instead, and so are lists, tuples,
// dicts and deques in variables, what goes through such a one, generators that wait, functions, and objects
// that the call has `made`. Borrows all that it is told. Needs the GIL.
class Originals {
 public:
  explicit Originals(std::function<bool(PyObject*)> made) : made_(std::move(made)) {}
  void add(PyObject* stand_in, PyObject* original) { originals_[stand_in] = original; }
  // `top` is about to run an instruction, so what lies on its stack is exchanged, too.
  void put_back(Frame top, Frame base);
  void put_back(PyObject** place);
  bool empty() const { return originals_.empty(); }

 private:
  PyObject* original_of(PyObject* value) const;
  void put_back_inside(PyObject* value, int depth);
  void put_back_in_dict(PyObject* dict, int depth);
  void put_back_in_deque(PyObject* deque, int depth);
  void put_back_in_items(PyObject* sequence, int depth);
  void put_back_in_iterator(PyObject* iterator, int depth);
  bool put_back_in_code(PyObject* value, int depth);
  void put_back_in_function(PyObject* function, int depth);
  void put_back_in_attributes(PyObject* object, int depth);

  std::function<bool(PyObject*)> made_;
  AddressMap<PyObject*> originals_;
  AddressSet seen_;
};

}  // namespace lazytrace
