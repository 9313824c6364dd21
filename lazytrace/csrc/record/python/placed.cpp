#include "record/python/placed.h"

#include <algorithm>

namespace lazytrace {

void Placed::set(PyObject* dict, PyObject* name, PyObject* value, size_t kernels) {
  all_.push_back({dict, py::reinterpret_borrow<py::object>(name), py::reinterpret_borrow<py::object>(value),
                  kernels, false, false, false});
}

void Placed::note_read(PyObject* container, PyObject* name) {
  all_.push_back(
      {container, py::reinterpret_borrow<py::object>(name ? name : Py_None), {}, 0, true, true, true});
}

Placed::How Placed::find(PyObject* dict, PyObject* name, size_t kernels, py::object* value) {
  for (One& one : all_) {
    if (one.dict != dict || one.late || !is_text(name, one.name.ptr())) continue;
    one.read = true;
    *value = one.value;
    return one.doubted || one.kernels != kernels ? How::Maybe : How::Surely;
  }
  return How::Not;
}

void Placed::doubt() {
  for (One& one : all_) {
    one.doubted = true;
    // How many hold it shows to what comes next.
    if (one.value && is_tensor(one.value.ptr())) one.value = py::object();
  }
}

Placed::Replaced Placed::replace(PyObject* object, PyObject* dict, PyObject* name) {
  auto is_it = [&](const One& one) {
    bool all = !name || one.name.is_none();
    return (one.dict == object || one.dict == dict) && (all || is_text(name, one.name.ptr()));
  };
  auto was_read = [&](const One& one) { return one.read && is_it(one); };
  bool read = std::any_of(all_.begin(), all_.end(), was_read);
  auto kept = std::remove_if(all_.begin(), all_.end(), is_it);
  if (kept == all_.end()) return Replaced::Nothing;
  all_.erase(kept, all_.end());
  return read ? Replaced::Read : Replaced::Unread;
}

}  // namespace lazytrace
