#include "record/python/observer.h"

#include <algorithm>

namespace lazytrace {

Observer::Observer(Recorder* recorder, GuardTree* tree)
    : exchange_(recorder),
      gradients_(recorder),
      whole_calls_(recorder),
      unseen_(recorder, &provenance_),
      provenance_(recorder, tree),
      around_{recorder, &provenance_, &log_, &pause_, &exchange_, &unseen_},
      new_objects_(&provenance_),
      asides_(recorder, &provenance_, &pause_),
      classes_(recorder, &provenance_),
      lists_(recorder, tree, &provenance_, &exchange_),
      late_(&around_),
      early_(&around_),
      drawn_(&around_, &lists_, &unseen_),
      cached_(&around_),
      containers_(recorder, tree, &provenance_, &log_, &classes_, &lists_, &late_),
      default_dicts_(recorder, &provenance_, &containers_),
      attributes_(recorder, tree, &provenance_, &log_, &classes_, &containers_, &late_, &gradients_,
                  &unseen_),
      names_(recorder, tree, &provenance_, &log_),
      consumption_(recorder, tree, &exchange_, &provenance_, &log_, &classes_, &containers_, &attributes_),
      functions_(tree, &provenance_, &log_, &names_, &consumption_),
      pure_functions_(&provenance_, &log_, &classes_, &attributes_, &names_, &functions_),
      writes_(recorder, tree, &exchange_, &provenance_, &log_, &classes_, &lists_, &containers_, &names_,
              &consumption_, &gradients_, &early_),
      protocols_(recorder, &provenance_, &classes_, &containers_, &consumption_, &writes_),
      context_variables_(recorder, &provenance_),
      warnings_(recorder, &provenance_, &attributes_, &consumption_),
      calls_(recorder, tree, &provenance_, &new_objects_, &asides_, &classes_, &containers_, &attributes_,
             &consumption_, &writes_, &protocols_, &context_variables_, &warnings_),
      instructions_(recorder, &provenance_, &new_objects_, &classes_, &containers_, &names_, &consumption_,
                    &writes_, &protocols_, &calls_),
      modules_(recorder, &whole_calls_, &containers_, &names_, &functions_, &protocols_, &calls_,
               &instructions_),
      flags_(recorder, &provenance_),
      watcher_(around_, &gradients_, &whole_calls_, &unseen_, &lists_, &drawn_, &cached_, &default_dicts_,
               &asides_, &new_objects_, &classes_, &containers_, &consumption_, &functions_, &protocols_,
               &instructions_, &modules_, &flags_, Unwinding(&names_, &attributes_, &context_variables_)) {}

void Observer::finish(PyObject* result) {
  context_variables_.finish();
  watcher_.read_depth();
  provenance_.read_kernels();
  provenance_.finish(result);
}

namespace {
// What steps can be shown, wherever a replay has it.
bool is_plain(PyObject* value) { return is_tensor(value) || is_immutable(value); }

// What is taken out of a list or a dict, to be put in again; null where that is not plain, or too much.
py::object take_all_out(PyObject* container) {
  constexpr Py_ssize_t kMost = 64;
  if (PyList_CheckExact(container)) {
    Py_ssize_t size = PyList_GET_SIZE(container);
    PyObject** items = PySequence_Fast_ITEMS(container);
    if (size > kMost || !std::all_of(items, items + size, is_plain)) return {};
    auto all = py::reinterpret_steal<py::object>(PyList_GetSlice(container, 0, size));
    if (!all || PyList_SetSlice(container, 0, size, nullptr) < 0) throw py::error_already_set();
    return all;
  }
  PyObject *key, *value;
  if (PyDict_GET_SIZE(container) > kMost) return {};
  Py_ssize_t count = 0;
  for (Py_ssize_t at = 0; PyDict_Next(container, &at, &key, &value);) {
    // Where one was taken out before, who goes through it now would find himself at another entry.
    if (at != ++count) return {};
    if ((!PyUnicode_CheckExact(key) && !PyLong_CheckExact(key)) || !is_plain(value)) return {};
  }
  auto all = py::reinterpret_steal<py::object>(PyDict_Copy(container));
  if (!all) throw py::error_already_set();
  PyDict_Clear(container);
  return all;
}
}  // namespace

bool Observer::adopt(PyObject* container) {
  if (provenance_.is_adopted(container)) return true;
  if (!provenance_.may_adopt(container)) return false;
  py::object all = take_all_out(container);
  if (!all) return false;
  PyObject* adopted = provenance_.adopt(container);
  auto said = [] { return std::string("fills what it has made"); };
  PyObject *key, *value;
  if (PyList_CheckExact(all.ptr())) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(all.ptr()); ++i) {
      value = PyList_GET_ITEM(all.ptr(), i);
      writes_.write_again(Effect::Kind::Append, adopted, adopted, nullptr, -1, value, said);
      if (PyList_Append(adopted, value) < 0) throw py::error_already_set();
    }
    return true;
  }
  for (Py_ssize_t at = 0; PyDict_Next(all.ptr(), &at, &key, &value);) {
    writes_.write_item(adopted, key, value);
    if (PyDict_SetItem(adopted, key, value) < 0) throw py::error_already_set();
  }
  return true;
}

}  // namespace lazytrace
