#include "record/handle_count.h"

#include <utility>

#include "cpython/carrier.h"
#include "record/python/handle_keys.h"

namespace lazytrace {

namespace {
PyObject* handles() { return reinterpret_cast<PyObject*>(handle_class()); }

PyObject* count_name() {
  static PyObject* const name = PyUnicode_InternFromString("next_id");
  return name;
}

void set_count(PyObject* value) {
  if (PyObject_SetAttr(handles(), count_name(), value) < 0) throw py::error_already_set();
}
}  // namespace

HandleCount::HandleCount(Observer* observer, OpaqueCall* step) : observer_(observer) {
  PyObject* count = PyDict_GetItemWithError(handle_class()->tp_dict, count_name());
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
  observer_->write_attribute(handles(), count_name(), more.ptr());
  set_count(more.ptr());
}

}  // namespace lazytrace
