// What each instruction of a watched frame reads, writes and calls.
#pragma once

#include "cpython/frame.h"
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
  void dispatch(Frame f, const Operation& operation, CodeFacts* facts);
  // Before it: puts numbers that are followed in the place of a list that becomes a tensor, and of a dict
  // that becomes part of another.
  void take_numbers(Frame f, const Operation& operation);
  // Before functions of numpy: lists of arrays in state.
  void read_arrays(Frame f, const Operation& operation);
  // What Python code inside an opaque step writes to: the function must not go on to read it, for its guards
  // are checked before.
  void note_opaque_write(Frame f, const Operation& operation);
  // Whether what the frame calls now gives its result to the frame itself.
  void note_callee(Frame f, bool passes_on) {
    passes_on_[f.address()] = passes_on;
    if (reducing_ == f.address()) reducing_ = nullptr;
  }
  // Whether the call that comes next names some of its arguments.
  bool names_keywords() const { return keyword_names() != nullptr; }
  PyObject* keyword_names() const { return calls_->keyword_names(); }
  // Whether what a frame gives back goes to C code that the instruction of its caller runs, and may do
  // anything with it.
  bool goes_to_c(Frame caller, const CodeFacts& facts, PyObject* result) const;

 private:
  void go_through(PyObject** list);
  void take_scales(Frame f, const Operation& operation);
  void dispatch_names(Frame f, const Operation& operation, CodeFacts* facts);
  void dispatch_protocols(Frame f, const Operation& operation);
  void call(Frame f, const Operation& operation);
  void put_viewed(PyObject* dict);
  bool advances_older(PyObject* callee, PyObject* iterator) const;
  void raise(Frame f, PyObject* error, PyObject* cause);
  void read_rows(PyObject** rows);
  void call_extended(Frame f, const Operation& operation);
  void match_class(PyObject* subject, PyObject* cls, PyObject* names, int positional);
  void enter_context(PyObject* object);

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
  const void* reducing_ = nullptr;  // the frame that called an object's __reduce_ex__() last
};

}  // namespace lazytrace
