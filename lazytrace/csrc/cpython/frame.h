// The one place that looks into CPython 3.11's frames: the instruction that comes next, the values on the
// stack, the variables.
#pragma once

#include <Python.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030C0000
#error "lazytrace reads the frames of CPython 3.11"
#endif

#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE
#endif
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

#include <algorithm>
#include <vector>

namespace lazytrace {

// How many more may be entered on this thread, as the limit of recursion has it.
inline int frames_left() { return PyThreadState_Get()->recursion_remaining; }

// A frame that runs, or none. Borrows it: good for as long as the frame runs. All that it gives is borrowed,
// too. Needs the GIL.
class Frame {
 public:
  Frame() = default;
  explicit Frame(PyFrameObject* frame) : f_(frame->f_frame) {}
  // That of a generator which waits to go on, or none. Good until it does.
  static Frame waiting(PyObject* generator) {
    auto* made = reinterpret_cast<PyGenObject*>(generator);
    if (!PyGen_CheckExact(generator) || made->gi_frame_state != FRAME_SUSPENDED) return Frame();
    return Frame(reinterpret_cast<_PyInterpreterFrame*>(made->gi_iframe));
  }
  // That of any generator, which may have ended: for its address.
  static Frame of_generator(PyObject* generator) {
    return Frame(
        reinterpret_cast<_PyInterpreterFrame*>(reinterpret_cast<PyGenObject*>(generator)->gi_iframe));
  }
  // Whether no thread runs this object of a frame: it is that of a generator which waits, or it has ended.
  static bool rests(PyObject* frame) {
    _PyInterpreterFrame* f = reinterpret_cast<PyFrameObject*>(frame)->f_frame;
    if (f->owner != FRAME_OWNED_BY_GENERATOR) return f->owner != FRAME_OWNED_BY_THREAD;
    return _PyFrame_GetGenerator(f)->gi_frame_state != FRAME_EXECUTING;
  }
  static Frame current() { return Frame(PyThreadState_Get()->cframe->current_frame); }

  explicit operator bool() const { return f_ != nullptr; }
  bool operator==(Frame other) const { return f_ == other.f_; }
  bool operator!=(Frame other) const { return f_ != other.f_; }
  // For tables by address.
  const void* address() const { return f_; }

  // Whose code called it, or the engine that did: what HideFrames hides is found.
  Frame previous() const;
  // What sys._getframe() has given for it, or null.
  PyObject* python_object() const { return reinterpret_cast<PyObject*>(f_->frame_obj); }
  // Null in code that no function holds: the body of a class, exec().
  PyObject* function() const { return reinterpret_cast<PyObject*>(f_->f_func); }
  PyCodeObject* code_object() const { return f_->f_code; }
  PyObject* code() const { return reinterpret_cast<PyObject*>(f_->f_code); }
  PyObject* code_name() const { return f_->f_code->co_name; }
  PyObject* globals() const { return f_->f_globals; }
  PyObject* builtins() const { return f_->f_builtins; }
  PyObject* locals() const { return f_->f_locals; }

  // The instruction that runs, by number and by byte.
  int instruction() const { return _PyInterpreterFrame_LASTI(f_); }
  int lasti() const { return instruction() * static_cast<int>(sizeof(_Py_CODEUNIT)); }
  PyObject* name(int index) const { return PyTuple_GET_ITEM(f_->f_code->co_names, index); }
  PyObject* constant(int index) const { return PyTuple_GET_ITEM(f_->f_code->co_consts, index); }

  bool has_stack() const { return f_->stacktop > f_->f_code->co_nlocalsplus; }
  // peek(1) is the top of the stack, peek(0) nothing.
  PyObject* peek(int depth) const { return depth ? f_->localsplus[f_->stacktop - depth] : nullptr; }
  // Where that value lies, for somebody who puts another one there; the frame owns a reference to it.
  PyObject** place(int depth) const { return f_->localsplus + f_->stacktop - depth; }
  // The topmost values, the lowest first.
  PyObject* const* top(int count) const { return f_->localsplus + f_->stacktop - count; }

  // What the stack holds `height` above its bottom.
  PyObject* above_bottom(int height) const { return f_->localsplus[f_->f_code->co_nlocalsplus + height]; }

  // A variable, or the cell that holds it.
  PyObject* slot(int index) const { return f_->localsplus[index]; }
  PyObject* variable(int index) const {
    PyObject* value = slot(index);
    return value && PyCell_Check(value) ? PyCell_GET(value) : value;
  }
  // Where its variables lie, or are kept by cells, and with `stack` what lies on its stack.
  std::vector<PyObject**> places(bool stack) const {
    std::vector<PyObject**> all;
    int count = stack && has_stack() ? f_->stacktop : f_->f_code->co_nlocalsplus;
    for (PyObject** at = f_->localsplus; at != f_->localsplus + count; ++at)
      all.push_back(*at && PyCell_Check(*at) ? &reinterpret_cast<PyCellObject*>(*at)->ob_ref : at);
    return all;
  }
  // Whether a variable or a value of its stack lies, or may lie, there.
  bool owns(PyObject* const* place) const {
    return place >= f_->localsplus &&
           place < f_->localsplus + f_->f_code->co_nlocalsplus + f_->f_code->co_stacksize;
  }
  // Whether it lies there now.
  bool has(PyObject* const* place) const {
    return owns(place) && place < f_->localsplus + std::max(f_->stacktop, f_->f_code->co_nlocalsplus);
  }
  PyObject** local(int index) const { return f_->localsplus + index; }
  int height() const { return f_->stacktop - f_->f_code->co_nlocalsplus; }
  // How often its variables and its stack hold the object. While C code runs that it has called, its stack is
  // not known, and counts as empty.
  Py_ssize_t holds(PyObject* object) const {
    int count = std::max(f_->stacktop, f_->f_code->co_nlocalsplus);
    return std::count(f_->localsplus, f_->localsplus + count, object);
  }
  // How often the object lies where its stack is, if that is not known: some of it may have been taken off.
  Py_ssize_t may_hold(PyObject* object) const {
    if (f_->stacktop >= f_->f_code->co_nlocalsplus) return 0;
    PyObject** bottom = f_->localsplus + f_->f_code->co_nlocalsplus;
    return std::count(bottom, bottom + f_->f_code->co_stacksize, object);
  }
  // Of a frame that begins; null where it has fewer.
  PyObject* argument(int index) const { return f_->f_code->co_argcount > index ? variable(index) : nullptr; }
  // The first variable that belongs to an enclosing function.
  int first_free() const { return f_->f_code->co_nlocalsplus - f_->f_code->co_nfreevars; }

 private:
  explicit Frame(_PyInterpreterFrame* f) : f_(f) {}

  _PyInterpreterFrame* f_ = nullptr;
};

// Whether CPython itself evaluates frames, and nobody has taken its place.
inline bool evaluates_frames() {
  return _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == _PyEval_EvalFrameDefault;
}

// Whether the trace function is called before each instruction of the frame, and at each line.
inline void trace_instructions(PyFrameObject* frame, bool on) { frame->f_trace_opcodes = on; }
inline void trace_lines(PyFrameObject* frame, bool on) { frame->f_trace_lines = on; }

}  // namespace lazytrace
