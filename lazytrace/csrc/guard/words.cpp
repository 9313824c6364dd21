#include "guard/words.h"

#include "guard/guards.h"
#include "guard/word_maker.h"

namespace lazytrace {

namespace {
constexpr uint64_t kWhole = ~uint64_t{0};
// A field of 32 bits, with what fills it up to a word.
constexpr uint64_t kHalf = 0xffffffff;

// Whose layout no assignment to `__class__` and no other object at the same place changes, as long as the
// type is the same.
bool is_builtin(PyTypeObject* type) {
  return type == &PyFunction_Type || type == &PyDict_Type || type == &PyList_Type || type == &PyTuple_Type ||
         type == &PyModule_Type || type == &PyMethod_Type;
}

// Where an object keeps its `__dict__`; null where that hangs on how long it is.
PyObject** place_of_dict(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  bool fixed = PyType_HasFeature(type, Py_TPFLAGS_MANAGED_DICT) || type->tp_dictoffset > 0;
  return fixed ? _PyObject_GetDictPtr(object) : nullptr;
}
}  // namespace

GuardTree::WordMaker::WordMaker(const GuardTree& tree, const std::vector<PyObject*>& nodes)
    : tree_(tree), quick_(tree.quick_), nodes_(nodes), first_(2 * tree.tasks_.size()) {
  known_.assign(nodes.size(), Known::Nothing);
  grouped_.assign(tree.groups_.size(), 0);
}

void GuardTree::WordMaker::make() {
  quick_.words.clear();
  quick_.stretches.clear();
  quick_.nodes.assign(nodes_.begin(), nodes_.end());
  for (size_t at = 0; at < tree_.tasks_.size(); ++at) {
    const Task& task = tree_.tasks_[at];
    task_ = static_cast<int>(at);
    size_t mark = quick_.words.size();
    if (!quick_.restless[at] && put(task)) continue;
    quick_.words.resize(mark);
    quick_.stretches.push_back({mark, at});
    note_asked(task);
  }
  quick_.stretches.push_back({quick_.words.size(), tree_.tasks_.size()});
  quick_.ready = true;
}

bool GuardTree::WordMaker::put(const Task& task) {
  if (task.kind == Task::Kind::Namespace) return put_namespace(task);
  const Guard& guard = tree_.nodes_[task.node];
  if (task.kind == Task::Kind::Simple) return put_place(task) && put_value(task);
  bool shaped = guard.expect == Expect::Type && guard.length >= 0 && !guard.plain && guard.same_input < 0 &&
                guard.capture < 0 && task.grouped;
  return shaped && put_place(task) && put_value(task) && put_shape(guard, nodes_[task.node]);
}

void GuardTree::WordMaker::expect(const void* place, uint64_t value, uint64_t mask) {
  // Nothing changes between two words, so that one of a place is enough.
  auto [at, added] = first_.emplace(place, quick_.words.size());
  if (!added) {
    bool there = *at < quick_.words.size() && quick_.words[*at].place == place;
    if (there && quick_.words[*at].mask == mask) return;
    *at = quick_.words.size();
  }
  quick_.words.push_back({place, mask, value & mask, task_});
}

void GuardTree::WordMaker::expect(const void* place, const void* value) {
  expect(place, reinterpret_cast<uint64_t>(value), kWhole);
}

bool GuardTree::WordMaker::is_laid_out(int node) const {
  return node >= 0 && nodes_[node] && known_[node] == Known::Layout;
}

bool GuardTree::WordMaker::put_namespace(const Task& task) {
  if (!is_laid_out(task.parent)) return false;
  PyObject* owner = nodes_[task.parent];
  const GuardGroup& group = tree_.groups_[task.group];
  if (task.access == Access::Class || task.access == Access::Own || task.access == Access::Specials) {
    if (!PyType_Check(owner) || group.holder != owner || !group.version) return false;
    auto* type = reinterpret_cast<PyTypeObject*>(owner);
    expect(&type->tp_flags, Py_TPFLAGS_VALID_VERSION_TAG, Py_TPFLAGS_VALID_VERSION_TAG);
    expect(&type->tp_version_tag, group.version, kHalf);
  } else {
    PyObject* dict = owner;
    if (task.access == Access::Instance) {
      PyObject** place = place_of_dict(owner);
      dict = place ? *place : nullptr;
      expect(place, dict);
    }
    if (!dict || !PyDict_Check(dict) || group.holder != dict || !group.version) return false;
    expect(&reinterpret_cast<PyDictObject*>(dict)->ma_version_tag, group.version, kWhole);
  }
  grouped_[task.group] = 1;
  each_member(task, [&](int node) { known_[node] = Known::Layout; });
  return true;
}

template <class Use>
void GuardTree::WordMaker::each_member(const Task& task, Use use) {
  for (int at = tree_.begins_[task.group]; at < tree_.begins_[task.group + 1]; ++at) use(tree_.members_[at]);
}

// Where the value is found.
bool GuardTree::WordMaker::put_place(const Task& task) {
  PyObject* value = nodes_[task.node];
  if (!value) return false;
  if (task.grouped) return known_[task.node] != Known::Nothing;
  if (!is_laid_out(task.parent)) return false;
  PyObject* owner = nodes_[task.parent];
  switch (task.access) {
    case Access::Attribute:
    case Access::Globals:
    case Access::Cell:
      return PyFunction_Check(owner) && put_field(task, reinterpret_cast<PyFunctionObject*>(owner), value);
    case Access::Namespace: {
      PyObject** place = place_of_dict(owner);
      if (!place || *place != value || !PyDict_Check(value)) return false;
      expect(place, value);
      known_[task.node] = Known::Layout;
      return true;
    }
    case Access::At:
      return put_element(owner, task.index, value);
    case Access::Type:
      expect(&owner->ob_type, value);
      known_[task.node] = Known::Layout;
      return reinterpret_cast<PyObject*>(Py_TYPE(owner)) == value;
    case Access::Self:
      return owner == value;
    default:
      return false;
  }
}

bool GuardTree::WordMaker::put_field(const Task& task, PyFunctionObject* function, PyObject* value) {
  if (task.access == Access::Globals) {
    expect(&function->func_globals, value);
    return function->func_globals == value;
  }
  if (task.access == Access::Attribute) {
    PyObject** place = static_cast<FunctionField>(task.index) == FunctionField::Defaults
                           ? &function->func_defaults
                           : &function->func_kwdefaults;
    expect(place, *place);
    return (*place ? *place : Py_None) == value;
  }
  PyObject* closure = function->func_closure;
  if (!closure || task.index >= PyTuple_GET_SIZE(closure)) return false;
  PyObject* cell = PyTuple_GET_ITEM(closure, task.index);
  expect(&function->func_closure, closure);
  if (!put_element(closure, task.index, cell)) return false;
  expect(&reinterpret_cast<PyCellObject*>(cell)->ob_ref, value);
  return PyCell_GET(cell) == value;
}

bool GuardTree::WordMaker::put_element(PyObject* owner, Py_ssize_t index, PyObject* value) {
  if (!PyList_Check(owner) && !PyTuple_Check(owner)) return false;
  if (index < 0 || index >= Py_SIZE(owner)) return false;
  expect(&reinterpret_cast<PyVarObject*>(owner)->ob_size, static_cast<uint64_t>(Py_SIZE(owner)), kWhole);
  PyObject** items = PySequence_Fast_ITEMS(owner);
  if (PyList_Check(owner)) expect(&reinterpret_cast<PyListObject*>(owner)->ob_item, items);
  expect(items + index, value);
  return items[index] == value;
}

// What is expected of the value. The reference that leads to it keeps it alive.
bool GuardTree::WordMaker::put_value(const Task& task) {
  PyObject* value = nodes_[task.node];
  Known& known = known_[task.node];
  auto* type = Py_TYPE(value);
  if (task.same >= 0 && (nodes_[task.same] != value || quick_.roving[task.same])) return false;
  switch (task.expect) {
    case Expect::Type:
      if (reinterpret_cast<PyObject*>(type) != task.expected) return false;
      expect(&value->ob_type, type);
      break;
    case Expect::Code:
      if (!PyFunction_Check(value)) return false;
      expect(&value->ob_type, type);
      expect(&reinterpret_cast<PyFunctionObject*>(value)->func_code, task.expected);
      if (PyFunction_GET_CODE(value) != task.expected) return false;
      known = Known::Layout;
      break;
    case Expect::Identity:
    case Expect::Constant:
      if (value != task.expected) return false;
      break;
    default:
      if (task.expect != Expect::Anything) return false;
      if (known == Known::Layout || !tree_.leads_[task.node] || !is_builtin(type)) break;
      expect(&value->ob_type, type);
      known = Known::Layout;
      break;
  }
  if (task.weak && task.expect != Expect::Anything) {
    if (PyWeakref_GET_OBJECT(task.weak) != task.expected) return false;
    expect(&reinterpret_cast<PyWeakReference*>(task.weak)->wr_object, task.expected);
  }
  if (known != Known::Layout) known = is_settled(task.node) ? Known::Layout : Known::There;
  return true;
}

// Whether what a guard expects says how the object is laid out.
bool GuardTree::WordMaker::is_settled(int node) const {
  const Guard& guard = tree_.nodes_[node];
  switch (guard.expect) {
    case Expect::Identity:
      return guard.weak || guard.value;
    case Expect::Type:
      return guard.weak ||
             !PyType_HasFeature(reinterpret_cast<PyTypeObject*>(guard.raw), Py_TPFLAGS_HEAPTYPE);
    case Expect::Constant:
      return nodes_[node] == guard.value.ptr();
    case Expect::Code:
      return true;
    default:
      return guard.access == Access::Weak;
  }
}

// How many entries a container has, and which keys: a dict has another version where these have changed.
bool GuardTree::WordMaker::put_shape(const Guard& guard, PyObject* value) {
  expect(&value->ob_type, Py_TYPE(value));
  if (PyDict_CheckExact(value) || (PyDict_Check(value) && !guard.keys)) {
    auto* dict = reinterpret_cast<PyDictObject*>(value);
    expect(&dict->ma_version_tag, dict->ma_version_tag, kWhole);
    return dict->ma_version_tag != 0;
  }
  if (guard.keys || !(PyTuple_Check(value) || PyList_Check(value))) return false;
  expect(&reinterpret_cast<PyVarObject*>(value)->ob_size, static_cast<uint64_t>(Py_SIZE(value)), kWhole);
  return true;
}

// Behind a task that is asked as ever, what leads on is compared with what it was.
void GuardTree::WordMaker::note_asked(const Task& task) {
  auto note = [&](int node) {
    bool is_it = nodes_[node] && tree_.leads_[node] && !quick_.roving[node];
    known_[node] = !is_it ? Known::Nothing : is_settled(node) ? Known::Layout : Known::There;
  };
  if (task.kind == Task::Kind::Namespace)
    each_member(task, note);
  else if (!(task.grouped && grouped_[task.group]))
    note(task.node);
}

}  // namespace lazytrace
