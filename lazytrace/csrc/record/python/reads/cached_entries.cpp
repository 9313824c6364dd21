#include "record/python/reads/cached_entries.h"

#include <torch/csrc/Size.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cpython/cached_entry.h"
#include "cpython/callee.h"
#include "cpython/carrier.h"
#include "cpython/lru_cache.h"
#include "cpython/objects.h"
#include "cpython/text_carrier.h"
#include "cpython/values.h"
#include "record/python/code_facts.h"
#include "record/python/whole_calls.h"

namespace lazytrace {

namespace {

constexpr char kCachedResult[] = "cached result", kBegins[] = "call without a cached entry";

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

}  // namespace

PyObject* entry_beginner() {
  static PyMethodDef method = {kBegins, begin_entry, METH_VARARGS, nullptr};
  static PyObject* const function = PyCFunction_New(&method, self_of_steps());
  return function;
}

PyObject* entry_keeper() {
  static PyMethodDef method = {"cached entry", keep_entry, METH_VARARGS, nullptr};
  static PyObject* const function = PyCFunction_New(&method, self_of_steps());
  return function;
}

namespace {
bool is_of_user(PyObject* cache) {
  PyObject* function = cached_function(cache);
  return function && PyFunction_Check(function) && (code_flags(PyFunction_GET_CODE(function)) & kUser);
}
}  // namespace

// The function of a cache, if it is one of the user's that a recording can watch.
py::object CachedEntries::watched(PyObject* cache) const {
  static PyObject* const name = PyUnicode_InternFromString("__wrapped__");
  auto shown = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(cache, name));
  if (!shown) PyErr_Clear();
  if (!is_of_user(cache) || shown.ptr() != cached_function(cache) || tells_types_apart(cache)) return {};
  int node = around_->provenance->known(cache);
  // What was found under a key that is constant must be there when the replay comes to it.
  if (around_->provenance->has_read(node, Access::Cached)) return {};
  around_->provenance->note_filled(cache);
  around_->provenance->read_self(node, cache);
  around_->provenance->read_child(node, Access::Attribute, name, -1, shown.ptr());
  return shown;
}

namespace {
// The arguments as they lie in a key.
py::object plain_key(PyObject* part) {
  bool holds = (PyTuple_CheckExact(part) || THPSize_Check(part)) && holds_followed(part);
  if (!holds) return py::reinterpret_steal<py::object>(plain_of_followed(part));
  py::list items;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(part); ++i) items.append(plain_key(PyTuple_GET_ITEM(part, i)));
  return py::tuple(items);
}
}  // namespace

// What the call has made, and has put into no other cache: a replay puts another one there.
bool CachedEntries::is_own(PyObject* container) const {
  const Provenance& provenance = *around_->provenance;
  return provenance.known(container) < 0 && !provenance.was_drawn(container) &&
         !provenance.others_have(container);
}

// A list of an argument's attribute, say, which is the same one for all calls.
bool CachedEntries::lasts(PyObject* container) const {
  const Provenance& provenance = *around_->provenance;
  int node = provenance.known(container);
  return node >= 0 && provenance.by_path(node) && !provenance.was_drawn(container) &&
         !provenance.is_fresh(container) && !provenance.touched(container) &&
         !provenance.others_have(container);
}

py::object CachedEntries::kept_by_step(const py::object& cache, const py::tuple& args,
                                       const py::object& made) const {
  try {
    std::string key;
    py::list leaves;
    for (py::handle one : args) take_apart(one.ptr(), &key, &leaves);
    TakingApart result([&](PyObject* container) { return lasts(container); });
    result.add(made.ptr());
    for (PyObject* one : result.containers())
      if (!is_own(one)) return {};
    py::list all;
    all.append(cache);
    all.append(py::str(key));
    all.append(py::str(result.form()));
    for (const py::list* part : {&std::as_const(leaves), &result.leaves()})
      for (py::handle leaf : *part) all.append(leaf);
    return py::tuple(all);
  } catch (const NotGiven&) {
    return {};
  }
}

void CachedEntries::stand_for_kept(const py::object& cache, const py::tuple& args, const py::object& made) {
  auto key = plain_key(args.ptr());
  auto found = py::reinterpret_steal<py::object>(
      cache_key(cache.ptr(), PySequence_Fast_ITEMS(key.ptr()), PyTuple_GET_SIZE(key.ptr()), nullptr));
  PyObject* kept = found ? cached_result(cache.ptr(), found.ptr()) : nullptr;
  stand_for(made.ptr(), kept);
}

// `kept` may be null. A tuple of constants is the same in both.
void CachedEntries::stand_for(PyObject* made, PyObject* kept) {
  bool dict = PyDict_CheckExact(made), items = PyList_CheckExact(made) || PyTuple_CheckExact(made);
  NumberRecorder* numbers = kept && is_carrier(made) ? around_->recorder->numbers() : nullptr;
  if (numbers && !numbers->original_of(made)) numbers->stand_for(made, kept);
  if (made == kept || !(dict || items)) return;
  bool alike = kept && Py_TYPE(made) == Py_TYPE(kept) && PyObject_Size(made) == PyObject_Size(kept);
  around_->provenance->note_drawn(py::reinterpret_borrow<py::object>(made));
  if (alike) around_->exchange->stands_for(py::reinterpret_borrow<py::object>(made), kept);
  PyObject *key, *other, *value, *held = nullptr;
  for (Py_ssize_t at = 0, also = 0; dict && PyDict_Next(made, &at, &key, &value);)
    stand_for(value, alike && PyDict_Next(kept, &also, &other, &held) ? held : nullptr);
  for (Py_ssize_t i = 0; items && i < PySequence_Fast_GET_SIZE(made); ++i)
    stand_for(PySequence_Fast_GET_ITEM(made, i), alike ? PySequence_Fast_GET_ITEM(kept, i) : nullptr);
}

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

namespace {
// Whether the call has written to part of it: a replay writes that when it ends, behind its steps.
bool holds_written(PyObject* value, const Writes& writes, int depth = 0) {
  bool dict = PyDict_CheckExact(value), items = PyList_CheckExact(value) || PyTuple_CheckExact(value);
  if (!(dict || items) || depth > kDeepestEntry) return false;
  if (!PyTuple_CheckExact(value) && writes.wrote_to(value)) return true;
  PyObject *key, *item;
  for (Py_ssize_t at = 0; dict && PyDict_Next(value, &at, &key, &item);)
    if (holds_written(item, writes, depth + 1)) return true;
  for (Py_ssize_t i = 0; items && i < PySequence_Fast_GET_SIZE(value); ++i)
    if (holds_written(PySequence_Fast_GET_ITEM(value, i), writes, depth + 1)) return true;
  return false;
}
}  // namespace

// What is to be called in the place of the cache; nothing where a step cannot give it.
py::object CachedEntries::take(PyObject* cache, PyObject* const* args, Py_ssize_t count) {
  Recorder* recorder = around_->recorder;
  std::string form;
  py::list leaves;
  for (Py_ssize_t i = 0; i < count; ++i) take_apart(args[i], &form, &leaves);
  if (!can_reach(cache, leaves) || recorder->stopped()) return {};
  auto step_args = [&](bool plain) {
    py::list all;
    all.append(py::handle(cache));
    all.append(py::str(form));
    for (py::handle leaf : leaves)
      all.append(plain ? py::reinterpret_steal<py::object>(plain_of_followed(leaf.ptr()))
                       : py::reinterpret_borrow<py::object>(leaf));
    return py::tuple(all);
  };
  Entry entry = entry_of(step_args(true).ptr());
  bool written = entry.result && holds_written(entry.result, *around_->writes);
  bool fed = recorder->feeding();
  if (!entry.key || (written && !fed) || (fed && !recorder->expects(kCachedResult))) return {};
  py::object before = fed ? recorder->fed_value() : py::object();
  bool nothing = fed ? before.ptr() == kNoEntry : !entry.result;
  py::object function = nothing ? watched(cache) : py::object();
  if (nothing && !function && !fed) return {};
  py::object found = nothing ? py::reinterpret_borrow<py::object>(kNoEntry) : given(entry);
  // Python finds it by itself: it must be what the replay has found.
  if (written && !nothing) found = given({entry.key, before.ptr()});  // another one, maybe, by now
  if (fed && !found.equal(before)) return {};
  py::object result = py::reinterpret_borrow<py::object>(entry.result);
  OpaqueCall call(*around_, finder(), "", step_args(false).ptr(), nullptr, false, true);
  call.gives_numbers();
  call.finish(found.ptr());
  if (nothing) {
    if (recorder->stopped() || !function) return {};
    py::object parts = py::make_tuple(py::handle(cache), function);
    return py::reinterpret_steal<py::object>(PyMethod_New(entry_filler(), parts.ptr()));
  }
  // A guard finds it. The step is there all the same: a function that runs again knows them by their order.
  // A replay would count its use for both, where the step can give it.
  if (written) recorder->fail(say(reason::ResumesOtherwise, kCachedResult));
  if (written || found.ptr() == kNotGiven) return {};
  // A replay that has made an entry has counted all uses before that.
  if (!recorder->comes_to(kBegins)) use_cached(cache, entry.key.ptr(), 1);
  if (!recorder->stopped()) result = CarryingEntry(*around_, call.numbers()).of(result.ptr());
  return py::reinterpret_steal<py::object>(PyMethod_New(given_entry_step(), py::make_tuple(result).ptr()));
}

void CachedEntries::before(Frame f, const Operation& operation) {
  Recorder* recorder = around_->recorder;
  PyObject** callee = operation.action == Action::Calls ? callee_of(f, operation) : nullptr;
  if (!callee || !is_lru_cache(*callee) || recorder->stopped() || !recorder->numbers()) return;
  if (holds_few(*callee)) return;  // a step calls it once it is full (WholeCalls)
  int count = operation.third + (f.peek(operation.first) != nullptr);
  PyObject* const* args = f.top(count);
  bool any = std::any_of(args, args + count, [](PyObject* one) { return holds_followed(one); });
  // With a constant key, too: calls with other keys may drop the entry.
  if (!any && !(recorder->follows_sizes() && is_of_user(*callee))) return;
  if (recorder->inside_operator()) return;
  try {
    py::object instead = take(*callee, args, count);
    if (!instead) return;
    bool runs = PyMethod_GET_FUNCTION(instead.ptr()) == entry_filler();
    for (int i = 1; i <= count && !runs; ++i) Py_SETREF(*f.place(i), Py_NewRef(Py_None));
    Py_SETREF(*callee, instead.release().ptr());
  } catch (const NotGiven&) {
  }
}

}  // namespace lazytrace
