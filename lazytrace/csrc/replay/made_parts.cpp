#include "replay/made_parts.h"

#include <algorithm>
#include <unordered_map>

#include "cpython/contents.h"
#include "cpython/dict_view.h"
#include "cpython/ends.h"
#include "cpython/objects.h"

namespace lazytrace {

void MadeParts::keep(PyObject* part) {
  all_.push_back(py::reinterpret_borrow<py::object>(part));
  if (py::object contents = contents_of(part))
    parts_.emplace_back(py::reinterpret_borrow<py::object>(part), std::move(contents));
}

std::vector<int> MadeParts::changed(const std::vector<int>& known) const {
  std::vector<int> all;
  for (int place = 0; place < static_cast<int>(parts_.size()); ++place) {
    const auto& [part, contents] = parts_[static_cast<size_t>(place)];
    bool is_known = std::find(known.begin(), known.end(), place) != known.end();
    if (!is_known && !same_contents(contents, contents_of(part.ptr()))) all.push_back(place);
  }
  return all;
}

namespace {
// Puts what `by` says in the places of what a value of C's containers leads to.
class Exchanging {
 public:
  explicit Exchanging(const std::unordered_map<PyObject*, PyObject*>& by) : by_(by) {}

  py::object of(PyObject* value, int depth = 0) const {
    constexpr int kDeepest = 100;
    auto found = by_.find(value);
    if (found != by_.end()) return py::reinterpret_borrow<py::object>(found->second);
    if (depth < kDeepest && PyTuple_Check(value)) return of_tuple(value, depth + 1);
    if (depth < kDeepest && PyList_CheckExact(value)) in_list(value, depth + 1);
    if (depth < kDeepest && PyDict_CheckExact(value)) in_dict(value, depth + 1);
    return py::reinterpret_borrow<py::object>(value);
  }

 private:
  py::object of_tuple(PyObject* value, int depth) const {
    py::tuple items(PyTuple_GET_SIZE(value));
    bool same = true;
    for (size_t i = 0; i < items.size(); ++i) {
      PyObject* item = PyTuple_GET_ITEM(value, static_cast<Py_ssize_t>(i));
      py::object by_now = of(item, depth);
      same &= by_now.ptr() == item;
      items[i] = std::move(by_now);
    }
    if (same) return py::reinterpret_borrow<py::object>(value);
    PyObject* made = PyTuple_Type.tp_new(Py_TYPE(value), py::make_tuple(items).ptr(), nullptr);
    if (!made) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(made);
  }

  void in_list(PyObject* list, int depth) const {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
      py::object by_now = of(PyList_GET_ITEM(list, i), depth);
      PyList_SetItem(list, i, by_now.release().ptr());
    }
  }

  // No key is added, so what is gone through stays what it is.
  void in_dict(PyObject* dict, int depth) const {
    PyObject *key, *item;
    for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &item);) {
      py::object by_now = of(item, depth);
      if (by_now.ptr() != item && PyDict_SetItem(dict, key, by_now.ptr()) < 0) throw py::error_already_set();
    }
  }

  const std::unordered_map<PyObject*, PyObject*>& by_;
};
}  // namespace

py::object MadeParts::exchanged(const MadeParts& others, const py::object& value) const {
  std::unordered_map<PyObject*, PyObject*> by;
  for (size_t i = 0; i < all_.size() && i < others.all_.size(); ++i) by[all_[i].ptr()] = others.all_[i].ptr();
  return Exchanging(by).of(value.ptr());
}

void MadeParts::count_holders() {
  holders_.clear();
  for (const py::object& part : all_) holders_.push_back(holders_of(part.ptr()));
}

bool MadeParts::are_kept(const std::vector<PyObject*>& by_result) const {
  for (size_t i = 0; i < holders_.size(); ++i) {
    PyObject* part = all_[i].ptr();
    if (holders_of(part) > holders_[i] + std::count(by_result.begin(), by_result.end(), part)) return true;
  }
  return false;
}

bool MadeParts::have_any(const std::vector<PyObject*>& objects) const {
  return std::any_of(parts_.begin(), parts_.end(), [&](const auto& part) {
    return std::find(objects.begin(), objects.end(), part.first.ptr()) != objects.end();
  });
}

namespace {
using OfOthers = std::unordered_map<PyObject*, PyObject*>;

// What stands for `one` among others; empty where that cannot be made. What code of a step has put there is
// the same thing, unless it leads to what is not.
py::object theirs(PyObject* one, const OfOthers& of_others) {
  auto found = of_others.find(one);
  if (found != of_others.end()) return py::reinterpret_borrow<py::object>(found->second);
  auto differs = [&](PyObject* held) {
    return !is_immutable(held) && !is_tensor(held) && of_others.count(held) > 0;
  };
  if (is_immutable(one) || !leads_to(one, differs)) return py::reinterpret_borrow<py::object>(one);
  // By the container, and by who goes through it: others would show that there are two.
  if (!PyTuple_CheckExact(one) || Py_REFCNT(one) > 2) return {};
  py::tuple made(PyTuple_GET_SIZE(one));
  for (size_t i = 0; i < made.size(); ++i) {
    py::object item = theirs(PyTuple_GET_ITEM(one, static_cast<Py_ssize_t>(i)), of_others);
    if (!item) return {};
    made[i] = std::move(item);
  }
  return std::move(made);
}

// As contents_of() lists them; false where something cannot be made.
bool all_theirs(PyObject* dict, const OfOthers& of_others, const py::dict& made) {
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value);) {
    py::object their_key = theirs(key, of_others), their_value = theirs(value, of_others);
    if (!their_key || !their_value) return false;
    made[their_key] = std::move(their_value);
  }
  return true;
}

bool set_entries(PyObject* dict, const py::dict& entries) {
  bool ordered = PyODict_Check(dict);
  PyObject *key, *value;
  while (PyDict_GET_SIZE(dict) > 0) {
    Py_ssize_t at = 0;
    PyDict_Next(dict, &at, &key, &value);
    py::object gone = py::reinterpret_borrow<py::object>(key);
    if ((ordered ? PyODict_DelItem(dict, gone.ptr()) : PyDict_DelItem(dict, gone.ptr())) < 0) return false;
  }
  for (Py_ssize_t at = 0; PyDict_Next(entries.ptr(), &at, &key, &value);)
    if ((ordered ? PyODict_SetItem(dict, key, value) : PyDict_SetItem(dict, key, value)) < 0) return false;
  return true;
}

bool set_attributes(PyObject* object, const py::dict& attributes) {
  PyObject** names = _PyObject_GetDictPtr(object);
  py::list gone;
  PyObject *name, *value;
  for (Py_ssize_t at = 0; names && *names && PyDict_Next(*names, &at, &name, &value);)
    if (!attributes.contains(py::handle(name))) gone.append(py::handle(name));
  for (py::handle one : gone)
    if (PyDict_DelItem(*names, one.ptr()) < 0) return false;
  return set_instance_state(object, attributes.ptr()) == 0;
}

bool change_sequence(PyObject* part, PyObject* other, const OfOthers& of_others) {
  py::list items;
  bool list = PyList_Check(part);  // an overridden __iter__ is user code
  PyObject* all = list ? PyList_GetSlice(part, 0, PyList_GET_SIZE(part)) : PySequence_List(part);
  for (py::handle one : py::reinterpret_steal<py::list>(all)) {
    py::object their = theirs(one.ptr(), of_others);
    if (!their) return false;
    items.append(std::move(their));
  }
  if (PyList_Check(other)) return PyList_SetSlice(other, 0, PyList_GET_SIZE(other), items.ptr()) == 0;
  return PySet_Clear(other) == 0 && _PySet_Update(other, items.ptr()) == 0;
}

bool change_dict(PyObject* part, PyObject* other, const OfOthers& of_others) {
  py::dict entries, held = py::reinterpret_steal<py::dict>(ordered_items(part));
  return all_theirs(held.ptr(), of_others, entries) && set_entries(other, entries);
}

bool change_object(PyObject* part, PyObject* other, const OfOthers& of_others) {
  static PyObject* const name = PyUnicode_InternFromString("__class__");
  py::dict attributes, held = py::reinterpret_steal<py::dict>(instance_state(part));
  if (!all_theirs(held.ptr(), of_others, attributes)) return false;
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(part));
  if (Py_TYPE(part) != Py_TYPE(other) && PyObject_GenericSetAttr(other, name, type) < 0) return false;
  return set_attributes(other, attributes);
}

bool change_one(PyObject* part, PyObject* other, const OfOthers& of_others) {
  if (PyCell_Check(part)) {
    py::object value = PyCell_GET(part) ? theirs(PyCell_GET(part), of_others) : py::object();
    return value && PyCell_Set(other, value.ptr()) == 0;
  }
  if ((PyList_Check(part) || PySet_Check(part)) && !change_sequence(part, other, of_others)) return false;
  if (PyDict_Check(part) && !change_dict(part, other, of_others)) return false;
  return !is_rebuildable(part) || change_object(part, other, of_others);
}
}  // namespace

bool MadeParts::change(const MadeParts& others) const {
  if (parts_.size() != others.parts_.size()) return false;
  OfOthers of_others;  // what these and the others held at first
  for (size_t i = 0; i < parts_.size(); ++i) {
    const auto& [part, contents] = parts_[i];
    const auto& [other, theirs] = others.parts_[i];
    of_others[part.ptr()] = other.ptr();
    Py_ssize_t size = PyList_GET_SIZE(contents.ptr());
    if (size != PyList_GET_SIZE(theirs.ptr())) return false;
    for (Py_ssize_t at = 0; at < size; ++at)
      of_others[PyList_GET_ITEM(contents.ptr(), at)] = PyList_GET_ITEM(theirs.ptr(), at);
  }
  std::vector<int> places = changed();
  bool all = std::all_of(places.begin(), places.end(),
                         [&](int place) { return change_one(at(place), others.at(place), of_others); });
  PyErr_Clear();
  return all;
}

void MadeParts::add(const Tree& tree, PyObject* made) {
  switch (tree.kind) {
    case Tree::Kind::Tuple:
    case Tree::Kind::Named:
    case Tree::Kind::List:
    case Tree::Kind::Dict:
    case Tree::Kind::Set:
      keep(made);
      return add_items(tree, made);
    case Tree::Kind::Object:
      return add_object(tree, made);
    case Tree::Kind::Partial:
      keep(made);
      add(tree.items[1], py::object(py::handle(made).attr("args")).ptr());
      return add(tree.items[2], py::object(py::handle(made).attr("keywords")).ptr());
    case Tree::Kind::View:
      keep(made);
      return add(tree.items[0], dict_of_view(made));
    case Tree::Kind::Method:
      keep(made);
      add(tree.items[0], PyMethod_GET_FUNCTION(made));
      return add(tree.items[1], PyMethod_GET_SELF(made));
    case Tree::Kind::Function:
      keep(made);
      return add_function(tree, made);
    case Tree::Kind::Cell:
      if (tree.index >= 0) return;  // one of before the call
      keep(made);
      return add(tree.items[0], PyCell_GET(made));
    default:
      return;
  }
}

void MadeParts::add_items(const Tree& tree, PyObject* made) {
  PyObject *key, *value;
  Py_ssize_t at = 0;
  bool pairs = tree.kind == Tree::Kind::Dict, sequence = PyTuple_Check(made) || PyList_Check(made);
  for (size_t i = 1; pairs && i < tree.items.size() && PyDict_Next(made, &at, &key, &value); i += 2)
    add(tree.items[i], value);
  for (size_t i = 0; sequence && i < tree.items.size(); ++i)
    add(tree.items[i], PySequence_Fast_GET_ITEM(made, static_cast<Py_ssize_t>(i)));
}

void MadeParts::add_object(const Tree& tree, PyObject* made) {
  keep(made);
  py::object state = py::reinterpret_steal<py::object>(instance_state(made));
  if (!state) throw py::error_already_set();
  auto add_pairs = [&](const Tree& pairs, PyObject* dict) {
    for (size_t i = 0; i + 1 < pairs.items.size(); i += 2) {
      PyObject* name = pairs.items[i].value.ptr();
      PyObject* value = name && is_immutable(name) ? PyDict_GetItemWithError(dict, name) : nullptr;
      if (value) add(pairs.items[i + 1], value);
    }
  };
  add_pairs(tree.items[0], state.ptr());
  if (tree.items.size() < 2) return;
  tree.items[1].kind == Tree::Kind::Dict ? add_pairs(tree.items[1], made) : add_items(tree.items[1], made);
}

void MadeParts::add_function(const Tree& tree, PyObject* made) {
  constexpr size_t kClosure = 3;
  if (PyObject* defaults = PyFunction_GET_DEFAULTS(made)) add(tree.items[1], defaults);
  if (PyObject* named = PyFunction_GET_KW_DEFAULTS(made)) add(tree.items[2], named);
  PyObject* closure = PyFunction_GET_CLOSURE(made);
  for (size_t i = kClosure; closure && i < tree.items.size(); ++i)
    add(tree.items[i], PyTuple_GET_ITEM(closure, static_cast<Py_ssize_t>(i - kClosure)));
}

}  // namespace lazytrace
