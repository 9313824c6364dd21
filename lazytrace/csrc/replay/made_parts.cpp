#include "replay/made_parts.h"

#include "cpython/contents.h"
#include "cpython/objects.h"

namespace lazytrace {

void MadeParts::keep(PyObject* part) {
  if (py::object contents = contents_of(part))
    parts_.emplace_back(py::reinterpret_borrow<py::object>(part), std::move(contents));
}

PyObject* MadeParts::changed() const {
  for (const auto& [part, contents] : parts_)
    if (!same_contents(contents, contents_of(part.ptr()))) return part.ptr();
  return nullptr;
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
