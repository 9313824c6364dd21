#include "replay/early_writes.h"

#include <stdexcept>
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
  made_.push_back({&written, std::move(container), std::move(before), std::move(value)});
}

// Whether nobody has written to the place meanwhile. What a container held is not compared.
bool EarlyWrites::Made::stands() const {
  return written->effect.kind == Effect::Kind::Content || written->effect.held(container.ptr()).is(value);
}

std::vector<int> EarlyWrites::settle() {
  std::vector<int> kept;
  for (; !made_.empty(); made_.pop_back()) {
    const Made& last = made_.back();
    if (last.stands() || !last.written->last)
      last.written->effect.put_back(last.container.ptr(), last.before.ptr());
    else
      kept.push_back(last.written->final);
  }
  return kept;
}

void EarlyWrites::take_back() {
  for (; !made_.empty(); made_.pop_back()) {
    const Made& last = made_.back();
    if (!last.stands())
      throw std::runtime_error(
          "Python code that a replay has called has changed what the function wrote before it, and the "
          "function "
          "must run again. Write that state behind the call, or call the function inside "
          "lazytrace.disabled().");
    last.written->effect.put_back(last.container.ptr(), last.before.ptr());
  }
}

}  // namespace lazytrace
