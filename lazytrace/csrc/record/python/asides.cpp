#include "record/python/asides.h"

#include "cpython/frame.h"
#include "cpython/objects.h"
#include "record/python/new_objects.h"

namespace lazytrace {

bool Asides::runs_aside(_PyInterpreterFrame* f) const {
  // A handler of signals is given the frame that it interrupts.
  PyObject* interrupted = f->previous ? reinterpret_cast<PyObject*>(f->previous->frame_obj) : nullptr;
  for (int i = 1; interrupted && i < 3; ++i)
    if (first_argument(f, i) == interrupted) return true;
  PyObject* first = first_argument(f);
  // What is destroyed was there before the call: a replay that drops it destroys it, too.
  if (first && text_of(f->f_code->co_name) == "__del__")
    return !provenance_->is_fresh(first) && makes_new(Py_TYPE(first));
  return first && PyWeakref_CheckRef(first) && PyWeakref_GET_OBJECT(first) == Py_None &&
         f->f_code->co_argcount == 1;
}

void Asides::begin(_PyInterpreterFrame** place, _PyInterpreterFrame* f, bool watch_writes) {
  *place = f;
  recorder_->pause();
  pause_->begin(watch_writes);
}

void Asides::end(_PyInterpreterFrame** place) {
  *place = nullptr;
  recorder_->resume();
  pause_->end();
}

bool Asides::ignore_print(_PyInterpreterFrame* f) {
  if (!print_ || !f || ignored_) return false;
  ignore(f);
  return true;
}

void Asides::ignore(_PyInterpreterFrame* f) { begin(&ignored_, f, false); }

void Asides::step_aside(_PyInterpreterFrame* f) { begin(&aside_, f, true); }

void Asides::leave(_PyInterpreterFrame* f) {
  if (ignored_ == f) end(&ignored_);
  if (aside_ == f) end(&aside_);
}

}  // namespace lazytrace
