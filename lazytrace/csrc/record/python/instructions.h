// What each instruction of a watched frame reads, writes and calls.
#pragma once

#include "record/operators/recorder.h"
#include "record/python/calls/calls.h"
#include "record/python/calls/protocols.h"
#include "record/python/code_facts.h"
#include "record/python/new_objects.h"
#include "record/python/reads/attributes.h"
#include "record/python/reads/names.h"
#include "record/python/state_writes.h"

namespace lazytrace {

// Hands the operands on the frame's stack to the part that knows what becomes of them. Needs the GIL.
class Instructions {
 public:
  Instructions(Recorder* recorder, Provenance* provenance, NewObjects* new_objects, ClassReads* classes,
               ContainerReads* containers, NameReads* names, Consumption* consumption, StateWrites* writes,
               Protocols* protocols, Calls* calls)
      : recorder_(recorder),
        provenance_(provenance),
        new_objects_(new_objects),
        classes_(classes),
        containers_(containers),
        names_(names),
        consumption_(consumption),
        writes_(writes),
        protocols_(protocols),
        calls_(calls) {}

  // The instruction that comes next in `f`.
  void dispatch(_PyInterpreterFrame* f, const Operation& operation, CodeFacts* facts);
  // What Python code inside an opaque step writes to: the function must not go on to read it, for its guards
  // are checked before.
  void note_opaque_write(_PyInterpreterFrame* f, int opcode, int oparg);
  // Whether what a frame gives back goes to C code that the instruction of its caller runs.
  bool goes_to_c(_PyInterpreterFrame* caller, const CodeFacts& facts) const;
  // Whether a context manager that may swallow exceptions was entered.
  bool may_suppress() const { return may_suppress_; }

 private:
  void dispatch_reads(_PyInterpreterFrame* f, int opcode, int oparg);
  void dispatch_writes(_PyInterpreterFrame* f, int opcode, int oparg);
  void call(_PyInterpreterFrame* f, int count);
  void call_extended(_PyInterpreterFrame* f, bool keywords);
  void enter_context(PyObject* object);
  void note_callee(_PyInterpreterFrame* f, bool passes_on) { passes_on_[f] = passes_on; }

  Recorder* recorder_;
  Provenance* provenance_;
  NewObjects* new_objects_;
  ClassReads* classes_;
  ContainerReads* containers_;
  NameReads* names_;
  Consumption* consumption_;
  StateWrites* writes_;
  Protocols* protocols_;
  Calls* calls_;
  // By frame: whether the callee of its current instruction hands on what Python code gives back.
  AddressMap<bool> passes_on_;
  bool may_suppress_ = false;
};

}  // namespace lazytrace
