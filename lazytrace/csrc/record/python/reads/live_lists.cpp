#include "record/python/reads/live_lists.h"

#include <algorithm>

#include "cpython/callee.h"
#include "cpython/carried_iterator.h"
#include "cpython/carrier.h"
#include "cpython/imports.h"
#include "cpython/objects.h"
#include "cpython/totals.h"
#include "cpython/values.h"
#include "record/python/unseen.h"
#include "support/address_map.h"

namespace lazytrace {

namespace {

// Of more entries, steps of their own would take longer than the call.
constexpr Py_ssize_t kMostPlaces = 256;

// Functions that look at the entries alone, whatever holds them, and keep nothing but these.
const AddressSet& takers_of_entries() {
  static const auto* all = [] {
    auto* made = new AddressSet();
    for (const char* name : {"list", "tuple", "sorted", "sum", "max", "min", "any", "all", "enumerate", "zip",
                             "set", "frozenset"})
      made->insert(builtin(name));
    for (const char* name : {"tensor", "as_tensor", "stack", "cat", "concat", "vstack", "hstack"})
      made->insert(from_module("torch", name).release().ptr());
    made->insert(from_module("math", "fsum").release().ptr());
    return made;
  }();
  return *all;
}

bool takes_entries(PyObject* function) {
  return takers_of_entries().count(function) || takes_list_for_array(function);
}

// Those of them that give what goes through the entries later.
bool gives_iterator(PyObject* callee) {
  static PyObject* const all[] = {builtin("enumerate"), builtin("zip")};
  return std::find(std::begin(all), std::end(all), callee) != std::end(all);
}

// A bound that is no number, or a plain one.
bool is_plain_bound(PyObject* bound) { return bound == Py_None || PyLong_CheckExact(bound); }

}  // namespace

// ---------------------------------------------------------------- what is known of one
LiveLists::List* LiveLists::of(PyObject* object) {
  int node = provenance_->has_live() && object ? provenance_->live(object) : -1;
  if (node < 0 || recorder_->stopped() || !recorder_->numbers()) return nullptr;
  provenance_->owner(object);  // which an opaque function may have changed
  if (recorder_->stopped()) return nullptr;
  for (auto& [known, list] : lists_)
    if (known == object) return &list;
  List list;
  list.object = object;
  list.node = node;
  list.length = size_of_list(object);
  // Of two that have become one a function that runs again would ask for other numbers.
  tree_->expect_distinct(node);
  lists_.emplace_back(object, std::move(list));
  return &lists_.back().second;
}

int LiveLists::length_number(const List& list) {
  py::int_ length(list.length);
  auto numbers = provenance_->follow_child(list.node, Access::Length, nullptr, -1, length.ptr());
  if (!numbers.empty()) return numbers[0];
  recorder_->fail("reads a " + type_name(list.object) + " inside an operator");
  return -1;
}

// Before the call: a comparison that each replay makes. A function that runs again must make the same ones,
// so nothing else is decided by how long a list is unless that is guarded.
bool LiveLists::had_at_least(const List& list, Py_ssize_t count) {
  if (count <= 0) return true;
  int length = recorder_->stopped() || !recorder_->numbers() ? -1 : length_number(list);
  if (length < 0) return list.length >= count;  // the recording has failed
  NumberRecorder& numbers = *recorder_->numbers();
  int number = numbers.apply(Number::Kind::LessEqual, numbers.constant(count), length);
  return numbers.read(number).whole != 0;
}

// Of the entries of before the call that are left.
bool LiveLists::has_at_least(const List& list, Py_ssize_t count) {
  if (list.emptied) return count <= 0;
  return had_at_least(list, list.from_start + list.from_end + count);
}

// By a guard: a list that grows up to some size has a recording for each, and no branches.
void LiveLists::fix_length(const List& list) {
  if (!list.emptied) (*tree_)[list.node].length = list.length;
}

// A nan is given as it is, and is none the next time: a function that runs again would not read it.
py::object LiveLists::followed(py::object value, c10::ArrayRef<int> numbers) {
  if (numbers.empty() || recorder_->stopped() || !recorder_->numbers()) return value;
  py::object made = exchange_->carried(value.ptr(), numbers);
  bool tuple = PyTuple_Check(made.ptr());
  bool plain = !tuple && made.is(value);
  for (Py_ssize_t i = 0; tuple && i < PyTuple_GET_SIZE(made.ptr()); ++i) {
    PyObject* item = PyTuple_GET_ITEM(made.ptr(), i);
    plain |= is_nan(item) && !is_carrier(item);
  }
  if (plain) recorder_->fail("reads a nan in a list");
  return made;
}

// One of before the call, by its place among those.
py::object LiveLists::entry(const List& list, Py_ssize_t index) {
  auto value = py::reinterpret_steal<py::object>(entry_of_list(list.object, index - list.from_start));
  auto numbers = provenance_->follow_child(list.node, Access::FromStart, nullptr, index, value.ptr());
  return followed(std::move(value), numbers);
}

// The same, counted from the end of what was there before the call: 1 is the last.
py::object LiveLists::entry_from_end(const List& list, Py_ssize_t place) {
  Py_ssize_t index = list.length - place - list.from_start;
  auto value = py::reinterpret_steal<py::object>(entry_of_list(list.object, index));
  auto numbers = provenance_->follow_child(list.node, Access::FromEnd, nullptr, place, value.ptr());
  return followed(std::move(value), numbers);
}

// One that the call has put there: 1 is the last.
py::object LiveLists::added(const List& list, Py_ssize_t place) {
  return py::reinterpret_steal<py::object>(entry_of_list(list.object, -place));
}

// ---------------------------------------------------------------- reads
void LiveLists::read_length(PyObject* object) {
  List* list = object == asked_ ? nullptr : of(object);
  if (list) fix_length(*list);
}

void LiveLists::read_item(PyObject* object, PyObject* key) {
  List* list = of(object);
  Py_ssize_t index = list && PyLong_CheckExact(key) ? PyLong_AsSsize_t(key) : 0;
  if (PyErr_Occurred()) PyErr_Clear(), index = PY_SSIZE_T_MAX;
  bool within = list && -length_now(*list) <= index && index < length_now(*list);
  within ? read_whole(object) : read_length(object);
}

void LiveLists::read_whole(PyObject* object) {
  List* list = of(object);
  if (!list) return;
  if (list->left() > 10000)
    return recorder_->fail("reads a container with " + std::to_string(list->length) + " entries");
  fix_length(*list);
  for (Py_ssize_t i = 0; i < list->left(); ++i) {
    auto value = py::reinterpret_steal<py::object>(entry_of_list(object, i));
    provenance_->read_child(list->node, Access::FromStart, nullptr, list->from_start + i, value.ptr());
  }
}

LiveLists::Ends LiveLists::ends_of(PyObject* object) {
  List* list = of(object);
  if (!list || list->emptied || list->from_end) return {-1, 0, 0};
  return {list->from_start, list->left(), list->added};
}

// list[index]; null where it has none.
py::object LiveLists::item(const List& list, Py_ssize_t index) {
  if (index < 0 && -index <= list.added) return added(list, -index);
  if (index < 0 && has_at_least(list, -index - list.added))
    return entry_from_end(list, -index - list.added + list.from_end);
  if (index >= 0 && has_at_least(list, index + 1)) return entry(list, list.from_start + index);
  fix_length(list);
  if (index < 0 || index >= length_now(list)) return {};
  return added(list, length_now(list) - index);
}

// All that it holds now, and so how many these are. False: too many.
bool LiveLists::entries(const List& list, py::list* found) {
  fix_length(list);
  if (length_now(list) > kMostPlaces) return false;
  for (Py_ssize_t i = 0; i < list.left(); ++i) found->append(entry(list, list.from_start + i));
  for (Py_ssize_t i = list.added; i > 0; --i) found->append(added(list, i));
  return true;
}

// list[a:b]. Both counted from one end, it has as many entries in each list that is long enough.
bool LiveLists::slice(const List& list, PyObject* key, py::list* found) {
  auto* bounds = reinterpret_cast<PySliceObject*>(key);
  if (!is_plain_bound(bounds->start) || !is_plain_bound(bounds->stop) || !is_plain_bound(bounds->step))
    return false;
  Py_ssize_t start, stop, step;
  if (PySlice_Unpack(key, &start, &stop, &step) < 0) return PyErr_Clear(), false;
  bool to_end = bounds->stop == Py_None;
  Py_ssize_t end = to_end ? 0 : -stop;
  if (step == 1 && start < 0 && -start - end <= kMostPlaces && end >= 0 &&
      (-start <= list.added || has_at_least(list, -start - list.added))) {
    for (Py_ssize_t place = -start; place > end; --place)
      found->append(place <= list.added ? added(list, place)
                                        : entry_from_end(list, place - list.added + list.from_end));
    return true;
  }
  if (step == 1 && start >= 0 && !to_end && stop >= 0 && stop - start <= kMostPlaces &&
      has_at_least(list, stop)) {
    for (Py_ssize_t i = start; i < stop; ++i) found->append(entry(list, list.from_start + i));
    return true;
  }
  py::list all;
  if (!entries(list, &all)) return false;
  auto some = py::reinterpret_steal<py::object>(PyObject_GetItem(all.ptr(), key));
  if (!some) return PyErr_Clear(), false;
  *found = py::list(some);
  return true;
}

// What a function of numbers gives for all that is left of before the call, followed by what was put there:
// sum(), max() and min() go through it from its begin, and know no more of it by then.
bool LiveLists::total(const List& list, PyObject* function, py::list* found) {
  PyObject* name = name_of_total(function);
  if (!name || list.from_end || !has_at_least(list, 1)) return false;
  auto entries = py::reinterpret_steal<py::object>(PySequence_List(list.object));
  if (!entries || PyList_SetSlice(entries.ptr(), list.left(), length_now(list), nullptr) < 0)
    throw py::error_already_set();
  py::object value = total_of(name, entries.ptr(), 0);
  if (!value || is_nan(value.ptr())) return false;  // which of them it is shows where it is looked for
  auto numbers = provenance_->follow_child(list.node, Access::Total, name, list.from_start, value.ptr());
  if (numbers.empty() || recorder_->stopped() || !recorder_->numbers()) return false;
  found->append(py::reinterpret_steal<py::object>(recorder_->numbers()->carrier(numbers[0])));
  for (Py_ssize_t i = list.added; i > 0; --i) found->append(added(list, i));
  return true;
}

py::list LiveLists::numbers_in(PyObject* list, c10::function_ref<bool(PyObject*, Py_ssize_t)> wrote) {
  py::list found;
  int node = provenance_->owner(list);
  if (!provenance_->structural(node)) tree_->expect_length(node, list);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    auto value = py::reinterpret_borrow<py::object>(PyList_GET_ITEM(list, i));
    if (wrote(list, i)) {
      found.append(value);
      continue;
    }
    if (PyList_Check(value.ptr())) {
      if (provenance_->known(value.ptr()) < 0)
        provenance_->read_child(node, Access::At, nullptr, i, value.ptr());
      found.append(numbers_in(value.ptr(), wrote));
      continue;
    }
    auto numbers = provenance_->follow_child(node, Access::At, nullptr, i, value.ptr());
    found.append(followed(value, numbers));
  }
  provenance_->note_made(found.ptr());
  return found;
}

// ---------------------------------------------------------------- on the stack
void LiveLists::put(PyObject** place, py::list made) {
  provenance_->note_made(made.ptr());
  Py_SETREF(*place, made.release().ptr());
}

void LiveLists::put_alone(PyObject** container, PyObject** key, py::object entry) {
  py::list alone;
  alone.append(std::move(entry));
  Py_SETREF(*key, PyLong_FromLong(0));
  put(container, std::move(alone));
}

// `iterates`: what is made of it goes through it later, and must see what becomes of it by then.
void LiveLists::put_entries(PyObject** place, bool iterates) {
  List* list = of(*place);
  py::list found;
  if (!list || !entries(*list, &found)) return;
  if (!iterates) return put(place, std::move(found));
  auto plain = py::reinterpret_steal<py::list>(PySequence_List(list->object));
  if (!plain) throw py::error_already_set();
  py::object iterator = carried_iterator(py::reinterpret_borrow<py::object>(list->object), plain, found);
  provenance_->note_made(iterator.ptr());
  list->iterated.push_back(iterator);
  Py_SETREF(*place, iterator.release().ptr());
}

void LiveLists::before_item(PyObject** place, PyObject** key) {
  List* list = of(*place);
  if (!list) return;
  if (is_carrier(*key)) recorder_->numbers()->settle(*key);
  py::list found;
  if (PySlice_Check(*key)) {
    if (!PyList_Check(*place) || !slice(*list, *key, &found)) return;
    Py_SETREF(*key, PySlice_New(nullptr, nullptr, nullptr));
    return put(place, std::move(found));
  }
  Py_ssize_t index = PyLong_CheckExact(*key) ? PyLong_AsSsize_t(*key) : PY_SSIZE_T_MAX;
  if (index == -1 && PyErr_Occurred()) return PyErr_Clear();
  py::object one = index == PY_SSIZE_T_MAX ? py::object() : item(*list, index);
  if (!one) return;
  put_alone(place, key, std::move(one));
}

// The call is judged as that of a list of its own, and gives the number.
void LiveLists::before_length(PyObject** callee, PyObject** place) {
  List* list = of(*place);
  if (!list || list->emptied) return;  // its length is no question then
  NumberRecorder& numbers = *recorder_->numbers();
  int number = length_number(*list);
  if (number < 0) return;
  Py_ssize_t more = list->added - list->from_start - list->from_end;
  if (more) number = numbers.apply(Number::Kind::Add, number, numbers.constant(more));
  if (number < 0) return;
  static PyObject* const index = from_module("operator", "index").release().ptr();
  later_.emplace_back(callee, exchange_->exchanged(index));
  later_.emplace_back(place, py::reinterpret_steal<py::object>(numbers.carrier(number)));
  put(place, py::list());
}

void LiveLists::ask_truth(PyObject* object) {
  List* list = of(object);
  if (!list) return;
  if (!list->added) has_at_least(*list, 1);
  asked_ = object;
}

void LiveLists::before_call(PyObject** callee, PyObject** args, Py_ssize_t count) {
  static PyObject* const length = builtin("len");
  if (*callee == length && count == 1) return before_length(callee, args);
  if (*callee == reinterpret_cast<PyObject*>(&PyBool_Type) && count == 1) return ask_truth(args[0]);
  static PyObject* const extremes[] = {builtin("max"), builtin("min")};
  bool asks =
      count > 1 && (*callee == extremes[0] || *callee == extremes[1]);  // a key function, which may write
  if (asks || !takes_entries(called_for(*callee))) return;
  for (Py_ssize_t i = 0; i < count; ++i) {
    List* list = of(args[i]);
    py::list found;
    if (list && count == 1 && total(*list, *callee, &found))
      put(args + i, std::move(found));
    else if (list)
      put_entries(args + i, gives_iterator(*callee));
  }
}

void LiveLists::before(Frame f, const Operation& operation) {
  later_.clear();
  asked_ = nullptr;
  if (!provenance_->has_live() || recorder_->stopped()) return;
  PyObject** first = f.place(operation.first);
  switch (operation.action) {
    case Action::GetsItem:
      return before_item(first, f.place(operation.second));
    case Action::TestsTruth:
      return ask_truth(*first);
    case Action::Iterates:
      return put_entries(first, true);
    case Action::Unpacks:
    case Action::Merges:
    case Action::Contains:
      return put_entries(first, false);
    case Action::Calls: {
      bool method = *first != nullptr;
      int count = operation.third + method;
      return before_call(callee_of(f, operation), f.place(count), count);
    }
    case Action::CallsWith:
      return put_entries(f.place(operation.second), false);
    default:
      return;
  }
}

void LiveLists::exchange() {
  for (auto& [place, made] : later_) Py_SETREF(*place, made.release().ptr());
  later_.clear();
}

// ---------------------------------------------------------------- writes
// Whoever goes through it would see what is put there.
bool LiveLists::may_change(List* list) {
  if (!list || recorder_->inside_operator()) return false;
  auto& all = list->iterated;
  all.erase(std::remove_if(all.begin(), all.end(), [](py::object& one) { return Py_REFCNT(one.ptr()) == 1; }),
            all.end());
  return all.empty();
}

bool LiveLists::append(PyObject* object) {
  List* list = of(object);
  if (!may_change(list)) return false;
  if (is_deque(object)) {
    static PyObject* const name = PyUnicode_InternFromString("maxlen");
    auto limit = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(object, name));
    if (!limit) throw py::error_already_set();
    Py_ssize_t most = limit.is_none() ? PY_SSIZE_T_MAX : PyLong_AsSsize_t(limit.ptr());
    bool full = most != PY_SSIZE_T_MAX && has_at_least(*list, most - list->added);
    if (full && !list->left()) return false;
    list->from_start += full;
  }
  ++list->added;
  return true;
}

bool LiveLists::is_added(PyObject* object, PyObject* key, Py_ssize_t* place) {
  List* list = of(object);
  bool grown = list && list->added && !list->from_start && !list->from_end && !list->emptied;
  if (!grown || !may_change(list)) return false;
  if (!is_carrier(key)) {
    *place = PyLong_CheckExact(key) ? list->added + PyLong_AsSsize_t(key) : -1;
    if (PyErr_Occurred()) PyErr_Clear(), *place = -1;
    return *place >= 0 && *place < list->added;
  }
  if (is_real_carrier(key) || is_long_carrier(key)) return false;
  // One after the other, so that a function that runs again for another number asks the same.
  constexpr Py_ssize_t kMostAdded = 8;
  int length = list->added <= kMostAdded ? length_number(*list) : -1;
  NumberRecorder& numbers = *recorder_->numbers();
  for (*place = 0; length >= 0 && *place < list->added; ++*place) {
    int wanted = numbers.apply(Number::Kind::Add, length, numbers.constant(*place));
    if (wanted < 0) return false;
    if (numbers.read(numbers.apply(Number::Kind::Equal, numbers.number_of(key), wanted)).whole) return true;
    if (recorder_->stopped()) return false;
  }
  return false;
}

bool LiveLists::was_added(PyObject* object, Py_ssize_t index) {
  List* list = of(object);
  return list && index >= list->left() && index < length_now(*list);
}

bool LiveLists::take_out(PyObject* object, bool last, Py_ssize_t* place) {
  List* list = of(object);
  if (!may_change(list) || (last && list->added) || !has_at_least(*list, 1)) return false;
  auto value = py::reinterpret_steal<py::object>(entry_of_list(object, last ? -1 : 0));
  if (is_nan(value.ptr()) && !recorder_->feeding()) return false;  // see followed()
  Access access = last ? Access::FromEnd : Access::FromStart;
  Py_ssize_t at = last ? ++list->from_end : list->from_start++;
  provenance_->read_operand(list->node, access, nullptr, at, value.ptr());
  *place = last ? -at : at;
  return true;
}

bool LiveLists::clear(PyObject* object) {
  List* list = of(object);
  if (!may_change(list)) return false;
  list->emptied = true;
  list->added = 0;
  return true;
}

bool LiveLists::remove(PyObject* object, PyObject* key, std::vector<Py_ssize_t>* places) {
  List* list = of(object);
  if (!may_change(list)) return false;
  Py_ssize_t count = 0;
  if (PyLong_CheckExact(key)) {
    Py_ssize_t index = PyLong_AsSsize_t(key);
    if (index == -1 && !PyErr_Occurred() && !list->added) {
      if (!has_at_least(*list, 1)) return false;
      places->push_back(-++list->from_end);
      return true;
    }
    PyErr_Clear();
    count = index == 0 ? 1 : -1;
  } else if (PyList_Check(object) && PySlice_Check(key)) {
    auto* bounds = reinterpret_cast<PySliceObject*>(key);
    bool plain = bounds->step == Py_None && PyLong_CheckExact(bounds->stop) &&
                 (bounds->start == Py_None ||
                  (PyLong_CheckExact(bounds->start) && PyLong_AsSsize_t(bounds->start) == 0));
    count = plain ? PyLong_AsSsize_t(bounds->stop) : -1;
    PyErr_Clear();
    if (!plain) return false;
    // All but the last so many.
    if (count < 0 && !has_at_least(*list, 1 - list->added - count)) return true;
    if (count < 0) {
      fix_length(*list);
      count += length_now(*list);
    }
  }
  if (count < 0 || count > kMostPlaces || !has_at_least(*list, count)) return false;
  for (Py_ssize_t i = 0; i < count; ++i) places->push_back(list->from_start++);
  return true;
}

}  // namespace lazytrace
