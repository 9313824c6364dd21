// Reads of names: globals, builtins, variables of enclosing functions, imports.
#pragma once

#include "cpython/frame.h"
#include "program/effects.h"
#include "record/operators/recorder.h"
#include "record/python/code_facts.h"
#include "record/python/provenance.h"

namespace lazytrace {

// Each read leaves guards for what was found. Needs the GIL; runs no Python code of the user.
class NameReads {
 public:
  NameReads(Recorder* recorder, GuardTree* tree, Provenance* provenance, const Writes* log)
      : recorder_(recorder), tree_(tree), provenance_(provenance), log_(log) {}

  // The node that the globals hang on, and how their entries are reached from it.
  struct GlobalsNode {
    int node;
    Access access;
  };
  GlobalsNode globals_of(Frame f);

  void read_global(Frame f, PyObject* name);
  void read_global_again(Frame f, PyObject* name, GlobalMemo* memo);
  // What a function that is not watched would find. False, and nothing is read, where no guard can say so.
  bool read_global_of(PyObject* function, PyObject* name);
  void read_name(Frame f, PyObject* name);
  void read_cell(Frame f, int index);
  void read_class_cell(Frame f);
  void read_import(Frame f, PyObject* name, PyObject* level);
  // Functions with one code can have other globals each.
  void read_globals_of(int node, PyObject* function);

 private:
  std::string read_package(Frame f);
  GlobalsNode globals_node(PyObject* globals, PyObject* function);

  Recorder* recorder_;
  GuardTree* tree_;
  Provenance* provenance_;
  const Writes* log_;
  AddressMap<GlobalsNode> globals_;
};

}  // namespace lazytrace
