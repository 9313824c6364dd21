#include "record/python/asides.h"

#include "cpython/objects.h"
#include "record/python/new_objects.h"

namespace lazytrace {

bool Asides::runs_aside(Frame f) const {
  // A handler of signals is given the frame that it interrupts.
  PyObject* interrupted = f.previous() ? f.previous().python_object() : nullptr;
  for (int i = 1; interrupted && i < 3; ++i)
    if (f.argument(i) == interrupted) return true;
  PyObject* first = f.argument(0);
  // What is destroyed was there before the call: a replay that drops it destroys it, too.
  static PyObject* const destructor = PyUnicode_InternFromString("__del__");
  if (first && is_text(f.code_name(), destructor))
    return !provenance_->is_fresh(first) && makes_new(Py_TYPE(first));
  return first && PyWeakref_CheckRef(first) && PyWeakref_GET_OBJECT(first) == Py_None &&
         f.code_object()->co_argcount == 1;
}

void Asides::begin(Frame* place, Frame f, bool watch_writes) {
  *place = f;
  recorder_->pause();
  pause_->begin(watch_writes);
}

void Asides::end(Frame* place) {
  *place = Frame();
  recorder_->resume();
  pause_->end();
}

bool Asides::ignore_print(Frame f) {
  if (!print_ || !f || ignored_) return false;
  ignore(f);
  return true;
}

void Asides::ignore(Frame f) {
  books_ = false;
  begin(&ignored_, f, false);
}

void Asides::ignore_bookkeeping(Frame f) {
  ignore(f);
  books_ = true;
}

void Asides::step_aside(Frame f) { begin(&aside_, f, true); }

void Asides::leave(Frame f) {
  if (ignored_ == f) end(&ignored_);
  if (aside_ == f) end(&aside_);
}

}  // namespace lazytrace
