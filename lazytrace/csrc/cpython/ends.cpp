#include "cpython/ends.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "cpython/frame.h"
#include "cpython/values.h"

namespace lazytrace {

namespace {
PyObject* find_destructor(PyObject* object) {
  static PyObject* const name = PyUnicode_InternFromString("__del__");
  return is_python_class(Py_TYPE(object)) ? _PyType_Lookup(Py_TYPE(object), name) : nullptr;
}

// Python code is told of its end, or a part of its own runs then.
bool tells(PyObject* object) {
  if (find_destructor(object)) return true;
  if (is_generator(object)) return true;
  if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(object))) return false;
  auto* weak = *reinterpret_cast<PyWeakReference**>(PyObject_GET_WEAKREFS_LISTPTR(object));
  for (; weak; weak = weak->wr_next)
    if (weak->wr_callback) return true;
  return false;
}

using Wanted = c10::function_ref<bool(PyObject*)>;

bool any_value(PyObject* dict, Wanted wanted, int depth) {
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value);)
    if (leads_to(value, wanted, depth)) return true;
  return false;
}

}  // namespace

std::vector<PyObject*> parts_of(PyObject* object) {
  std::vector<PyObject*> parts;
  auto add = [](PyObject* part, void* into) {
    static_cast<std::vector<PyObject*>*>(into)->push_back(part);
    return 0;
  };
  if (PyObject_IS_GC(object) && Py_TYPE(object)->tp_traverse)
    Py_TYPE(object)->tp_traverse(object, add, &parts);
  return parts;
}

std::vector<PyObject*> goes_with(PyObject* object) {
  if (!PyFunction_Check(object)) return parts_of(object);
  std::vector<PyObject*> parts;
  PyObject* closure = PyFunction_GET_CLOSURE(object);
  for (Py_ssize_t i = 0; closure && i < PyTuple_GET_SIZE(closure); ++i)
    parts.push_back(PyTuple_GET_ITEM(closure, i));
  return parts;
}

bool has_destructor(PyObject* object) {
  if (!object || !find_destructor(object)) return false;
  return !PyType_SUPPORTS_WEAKREFS(Py_TYPE(object)) || !*PyObject_GET_WEAKREFS_LISTPTR(object);
}

bool goes_through(PyObject* object) {
  auto is_iterator = [](PyObject* one) { return PyIter_Check(one) != 0; };
  if (!PyTuple_CheckExact(object)) return is_iterator(object);
  PyObject** items = PySequence_Fast_ITEMS(object);
  return std::any_of(items, items + PyTuple_GET_SIZE(object), is_iterator);
}

bool is_generator(PyObject* object) {
  return PyGen_CheckExact(object) || PyCoro_CheckExact(object) || PyAsyncGen_CheckExact(object);
}

bool shows_its_end(PyObject* object) { return leads_to(object, tells); }

bool waits_to_end(PyObject* object) {
  Frame waiting = PyGen_CheckExact(object) ? Frame::waiting(object) : Frame();
  return waiting && PyBytes_GET_SIZE(waiting.code_object()->co_exceptiontable) > 0;
}

bool runs_code_at_its_end(PyObject* object) {
  return is_generator(object) ? waits_to_end(object) : tells(object);
}

PyObject* ends_with(PyObject* object) {
  std::unordered_map<PyObject*, Py_ssize_t> left;  // what is held -> references that would be left
  std::vector<PyObject*> going{object};
  while (!going.empty()) {
    PyObject* one = going.back();
    going.pop_back();
    if (runs_code_at_its_end(one)) return one;
    for (PyObject* part : goes_with(one))
      if (part && --left.try_emplace(part, Py_REFCNT(part)).first->second == 0) going.push_back(part);
  }
  return nullptr;
}

namespace {
constexpr int kThroughObject = 4, kThroughContainer = 1, kDeepest = 8;
}  // namespace

bool leads_to(PyObject* object, c10::function_ref<bool(PyObject*)> wanted, int depth) {
  if (!object || PyType_Check(object) || PyModule_Check(object)) return false;
  if (is_tensor(object)) return wanted(object);
  if (is_immutable(object)) return false;
  if (wanted(object)) return true;
  if (depth >= kDeepest) return false;
  if (PyList_Check(object) || PyTuple_Check(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i)
      if (leads_to(PySequence_Fast_GET_ITEM(object, i), wanted, depth + kThroughContainer)) return true;
    return false;
  }
  if (PyDict_Check(object) && any_value(object, wanted, depth + kThroughContainer)) return true;
  if (PyDict_CheckExact(object)) return false;
  PyObject** own = _PyObject_GetDictPtr(object);
  for (PyObject* part : goes_with(object))
    if (own && part == *own ? any_value(part, wanted, depth + kThroughObject)
                            : leads_to(part, wanted, depth + kThroughObject))
      return true;
  return false;
}

}  // namespace lazytrace
