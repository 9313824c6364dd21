// What the frames that an exception has left hold for as long as somebody has it.
#pragma once

#include <Python.h>

#include <vector>

namespace lazytrace {

// The variables of each frame of its traceback, and of those of the exceptions that were handled when it was
// raised; once for each place. Borrowed. Needs the GIL.
std::vector<PyObject*> held_by_traceback(PyObject* exception);

// Takes frames out of a traceback: those right below its first one whose code is to be left out.
void drop_frames_below(PyObject* traceback, bool (*left_out)(PyObject* code));

}  // namespace lazytrace
