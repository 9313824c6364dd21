// The one place that looks into CPython 3.11's frames: the instruction that comes next and the values on the
// stack.
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

namespace lazytrace {

class FrameView {
 public:
  explicit FrameView(PyFrameObject* frame) : frame_(frame), f_(frame->f_frame) {}

  _PyInterpreterFrame* interpreter_frame() const { return f_; }
  PyObject* code() const { return reinterpret_cast<PyObject*>(f_->f_code); }
  int instruction() const { return _PyInterpreterFrame_LASTI(f_); }
  int lasti() const { return _PyInterpreterFrame_LASTI(f_) * static_cast<int>(sizeof(_Py_CODEUNIT)); }
  void trace_instructions(bool on) { frame_->f_trace_opcodes = on; }
  void trace_lines(bool on) { frame_->f_trace_lines = on; }

 private:
  PyFrameObject* frame_;
  _PyInterpreterFrame* f_;
};

inline _PyInterpreterFrame* current_frame() { return PyThreadState_Get()->cframe->current_frame; }
// peek(f, 1) is the top of the stack.
inline PyObject* peek(_PyInterpreterFrame* f, int depth) { return f->localsplus[f->stacktop - depth]; }
inline PyObject* name_at(_PyInterpreterFrame* f, int index) {
  return PyTuple_GET_ITEM(f->f_code->co_names, index);
}

// The value of a local variable, behind its cell too; null where it has none.
inline PyObject* local_value(_PyInterpreterFrame* f, int index) {
  PyObject* value = f->localsplus[index];
  return value && PyCell_Check(value) ? PyCell_GET(value) : value;
}
// An argument of a frame that begins, or null.
inline PyObject* first_argument(_PyInterpreterFrame* f, int index = 0) {
  return f->f_code->co_argcount > index ? local_value(f, index) : nullptr;
}

}  // namespace lazytrace
