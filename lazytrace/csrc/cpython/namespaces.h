// Objects that hold attributes and nothing else.
#pragma once

#include <Python.h>

namespace lazytrace {

// A new `types.SimpleNamespace`, a new reference. Needs the GIL; throws where it cannot be made.
PyObject* new_namespace();

}  // namespace lazytrace
