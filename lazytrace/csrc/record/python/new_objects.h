// Objects that the instructions of a recording make: known as new from the moment they are there.
#pragma once

#include <utility>
#include <vector>

#include "cpython/frame.h"
#include "record/python/provenance.h"

namespace lazytrace {

// Whether calling the type makes a new object, whatever its __init__ does: __new__ and the metaclass are C
// code.
bool makes_new(PyTypeObject* type);

// Between an instruction and the next one of its frame. Borrows frames that run. Needs the GIL.
class NewObjects {
 public:
  explicit NewObjects(Provenance* provenance) : provenance_(provenance) {}

  // The next stack top of the frame is a new instance of the type, where the type makes one.
  void expect(Frame f, PyTypeObject* type);
  // The next stack top of the frame is a class that it has made.
  // `statement`: by a class statement, whose bases and body are handed on in a new tuple and a new dict.
  void expect_class(Frame f, bool statement = false) {
    makes_class_ = f;
    if (statement) class_statement_ = f;
  }
  void forget(Frame f);

  // Before each instruction; `builds`: whether it puts a new container on the stack.
  void before(Frame f, bool builds, bool paused) {
    if (built_in_ == f && !paused) note_built(f);
    built_in_ = builds ? f : Frame();
    if ((!pending_.empty() || makes_class_) && !paused) settle(f);
  }
  // When a frame begins: the tuple behind *args, the dict behind **kwargs, and what its __init__ is given.
  void enter(Frame f);
  // The same of a frame that is not watched.
  void enter_trusted(Frame f) { note_class_arguments(f); }

 private:
  void note_class_arguments(Frame f);
  void note_built(Frame f);
  void settle(Frame f);
  void note_arguments(Frame f);
  void note_initialized(Frame f);
  PyTypeObject* pending_of(Frame f) const;

  Provenance* provenance_;
  std::vector<std::pair<Frame, PyTypeObject*>> pending_;  // few at once
  Frame built_in_;                                        // the frame whose last instruction made a container
  Frame makes_class_, class_statement_;
};

}  // namespace lazytrace
