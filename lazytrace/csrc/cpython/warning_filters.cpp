#include "cpython/warning_filters.h"

#include <Python.h>

// CPython's own headers are C: they take other atomics in C++, and define this once more.
#undef HAVE_STD_ATOMIC
#undef _PyGC_FINALIZED
#define Py_BUILD_CORE
#include <internal/pycore_interp.h>
#undef Py_BUILD_CORE

namespace lazytrace {

long warning_filters_version() { return PyThreadState_Get()->interp->warnings.filters_version; }

}  // namespace lazytrace
