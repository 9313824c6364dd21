// The frames between a function and its caller that are not the program's.
#pragma once

#include "cpython/frame.h"

namespace lazytrace {

// While it lives, code that is called from here finds behind its own frame the first one whose code is not
// `hidden`: what it asks of its caller (sys._getframe(), the place of a warning) is as if that had called it.
// Frame::previous() still finds all. They count for no limit of recursion either, as long as few such calls
// are inside each other: each needs memory of the C stack. Destroy it where the call has returned, on the
// same thread, with the GIL.
class HideFrames {
 public:
  explicit HideFrames(bool (*hidden)(PyObject* code));
  ~HideFrames();
  HideFrames(const HideFrames&) = delete;
  HideFrames& operator=(const HideFrames&) = delete;

 private:
  friend class Frame;

  _PyCFrame* entered_ = nullptr;  // what the interpreter takes the caller of a new frame from
  _PyInterpreterFrame *inner_ = nullptr, *outer_ = nullptr;  // the hidden frames, from one to the other
  _PyInterpreterFrame* visible_ = nullptr;
  HideFrames* around_ = nullptr;
  int allowed_ = 0;  // how many of the hidden frames do not count
};

}  // namespace lazytrace
