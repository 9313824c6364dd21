// The trace function of the thread that records: which frames are watched, and what each of them is.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "cpython/frame.h"
#include "record/operators/recorder.h"
#include "record/python/asides.h"
#include "record/python/calls/protocols.h"
#include "record/python/default_dicts.h"
#include "record/python/flags.h"
#include "record/python/gradients.h"
#include "record/python/handle_keys.h"
#include "record/python/handlers.h"
#include "record/python/instructions.h"
#include "record/python/modules.h"
#include "record/python/new_objects.h"
#include "record/python/opaque_call.h"
#include "record/python/pause.h"
#include "record/python/places.h"
#include "record/python/provenance.h"
#include "record/python/reads/cached_entries.h"
#include "record/python/reads/consumption.h"
#include "record/python/reads/drawn_entries.h"
#include "record/python/reads/functions.h"
#include "record/python/reads/live_lists.h"
#include "record/python/unseen.h"
#include "record/python/whole_calls.h"

namespace lazytrace {

// CPython calls it before each instruction with the operands on the frame's stack, so what is read is known
// exactly: the object, the name and the value. Needs the GIL throughout.
class Watcher {
 public:
  Watcher(const Surroundings& around, Gradients* gradients, WholeCalls* whole_calls, Unseen* unseen,
          LiveLists* lists, DrawnEntries* drawn, CachedEntries* cached, DefaultDicts* default_dicts,
          Asides* asides, NewObjects* new_objects, ClassReads* classes, ContainerReads* containers,
          Consumption* consumption, FunctionReads* functions, Protocols* protocols,
          Instructions* instructions, Modules* modules, Flags* flags, const Unwinding& unwinding)
      : around_(around),
        handle_keys_(around.recorder, around.provenance, containers),
        gradients_(gradients),
        whole_calls_(whole_calls),
        unseen_(unseen),
        lists_(lists),
        drawn_(drawn),
        cached_(cached),
        default_dicts_(default_dicts),
        asides_(asides),
        new_objects_(new_objects),
        classes_(classes),
        consumption_(consumption),
        functions_(functions),
        protocols_(protocols),
        instructions_(instructions),
        modules_(modules),
        flags_(flags),
        handlers_(unwinding) {}
  ~Watcher() { stop(); }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // Installs and removes the trace function; an older one (a debugger, coverage) goes on being called.
  void start();
  // False where somebody else replaced the trace function meanwhile.
  bool stop();
  // How many frames the limit of recursion must leave, as it did, where these are many.
  void read_depth();
  // Whether Python code of the recording could catch an exception that is raised now, or is in a handler,
  // which shows in it.
  bool would_catch();
  // Those that run, from the function on, the innermost first: (file, name, qualified name, line, module).
  py::tuple frames() const;
  std::vector<py::object> take_codes() { return places_.take_codes(); }
  std::vector<Scope> take_scopes() { return places_.take_scopes(); }

 private:
  void collect_again();
  // False where what was replaced can be judged only once a call has returned.
  bool let_go();
  static int trace(PyObject* self, PyFrameObject* frame, int what, PyObject* argument);
  void on_call(PyFrameObject* frame);
  void on_exception(PyFrameObject* frame, PyObject* raised);
  void on_return(PyFrameObject* frame, PyObject* result);
  void see_lent(Frame f);
  void on_instruction(PyFrameObject* frame);
  void enter(PyObject* code);
  bool asks_modes(Action action) const;
  bool exchange_operands(Frame f, const Operation& operation);
  // A kernel of torch's that is written in Python, under a transform, and what it calls of torch and of the
  // standard library.
  bool is_kernel(Frame f) const;
  // Frames of code that is not watched.
  void enter_trusted(Frame f);
  void meet_trusted(Frame f);
  void enter_function(Frame f);
  void meet_function(Frame f, PyObject* self);
  bool asked_by_c(Frame f) const;
  void note_aside(Frame f);
  void enter_module(Frame f);
  bool goes_to_c(Frame f, PyObject* result) const;
  bool hands_out(Frame f, PyObject* result) const;
  bool is_taken_for_a_str(Frame f) const;
  void begin_opaque(PyFrameObject* frame);
  void end_opaque(PyObject* result);

  Surroundings around_;
  HandleKeys handle_keys_;
  Gradients* gradients_;
  WholeCalls* whole_calls_;
  Unseen* unseen_;
  LiveLists* lists_;
  DrawnEntries* drawn_;
  CachedEntries* cached_;
  DefaultDicts* default_dicts_;
  Asides* asides_;
  NewObjects* new_objects_;
  ClassReads* classes_;
  Consumption* consumption_;
  FunctionReads* functions_;
  Protocols* protocols_;
  Instructions* instructions_;
  Modules* modules_;
  Flags* flags_;
  Places places_;

  bool started_ = false;
  Py_tracefunc older_ = nullptr;
  py::object older_argument_;
  Watcher* outer_ = nullptr;
  bool collecting_ = false;     // garbage is collected once this is over
  int before_ = 0, least_ = 0;  // how many frames could be entered, before the function and at its deepest
  Frame base_;                  // the frame that called the recorded function
  py::object seen_code_;        // of the frame that ran last
  CodeFacts* seen_facts_ = nullptr;
  Handlers handlers_;
  std::unordered_set<const void*> kernels_;  // frames of such kernels
  Frame opaque_frame_;
  std::unique_ptr<OpaqueCall> opaque_;
  bool fed_ = false;  // whether the last instruction may have been fed
};

}  // namespace lazytrace
