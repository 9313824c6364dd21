// Truth values of an entry that lay at a place of a container which is followed: others at the next call.
#pragma once

#include <Python.h>

#include <optional>
#include <vector>

#include "cpython/frame.h"
#include "cpython/operations.h"
#include "cpython/stack_moves.h"
#include "record/operators/recorder.h"
#include "record/python/provenance.h"
#include "support/address_map.h"

namespace lazytrace {

// No other object can stand for True, as everybody asks which object it is. So a carrier lies in the tuples
// and lists that the call has made, and where one comes to the stack or to the variables of Python code, True
// or False takes its place, and that place is noted: a plain value in it has not been read yet. What loads,
// stores and copies it moves the note. `1.0 - done`, `float(done)` and `0.0 if done else 1.0` are followed as
// numbers, `[done]` has a carrier again, and whatever else looks at it reads it.
//
// C code is given no container with a carrier in it, but where it is known to look at none: what is inside is
// read before. Borrows frames and what lies in them. Needs the GIL; runs no Python code of the user.
class Flags {
 public:
  Flags(Recorder* recorder, Provenance* provenance) : recorder_(recorder), provenance_(provenance) {}

  // Whether there has been one.
  bool any() const { return recorder_->numbers() && recorder_->numbers()->has_flags(); }
  // A frame begins; `watched`: whether its instructions will be seen.
  void enter(Frame f, bool watched);
  // It is about to run this instruction; `keywords`: the names of the arguments of a call, or null.
  void before(Frame f, const Operation& operation, PyObject* keywords);
  // What the instruction hands to others, once more where operands have been exchanged.
  void look(Frame f, const Operation& operation, PyObject* keywords);
  // It is left for good, or for a while; `result`: null where it raised.
  void leave(Frame f, PyObject* result);
  // Reads those in tuples, lists and what goes through them, and puts True and False there.
  void settle_inside(PyObject* object);

 private:
  struct Held {
    PyObject** place;
    PyObject* value;  // that lies there, for as long as the note holds
    int number;       // of the flag
    int flag = -1;    // or of a float, which is a whole one of type int where this flag says so
  };
  // What has come to one of two where the instruction `at` begins; `flag` as above.
  struct Choice {
    const void* frame = nullptr;
    int at = 0, local = -1;  // of its variables, or on the top of its stack
    int number = -1, flag = -1;
  };

  const Held* held(PyObject* const* place) const;
  void note(const Held& held);
  void forget(PyObject* const* place) { take(place); }
  std::optional<Held> take(PyObject* const* place);
  void read(PyObject* const* place);
  void read_all(Frame f);
  void forget_all(Frame f);
  void read_stack(Frame f, int count);
  void drop_stale(Frame f);
  // What has come to the stack or to a variable.
  void arrive(Frame f);
  void hand(PyObject* object);
  bool can_append(PyObject* list) const;
  void settle(PyObject** place, AddressSet* seen, int depth);
  void settle_inside(PyObject* object, AddressSet* seen, int depth);
  void settle_entry(PyObject* dict, PyObject* key, PyObject* value);
  void settle_function(PyObject* function, AddressSet* seen, int depth);

  // What lies in the variables and on the stack of the frame, before the instruction.
  void move(Frame f, const Operation& operation);
  void copy(PyObject** from, PyObject** to);
  bool goes_on(Frame f) const;
  bool follow(Frame f, const StackMove& move, const Operation& operation);
  void put_carriers(Frame f, int count);
  bool operate(Frame f, const Operation& operation);
  void invert(Frame f);
  bool choose(Frame f, bool jumps_if);
  bool choose_or_keep(Frame f, Held flag, const TwoConstants& two, bool jumps_if);
  int chosen(int flag, int if_set, int if_clear);
  void take_choice(Frame f);
  bool call(Frame f, const Operation& operation);
  void look_at_call(Frame f, const Operation& operation, PyObject* keywords);
  // `type`: that is asked for, or null.
  bool put_numbers(PyObject** callee, PyObject** data, PyObject* type);
  py::object numbers_in(PyObject* data, bool* all);

  const std::vector<uint8_t>& bytes_of(Frame f);

  Recorder* recorder_;
  Provenance* provenance_;
  std::vector<Held> held_;  // few
  Choice choice_;
  bool handing_ = false;
  AddressSet looked_at_;  // frames of our generators, what is given by which C code looks at
  py::object code_;       // of which these are the bytes
  std::vector<uint8_t> bytes_;
};

}  // namespace lazytrace
