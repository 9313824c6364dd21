#include "record/python/touched.h"

#include <algorithm>
#include <utility>

#include "cpython/array_memory.h"
#include "cpython/ends.h"
#include "cpython/objects.h"
#include "guard/guards.h"

namespace lazytrace {

namespace {
// No view, proxy, iterator or writer of something else.
bool owns_what_is_written(PyObject* object) {
  if (PyList_CheckExact(object) || PyDict_CheckExact(object) || PySet_CheckExact(object) ||
      PyFunction_Check(object) || PyCell_Check(object) || is_deque(object))
    return true;
  if (is_writable_array(object)) return py::getattr(object, "base").is_none();
  return is_python_class(Py_TYPE(object)) && c_base(Py_TYPE(object)) == &PyBaseObject_Type;
}
}  // namespace

void Touched::add(PyObject* object) {
  One one{weak_reference(object)};
  if (!one.weak) held_.push_back(py::reinterpret_borrow<py::object>(object));
  entries_[object] = std::move(one);
  order_.push_back({object, owns_what_is_written(object)});
}

bool Touched::any_left_since(size_t added) const {
  return std::any_of(order_.begin() + static_cast<std::ptrdiff_t>(added), order_.end(),
                     [&](const Added& one) {
                       if (!one.owns) return true;
                       if (!count(one.at)) return false;
                       bool held = !entries_.find(one.at)->weak;
                       return !held || Py_REFCNT(static_cast<PyObject*>(const_cast<void*>(one.at))) > 1;
                     });
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
