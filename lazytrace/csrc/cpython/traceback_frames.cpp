#include "cpython/traceback_frames.h"

#include <unordered_set>

#include "cpython/frame.h"

namespace lazytrace {

std::vector<PyObject*> held_by_traceback(PyObject* exception) {
  std::vector<PyObject*> held;
  std::unordered_set<PyObject*> met;  // a frame may be in several, an exception its own context
  for (PyObject* one = exception; one && met.insert(one).second;) {
    auto* at = reinterpret_cast<PyTracebackObject*>(PyException_GetTraceback(one));
    Py_XDECREF(at);  // the exception holds it
    for (; at; at = at->tb_next) {
      if (!met.insert(reinterpret_cast<PyObject*>(at->tb_frame)).second) continue;
      Frame frame(at->tb_frame);
      for (int slot = 0; slot < frame.code_object()->co_nlocalsplus; ++slot)
        if (PyObject* value = frame.slot(slot)) held.push_back(value);
    }
    one = PyException_GetContext(one);
    Py_XDECREF(one);
  }
  return held;
}

void drop_frames_below(PyObject* traceback, bool (*left_out)(PyObject* code)) {
  auto* first = reinterpret_cast<PyTracebackObject*>(traceback);
  PyTracebackObject* below = first->tb_next;
  while (below && left_out(Frame(below->tb_frame).code())) below = below->tb_next;
  if (below == first->tb_next) return;
  Py_XINCREF(below);
  Py_XSETREF(first->tb_next, below);
}

}  // namespace lazytrace
