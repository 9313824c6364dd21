#include "record/python/handed_on.h"

#include <algorithm>
#include <unordered_set>

#include "cpython/callee.h"
#include "cpython/contents.h"
#include "cpython/objects.h"

namespace lazytrace {

void HandedParts::add(PyObject* part) {
  auto is_it = [&](const auto& known) { return known.first.ptr() == part; };
  if (std::none_of(parts_.begin(), parts_.end(), is_it))
    parts_.emplace_back(py::reinterpret_borrow<py::object>(part), 0);
}

void HandedParts::count_holders() {
  for (auto& [part, holders] : parts_) holders = holders_of(part.ptr());
}

bool HandedParts::are_kept(const std::function<bool(PyObject*)>& is_ours,
                           const std::vector<PyObject*>& by_result) const {
  return std::any_of(parts_.begin(), parts_.end(), [&](const auto& part) {
    PyObject* one = part.first.ptr();
    auto more = std::count(by_result.begin(), by_result.end(), one) + (is_ours(one) ? 1 : 0);
    return holders_of(one) > part.second + more;
  });
}

void HandedParts::exchange(const std::function<PyObject*(PyObject*)>& by) {
  for (auto& [part, holders] : parts_) part = py::reinterpret_borrow<py::object>(by(part.ptr()));
}

std::vector<PyObject*> HandedOn::keep(const HandedParts& parts, const std::string& step, const Place& place) {
  std::unordered_set<PyObject*> hidden;
  for (const auto& [part, holders] : parts.all())
    if (function_of_partial(part.ptr())) hidden.insert(py::object(part.attr("keywords")).ptr());
  std::vector<PyObject*> shown;
  for (const auto& [part, holders] : parts.all()) {
    py::object content = contents_of(part.ptr());
    if (!content) continue;
    bool shows = !hidden.count(part.ptr());
    if (shows) shown.push_back(part.ptr());
    kept_.push_back({part, std::move(content), step, place, shows});
  }
  return shown;
}

std::vector<py::object> HandedOn::all() const {
  std::vector<py::object> objects;
  for (const Kept& kept : kept_) objects.push_back(kept.object);
  return objects;
}

void HandedOn::exchange(PyObject* own, PyObject* other) {
  for (Kept& kept : kept_) {
    if (kept.object.ptr() == own) kept.object = py::reinterpret_borrow<py::object>(other);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(kept.content.ptr()); ++i)
      if (PyList_GET_ITEM(kept.content.ptr(), i) == own)
        PyList_SetItem(kept.content.ptr(), i, Py_NewRef(other));
  }
}

bool HandedOn::keeps(PyObject* object) const {
  auto is_it = [&](const Kept& kept) { return kept.object.ptr() == object; };
  return std::any_of(kept_.begin(), kept_.end(), is_it);
}

const HandedOn::Kept* HandedOn::changed() const {
  auto has_changed = [](const Kept& kept) {
    return !same_contents(kept.content, contents_of(kept.object.ptr()));
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
    py::object content = contents_of(kept.object.ptr());
    if (all.count(kept.object.ptr()) && !same_contents(kept.content, content)) confused = &kept;
    kept.content = std::move(content);
  }
  return confused;
}

}  // namespace lazytrace
