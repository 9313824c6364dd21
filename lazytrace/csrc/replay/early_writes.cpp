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

void EarlyWrites::lift() const {
  for (auto one = made_.rbegin(); one != made_.rend(); ++one)
    one->written->effect.put_back(one->container.ptr(), one->before.ptr());
}

void EarlyWrites::put_down() const {
  for (const Made& one : made_) one.written->effect.apply(one.owner.ptr(), one.value.ptr());
}

// What somebody else has written meanwhile stays.
void EarlyWrites::take_back() {
  for (; !made_.empty(); made_.pop_back()) {
    const Made& last = made_.back();
    if (last.stands()) last.written->effect.put_back(last.container.ptr(), last.before.ptr());
  }
}

}  // namespace lazytrace
