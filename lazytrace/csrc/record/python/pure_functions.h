// Custom functions of autograd whose Python code comes to operators and nothing else.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <unordered_map>

#include "program/effects.h"
#include "record/python/provenance.h"
#include "record/python/reads/attributes.h"
#include "record/python/reads/classes.h"
#include "record/python/reads/functions.h"
#include "record/python/reads/names.h"

namespace lazytrace {

namespace py = pybind11;

// `reads_of(cls)`: what the code of the function finds, as (kind, owner, name), or None where it is none.
void configure_pure_functions(py::object reads_of);
// What it says of a custom function. Runs Python code of ours.
py::object reads_of_function(PyObject* cls);

// Needs the GIL; runs no Python code.
class PureFunctions {
 public:
  PureFunctions(Provenance* provenance, const Writes* log, ClassReads* classes, AttributeReads* attributes,
                NameReads* names, FunctionReads* functions)
      : provenance_(provenance),
        log_(log),
        classes_(classes),
        attributes_(attributes),
        names_(names),
        functions_(functions) {}

  bool knows(PyObject* cls) const { return known_.count(cls) > 0; }
  // Whether it was met, and is one.
  bool is(PyObject* cls) const {
    auto known = known_.find(cls);
    return known != known_.end() && known->second;
  }
  // Whether the function is one, with guards for `reads`.
  bool meet(PyObject* cls, const py::object& reads);
  // Whether the function, which was met, comes to operators alone when it is called with these. Tensors of
  // classes of their own, and what else may have Python code, take part in what it does.
  bool takes(PyObject* cls, const py::tuple& arguments) const;

 private:
  bool read(PyObject* kind, PyObject* owner, PyObject* name);
  void read_of_tensors(PyObject* name);

  Provenance* provenance_;
  const Writes* log_;
  ClassReads* classes_;
  AttributeReads* attributes_;
  NameReads* names_;
  FunctionReads* functions_;
  std::unordered_map<PyObject*, bool> known_;  // by class, which the recording keeps
};

}  // namespace lazytrace
