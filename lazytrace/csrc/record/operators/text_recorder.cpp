#include "record/operators/text_recorder.h"

#include <algorithm>
#include <utility>

#include "cpython/dict_view.h"
#include "cpython/frame.h"
#include "cpython/objects.h"
#include "cpython/text_carrier.h"
#include "cpython/values.h"
#include "record/operators/number_recorder.h"

namespace lazytrace {

namespace {

constexpr int kDeepest = 16;

template <typename Visit>
void each_item(PyObject* container, Visit visit) {
  if (PyDict_Check(container)) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(container, &at, &key, &value);) visit(key), visit(value);
    return;
  }
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(container); ++i)
    visit(PySequence_Fast_GET_ITEM(container, i));
}

bool is_container(PyObject* object) {
  return PyTuple_Check(object) || PyList_Check(object) || PyDict_Check(object);
}

// The dict that a view of it shows; the object itself otherwise.
PyObject* shown_by(PyObject* object) {
  if (!is_dict_view(object)) return object;
  return dict_of_view(object);
}

}  // namespace

// How numpy writes its numbers is a setting.
bool TextRecorder::can_follow(PyObject* value, int depth) const {
  if (is_text(value)) return find(value);
  if (is_carrier(value)) return !is_scalar_carrier(value) && numbers_->number_of(value) >= 0;
  if (PyUnicode_CheckExact(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value)) return true;
  if (PyBool_Check(value) || value == Py_None) return true;
  bool exact = PyTuple_CheckExact(value) || PyList_CheckExact(value) || PyDict_CheckExact(value);
  if (!exact || depth > kDeepest) return false;
  bool all = true;
  each_item(value, [&](PyObject* item) { all = all && can_follow(item, depth + 1); });
  return all;
}

py::object TextRecorder::follow(const py::object& function, const py::tuple& args) {
  if (!numbers_->live() || !can_follow(args.ptr())) return py::none();
  auto nothing = [](PyObject*) { return -1; };
  Tree::Source source{nothing, nothing};
  source.number = [&](PyObject* v) { return is_carrier(v) ? numbers_->number_of(v) : -1; };
  source.text = [&](PyObject* v) { return find(v); };
  Tree tree;
  tree.kind = Tree::Kind::Text;
  tree.value = function;
  for (py::handle arg : args) tree.items.push_back(Tree::of(arg.ptr(), source));
  if (!tree.takes_numbers()) return py::none();
  // As a replay makes it. Where this raises, Python will raise it again.
  py::object plain;
  try {
    plain = tree.build({{}, {}, &numbers_->all(), numbers_->values()});
  } catch (py::error_already_set&) {
    return py::none();
  }
  // There is one empty str, which others have.
  if (!PyUnicode_CheckExact(plain.ptr()) || !PyUnicode_GET_LENGTH(plain.ptr())) return py::none();
  PyObject* made = new_text(plain.ptr());
  if (!made) throw py::error_already_set();
  texts_.push_back(made);
  numbers_->stand_for(made, plain.ptr());  // of a table it is that entry itself
  trees_[made] = std::move(tree);
  return py::reinterpret_borrow<py::object>(made);
}

const Tree* TextRecorder::find(PyObject* text) const {
  if (!is_text(text)) return nullptr;
  auto found = trees_.find(text);
  return found == trees_.end() ? nullptr : &found->second;
}

void TextRecorder::settle(PyObject* text) {
  std::vector<int> made_of;
  if (const Tree* tree = find(text)) tree->each_number([&](int number) { made_of.push_back(number); });
  // The first that is read may end the recording.
  for (int number : made_of) numbers_->read(number);
  retire_text(text);
}

void TextRecorder::settle_inside(PyObject* object, bool behind_objects, int depth) {
  if (!object || empty()) return;
  if (is_text(object)) return settle(object);
  if (is_tensor(object) || PyType_Check(object) || (is_immutable(object) && !PyTuple_Check(object))) return;
  // What else C code comes to from an object, nobody knows.
  object = shown_by(object);
  bool ends = !is_container(object);
  if (ends && !behind_objects) return;
  if (ends || depth > kDeepest) return settle_all();
  each_item(object, [&](PyObject* item) { settle_inside(item, behind_objects, depth + 1); });
}

namespace {
// Whether more refers to it than the two that keep it (as a text, and with what it stands for) and functions
// that run, to whose variables no object leads: code that asks for these is given them by name, or in a dict.
bool may_be_in_an_object(PyObject* text) {
  constexpr Py_ssize_t kKept = 2;
  Py_ssize_t others = Py_REFCNT(text) - kKept;
  for (Frame f = Frame::current(); f && others > 0; f = f.previous()) others -= f.holds(text);
  return others > 0;
}
}  // namespace

void TextRecorder::settle_all() {
  // Reading may end the recording, and this with it.
  for (size_t i = 0; i < texts_.size(); ++i)
    if (may_be_in_an_object(texts_[i])) settle(texts_[i]);
}

void TextRecorder::end() {
  for (PyObject* text : std::exchange(texts_, {})) {
    retire_text(text);
    Py_DECREF(text);
  }
  trees_.clear();
}

}  // namespace lazytrace
