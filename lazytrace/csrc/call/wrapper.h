// The classes under the traced functions of Python: wrapt's, called by PEP 590's vectorcall.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <vector>

#include "call/matcher.h"

namespace lazytrace {

// A subclass of wrapt.FunctionWrapper, and one of wrapt.BoundFunctionWrapper, that have room for what a call
// needs. Made once per process.
py::tuple make_wrapper_classes(py::object function_wrapper, py::object bound_wrapper);

// Calls of instances of a Python class derived from one of these go straight to the matcher from now on, and
// only then to its __call__.
void call_natively(py::object cls);

// Told by Python once: its functions that call a replay, or raise what one has raised.
void configure_replaying(std::vector<py::object> functions);

// Tells a wrapper how its calls are answered. `bound`: whether bound wrappers pass their instance on.
void arm(py::object wrapper, py::object engine, py::object function, py::object defaults,
         std::shared_ptr<Matcher> matcher, bool passes_instance);

}  // namespace lazytrace
