#include "record/python/handed_on.h"

#include <algorithm>
#include <unordered_set>

#include "cpython/callee.h"
#include "cpython/objects.h"

namespace lazytrace {

namespace {
// Its class and what it holds, as a list; null of what never changes.
py::object content_of_part(PyObject* part) {
  bool cell = PyCell_Check(part);
  bool plain = cell || PyList_CheckExact(part) || PySet_CheckExact(part) || PyDict_CheckExact(part);
  if (!plain && !is_rebuildable(part)) return {};
  py::list all;
  auto add = [&](PyObject* dict) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value);)
      all.append(py::handle(key)), all.append(py::handle(value));
  };
  if (PyList_Check(part) || PySet_Check(part))
    all = py::reinterpret_steal<py::list>(PySequence_List(part));
  else if (PyDict_Check(part))
    add(part);
  if (cell && PyCell_GET(part)) all.append(py::handle(PyCell_GET(part)));
  if (plain) return std::move(all);
  py::object state = py::reinterpret_steal<py::object>(instance_state(part));
  if (!state) throw py::error_already_set();
  add(state.ptr());
  all.append(py::handle(reinterpret_cast<PyObject*>(Py_TYPE(part))));
  return std::move(all);
}

// An object that was given another class may have come to hold nothing that is known.
bool is_same(const py::object& a, const py::object& b) {
  if (!a || !b) return false;
  Py_ssize_t size = PyList_GET_SIZE(a.ptr());
  if (size != PyList_GET_SIZE(b.ptr())) return false;
  for (Py_ssize_t i = 0; i < size; ++i)
    if (PyList_GET_ITEM(a.ptr(), i) != PyList_GET_ITEM(b.ptr(), i)) return false;
  return true;
}
}  // namespace

void HandedParts::add(PyObject* part) {
  auto is_it = [&](const auto& known) { return known.first.ptr() == part; };
  if (std::none_of(parts_.begin(), parts_.end(), is_it))
    parts_.emplace_back(py::reinterpret_borrow<py::object>(part), 0);
}

void HandedParts::count_holders() {
  for (auto& [part, holders] : parts_) holders = Py_REFCNT(part.ptr());
}

bool HandedParts::are_kept() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const auto& part) { return Py_REFCNT(part.first.ptr()) > part.second; });
}

std::vector<PyObject*> HandedOn::keep(const HandedParts& parts, const std::string& step, const Place& place) {
  std::unordered_set<PyObject*> hidden;
  for (const auto& [part, holders] : parts.all())
    if (function_of_partial(part.ptr())) hidden.insert(py::object(part.attr("keywords")).ptr());
  std::vector<PyObject*> shown;
  for (const auto& [part, holders] : parts.all()) {
    py::object content = content_of_part(part.ptr());
    if (!content) continue;
    bool shows = !hidden.count(part.ptr());
    if (shows) shown.push_back(part.ptr());
    kept_.push_back({part, std::move(content), step, place, shows});
  }
  return shown;
}

const HandedOn::Kept* HandedOn::changed() const {
  auto has_changed = [](const Kept& kept) {
    return !is_same(kept.content, content_of_part(kept.object.ptr()));
  };
  auto found = std::find_if(kept_.begin(), kept_.end(), has_changed);
  return found == kept_.end() ? nullptr : &*found;
}

std::vector<HandedOn::Kept> HandedOn::take_shared() {
  std::unordered_map<PyObject*, int> keepers;
  for (const Kept& kept : kept_) keepers[kept.object.ptr()] += kept.shows;
  std::vector<Kept> shared;
  for (Kept& kept : kept_)
    if (std::exchange(keepers[kept.object.ptr()], 0) > 1)
      shared.push_back({kept.object, {}, kept.step, kept.place});
  return shared;
}

std::optional<HandedOn::Kept> HandedOn::let_go() {
  std::vector<Kept> shared = take_shared();
  for (Kept& kept : kept_) keepers_.emplace(kept.object.ptr(), std::move(kept.step));
  kept_.clear();
  // Those that nobody else holds, and then those that only these held.
  auto is_gone = [](const Kept& kept) { return Py_REFCNT(kept.object.ptr()) == 1; };
  for (size_t before = shared.size() + 1; shared.size() < before;) {
    before = shared.size();
    shared.erase(std::remove_if(shared.begin(), shared.end(), is_gone), shared.end());
  }
  if (shared.empty()) return std::nullopt;
  return std::move(shared.front());
}

const std::string* HandedOn::keeper_of(PyObject* object) const {
  auto found = keepers_.find(object);
  return found == keepers_.end() ? nullptr : &found->second;
}

const HandedOn::Kept* HandedOn::renew(const HandedParts& given) {
  std::unordered_map<PyObject*, int> keepers;
  for (const Kept& kept : kept_) ++keepers[kept.object.ptr()];
  std::unordered_set<PyObject*> all;
  for (const auto& [part, holders] : given.all()) all.insert(part.ptr());
  const Kept* confused = nullptr;
  // Of one that several keep, each has another in a replay, and one of these would have changed.
  for (Kept& kept : kept_) {
    if (keepers[kept.object.ptr()] > 1) continue;
    py::object content = content_of_part(kept.object.ptr());
    if (all.count(kept.object.ptr()) && !is_same(kept.content, content)) confused = &kept;
    kept.content = std::move(content);
  }
  return confused;
}

}  // namespace lazytrace
