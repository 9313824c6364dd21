// Functions, most of them torch's, whose calls become one step each, wherever Python calls them.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "cpython/frame.h"
#include "cpython/operations.h"
#include "record/operators/recorder.h"
#include "support/address_map.h"

namespace lazytrace {

namespace py = pybind11;

// Puts what makes the step in the place of the function, on the stack of the frame that is about to call it.
// So the step can be fed: a function that runs again is given what the call gave the first time.
//
// Needs the GIL. Borrows the recorder.
class WholeCalls {
 public:
  explicit WholeCalls(const Recorder* recorder) : recorder_(recorder) {}

  // Once an instruction is judged.
  void exchange(Frame f, const Operation& operation);
  // The same of what TorchScript has compiled and of custom operators, before the instruction is judged:
  // there is nothing to see. And, where it `prints`, of print().
  void exchange_unseen(Frame f, const Operation& operation, bool prints);
  // The same of methods of logging, once the instruction is judged. Python code that stands for them calls
  // them for real.
  void exchange_logging(Frame f, const Operation& operation);
  // Whether the function is one of those whose calls become a step.
  static bool exchanges(PyObject* function);
  // A handle of a hook whose removal is a step, too. Borrowed: it lives as long as the recording.
  void know_handle(PyObject* handle) { handles_.insert(handle); }
  // From now on a call of any operator with a kernel in Python is one step, too.
  void take_operators_whole() { takes_operators_ = true; }

 private:
  // Whether a call of a function with a functools cache is one step: of a cache that drops what it holds.
  // Where the function runs again after a side exit, of one that was a step before.
  bool is_step(PyObject* cache, Frame f, const Operation& operation) const;
  // What makes the step of an object of one of the classes that are told, or null.
  PyObject* step_of_object(PyObject* object, Frame f, const Operation& operation) const;
  bool exchange_for_stand_in(Frame f, const Operation& operation, PyObject** callee);
  // `self`: of what is called with it before its other arguments, or null.
  static void replace(PyObject** callee, PyObject* step, PyObject* self);
  bool removes_hook(PyObject* function, PyObject* self, Frame f, const Operation& operation) const;

  const Recorder* recorder_;
  AddressSet handles_;
  bool takes_operators_ = false;
};

// Told by Python once: functions, and what is called in the place of each.
void configure_whole_calls(const py::dict& steps);
// Told by Python, for each kind of such objects once: the classes of what TorchScript has compiled, or of
// custom operators, and what is called with one of these and its arguments. `holds(object)`: for which of
// them, or None for all; `other(object)`: for which more, where what they do could not be recorded, or None.
// `name(object)`: what they are called where they have no `__qualname__`, or None.
void configure_called_objects(const py::tuple& classes, const py::object& step, const py::object& holds,
                              const py::object& other, const py::object& name);
// What such an object is called, or "".
std::string name_of_called(PyObject* object);
// Told by Python once: `RemovableHandle.remove`, and what is called in its place with a handle of the call's.
void configure_unhooking(const py::object& remove, const py::object& step);
// Likewise of functions with a functools cache that seldom holds what it is asked for. `given`: what is
// called with a tuple of an entry in the place of one whose entry was looked up (CachedEntries).
void configure_cached_calls(const py::object& step, const py::object& given);
PyObject* given_entry_step();
// Told by Python once: what is called in the place of a cache that has no entry, with the pair of it and its
// function.
void configure_missing_entries(const py::object& instead);
PyObject* entry_filler();
// Told by Python once: print(), and what is called in its place. `is_printable(values)`: whether no code of
// the user's runs for it; where it does, `parts` prints what that gives.
void configure_print(const py::object& function, const py::object& step, const py::object& is_printable,
                     const py::object& parts);

// Told by Python once: functions and methods of Python's library, and Python code that stands for each. Of
// those in `dropped` only where what they give is not used. What is in `by_code` is called with the function
// before its arguments: all functions with this code.
// `text(object)` is called for str(object) where the class has a method of Python for it. Those in
// `of_generators` stand for functions of C that take all out of a generator, which Python code runs for.
void configure_stand_ins(const py::dict& by_function, const py::dict& dropped, const py::dict& by_code,
                         const py::object& text, const py::dict& of_generators);

// Whether a function is one of these that are called in the place of another.
bool is_step_of_ours(PyObject* function);

}  // namespace lazytrace
