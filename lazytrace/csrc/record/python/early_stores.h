// Attributes that are set by steps of their own, before other steps may set them, too.
#pragma once

#include <Python.h>

#include <string>

#include "record/python/opaque_call.h"

namespace lazytrace {

// A replay writes to state when it ends, where a step that runs Python code may have written to the same
// place since: a hook that fills what the function has emptied before the pass. A recording that has failed
// for that is followed by one in which such an attribute is set by a step, where the function sets it. Needs
// the GIL; runs no Python code of the user.
class EarlyStores {
 public:
  explicit EarlyStores(const Surroundings* around) : around_(around) {}

  // Before the call.
  void begin() { active_ = true; }
  // Whether there was anything that a step may set, if it does or not.
  bool has_any() const { return has_any_; }
  // Where the instruction has what it sets, for as long as this lives: what is set otherwise, no step sets.
  class Stack {
   public:
    Stack(EarlyStores* stores, PyObject** object, PyObject** value) : stores_(stores) {
      stores->object_ = object, stores->value_ = value;
    }
    ~Stack() { stores_->object_ = stores_->callee_ = stores_->value_ = nullptr; }
    // object.__setattr__, bound to the object: in the end a module sets its attributes by that.
    static Stack of_call(EarlyStores* stores, PyObject** callee, PyObject** value) {
      return Stack(stores, nullptr, callee, value);
    }
    Stack(const Stack&) = delete;
    Stack& operator=(const Stack&) = delete;

   private:
    Stack(EarlyStores* stores, PyObject** object, PyObject** callee, PyObject** value)
        : Stack(stores, object, value) {
      stores->callee_ = callee;
    }

    EarlyStores* stores_;
  };
  // object.name = value, which the instruction does next; where a replay has done it, to an object that
  // nobody keeps. False: a replay makes it at its end, as ever, or not at all.
  bool store(PyObject* object, PyObject* name, PyObject* value);

 private:
  bool may_store(PyObject* object, PyObject* dict, PyObject* name, PyObject* value) const;
  bool may_adopt(PyObject* value) const;
  // Whether the instruction sets it, in code of the user's: what torch keeps of its own no hook sets.
  bool sets(PyObject* object, PyObject* value) const;
  void turn_aside();
  std::string name_of(PyObject* object, PyObject* name) const;

  const Surroundings* around_;
  bool active_ = false, has_any_ = false;
  PyObject **object_ = nullptr, **callee_ = nullptr, **value_ = nullptr;
};

}  // namespace lazytrace
