#include "replay/early_writes.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "cpython/objects.h"

namespace lazytrace {

void EarlyWrites::make(const WrittenByThen& written, PyObject* owner, py::object value) {
  for (Made& one : made_) {
    if (one.written->effect.serial != written.effect.serial) continue;
    one.written = &written;
    if (written.effect.kind == Effect::Kind::Append) return;
    one.value = std::move(value);
    return written.effect.apply(owner, one.value.ptr());
  }
  py::object container = py::reinterpret_borrow<py::object>(written.effect.container(owner));
  py::object before = written.effect.held(container.ptr());
  written.effect.apply(owner, value.ptr());
  made_.push_back({&written, py::reinterpret_borrow<py::object>(owner), std::move(container),
                   std::move(before), std::move(value)});
}

void EarlyWrites::go_on(const WrittenByThen& written) {
  for (Made& one : made_)
    if (one.written->effect.serial == written.effect.serial)
      one.value = written.effect.held(one.container.ptr());
}

bool EarlyWrites::Made::stands() const {
  py::object now = written->effect.held(container.ptr());
  if (written->effect.kind != Effect::Kind::Content) return now.is(value);
  return PyList_Check(now.ptr()) == PyList_Check(value.ptr()) && same_content(now.ptr(), value.ptr());
}

namespace {
// What a list or deque has so many places before its end; null where it is shorter.
py::object from_end(PyObject* container, Py_ssize_t places) {
  Py_ssize_t size = PySequence_Size(container);
  if (size <= places) return py::object();
  return py::reinterpret_steal<py::object>(PySequence_GetItem(container, size - 1 - places));
}
}  // namespace

// Of what was appended to one container the first lies behind the last.
bool EarlyWrites::stand() const {
  std::unordered_map<PyObject*, Py_ssize_t> later;
  return std::all_of(made_.rbegin(), made_.rend(), [&](const Made& one) {
    if (one.written->effect.kind != Effect::Kind::Append) return one.stands();
    return from_end(one.container.ptr(), later[one.container.ptr()]++).is(one.value);
  });
}

bool EarlyWrites::Made::adds_key() const {
  Effect::Kind kind = written->effect.kind;
  return !before && PyDict_Check(container.ptr()) &&
         (kind == Effect::Kind::Item || kind == Effect::Kind::Attribute);
}

void KeyOrders::note(py::object dict, size_t from) {
  for (size_t i = from; i < all_.size(); ++i)
    if (all_[i].first.is(dict)) return;
  PyObject* ordered = PyODict_Check(dict.ptr()) ? PySequence_List(dict.ptr()) : PyDict_Keys(dict.ptr());
  auto keys = py::reinterpret_steal<py::object>(ordered);
  if (!keys) throw py::error_already_set();
  all_.emplace_back(std::move(dict), std::move(keys));
}

namespace {
bool same_order(PyObject* a, PyObject* b) {
  PyObject *key, *other, *value;
  for (Py_ssize_t at = 0, there = 0;
       PyDict_Next(a, &at, &key, &value) && PyDict_Next(b, &there, &other, &value);)
    if (key != other) return false;
  return true;
}

bool is_last_key(PyObject* dict, PyObject* key) {
  PyObject *found, *value, *last = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &found, &value);) last = found;
  int same = last ? PyObject_RichCompareBool(last, key, Py_EQ) : 0;
  if (same < 0) throw py::error_already_set();
  return same > 0;
}

void move_into(PyObject* ordered, PyObject* dict, PyObject* key) {
  PyObject* value = PyDict_GetItemWithError(dict, key);
  if (PyErr_Occurred() || (value && PyDict_SetItem(ordered, key, value) < 0)) throw py::error_already_set();
}
// An OrderedDict keeps its order beside the dict that it is.
void fill_again(PyObject* dict, PyObject* ordered) {
  static PyObject* const clear = PyDict_GetItemString(PyODict_Type.tp_dict, "clear");
  auto none = py::reinterpret_steal<py::object>(PyObject_CallOneArg(clear, dict));
  if (!none) throw py::error_already_set();
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(ordered, &at, &key, &value);)
    if (PyODict_SetItem(dict, key, value) < 0) throw py::error_already_set();
}
}  // namespace

void KeyOrders::restore() const {
  for (auto& [dict, keys] : all_) {
    py::dict ordered;
    for (py::handle key : keys) move_into(ordered.ptr(), dict.ptr(), key.ptr());
    if (PyDict_Update(ordered.ptr(), dict.ptr()) < 0) throw py::error_already_set();
    if (PyODict_Check(dict.ptr())) {
      fill_again(dict.ptr(), ordered.ptr());
      continue;
    }
    if (same_order(ordered.ptr(), dict.ptr())) continue;
    PyDict_Clear(dict.ptr());
    if (PyDict_Update(dict.ptr(), ordered.ptr()) < 0) throw py::error_already_set();
  }
}

void EarlyWrites::lift() {
  size_t before = orders_.size();
  for (auto one = made_.rbegin(); one != made_.rend(); ++one) take_out(*one, before);
}

void EarlyWrites::put_down() {
  for (const Made& one : made_) one.written->effect.apply(one.owner.ptr(), one.value.ptr());
  orders_.restore();
}

// What somebody else has written meanwhile stays.
void EarlyWrites::settle() {
  for (; !made_.empty(); made_.pop_back())
    if (made_.back().stands() && !made_.back().adds_key()) take_out(made_.back(), orders_.size());
}

std::vector<EarlyWrites::Overwritten> EarlyWrites::take_back() {
  size_t before = orders_.size();
  std::vector<Overwritten> found;
  if (!stand()) found = overwritten(before);
  for (; !made_.empty(); made_.pop_back())
    if (made_.back().stands()) take_out(made_.back(), before);
  for (Overwritten& one : found)
    if (one.place.kind == Effect::Kind::Content && !PyDict_Check(one.owner.ptr()))
      one.before = content_of(one.owner.ptr());
  return found;
}

// Keys that the function added lie where they were added.
std::vector<EarlyWrites::Overwritten> EarlyWrites::overwritten(size_t before) {
  std::vector<Overwritten> found;
  for (const Made& one : made_) {
    PyObject* container = one.container.ptr();
    bool listed = PyList_Check(container) || is_deque(container);
    auto has_it = [&](const Overwritten& other) { return listed && other.owner.is(one.container); };
    if (std::any_of(found.begin(), found.end(), has_it)) continue;
    if (listed) {
      Effect all;
      all.kind = Effect::Kind::Content;
      found.push_back({std::move(all), one.container, {}, content_of(container)});
    } else if (!one.stands()) {
      if (one.adds_key()) orders_.note(one.container, before);
      found.push_back({one.written->effect, one.owner, one.before, one.written->effect.held(container)});
    }
  }
  return found;
}

void EarlyWrites::take_out(const Made& made, size_t before) {
  PyObject* container = made.container.ptr();
  bool ordered = PyODict_Check(container);
  if (made.adds_key() && (ordered || !is_last_key(container, made.written->effect.key.ptr())))
    orders_.note(made.container, before);
  made.written->effect.put_back(container, made.before.ptr());
}

}  // namespace lazytrace
