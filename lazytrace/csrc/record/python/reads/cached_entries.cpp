#include "record/python/reads/cached_entries.h"

#include <torch/csrc/Size.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpython/cached_entry.h"
#include "cpython/callee.h"
#include "cpython/carrier.h"
#include "cpython/lru_cache.h"
#include "cpython/objects.h"
#include "cpython/text_carrier.h"
#include "cpython/values.h"
#include "record/python/whole_calls.h"

namespace lazytrace {

namespace {

constexpr char kCachedResult[] = "cached result";

// As Python is given it while it is recorded. `numbers`: by leaf.
class CarryingEntry : public Rebuilding {
 public:
  CarryingEntry(const Surroundings& around, const std::vector<int>& numbers)
      : around_(around), numbers_(numbers) {}

 protected:
  py::object leaf(PyObject* value) override {
    int number = numbers_.at(next_++);
    if (number < 0) return py::reinterpret_borrow<py::object>(value);
    return py::reinterpret_steal<py::object>(around_.recorder->numbers()->carrier_of(number, value));
  }
  // Neither is written to or kept: a replay would change, or hand out, another one.
  py::object made(py::object copy, PyObject* value) override {
    around_.provenance->note_drawn(copy);
    around_.provenance->note_drawn(py::reinterpret_borrow<py::object>(value));
    around_.exchange->stands_for(copy, value);
    return copy;
  }

 private:
  const Surroundings& around_;
  const std::vector<int>& numbers_;
  size_t next_ = 0;
};

// The arguments of a call as a text of their structure, and their leaves: numbers that are followed must be
// arguments of the step themselves.
void take_apart(PyObject* value, std::string* form, py::list* leaves, int depth = 0) {
  if (depth > kDeepestEntry) throw NotGiven();
  if (!(PyTuple_CheckExact(value) || THPSize_Check(value)) || !holds_followed(value)) {
    *form += '.';
    return leaves->append(py::handle(value));
  }
  *form += '(';
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i)
    take_apart(PyTuple_GET_ITEM(value, i), form, leaves, depth + 1);
  *form += ')';
}

// What the steps call, for as long as the process.
PyObject* finder() {
  static PyMethodDef method = {kCachedResult, look_up_entry, METH_VARARGS, nullptr};
  static PyObject* const function = PyCFunction_New(&method, self_of_steps());
  return function;
}

// Whether a key is one of calls that differ in numbers which are followed alone. `differs`: whether some do.
bool is_like(PyObject* key, PyObject* args, bool* differs) {
  if (is_carrier(args)) {
    if (!is_plain_number(key)) return false;
    auto plain = py::reinterpret_steal<py::object>(plain_of_followed(args));
    *differs |= !same_immutable(key, plain.ptr());
    return true;
  }
  bool tuples = (PyTuple_CheckExact(args) || THPSize_Check(args)) && PyTuple_Check(key);
  if (!tuples) return key == args || (is_immutable(key) && same_immutable(key, args));
  bool same = PyTuple_GET_SIZE(args) == PyTuple_GET_SIZE(key);
  for (Py_ssize_t i = 0; same && i < PyTuple_GET_SIZE(args); ++i)
    same = is_like(PyTuple_GET_ITEM(key, i), PyTuple_GET_ITEM(args, i), differs);
  return same;
}

// Which numbers of an entry are followed: those that are others in the entry of another such call, and all of
// them if there is none.
std::string marks_of(PyObject* cache, PyObject* args, PyObject* result) {
  Giving now("");
  now.of(result);
  std::string marks(now.numbers().size(), Giving::kFollowed);
  PyObject* other = another_result(cache, [&](PyObject* key) {
    bool differs = false;
    bool single = !PyTuple_Check(key) && PyTuple_GET_SIZE(args) == 1;
    return is_like(key, single ? PyTuple_GET_ITEM(args, 0) : args, &differs) && differs;
  });
  Giving then("");
  if (!other || !given(other, "")) return marks;
  then.of(other);
  if (then.numbers().size() != marks.size()) return marks;
  for (size_t i = 0; i < marks.size(); ++i)
    if (same_immutable(then.numbers()[i], now.numbers()[i])) marks[i] = Giving::kConstant;
  return marks;
}

// The marks that a replay has gone by, of what its step gave.
void read_marks(PyObject* value, std::string* marks) {
  if (is_plain_number(value)) *marks += Giving::kFollowed;
  if (PyUnicode_CheckExact(value) && text_of(value)[0] == '#') *marks += Giving::kConstant;
  if (PyDict_CheckExact(value)) {
    PyObject *key, *item;
    for (Py_ssize_t at = 0; PyDict_Next(value, &at, &key, &item);) read_marks(item, marks);
  } else if (is_container(value)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
      read_marks(PySequence_Fast_GET_ITEM(value, i), marks);
  }
}

}  // namespace

bool looks_up_entry(const OpaqueStep& step) { return step.function.value.ptr() == finder(); }

// Whether each replay finds the cache, and what it is asked for.
bool CachedEntries::can_reach(PyObject* cache, const py::list& leaves) const {
  auto reaches = [&](PyObject* object) {
    int node = around_->provenance->known(object);
    return node >= 0 && around_->provenance->by_path(node);
  };
  around_->provenance->owner(cache);
  return reaches(cache) && std::all_of(leaves.begin(), leaves.end(), [&](py::handle leaf) {
           if (is_carrier(leaf.ptr())) return !is_scalar_carrier(leaf.ptr());
           return !is_text(leaf.ptr()) && (is_key(leaf.ptr()) || reaches(leaf.ptr()));
         });
}

// Nothing where a step cannot give it.
py::object CachedEntries::take(PyObject* cache, PyObject* const* args, Py_ssize_t count) {
  Recorder* recorder = around_->recorder;
  std::string form, marks;
  py::list leaves;
  for (Py_ssize_t i = 0; i < count; ++i) take_apart(args[i], &form, &leaves);
  if (!can_reach(cache, leaves) || recorder->stopped()) return {};
  auto step_args = [&](bool plain) {
    py::list all;
    for (py::object one :
         {py::reinterpret_borrow<py::object>(cache), py::object(py::str(form)), py::object(py::str(marks))})
      all.append(one);
    for (py::handle leaf : leaves)
      all.append(plain ? py::reinterpret_steal<py::object>(plain_of_followed(leaf.ptr()))
                       : py::reinterpret_borrow<py::object>(leaf));
    return py::tuple(all);
  };
  Entry entry = entry_of(step_args(true).ptr());
  bool fed = recorder->feeding();
  if (fed ? !recorder->expects(kCachedResult) : !entry.result) return {};
  py::object before = fed ? recorder->fed_value() : py::object();
  bool nothing = fed && before.ptr() == Py_Ellipsis;
  if (fed && !nothing && entry.result) {
    read_marks(before.ptr(), &marks);
  } else if (!nothing && entry.result) {
    py::tuple call(static_cast<size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) call[static_cast<size_t>(i)] = py::handle(args[i]);
    if (!given(entry.result, "")) return {};
    marks = marks_of(cache, call.ptr(), entry.result);
  }
  py::object found = nothing ? before : entry.result ? given(entry.result, marks) : py::object();
  // Python finds it by itself: it must be what the replay has found.
  if (!found || (fed && !found.equal(before))) return {};
  py::object result = py::reinterpret_borrow<py::object>(entry.result);
  OpaqueCall call(*around_, finder(), "", step_args(false).ptr(), nullptr, false, true);
  call.gives_numbers();
  call.finish(found.ptr());
  if (nothing) return {};
  use_cached(cache, entry.key.ptr(), 1);
  return recorder->stopped() ? result : CarryingEntry(*around_, call.numbers()).of(result.ptr());
}

void CachedEntries::before(Frame f, const Operation& operation) {
  Recorder* recorder = around_->recorder;
  PyObject** callee = operation.action == Action::Calls ? callee_of(f, operation) : nullptr;
  if (!callee || !is_lru_cache(*callee) || recorder->stopped() || !recorder->numbers()) return;
  int count = operation.third + (f.peek(operation.first) != nullptr);
  PyObject* const* args = f.top(count);
  bool any = std::any_of(args, args + count, [](PyObject* one) { return holds_followed(one); });
  if (!any || recorder->inside_operator()) return;
  try {
    py::object found = take(*callee, args, count);
    if (!found) return;
    for (int i = 1; i <= count; ++i) Py_SETREF(*f.place(i), Py_NewRef(Py_None));
    PyObject* gives = PyMethod_New(given_entry_step(), py::make_tuple(found).ptr());
    if (!gives) throw py::error_already_set();
    Py_SETREF(*callee, gives);
  } catch (const NotGiven&) {
  }
}

}  // namespace lazytrace
