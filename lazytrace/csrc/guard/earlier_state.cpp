#include "guard/earlier_state.h"

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

// A later place may lie in what an earlier one shows.
void EarlierState::show() {
  if (std::exchange(shows_, true)) return;
  for (const Place& place : places_) put(place, place.before);
}

bool EarlierState::hide() {
  if (!std::exchange(shows_, false)) return true;
  bool stood = true;
  for (auto place = places_.rbegin(); place != places_.rend(); ++place) stood &= put(*place, place->now);
  return stood;
}

bool EarlierState::stands(const Place& place) {
  py::object now = place.effect.held(place.effect.container(place.owner.ptr()));
  if (place.effect.kind != Effect::Kind::Content) return now.is(place.before);
  return PyList_Check(now.ptr()) == PyList_Check(place.before.ptr()) &&
         same_content(now.ptr(), place.before.ptr());
}

// Where somebody else has made that impossible meanwhile, their change stays.
bool EarlierState::put(const Place& place, const py::object& value) {
  py::error_scope keep;
  try {
    bool stood = stands(place);
    place.effect.put_back(place.effect.container(place.owner.ptr()), value.ptr());
    return stood;
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("lazytrace");
    return false;
  }
}

}  // namespace lazytrace
