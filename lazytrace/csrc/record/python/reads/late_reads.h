// Reads of what Python code inside a step has changed: a hook of autograd that keeps a gradient, an opaque
// function that writes to state.
#pragma once

#include <Python.h>

#include "record/python/opaque_call.h"

namespace lazytrace {

// A guard says what was there before the call. What is there by now is read by a step of its own, behind the
// step that has changed it, and compared like the result of any other: tensors by their looks, values as they
// are, and anything else is a side exit. Needs the GIL; runs no Python code of the user.
class LateReads {
 public:
  explicit LateReads(const Surroundings* around) : around_(around) {}

  // Where an instruction has the object that it reads an attribute of, for as long as this lives.
  class Stack {
   public:
    Stack(LateReads* reads, PyObject** object) : reads_(reads) { reads->shown_at_ = object; }
    ~Stack() { reads_->shown_at_ = nullptr; }
    Stack(const Stack&) = delete;
    Stack& operator=(const Stack&) = delete;

   private:
    LateReads* reads_;
  };

  // Each is false where guards say what was read: nothing has changed it, or it is nothing that a step can
  // give. An entry of a dict or a list:
  bool read_entry(PyObject* container, PyObject* key);
  // What an object has under a name of its own:
  bool read_attribute(PyObject* object, PyObject* name);
  // What an object of C says of itself, which any step may have changed:
  bool read_slot(PyObject* object, PyObject* name);
  // All that a dict or a list holds:
  bool read_whole(PyObject* container);

 private:
  // `written`: the namespace of an object, or the container itself. `key`: null for all that it holds.
  bool has_changed(PyObject* object, PyObject* written, PyObject* key) const;
  bool is_known_key(PyObject* key) const;
  bool show(PyObject* object, PyObject* name, PyObject* value) const;
  bool read_placed(PyObject* object, PyObject* dict, PyObject* name);
  std::string where_is(int which, PyObject* object, PyObject* key) const;
  bool read(int which, PyObject* object, PyObject* key);

  const Surroundings* around_;
  PyObject** shown_at_ = nullptr;
};

}  // namespace lazytrace
