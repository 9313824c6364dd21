#include "record/python/touched.h"

#include <algorithm>
#include <utility>

#include "cpython/array_memory.h"
#include "cpython/ends.h"
#include "cpython/objects.h"
#include "guard/guards.h"

namespace lazytrace {

namespace {
// The array or the tensor whose memory an array shows, which is the array itself if need be. Null: something
// else. Borrowed from the array.
PyObject* owner_of_memory(PyObject* array) {
  PyObject* owner = array;
  while (is_writable_array(owner)) {
    PyObject* base = py::getattr(owner, "base").ptr();
    if (base == Py_None) return owner;
    owner = base;
  }
  return is_tensor(owner) ? owner : nullptr;
}

// A tuple that leads to tensors alone, as C functions of torch are handed some: these are looked at by
// themselves.
bool holds_tensors_alone(PyObject* object) {
  if (!PyTuple_CheckExact(object)) return false;
  PyObject** items = PySequence_Fast_ITEMS(object);
  return std::all_of(items, items + PyTuple_GET_SIZE(object), [](PyObject* item) { return is_tensor(item); });
}

// No view, proxy, iterator or writer of something else; no array.
bool owns_what_is_written(PyObject* object) {
  if (PyList_CheckExact(object) || PyDict_CheckExact(object) || PySet_CheckExact(object) ||
      PyFunction_Check(object) || PyCell_Check(object) || is_deque(object) || holds_tensors_alone(object))
    return true;
  return is_python_class(Py_TYPE(object)) && c_base(Py_TYPE(object)) == &PyBaseObject_Type;
}
}  // namespace

void Touched::add(PyObject* object) {
  One one{weak_reference(object)};
  if (!one.weak) held_.push_back(py::reinterpret_borrow<py::object>(object));
  entries_[object] = std::move(one);
  // What an array shows is known beside it.
  PyObject* owner = is_writable_array(object) ? owner_of_memory(object) : nullptr;
  order_.push_back({object, owner || owns_what_is_written(object)});
  if (owner && !is_tensor(owner) && !count(owner)) add(owner);
}

bool Touched::any_left_since(size_t added, const std::function<bool(PyObject*)>& goes_with_result) const {
  auto is_left = [&](const Added& one) {
    if (!one.owns) return true;
    if (!count(one.at)) return false;
    auto* object = static_cast<PyObject*>(const_cast<void*>(one.at));
    if (Py_REFCNT(object) > 1) return true;
    return entries_.find(one.at)->weak && !goes_with_result(object);  // else it is held here alone
  };
  return std::any_of(order_.begin() + static_cast<std::ptrdiff_t>(added), order_.end(), is_left);
}

bool Touched::count(const void* object) const {
  const One* one = entries_.find(object);
  return one && !one->gone && still_alive(one->weak, static_cast<PyObject*>(const_cast<void*>(object)));
}

PyObject* Touched::next_end() {
  // This is asked before each instruction. What was written to long ago seldom goes.
  constexpr size_t kAsked = 64;
  for (size_t i = held_.size(), last = held_.size() - std::min(held_.size(), kAsked); i-- > last;) {
    PyObject* object = held_[i].ptr();
    if (Py_REFCNT(object) > 1) continue;
    if (PyObject* ends = ends_with(object)) return ends;
    entries_.find(object)->gone = true;
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return nullptr;
}

}  // namespace lazytrace
