#include "program/effects.h"

#include <c10/util/hash.h>

#include <algorithm>

#include "cpython/objects.h"

namespace lazytrace {

namespace {
// Whether each write of this kind is one by itself, whatever was written to the container before.
bool adds(Effect::Kind kind) {
  return kind == Effect::Kind::Append || kind == Effect::Kind::Drop || kind == Effect::Kind::Entry;
}
}  // namespace

namespace {
// By what most places are told apart: texts, ints, and indices of lists. -1: by nothing, as what the key is
// equal to has another hash, or one that code of Python works out.
int64_t hash_of_place(PyObject* container, PyObject* key, Py_ssize_t index) {
  if (key && !PyUnicode_CheckExact(key) && !PyLong_CheckExact(key)) return -1;
  size_t hash = key ? static_cast<size_t>(PyObject_Hash(key)) : static_cast<size_t>(index);
  return static_cast<int64_t>(c10::hash_combine(std::hash<PyObject*>()(container), hash) >> 1);
}
}  // namespace

const Writes::Slot* Writes::find(PyObject* container, PyObject* key, Py_ssize_t index) const {
  auto is_it = [&](const Slot& slot) {
    return slot.container == container && slot.index == index && is_equal_key(slot.key, key);
  };
  int64_t hash = hash_of_place(container, key, index);
  if (hash < 0) {
    auto found = std::find_if(slots_.begin(), slots_.end(), is_it);
    return found == slots_.end() ? nullptr : &*found;
  }
  auto [begin, end] = by_hash_.equal_range(hash);
  for (auto one = begin; one != end; ++one)
    if (is_it(slots_[one->second])) return &slots_[one->second];
  for (size_t odd : odd_)
    if (is_it(slots_[odd])) return &slots_[odd];
  return nullptr;
}

void Writes::add_slot(size_t write) {
  const Write& one = writes_[write];
  Slot slot{one.container.ptr(), one.effect.key.ptr(), one.effect.index, write};
  int64_t hash = hash_of_place(slot.container, slot.key, slot.index);
  if (hash < 0)
    odd_.push_back(slots_.size());
  else
    by_hash_.emplace(hash, slots_.size());
  slots_.push_back(slot);
}

void Containers::add(PyObject* container, int object) {
  containers_.emplace_back(container, object);
  bits_ |= bit(container);
  cells_ |= PyCell_Check(container);
  dicts_ |= PyDict_Check(container);
}

bool Containers::belongs_to_another(PyObject* container, c10::function_ref<int()> number) const {
  if (!(bits_ & bit(container))) return false;
  return std::any_of(containers_.begin(), containers_.end(), [&](const std::pair<PyObject*, int>& one) {
    return one.first == container && one.second != number();
  });
}

bool Containers::any_in_closure(PyObject* function, c10::function_ref<int()> number) const {
  PyObject* closure = PyFunction_GET_CLOSURE(function);
  for (Py_ssize_t i = 0; closure && i < PyTuple_GET_SIZE(closure); ++i)
    if (belongs_to_another(PyTuple_GET_ITEM(closure, i), number)) return true;
  return false;
}

bool Containers::is_dict_of(PyObject* object, c10::function_ref<int()> number) const {
  PyObject** dict = PyType_Check(object) ? nullptr : _PyObject_GetDictPtr(object);
  return dict && *dict && belongs_to_another(*dict, number);
}

bool Writes::wrote(PyObject* container, PyObject* key) const {
  return !writes_.empty() && (took_over(container) || find(container, key, -1));
}

bool Writes::wrote(PyObject* container, Py_ssize_t index) const {
  return !writes_.empty() && (took_over(container) || find(container, nullptr, index));
}

Writes::Write* Writes::find_entry(PyObject* dict, PyObject* key) {
  const Slot* slot = writes_.empty() || took_over(dict) ? nullptr : find(dict, key, -1);
  return slot ? &writes_[slot->write] : nullptr;
}

void Writes::take_back(Write* write, int64_t node) {
  ++changes_;
  write->value = py::object();
  write->effect.last = node;
  note_content(write);
}

bool Writes::moved_in(PyObject* dict) const {
  return std::any_of(writes_.begin(), writes_.end(),
                     [&](const Write& write) { return write.container.ptr() == dict && write.effect.moves; });
}

bool Writes::is_out(PyObject* dict, PyObject* key) const {
  if (took_over(dict)) return true;
  const Slot* slot = writes_.empty() ? nullptr : find(dict, key, -1);
  return slot && writes_[slot->write].effect.moves && writes_[slot->write].is_taken_back();
}

py::object Writes::before(PyObject* container) const {
  py::object content = content_of(container);
  if (!wrote_to(container)) return content;
  Py_ssize_t appended = 0;
  for (const Write& write : writes_) {
    if (write.container.ptr() != container || write.is_taken_back()) continue;
    int failed = 0;
    PyObject* original = write.original.ptr();
    if (write.effect.kind == Effect::Kind::Append)
      ++appended;
    else if (write.effect.kind == Effect::Kind::At)
      failed = PyList_SetItem(content.ptr(), write.effect.index, Py_NewRef(original));
    else if (write.effect.kind == Effect::Kind::Item ||
             (write.effect.kind == Effect::Kind::Attribute && PyDict_Check(container)))
      failed = original ? PyDict_SetItem(content.ptr(), write.effect.key.ptr(), original)
                        : PyDict_DelItem(content.ptr(), write.effect.key.ptr());
    if (failed < 0) throw py::error_already_set();
  }
  if (appended) {
    Py_ssize_t size = PyList_GET_SIZE(content.ptr());
    if (PyList_SetSlice(content.ptr(), size - appended, size, nullptr) < 0) throw py::error_already_set();
  }
  return content;
}

namespace {
// The objects in a list, tuple or dict, and in those of them that are such containers, each with its place by
// the order. False where there are too many to look at again and again.
bool list_content(PyObject* object, std::vector<PyObject*>* found, int depth = 0) {
  constexpr size_t kMost = 256;
  constexpr int kDeepest = 8;
  if (found->size() >= kMost || depth > kDeepest) return false;
  found->push_back(object);
  if (PyList_CheckExact(object) || PyTuple_CheckExact(object)) {
    Py_ssize_t size = PySequence_Fast_GET_SIZE(object);
    for (Py_ssize_t i = 0; i < size; ++i)
      if (!list_content(PySequence_Fast_GET_ITEM(object, i), found, depth + 1)) return false;
    found->push_back(nullptr);
  } else if (PyDict_CheckExact(object)) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(object, &at, &key, &value);) {
      found->push_back(key);
      if (!list_content(value, found, depth + 1)) return false;
    }
    found->push_back(nullptr);
  }
  return true;
}
}  // namespace

void Writes::watch() {
  for (Write& write : writes_) {
    if (!write.effect.steady) continue;
    std::vector<PyObject*> now;
    write.effect.steady = list_content(write.value.ptr(), &now) && now == write.content;
  }
}

void Writes::note_content(Write* write) {
  PyObject* value = write->value.ptr();
  bool container =
      value && (PyList_CheckExact(value) || PyTuple_CheckExact(value) || PyDict_CheckExact(value));
  write->content.clear();
  write->effect.steady = container && list_content(value, &write->content);
}

void Writes::take_over(Write write) {
  ++changes_;
  write.effect.serial = serials_++;
  PyObject* container = write.container.ptr();
  std::vector<Write> kept;
  for (Write& one : writes_) {
    if (one.container.ptr() == container)
      write.effect.first = std::min(write.effect.first, one.effect.first);
    else
      kept.push_back(std::move(one));
  }
  writes_ = std::move(kept);
  writes_.push_back(std::move(write));
  index();
  containers_.insert(container);
  appended_.erase(container);
}

// Where each write is that later ones may change.
void Writes::index() {
  slots_.clear();
  by_hash_.clear();
  odd_.clear();
  taken_over_.clear();
  for (size_t i = 0; i < writes_.size(); ++i) {
    const Effect& effect = writes_[i].effect;
    if (effect.kind == Effect::Kind::Content)
      taken_over_[writes_[i].container.ptr()] = i;
    else if (!adds(effect.kind))
      add_slot(i);
  }
}

void Writes::fix_keys(PyObject* container) {
  std::vector<Write> all = std::move(writes_);
  writes_.clear();
  for (Write& write : all) {
    if (write.container.ptr() == container && write.effect.kind == Effect::Kind::Entry) {
      write.effect.kind = PyList_Check(container) ? Effect::Kind::At : Effect::Kind::Item;
      if (PyList_Check(container)) {
        write.effect.index = PyLong_AsSsize_t(write.effect.key.ptr());
        write.effect.key = py::object();
      }
      write.value = py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(write.value.ptr(), 1));
      note_content(&write);
    }
    bool item = write.container.ptr() == container && !adds(write.effect.kind);
    auto same = [&](const Write& one) {
      return item && one.container.ptr() == container && one.effect.index == write.effect.index &&
             is_equal_key(one.effect.key.ptr(), write.effect.key.ptr());
    };
    auto older = std::find_if(writes_.begin(), writes_.end(), same);
    if (older == writes_.end()) {
      writes_.push_back(std::move(write));
      continue;
    }
    older->value = std::move(write.value);
    older->content = std::move(write.content);
    older->effect.steady = write.effect.steady;
    older->effect.last = write.effect.last;
  }
  appended_.erase(container);
  index();
}

void Writes::change(PyObject* container, int64_t node) {
  ++changes_;
  writes_[taken_over_.at(container)].effect.last = node;
}

// It comes behind what was added to the dict meanwhile.
void Writes::add_again(size_t taken_back, Write write) {
  Write& gone = writes_[taken_back];
  write.effect.first = gone.effect.first;
  write.effect.moves = gone.effect.moves;
  write.before = gone.before;
  write.original = std::move(gone.original);
  writes_.erase(writes_.begin() + static_cast<std::ptrdiff_t>(taken_back));
  writes_.push_back(std::move(write));
  index();
}

bool Writes::fill(PyObject* list, Py_ssize_t place, py::object value, int64_t node) {
  for (Write& write : writes_) {
    if (write.container.ptr() != list || write.effect.kind != Effect::Kind::Append || place-- > 0) continue;
    if (!is_immutable(write.value.ptr()) || write.effect.last < node || write.shown) return false;
    ++changes_;
    write.value = std::move(value);
    note_content(&write);
    return true;
  }
  return false;
}

void Writes::add(Write write) {
  ++changes_;
  write.effect.serial = serials_++;
  note_content(&write);
  PyObject* container = write.container.ptr();
  containers_.insert(container);
  if (adds(write.effect.kind)) {
    appended_.insert(container);
    writes_.push_back(std::move(write));
    return;
  }
  PyObject* key = write.effect.key.ptr();
  if (const Slot* slot = find(container, key, write.effect.index)) {
    Write& older = writes_[slot->write];
    if (older.is_taken_back()) return add_again(slot->write, std::move(write));
    if (older.value.is(write.value)) return;  // the place has had it since then
    older.value = std::move(write.value);
    older.content = std::move(write.content);
    older.effect.steady = write.effect.steady;
    older.effect.last = write.effect.last;
    return;
  }
  writes_.push_back(std::move(write));
  add_slot(writes_.size() - 1);
}

}  // namespace lazytrace
