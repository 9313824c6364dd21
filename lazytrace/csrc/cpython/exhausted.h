// Whether an iterator has come to its end.
#pragma once

#include <Python.h>

namespace lazytrace {

// Of a generator that has ended, and an itertools.chain that has found its last iterator empty: they give
// nothing any more, whatever happens to what they were made of. False for all others. Needs the GIL; runs no
// Python code.
bool is_exhausted(PyObject* iterator);

}  // namespace lazytrace
