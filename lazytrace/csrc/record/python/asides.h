// Work that is no part of the function's: print() and logging where a person allows it, signal handlers,
// destructors, callbacks.
#pragma once

#include "cpython/frame.h"
#include "record/operators/recorder.h"
#include "record/python/pause.h"
#include "record/python/provenance.h"

namespace lazytrace {

// Pauses recorder and observer for as long as such work lasts. Needs the GIL.
class Asides {
 public:
  Asides(Recorder* recorder, const Provenance* provenance, Pause* pause)
      : recorder_(recorder), provenance_(provenance), pause_(pause) {}

  // What a person has allowed to happen at recordings only.
  void allow(bool print, bool logging) {
    print_ = print;
    logging_ = logging;
  }
  bool allows_print() const { return print_; }
  bool allows_logging() const { return logging_; }

  // Goes by a call of print() that `f` makes, where that is allowed: until `f` goes on or returns.
  bool ignore_print(Frame f);
  // The same for a frame of logging.
  void ignore(Frame f);
  // The same for what torch notes for itself, which must come to no code of the user's.
  void ignore_bookkeeping(Frame f);
  bool keeps_books() const { return books_ && ignored_; }
  // A frame that was not called by the code that runs goes by, too; what it writes, the function must not go
  // on to read.
  void step_aside(Frame f);
  // Whether it is one: a signal handler, a destructor, a callback of a weak reference.
  bool runs_aside(Frame f) const;

  void before_instruction(Frame f) {
    if (ignored_ == f) end(&ignored_);
  }
  void leave(Frame f);

 private:
  void begin(Frame* place, Frame f, bool watch_writes);
  void end(Frame* place);

  Recorder* recorder_;
  const Provenance* provenance_;
  Pause* pause_;
  bool print_ = false, logging_ = false;
  bool books_ = false;  // `ignored_` is torch's bookkeeping
  Frame ignored_;       // until it goes on, or returns, nothing is recorded
  Frame aside_;         // until it returns, what runs is not the function's work
};

}  // namespace lazytrace
