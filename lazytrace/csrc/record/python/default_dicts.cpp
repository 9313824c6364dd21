#include "record/python/default_dicts.h"

#include "cpython/objects.h"
#include "cpython/values.h"

namespace lazytrace {

namespace {
PyObject* make_stand_in = nullptr;  // kept for the life of the process
}

void configure_default_dicts(py::object made_of) { make_stand_in = made_of.release().ptr(); }

void DefaultDicts::exchange(Frame f, const Operation& operation) {
  if (operation.action != Action::GetsItem || recorder_->stopped()) return;
  PyObject *object = f.peek(operation.first), *key = f.peek(operation.second);
  if (!is_default_dict(object) || !is_key(key) || provenance_->is_fresh(object) ||
      provenance_->known(object) < 0 || !containers_->can_look_up(object, key) ||
      PyDict_Contains(object, key) != 0)
    return;
  containers_->read_dict_item(object, key);
  py::object made = py::reinterpret_steal<py::object>(PyObject_CallOneArg(make_stand_in, object));
  if (!made) throw py::error_already_set();
  Py_SETREF(*f.place(operation.first), made.release().ptr());
}

}  // namespace lazytrace
