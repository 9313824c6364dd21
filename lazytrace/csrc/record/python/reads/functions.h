// Reads of Python functions: defaults, keyword defaults, closure cells, globals.
#pragma once

#include "program/effects.h"
#include "record/python/provenance.h"
#include "record/python/reads/consumption.h"
#include "record/python/reads/names.h"

namespace lazytrace {

// Needs the GIL; runs no Python code of the user.
class FunctionReads {
 public:
  FunctionReads(GuardTree* tree, Provenance* provenance, const Writes* log, NameReads* names,
                Consumption* consumption)
      : tree_(tree), provenance_(provenance), log_(log), names_(names), consumption_(consumption) {}

  // Defaults and closure cells of a function that was there before the call.
  // `watched`: its frame shows what it does with them.
  void read_function(PyObject* function, bool watched = false);
  // A function of torch that code which is not watched has found: by its name in its module.
  void find_in_module(PyObject* function);
  // The same of another function that such code finds among its globals.
  void find_among_globals(PyObject* function, PyObject* globals);
  // What a function whose frame is not watched reads without being handed it.
  void consume_function(PyObject* function);

 private:
  GuardTree* tree_;
  Provenance* provenance_;
  const Writes* log_;
  NameReads* names_;
  Consumption* consumption_;
  std::vector<char>
      read_functions_;  // by node: whether its defaults and cells are known: 1, 2: as not watched
};

}  // namespace lazytrace
