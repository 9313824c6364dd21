#include "guard/earlier_state.h"

#include <algorithm>
#include <utility>

namespace lazytrace {

bool EarlierState::add(Effect place, PyObject* owner, py::object before) {
  try {
    PyObject* container = place.container(owner);
    py::object now = place.held(container);
    place.put_back(container, before.ptr());
    places_.push_back(
        {std::move(place), py::reinterpret_borrow<py::object>(owner), std::move(before), std::move(now)});
    return true;
  } catch (py::error_already_set&) {
    return false;
  }
}

bool EarlierState::add_own(Effect place, PyObject* owner, py::object before, py::object now) {
  if (place.kind == Effect::Kind::Entry || place.kind == Effect::Kind::Drop) return false;
  places_.push_back(
      {std::move(place), py::reinterpret_borrow<py::object>(owner), std::move(before), std::move(now), true});
  put(places_.back(), places_.back().before);
  try {
    return stands(places_.back());
  } catch (py::error_already_set&) {
    return false;
  }
}

// Whether the function writes to the dict, list or cell that the place is in.
bool EarlierState::is_own(const Place& place) const {
  PyObject* container = place.effect.container(place.owner.ptr());
  return std::any_of(places_.begin(), places_.end(), [&](const Place& one) {
    return one.own && one.effect.container(one.owner.ptr()) == container;
  });
}

// A later place may lie in what an earlier one shows.
void EarlierState::show() {
  if (std::exchange(shows_, true)) return;
  for (const Place& place : places_) put(place, place.before);
}

bool EarlierState::hide() {
  if (!std::exchange(shows_, false)) return true;
  bool stood = true;
  for (auto place = places_.rbegin(); place != places_.rend(); ++place) stood &= leave(*place);
  return stood;
}

bool EarlierState::stands(const Place& place) {
  if (place.effect.kind == Effect::Kind::Content && !place.before) return false;
  py::object now = place.effect.held(place.effect.container(place.owner.ptr()));
  if (!now || !place.before || place.effect.kind != Effect::Kind::Content) return now.is(place.before);
  return PyList_Check(now.ptr()) == PyList_Check(place.before.ptr()) &&
         same_content(now.ptr(), place.before.ptr());
}

// Where somebody else has made that impossible meanwhile, their change stays.
void EarlierState::put(const Place& place, const py::object& value) {
  py::error_scope keep;
  try {
    PyObject* container = place.effect.container(place.owner.ptr());
    // All that the list holds comes next.
    if (place.effect.kind == Effect::Kind::At && place.effect.index >= PyList_GET_SIZE(container)) return;
    if (value || place.effect.held(container)) place.effect.put_back(container, value.ptr());
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("lazytrace");
  }
}

bool EarlierState::leave(const Place& place) {
  py::error_scope keep;
  try {
    bool stood = stands(place);
    py::object both = stood ? py::object() : merged(place);
    put(place, both ? both : place.now);
    return stood || both || is_own(place);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("lazytrace");
    return false;
  }
}

// What a list or dict holds that the function has written to before the step, and the step has changed
// elsewhere; null where it is not known what that comes to.
py::object EarlierState::merged(const Place& place) {
  if (place.effect.kind != Effect::Kind::Content || place.own) return {};
  PyObject* container = place.owner.ptr();
  py::object content = content_of(container);
  if (PyList_Check(content.ptr())) {
    auto size = PyList_GET_SIZE(place.before.ptr());
    py::object first = py::reinterpret_steal<py::object>(PyList_GetSlice(content.ptr(), 0, size));
    if (!PyList_Check(place.before.ptr()) || !same_content(first.ptr(), place.before.ptr())) return {};
    return py::reinterpret_steal<py::object>(PySequence_Concat(
        place.now.ptr(), content.attr("__getitem__")(py::slice(size, PY_SSIZE_T_MAX, 1)).ptr()));
  }
  // In the order that the step has left; what the function has added lies behind (KeyOrders).
  py::dict all;
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(place.now.ptr(), &at, &key, &value);) {
    PyObject* written = PyDict_GetItemWithError(content.ptr(), key);
    bool left = written && PyDict_GetItemWithError(place.before.ptr(), key) == value;
    all[py::handle(key)] = py::handle(left ? written : value);
  }
  for (Py_ssize_t at = 0; PyDict_Next(content.ptr(), &at, &key, &value);)
    if (!PyDict_Contains(place.before.ptr(), key) && !PyDict_Contains(all.ptr(), key))
      all[py::handle(key)] = py::handle(value);
  return std::move(all);
}

}  // namespace lazytrace
