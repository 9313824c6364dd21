#include "cpython/namespaces.h"

#include <torch/csrc/utils/pybind.h>

namespace lazytrace {

PyObject* new_namespace() {
  static PyObject* const kind =
      py::object(py::module_::import("types").attr("SimpleNamespace")).release().ptr();
  PyObject* made = PyObject_CallNoArgs(kind);
  if (!made) throw py::error_already_set();
  return made;
}

}  // namespace lazytrace
