#include "record/handle_count.h"

#include <utility>

#include "cpython/carrier.h"
#include "cpython/imports.h"

namespace lazytrace {

namespace {
PyTypeObject* handles() {
  static PyObject* const type = from_module("torch.utils.hooks", "RemovableHandle").release().ptr();
  return reinterpret_cast<PyTypeObject*>(type);
}

PyObject* count_name() {
  static PyObject* const name = PyUnicode_InternFromString("next_id");
  return name;
}

void set_count(PyObject* value) {
  if (PyObject_SetAttr(reinterpret_cast<PyObject*>(handles()), count_name(), value) < 0)
    throw py::error_already_set();
}
}  // namespace

HandleCount::HandleCount(Observer* observer, OpaqueCall* step) : observer_(observer) {
  PyObject* count = PyDict_GetItemWithError(handles()->tp_dict, count_name());
  if (!count || !is_carrier(count)) return;
  followed_ = py::reinterpret_borrow<py::object>(count);
  if (step) step->counts(count);
  set_count(py::reinterpret_steal<py::object>(plain_of_carrier(count)).ptr());
}

HandleCount::~HandleCount() {
  if (!followed_) return;
  try {
    set_count(followed_.ptr());
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("lazytrace");
  }
}

void HandleCount::count() {
  if (!followed_) return;
  py::object followed = std::exchange(followed_, py::object());
  set_count(followed.ptr());
  auto more = py::reinterpret_steal<py::object>(PyNumber_Add(followed.ptr(), py::int_(1).ptr()));
  if (!more) throw py::error_already_set();
  observer_->write_attribute(reinterpret_cast<PyObject*>(handles()), count_name(), more.ptr());
  set_count(more.ptr());
}

}  // namespace lazytrace
