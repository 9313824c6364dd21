// Functions that give another number at each call: clocks, and generators of random numbers other than
// torch's. A replay calls them where the function did, and follows what they give. Few are Python code, such
// as `Random.gammavariate`: each way through its loop would be a branch of its own.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

namespace lazytrace {

namespace py = pybind11;

struct AskedFunction {
  bool draws = false;        // the next call gives another number for this one
  bool bits = false;         // its argument is how many bits the number has
  bool below = false;        // its argument is larger than the number; Python code
  bool varies = false;       // it may give a number of another kind
  bool within = false;       // Python code that draws by other methods of its object
  std::string name;          // in the user's words: `time.time`, `Random.random`
  PyObject* step = nullptr;  // what is called in its place while recording, kept for the life of the process
};

// Told by Python once: functions, or what their methods are made of, each with "clock", "sample", "draws",
// "counts", "bits", "below" or "within"; `step` is called with the function and its arguments in its place.
// `of_numpy` gives more of them; it is called once, when numpy's generators are there.
void configure_asked(const py::dict& functions, const py::object& step, const py::object& of_numpy);
// Before a recording. Needs the GIL; runs Python code.
void know_asked_of_numpy();
// What such Python code may call of its object.
const std::vector<PyObject*>& methods_drawn_by(const AskedFunction& asked);
// What is known of a function, or null.
const AskedFunction* asked_function(PyObject* function);

// A callable taken apart: a function that is asked for numbers, and the object whose method it is.
struct AskedCall {
  const AskedFunction* asked = nullptr;
  PyObject* self = nullptr;  // borrowed; null of a plain function
};
// Of what is called, which may be a bound method, with these arguments: below a function that was found as a
// method its object comes first. Nothing where it may give what is no int64, or calls what may be the user's.
// Needs the GIL.
AskedCall asked_call(PyObject* callable, PyObject* const* args, Py_ssize_t count);

}  // namespace lazytrace
