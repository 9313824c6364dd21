#include "replay/early_writes.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

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

void EarlyWrites::put_back(const Made& made) const {
  made.written->effect.put_back(made.container.ptr(), made.before.ptr());
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
  if (!last) return false;
  int same = PyObject_RichCompareBool(last, key, Py_EQ);
  if (same < 0) throw py::error_already_set();
  return same > 0;
}
}  // namespace

void EarlyWrites::lift() {
  lifted_.clear();
  for (const Made& one : made_)
    if (one.adds_key())
      lifted_.emplace_back(one.container,
                           py::reinterpret_steal<py::object>(PyDict_Copy(one.container.ptr())));
  for (auto one = made_.rbegin(); one != made_.rend(); ++one) put_back(*one);
}

void EarlyWrites::put_down() {
  for (const Made& one : made_) one.written->effect.apply(one.owner.ptr(), one.value.ptr());
  for (auto& [dict, held] : lifted_) {
    if (same_order(dict.ptr(), held.ptr())) continue;
    PyDict_Clear(dict.ptr());
    if (PyDict_Update(dict.ptr(), held.ptr()) < 0) throw py::error_already_set();
  }
  lifted_.clear();
}

// What somebody else has written meanwhile stays.
void EarlyWrites::settle() {
  for (; !made_.empty(); made_.pop_back())
    if (made_.back().stands() && !made_.back().adds_key()) put_back(made_.back());
}

bool EarlyWrites::take_back() {
  bool last = true;
  for (; !made_.empty(); made_.pop_back()) {
    const Made& one = made_.back();
    if (!one.stands()) continue;
    last &= !one.adds_key() || is_last_key(one.container.ptr(), one.written->effect.key.ptr());
    put_back(one);
  }
  return last;
}

}  // namespace lazytrace
