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
  follow();
  PyObject* count = PyDict_GetItemWithError(handle_class()->tp_dict, count_name());
  if (!count || !is_carrier(count)) return;
  followed_ = py::reinterpret_borrow<py::object>(count);
  if (step) step->counts(count);
  set_count(py::reinterpret_steal<py::object>(plain_of_carrier(count)).ptr());
}

// Where the function itself counts later, which a recording before this one has shown, it goes on from here.
void HandleCount::follow() {
  PyObject* count = PyDict_GetItemWithError(handle_class()->tp_dict, count_name());
  if (!count || !PyLong_CheckExact(count)) return;
  const Surroundings& around = observer_->surroundings();
  if (around.recorder->stopped()) return;
  Provenance* provenance = around.provenance;
  int node = provenance->class_node(handle_class());
  bool late = provenance->has_counted(handle_class(), count_name());
  if (late || provenance->touched(handle_class(), count_name())) return;
  if (!provenance->follows(node, Access::Own, count_name(), -1)) return;
  auto plain = py::reinterpret_borrow<py::object>(count);
  auto numbers = provenance->follow_child(node, Access::Own, count_name(), -1, count);
  if (numbers.empty()) return;
  py::object followed = around.exchange->carried(plain.ptr(), numbers);
  observer_->write_attribute(handles(), count_name(), followed.ptr());
  set_count(followed.ptr());
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
  if (!followed_) return observer_->surroundings().provenance->note_counted(handle_class(), count_name());
  py::object followed = std::exchange(followed_, py::object());
  set_count(followed.ptr());
  auto more = py::reinterpret_steal<py::object>(PyNumber_Add(followed.ptr(), py::int_(1).ptr()));
  if (!more) throw py::error_already_set();
  observer_->write_attribute(handles(), count_name(), more.ptr());
  set_count(more.ptr());
}

}  // namespace lazytrace
