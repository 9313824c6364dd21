#include "replay/made_parts.h"

#include <algorithm>

#include "cpython/contents.h"
#include "cpython/ends.h"
#include "cpython/objects.h"

namespace lazytrace {

void MadeParts::keep(PyObject* part) {
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

bool MadeParts::change(const MadeParts& others) const {
  if (parts_.size() != others.parts_.size()) return false;
  // What stands for what these and the others held at first.
  std::unordered_map<PyObject*, PyObject*> of_others;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const auto& [part, contents] = parts_[i];
    const auto& [other, theirs] = others.parts_[i];
    of_others[part.ptr()] = other.ptr();
    Py_ssize_t size = PyList_GET_SIZE(contents.ptr());
    if (Py_TYPE(part.ptr()) != Py_TYPE(other.ptr()) || size != PyList_GET_SIZE(theirs.ptr())) return false;
    for (Py_ssize_t at = 0; at < size; ++at)
      of_others[PyList_GET_ITEM(contents.ptr(), at)] = PyList_GET_ITEM(theirs.ptr(), at);
  }
  std::vector<int> places = changed();
  return std::all_of(places.begin(), places.end(),
                     [&](int place) { return change_one(static_cast<size_t>(place), others, of_others); });
}

namespace {
bool set_attributes(PyObject* object, const py::dict& attributes) {
  PyObject** names = _PyObject_GetDictPtr(object);
  py::list gone;
  PyObject *name, *value;
  for (Py_ssize_t at = 0; names && *names && PyDict_Next(*names, &at, &name, &value);)
    if (!attributes.contains(py::handle(name))) gone.append(py::handle(name));
  for (py::handle one : gone)
    if (PyDict_DelItem(*names, one.ptr()) < 0) throw py::error_already_set();
  return set_instance_state(object, attributes.ptr()) == 0;
}
}  // namespace

bool MadeParts::change_one(size_t place, const MadeParts& others,
                           const std::unordered_map<PyObject*, PyObject*>& of_others) const {
  PyObject *part = parts_[place].first.ptr(), *other = others.parts_[place].first.ptr();
  if (PyODict_Check(part) || Py_TYPE(part) != Py_TYPE(other)) return false;
  // What the code has put there is the same thing, unless it leads to what is not.
  bool whole = true;
  auto theirs = [&](PyObject* one) {
    auto found = of_others.find(one);
    if (found != of_others.end()) return found->second;
    whole = whole && (is_immutable(one) || !leads_to(one, [&](PyObject* held) {
                        return !is_immutable(held) && !is_tensor(held) && of_others.count(held);
                      }));
    return one;
  };
  py::list items;
  py::dict entries;
  PyObject *key, *value;
  if (PyList_Check(part) || PySet_Check(part))
    for (py::handle one : py::reinterpret_steal<py::list>(PySequence_List(part)))
      items.append(py::handle(theirs(one.ptr())));
  for (Py_ssize_t at = 0; PyDict_Check(part) && PyDict_Next(part, &at, &key, &value);)
    entries[py::handle(theirs(key))] = py::handle(theirs(value));
  py::dict attributes;
  if (is_rebuildable(part)) {
    auto state = py::reinterpret_steal<py::dict>(instance_state(part));
    for (auto [name, held] : state) attributes[name] = py::handle(theirs(held.ptr()));
  }
  if (!whole) return false;
  if (PyCell_Check(part))
    return PyCell_GET(part) && PyCell_Set(other, theirs(PyCell_GET(part))) == 0 && whole;
  if (PyList_Check(part)) whole = PyList_SetSlice(other, 0, PyList_GET_SIZE(other), items.ptr()) == 0;
  if (PySet_Check(part)) whole = PySet_Clear(other) == 0 && _PySet_Update(other, items.ptr()) == 0;
  if (PyDict_Check(part)) PyDict_Clear(other), whole = PyDict_Update(other, entries.ptr()) == 0;
  return whole && (!is_rebuildable(part) || set_attributes(other, attributes));
}

void MadeParts::add(const Tree& tree, PyObject* made) {
  switch (tree.kind) {
    case Tree::Kind::Tuple:
    case Tree::Kind::Named:
      return add_items(tree, made);
    case Tree::Kind::List:
    case Tree::Kind::Dict:
    case Tree::Kind::Set:
      keep(made);
      return add_items(tree, made);
    case Tree::Kind::Object:
      return add_object(tree, made);
    case Tree::Kind::Partial:
      add(tree.items[1], py::object(py::handle(made).attr("args")).ptr());
      return add(tree.items[2], py::object(py::handle(made).attr("keywords")).ptr());
    case Tree::Kind::Method:
      add(tree.items[0], PyMethod_GET_FUNCTION(made));
      return add(tree.items[1], PyMethod_GET_SELF(made));
    case Tree::Kind::Function:
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
