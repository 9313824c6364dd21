// What torch.nn.Module does around the code of a person, where nothing is out of the ordinary.
#pragma once

#include "cpython/frame.h"
#include "record/operators/recorder.h"
#include "record/python/calls/calls.h"
#include "record/python/calls/protocols.h"
#include "record/python/instructions.h"
#include "record/python/reads/containers.h"
#include "record/python/reads/functions.h"
#include "record/python/reads/names.h"
#include "record/python/whole_calls.h"

namespace lazytrace {

// Half of the instructions of a model are those of Module.__getattr__ and of the functions that lead from the
// call of a module to its forward(). What they read follows from the module: so it is read at once, in their
// place, by the same parts that would judge their instructions. All else that they may come to (an attribute
// that is not there, a hook) is left to them.
//
// Borrows frames that run. Needs the GIL; runs no Python code.
class Modules {
 public:
  Modules(Recorder* recorder, const WholeCalls* whole_calls, ContainerReads* containers, NameReads* names,
          FunctionReads* functions, Protocols* protocols, Calls* calls, Instructions* instructions)
      : recorder_(recorder),
        whole_calls_(whole_calls),
        containers_(containers),
        names_(names),
        functions_(functions),
        protocols_(protocols),
        calls_(calls),
        instructions_(instructions) {}

  // The instruction reads an attribute that Module.__getattr__ would find: it finds it by itself now.
  void exchange(Frame f, const Operation& operation);
  // Whether the frame, which has just been entered, does nothing but call `forward`, or lead there, and has
  // been read.
  bool enter(Frame f);
  // The frames that run, from the outside: whether they did what was expected of them.
  void on_call(Frame f) {
    if (expecting_) meet(f);
  }
  void on_return(Frame f) {
    if (expecting_ == f) lose();
  }

 private:
  bool enter_wrapper(Frame f, PyObject* self);
  bool enter_call(Frame f, PyObject* self);
  bool expect(Frame f, PyObject* callee);
  void meet(Frame f);
  void lose();
  bool usable(PyObject* object) const;

  Recorder* recorder_;
  const WholeCalls* whole_calls_;
  ContainerReads* containers_;
  NameReads* names_;
  FunctionReads* functions_;
  Protocols* protocols_;
  Calls* calls_;
  Instructions* instructions_;
  Frame expecting_;               // a frame that was read at once, and has called nothing yet
  PyObject* expected_ = nullptr;  // the function that it will call, borrowed
};

// Told by Python once: the code of Module.__getattr__, of what Module.__call__ is, and of what that calls,
// each null where it is not the code that is known; the function that says whether torch.jit.trace is at
// work.
void configure_modules(const py::object& getter, const py::object& wrapper, const py::object& call,
                       const py::object& tracing);

}  // namespace lazytrace
