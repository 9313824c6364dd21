#include "record/python/reads/containers.h"

#include "cpython/carrier.h"
#include "cpython/ends.h"
#include "cpython/exhausted.h"
#include "cpython/imports.h"
#include "cpython/objects.h"
#include "cpython/values.h"
#include "signature/signature.h"

namespace lazytrace {

namespace {
// Of more numbers, steps of their own would take longer than the call.
constexpr Py_ssize_t kMost = 256;
}  // namespace

bool is_container(PyObject* v) {
  return PyDict_Check(v) || PyList_Check(v) || PyTuple_Check(v) || PyAnySet_Check(v);
}

namespace {
// Of a dict or a set that is not too long. A guard can hold tuples of classes, but they are objects that
// Python may look into.
bool holds_odd_key(PyObject* container) {
  bool found = false;
  PyObject *key, *value;
  Py_ssize_t at = 0;
  for (Py_ssize_t i = 0; next_entry(container, &at, &key, &value); ++i) {
    if (i == kMost) return false;
    found |= !is_immutable(key) && !PyType_Check(key);
  }
  return found;
}
}  // namespace

bool can_ask_for_member(PyObject* v, PyObject* key) {
  if ((!PySet_CheckExact(v) && !PyFrozenSet_CheckExact(v)) || !is_key(key)) return false;
  Py_hash_t hash = PyObject_Hash(key);
  if (hash == -1) return PyErr_Clear(), false;
  std::vector<PyObject*> met = members_of_hash(v, hash);
  return std::all_of(met.begin(), met.end(),
                     [](PyObject* member) { return is_key(member) || is_key_by_identity(member); });
}

bool ContainerReads::holds(int node, PyObject* value) const {
  return provenance_->structural(node) &&
         !(provenance_->leaves_values(node) && value && Call::is_value(value));
}

void ContainerReads::read_dict_item(PyObject* dict, PyObject* key) { read_entry_of(dict, key, true); }

void ContainerReads::read_entry_of(PyObject* dict, PyObject* key, bool gives_value) {
  if (late_->read_entry(dict, key)) return;
  // What else a step has put into one that the call has made says nothing of this entry, which it has left.
  if (PyUnicode_CheckExact(key) && provenance_->is_adopted(dict) && log_->wrote(dict, key)) return;
  int node = provenance_->owner_of_entry(dict, key);
  if (node < 0 || read_entry(dict, key) || log_->took_over(dict)) return;
  if (!PyUnicode_CheckExact(key)) fix_keys(dict);
  if (!PyUnicode_CheckExact(key) && !is_key(key)) return read_whole(dict);
  if (!can_look_up(dict, key)) return;
  PyObject* value = PyDict_GetItemWithError(dict, key);
  if (holds(node, value)) return;
  if (log_->wrote_to(dict)) read_as_namespace(dict);
  if (log_->wrote(dict, key)) return;
  if (gives_value) return provenance_->read_operand(node, Access::Item, key, -1, value);
  // That there is a number is all that Python learns; a counter is asked for in this way, and then set.
  provenance_->note_renewal(true);
  provenance_->follow_child(node, Access::Item, key, -1, value);
  provenance_->note_renewal(false);
}

// A key of a class that Python code has made is equal to this one for as long as the class says so. Where the
// class has code for that, it would run once more.
bool ContainerReads::can_look_up(PyObject* dict, PyObject* key) {
  if (has_plain_keys(dict) || is_carrier(key) || !is_key(key)) return true;
  Py_hash_t wanted = PyObject_Hash(key);
  if (wanted == -1) return PyErr_Clear(), true;
  for (PyObject* other : keys_of_hash(dict, wanted)) {
    if (other == key) continue;
    if (!is_silent_key(other)) return recorder_->fail(say(reason::ReadsOddKey, type_name(other))), false;
    if (is_python_class(Py_TYPE(other))) classes_->read_specials(Py_TYPE(other));
  }
  return true;
}

void ContainerReads::read_key(PyObject* dict, PyObject* key) {
  if (late_->read_entry(dict, key)) return;
  int node = provenance_->owner_of_entry(dict, key);
  if (node < 0 || !provenance_->structural(node)) read_entry_of(dict, key, false);
}

bool ContainerReads::read_entry(PyObject* dict, PyObject* key) {
  if (!PyDict_Check(dict) || !is_key_by_identity(key)) return false;
  int node = provenance_->owner_of_entry(dict, key);
  int known = is_tensor(key) ? provenance_->node_of_tensor(key) : provenance_->known(key);
  if (node < 0 || known < 0 || provenance_->structural(node) || log_->wrote_to(dict)) return false;
  provenance_->read_child(node, Access::Entry, nullptr, known, entry_of(dict, key));
  return true;
}

void ContainerReads::read_sequence_item(PyObject* sequence, PyObject* key) {
  if (late_->read_entry(sequence, key)) return;
  int node = provenance_->owner(sequence);
  if (lists_->is(sequence)) return lists_->read_item(sequence, key);
  if (node < 0 || log_->took_over(sequence)) return;
  bool structural = provenance_->structural(node);
  // The signature has all of it, and the program may have the same tuple for a constant of its own.
  if (structural && is_immutable(sequence)) return;
  if (!PyLong_Check(key)) return read_whole(sequence);
  fix_keys(sequence);
  if (!structural && log_->appended_to(sequence)) return settle(sequence);
  Py_ssize_t index = PyLong_AsSsize_t(key), size = PySequence_Fast_GET_SIZE(sequence);
  if (PyErr_Occurred()) return PyErr_Clear();
  if (!structural && (index < 0 || index >= size)) tree_->expect_length(node, sequence);
  if (index < 0) index += size;
  if (index < 0 || index >= size) return PyErr_Clear();
  if (holds(node, PySequence_Fast_GET_ITEM(sequence, index))) return;
  if (log_->wrote(sequence, index)) return;
  provenance_->read_operand(node, Access::At, nullptr, index, PySequence_Fast_GET_ITEM(sequence, index));
}

bool ContainerReads::read_unpacked(PyObject** place) {
  PyObject* sequence = *place;
  bool plain = PyTuple_CheckExact(sequence) || PyList_CheckExact(sequence);
  if (!plain || !recorder_->follows_state() || recorder_->inside_operator()) return false;
  if (is_immutable(sequence)) return false;
  if (late_->read_whole(sequence)) return true;
  int node = provenance_->owner(sequence);
  if (node < 0 || log_->appended_to(sequence) || log_->took_over(sequence) || lists_->is(sequence))
    return false;
  if (!provenance_->structural(node)) tree_->expect_length(node, sequence);
  provenance_->read_operands(node, place, [&](Py_ssize_t i) {
    return log_->wrote(sequence, i) || holds(node, PySequence_Fast_GET_ITEM(sequence, i));
  });
  return true;
}

void ContainerReads::read_row(PyObject** place) {
  PyObject* sequence = *place;
  if (!PyTuple_CheckExact(sequence) || is_immutable(sequence)) return;
  int node = provenance_->known(sequence);
  if (node < 0 || provenance_->touched(sequence)) return;
  if (!provenance_->structural(node)) tree_->expect_length(node, sequence);
  py::object items = provenance_->read_entries(
      node, sequence, [&](Py_ssize_t i) { return holds(node, PyTuple_GET_ITEM(sequence, i)); });
  if (items) Py_SETREF(*place, items.release().ptr());
}

// A list or tuple of arrays of numpy that a function of C is handed: what numpy finds there was read as by a
// loop, and it is handed another one that holds the same.
void ContainerReads::read_arrays(PyObject** place) {
  PyObject* sequence = *place;
  bool list = PyList_CheckExact(sequence), plain = list || PyTuple_CheckExact(sequence);
  if (!plain || recorder_->inside_operator() || provenance_->is_fresh(sequence)) return;
  int node = provenance_->known(sequence);
  if (node < 0 || provenance_->touched(sequence)) return;
  Py_ssize_t count = PySequence_Fast_GET_SIZE(sequence);
  PyObject** items = PySequence_Fast_ITEMS(sequence);
  if (!count || !std::all_of(items, items + count, is_numpy_array)) return;
  if (lists_->is(sequence)) return lists_->put_entries(place, false);
  if (log_->wrote_to(sequence)) return;
  if (!provenance_->structural(node)) tree_->expect_length(node, sequence);
  for (Py_ssize_t i = 0; i < count && !recorder_->stopped(); ++i)
    if (!holds(node, items[i])) provenance_->follow_child(node, Access::At, nullptr, i, items[i]);
  if (recorder_->stopped()) return;
  PyObject* same = list ? PyList_New(count) : PyTuple_New(count);
  if (!same) throw py::error_already_set();
  for (Py_ssize_t i = 0; i < count; ++i)
    list ? PyList_SET_ITEM(same, i, Py_NewRef(items[i])) : PyTuple_SET_ITEM(same, i, Py_NewRef(items[i]));
  provenance_->note_made(same);
  Py_SETREF(*place, same);
}

// Whether each entry of the list is the one of before the call or was set where it lies.
bool ContainerReads::is_known_by_place(PyObject* list) const {
  return !log_->appended_to(list) && !log_->took_over(list) && !provenance_->touched(list);
}

py::list ContainerReads::numbers_in(PyObject* list) {
  return lists_->numbers_in(list, [&](PyObject* one, Py_ssize_t i) { return log_->wrote(one, i); });
}

// How many numbers there are in a list that holds nothing else, or lists of these; none where one of them
// cannot be followed.
Py_ssize_t ContainerReads::count_numbers(PyObject* list, int depth, bool flags) const {
  constexpr int kDeepest = 3;
  int node = provenance_->known(list);
  bool known = node >= 0 || depth;
  if (depth > kDeepest || !known || !PyList_CheckExact(list) || provenance_->is_fresh(list)) return 0;
  if (!is_known_by_place(list) || lists_->is(list)) return 0;
  if (node >= 0 && provenance_->structural(node) && !provenance_->leaves_values(node)) return 0;
  Py_ssize_t all = 0;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    PyObject* item = PyList_GET_ITEM(list, i);
    bool number = PyLong_CheckExact(item) || PyFloat_CheckExact(item) || is_followable_scalar(item) ||
                  is_carrier(item) || (flags && PyBool_Check(item));
    Py_ssize_t found = number ? 1 : count_numbers(item, depth + 1, flags);
    if (!found) return 0;
    all += found;
  }
  return all;
}

void ContainerReads::read_numbers(PyObject** place) {
  if (!recorder_->numbers() || recorder_->inside_operator()) return;
  Py_ssize_t count = count_numbers(*place, 0, false);
  if (!count || count > kMost) return;
  provenance_->note_renewal(true);
  py::list made = numbers_in(*place);
  provenance_->note_renewal(false);
  Py_SETREF(*place, made.release().ptr());
}

bool ContainerReads::may_vary(PyObject* list) const {
  if (!recorder_->follows_state() || !recorder_->numbers() || recorder_->inside_operator()) return false;
  if (!PyList_CheckExact(list) || !PyList_GET_SIZE(list) || PyList_GET_SIZE(list) > kMost) return false;
  PyObject** items = PySequence_Fast_ITEMS(list);
  bool numbers = std::all_of(items, items + PyList_GET_SIZE(list), [](PyObject* item) {
    return PyLong_CheckExact(item) || is_float_of_any_kind(item) || is_carrier(item) || PyBool_Check(item);
  });
  return numbers && count_numbers(list, 0, true);
}

bool ContainerReads::holds_rows(PyObject* list) const {
  if (!recorder_->numbers() || recorder_->inside_operator() || !PyList_CheckExact(list)) return false;
  Py_ssize_t count = PyList_GET_SIZE(list);
  bool fresh = provenance_->is_fresh(list), known = provenance_->known(list) >= 0 && !lists_->is(list);
  if (!count || count > kMost || !(fresh || known)) return false;
  if (!fresh && (log_->wrote_to(list) || log_->took_over(list))) return false;
  PyObject** items = PySequence_Fast_ITEMS(list);
  return std::all_of(items, items + count, [](PyObject* item) { return PyTuple_CheckExact(item) != 0; });
}

void ContainerReads::read_varying(PyObject** place) {
  // What a step finds there is the call's own, whoever is handed it.
  if (PyList_CheckExact(*place) && provenance_->touched(*place) && late_->read_whole(*place)) {
    PyObject* found = PyList_GetSlice(*place, 0, PyList_GET_SIZE(*place));
    if (!found) throw py::error_already_set();
    Py_SETREF(*place, found);
    return;
  }
  if (PyList_CheckExact(*place) && recorder_->numbers()) fix_keys(*place);  // all of it is read
  if (!may_vary(*place)) return;
  py::list made = numbers_in(*place);
  PyObject** items = PySequence_Fast_ITEMS(made.ptr());
  auto is_followed_one = [](PyObject* item) { return is_carrier(item) || is_flag(item); };
  if (std::any_of(items, items + PyList_GET_SIZE(made.ptr()), is_followed_one))
    Py_SETREF(*place, made.release().ptr());
}

namespace {
// Its class overrides nothing by which a dict is emptied and filled.
bool is_counter(PyObject* v) {
  static PyObject* const type = from_module("collections", "Counter").release().ptr();
  if (!Py_IS_TYPE(v, reinterpret_cast<PyTypeObject*>(type))) return false;
  for (const char* name : {"clear", "__setitem__", "__iter__"}) {
    py::str key(name);
    if (_PyType_Lookup(Py_TYPE(v), key.ptr()) != PyDict_GetItemString(PyDict_Type.tp_dict, name))
      return false;
  }
  return true;
}
}  // namespace

// Of one with names or ints for keys, which the call has given no others.
bool ContainerReads::can_merge(int node, PyObject* dict) const {
  constexpr Py_ssize_t kMost = 64;
  if (PyDict_GET_SIZE(dict) > kMost || provenance_->is_fresh(dict)) return false;
  if (node < 0 || provenance_->structural(node) || log_->took_over(dict) || provenance_->touched(dict))
    return false;
  for (const Writes::Write& write : log_->all())
    if (write.container.is(py::handle(dict)) && (!write.original || write.effect.moves)) return false;
  PyObject *key, *value;
  bool numbers = false;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value);) {
    if (!PyUnicode_CheckExact(key) && !PyLong_CheckExact(key)) return false;
    numbers |= PyLong_CheckExact(value) || PyFloat_CheckExact(value) || is_carrier(value);
  }
  return numbers;
}

void ContainerReads::read_merged(PyObject** place) {
  PyObject* dict = *place;
  int node = provenance_->known(dict);
  if (!PyDict_CheckExact(dict) || !recorder_->numbers() || recorder_->inside_operator()) return;
  fix_keys(dict);
  if (!can_merge(node, dict)) return;
  if (log_->wrote_to(dict)) read_as_namespace(dict);
  tree_->expect_length(node, dict);
  py::list keys;
  py::dict found;
  PyObject *key, *value;
  provenance_->note_renewal(true);
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value);) {
    keys.append(py::handle(key));
    c10::ArrayRef<int> numbers;
    if (!log_->wrote(dict, key)) numbers = provenance_->follow_child(node, Access::Item, key, -1, value);
    found[py::handle(key)] = lists_->followed(py::reinterpret_borrow<py::object>(value), numbers);
  }
  provenance_->note_renewal(false);
  (*tree_)[node].keys = py::tuple(keys);
  provenance_->note_made(found.ptr());
  Py_SETREF(*place, found.release().ptr());
}

std::vector<std::pair<py::object, py::object>> ContainerReads::read_viewed(PyObject* dict) {
  std::vector<std::pair<py::object, py::object>> found;
  bool plain =
      PyDict_CheckExact(dict) || is_default_dict(dict) || is_counter(dict) || PyODict_CheckExact(dict);
  int node = provenance_->known(dict);
  if (!plain || all_read_.count(dict) || !recorder_->numbers() || recorder_->inside_operator()) return found;
  fix_keys(dict);
  if (!can_merge(node, dict)) return found;
  if (log_->wrote_to(dict)) read_as_namespace(dict);
  tree_->expect_length(node, dict);
  // Of an OrderedDict the order is another one than that of the dict that it is.
  auto keys = py::reinterpret_steal<py::list>(PySequence_List(dict));
  if (!keys) throw py::error_already_set();
  for (py::handle handle : keys) {
    PyObject *key = handle.ptr(), *value = PyDict_GetItemWithError(dict, key);
    if (!value || log_->wrote(dict, key)) continue;
    auto numbers = provenance_->follow_child(node, Access::Item, key, -1, value);
    py::object number = py::reinterpret_borrow<py::object>(value);
    py::object carrier = lists_->followed(number, numbers);
    if (carrier.is(number)) continue;
    found.emplace_back(py::reinterpret_borrow<py::object>(key), carrier);
    viewed_.push_back({dict, found.back().first, carrier, number});
  }
  (*tree_)[node].keys = py::tuple(keys);
  all_read_.insert(dict);
  return found;
}

PyObject* ContainerReads::replaced_by(PyObject* dict, PyObject* key, PyObject* value) const {
  for (const Viewed& one : viewed_)
    if (one.dict == dict && one.carrier.ptr() == value && one.key.ptr() == key) return one.number.ptr();
  return nullptr;
}

void ContainerReads::read_member(PyObject* set, PyObject* key) {
  int node = provenance_->owner(set);
  if (node < 0 || provenance_->structural(node)) return;
  int held = PySet_Contains(set, key);
  if (held < 0) PyErr_Clear();
  provenance_->read_child(node, Access::Member, key, -1, held == 1 ? key : nullptr);
}

// Whether all that the call has set in a dict are entries that it had before, or are gone again: that they
// were there, or were not, is guarded.
bool ContainerReads::keeps_length(int node, PyObject* container) {
  if (!PyDict_Check(container) || log_->took_over(container)) return false;
  std::vector<const Writes::Write*> set;
  for (const Writes::Write& write : log_->all())
    if (write.container.ptr() == container) set.push_back(&write);
  auto keeps = [](const Writes::Write* write) {
    PyObject* original = write->original.ptr();
    if (write->effect.kind != Effect::Kind::Item || write->is_taken_back() != !original) return false;
    return !original || (write->before >= 0 || PyFloat_CheckExact(original) || PyLong_CheckExact(original));
  };
  if (!std::all_of(set.begin(), set.end(), keeps)) return false;
  provenance_->note_renewal(true);
  for (const Writes::Write* write : set)
    if (write->before < 0 && write->original)
      provenance_->follow_child(node, Access::Item, write->effect.key.ptr(), -1, write->original.ptr());
  provenance_->note_renewal(false);
  return true;
}

void ContainerReads::read_length(PyObject* container) {
  if (!is_container(container) && !lists_->is(container)) return;
  if (late_->read_whole(container)) return;
  int node = provenance_->owner(container);
  if (node < 0 || provenance_->structural(node)) return;
  if (lists_->is(container)) return lists_->read_length(container);
  if (provenance_->has_live()) tree_->expect_distinct(node);
  if (all_read_.count(container)) return;
  bool set_alone = PyList_CheckExact(container) && is_known_by_place(container);
  if (log_->wrote_to(container) && !set_alone && !keeps_length(node, container)) return settle(container);
  tree_->expect_length(node, container);
}

namespace {
// The globals of a module and the attributes of an instance are read under their names as well.
bool is_namespace(PyObject* dict, const Guard& guard) {
  static PyObject* builtins = PyUnicode_InternFromString("__builtins__");
  return guard.access == Access::Namespace || dict == PyImport_GetModuleDict() ||
         PyDict_GetItemWithError(dict, builtins);
}
}  // namespace

bool ContainerReads::can_take_over(PyObject* object) const {
  int node = provenance_->known(object);
  if (node < 0 || provenance_->is_fresh(object) || recorder_->inside_operator()) return false;
  if (lists_->is(object) || provenance_->touched(object)) return false;
  // Where an entry lay that was taken out is not known any more: by this way it is no namespace.
  if (log_->moved_in(object)) return false;
  if (!provenance_->outlasts(node)) return false;
  if (PyList_CheckExact(object)) return true;
  bool plain = PyDict_CheckExact(object) || PyODict_CheckExact(object) || is_default_dict(object) ||
               is_counter(object);
  return plain && !is_namespace(object, (*tree_)[node]);
}

void ContainerReads::fix_keys(PyObject* container) {
  if (!log_->appended_to(container)) return;
  bool any = false;
  for (const Writes::Write& write : log_->all()) {
    if (write.container.ptr() != container || write.effect.kind != Effect::Kind::Entry) continue;
    any = true;
    if (recorder_->numbers()) recorder_->numbers()->settle(PyTuple_GET_ITEM(write.value.ptr(), 0));
  }
  if (any) log_->fix_keys(container);
}

bool ContainerReads::take_over(PyObject* object, Wording what, bool emptied) {
  fix_keys(object);
  if (log_->took_over(object)) return log_->change(object, recorder_->last_node()), true;
  if (!can_take_over(object)) return false;
  // A copy of what it holds would put that off.
  if (shows_its_end(object)) return recorder_->fail(what()), provenance_->let_go(), true;
  int node = provenance_->known(object);
  py::object before = log_->before(object);
  bool by_key = provenance_->structural(node), values = by_key && provenance_->leaves_values(node);
  bool held = by_key && !values;
  bool known = held || all_read_.count(object) || (!log_->wrote_to(object) && !whole_.insert(object));
  if (!known) values ? read_values(node, before.ptr()) : read_entries(node, before.ptr(), emptied);
  Writes::Write write;
  write.effect.kind = Effect::Kind::Content;
  write.effect.owner = node;
  write.effect.first = write.effect.last = recorder_->last_node();
  write.container = py::reinterpret_borrow<py::object>(object);
  write.original = before;
  write.what = what();
  write.place = recorder_->place;
  log_->take_over(std::move(write));
  return true;
}

void ContainerReads::read_as_namespace(PyObject* dict) {
  std::vector<int> owners;
  for (const Writes::Write& write : log_->all())
    if (write.container.is(py::handle(dict)) && write.effect.kind == Effect::Kind::Attribute)
      owners.push_back(write.effect.owner);
  for (int owner : owners) provenance_->read_child(owner, Access::Namespace, nullptr, -1, dict);
}

void ContainerReads::settle(PyObject* object) {
  read_as_namespace(object);
  auto what = [&] { return "reads a " + type_name(object) + " that it has written to"; };
  if (!log_->took_over(object) && !take_over(object, what)) recorder_->fail(what());
}

void ContainerReads::read_whole(PyObject* object) {
  if (!is_container(object) || late_->read_whole(object)) return;
  int node = provenance_->owner(object);
  if (node < 0) return;
  if (lists_->is(object)) return lists_->read_whole(object);
  if (provenance_->has_live() && PyList_Check(object)) tree_->expect_distinct(node);
  // What it holds was there, or was made in the call: the values among the former are guarded.
  if (provenance_->structural(node)) {
    bool left = provenance_->leaves_values(node) && !is_immutable(object) && !log_->took_over(object);
    // Behind a step the other entries are read, too: that these were is not noted.
    if (left) read_values(node, object);
    return;
  }
  if (all_read_.count(object)) return;
  if (log_->wrote_to(object)) return read_beside_writes(node, object) ? void() : settle(object);
  if (whole_.insert(object)) read_entries(node, object);
}

// What the call has set in a list says nothing of what was there before.
bool ContainerReads::read_beside_writes(int node, PyObject* list) {
  constexpr Py_ssize_t kMost = 10000;
  if (!PyList_CheckExact(list) || PyList_GET_SIZE(list) > kMost || !is_known_by_place(list)) return false;
  tree_->expect_length(node, list);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list) && !recorder_->stopped(); ++i)
    if (!log_->wrote(list, i))
      provenance_->read_child(node, Access::At, nullptr, i, PyList_GET_ITEM(list, i));
  return true;
}

void ContainerReads::read_in_order(PyObject* object) {
  if (by_place_.count(object)) return;
  int node = provenance_->known(object);
  bool plain = node >= 0 && !provenance_->structural(node) && !provenance_->touched(object) &&
               !all_read_.count(object) && !log_->wrote_to(object) && !log_->took_over(object);
  if (!plain || !read_by_place(node, object)) read_whole(object);
}

bool ContainerReads::read_by_place(int node, PyObject* object) {
  if (PyODict_Check(object) || !holds_odd_key(object)) return false;
  by_place_.insert(object);
  tree_->expect_length(node, object);
  read_places(node, object);
  return true;
}

void ContainerReads::read_places(int node, PyObject* object) {
  PyObject *key, *value;
  Py_ssize_t at = 0;
  for (Py_ssize_t i = 0; next_entry(object, &at, &key, &value); ++i) {
    provenance_->read_child(node, Access::KeyAt, nullptr, i, key);
    if (value) provenance_->read_child(node, Access::ValueAt, nullptr, i, value);
  }
}

// That none of them is another one says what lies under a key that is looked up.
void ContainerReads::compare_key(PyObject* key) {
  for (Py_ssize_t i = 0; PyTuple_Check(key) && i < PyTuple_GET_SIZE(key); ++i)
    compare_key(PyTuple_GET_ITEM(key, i));
  provenance_->compare_as_itself(key);
}

bool ContainerReads::read_deque(PyObject* object) {
  if (!lists_->is(object)) return false;
  lists_->read_whole(object);
  return true;
}

void ContainerReads::read_values(int node, PyObject* object) {
  if (PyList_Check(object) || PyTuple_Check(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      PyObject* value = PySequence_Fast_GET_ITEM(object, i);
      if (Call::is_value(value) && !log_->wrote(object, i))
        provenance_->read_child(node, Access::At, nullptr, i, value);
    }
  } else if (PyDict_Check(object)) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(object, &at, &key, &value);)
      if (Call::is_value(value) && !log_->wrote(object, key))
        provenance_->read_child(node, Access::Item, key, -1, value);
  }
}

void ContainerReads::read_entries(int node, PyObject* object, bool emptied) {
  Py_ssize_t size = PyDict_Check(object)     ? PyDict_GET_SIZE(object)
                    : PyAnySet_Check(object) ? PySet_GET_SIZE(object)
                                             : PySequence_Fast_GET_SIZE(object);
  if (size > 10000) return recorder_->fail("reads a container with " + std::to_string(size) + " entries");
  tree_->expect_length(node, object);
  auto read = [&](Access access, PyObject* key, Py_ssize_t index, PyObject* value) {
    emptied ? (void)provenance_->follow_child(node, access, key, index, value)
            : provenance_->read_child(node, access, key, index, value);
  };
  if (PyList_Check(object) || PyTuple_Check(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i)
      read(Access::At, nullptr, i, PySequence_Fast_GET_ITEM(object, i));
    return;
  }
  if (PyDict_Check(object) && !PyODict_Check(object) && holds_odd_key(object) && has_silent_keys(object)) {
    read_places(node, object);
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(object, &at, &key, &value);) compare_key(key);
    return;
  }
  py::object iterator = py::reinterpret_steal<py::object>(c_base(Py_TYPE(object))->tp_iter(object));
  py::list keys;
  while (PyObject* key = PyIter_Next(iterator.ptr())) {
    keys.append(py::reinterpret_steal<py::object>(key));
    if (!is_key(key)) return recorder_->fail("reads a container with a " + type_name(key) + " as a key");
    if (PyType_Check(key))
      provenance_->class_node(reinterpret_cast<PyTypeObject*>(key));  // compared with the keys
  }
  (*tree_)[node].keys = py::tuple(keys);
  if (PyDict_Check(object))
    for (auto key : keys) read(Access::Item, key.ptr(), -1, PyDict_GetItemWithError(object, key.ptr()));
}

void ContainerReads::read_order(PyObject* set) {
  if (!PyAnySet_Check(set) || PySet_GET_SIZE(set) < 2) return;
  PyObject* member;
  Py_hash_t hash;
  for (Py_ssize_t at = 0; _PySet_NextEntry(set, &at, &member, &hash);) fix_hash(member);
}

// An object that a replay finds in the place of a member must have the same address.
void ContainerReads::fix_hash(PyObject* member) {
  if (is_immutable(member)) return;
  if (PyTuple_Check(member)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(member); ++i) fix_hash(PyTuple_GET_ITEM(member, i));
    return;
  }
  if (PyMethod_Check(member)) {
    fix_hash(PyMethod_GET_FUNCTION(member));
    return fix_hash(PyMethod_GET_SELF(member));
  }
  if (PyWeakref_CheckRef(member)) return fix_hash(PyWeakref_GET_OBJECT(member));
  if (!is_key_by_identity(member)) return;
  int node = is_tensor(member) ? provenance_->node_of_tensor(member) : provenance_->owner(member);
  if (node >= 0 && provenance_->by_path(node)) provenance_->read_self(node, member);
}

void ContainerReads::read_bases(PyObject* type) {
  if (!PyType_Check(type) || !is_python_class(reinterpret_cast<PyTypeObject*>(type))) return;
  auto* of = reinterpret_cast<PyTypeObject*>(type);
  // The order of one that the call has made follows from the orders of those that it is derived from.
  if (provenance_->is_fresh(type))
    return each_base(of, [&](PyTypeObject* base) { read_bases(reinterpret_cast<PyObject*>(base)); });
  int node = provenance_->class_node(of);
  if (node < 0) return;
  PyObject* order = of->tp_mro;
  if (!order) return;  // its metaclass is about to say so
  static PyObject* const name = PyUnicode_InternFromString("__mro__");
  provenance_->read_child(node, Access::Attribute, name, -1, order);
  read_whole(order);
}

void ContainerReads::advance(PyObject* iterator) {
  if (is_tensor(iterator)) return;
  if (provenance_->goes_through_changed(iterator))
    return recorder_->fail(say(reason::ReadsTouched, type_name(iterator)));
  classes_->read_special(iterator, "__next__");
  int node = provenance_->owner(iterator);
  static PyObject* name = PyUnicode_InternFromString("__next__");
  PyObject* next = _PyType_Lookup(Py_TYPE(iterator), name);
  if (next && PyFunction_Check(next)) return;  // shows itself
  if (node < 0 || !provenance_->by_path(node)) return;
  // There is nothing to come, however often it is asked: `chain(a.parameters(), b.parameters())` that an
  // optimizer was made of.
  if (is_exhausted(iterator)) return provenance_->read_child(node, Access::Exhausted, nullptr, -1, Py_True);
  recorder_->fail("advances an iterator that was there before the call");
}

}  // namespace lazytrace
