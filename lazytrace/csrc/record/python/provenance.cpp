#include "record/python/provenance.h"

#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "cpython/array_memory.h"
#include "cpython/carrier.h"
#include "cpython/contents.h"
#include "cpython/dict_proxy.h"
#include "cpython/ends.h"
#include "cpython/imports.h"
#include "cpython/objects.h"
#include "cpython/values.h"
#include "program/flatten.h"
#include "program/value_tree.h"
#include "record/python/code_facts.h"
#include "record/python/variables_with.h"
#include "record/python/within_reach.h"
#include "support/reasons.h"
#include "torch/overrides.h"

namespace lazytrace {

namespace {
// The exception whose handler this thread is in, borrowed from it; null outside of any.
PyObject* handled_exception() {
  PyObject* handled = PyErr_GetHandledException();
  Py_XDECREF(handled);
  return handled == Py_None ? nullptr : handled;
}
}  // namespace

Provenance::Provenance(Recorder* recorder, GuardTree* tree) : recorder_(recorder), tree_(tree) {
  static uint64_t recordings = 0;  // counted with the GIL
  number_ = ++recordings;
  handled_around_ = handled_exception();
  late_.reserve(64);
  held_.reserve(1024);
  held_names_.reserve(256);
  asked_.reserve(256);
}

void Provenance::add_root(PyObject* object, Py_ssize_t index, Call::Root kind) {
  int node = tree_->root(index);
  roots_.push_back(object);
  known_.emplace(object, node);
  hold(object);
  if (kind == Call::Root::State) {
    tree_->expect(node, object);  // its class alone
    return follow_root(object);
  }
  if (kind == Call::Root::Object) {
    tree_->expect(node, object);
    read_generator(node, object);
    return PyMethod_Check(object) ? read_method(node, object) : void();
  }
  structural_.resize(static_cast<size_t>(node) + 1, kNoStructure);
  structural_.back() = PyList_Check(object) || PyDict_Check(object) ? kChangeable : kFixed;
}

void Provenance::add_input(PyObject* tensor, int reg) {
  input_.emplace(tensor, reg);
  inputs_.push_back(tensor);
  hold(tensor);
}

bool Provenance::has_read(int node, Access access) const {
  for (int child = node + 1; child < static_cast<int>(tree_->size()); ++child)
    if ((*tree_)[child].parent == node && (*tree_)[child].access == access) return true;
  return false;
}

int Provenance::known(PyObject* object) const {
  const int* found = known_.find(object);
  if (!found || *found < 0) return -1;
  const Guard& guard = (*tree_)[*found];
  return guard.access != Access::Weak || still_alive(guard.weak, object) ? *found : -1;
}

int Provenance::reach(PyObject* object) {
  int node = known(object);
  if (node >= 0) return node;
  bool lasts = PyType_Check(object) &&
               !PyType_HasFeature(reinterpret_cast<PyTypeObject*>(object), Py_TPFLAGS_HEAPTYPE);
  return lasts ? tree_->weak(object) : is_enum_member(object) ? member_node(object) : owner(object);
}

// One of ints, flags or bytes has no weak references. It is found where it was read, or by its class.
int Provenance::member_node(PyObject* member) {
  if (PyType_SUPPORTS_WEAKREFS(Py_TYPE(member))) return tree_->weak(member);
  if (const int* found = members_.find(member)) return *found;
  if (is_fresh(member)) return -1;
  static PyObject* const kTables[] = {PyUnicode_InternFromString("_member_map_"),
                                      PyUnicode_InternFromString("_value2member_map_")};
  int node = class_node(Py_TYPE(member));
  for (PyObject* table : kTables) {
    PyObject* members = node >= 0 ? PyDict_GetItemWithError(Py_TYPE(member)->tp_dict, table) : nullptr;
    PyObject *key, *one;
    Py_ssize_t at = 0;
    while (members && PyDict_Check(members) && PyDict_Next(members, &at, &key, &one)) {
      if (one != member || !(PyUnicode_CheckExact(key) || PyLong_CheckExact(key))) continue;
      int entries = read_node(node, Access::Own, table, -1, members).first;
      return members_[member] = read_node(entries, Access::Item, key, -1, member).first;
    }
  }
  recorder_->fail(say(reason::ReadsUnknown, type_name(member)));
  return -1;
}

int Provenance::owner(PyObject* object) {
  meets_hidden(object);
  if (!handle_keys_.empty() && handle_keys_in(object) > 0 && !(code_flags(Frame::current().code()) & kTorchs))
    recorder_->fail(say(reason::HookKey));
  if (!touched_.empty() && touched_.count(object)) fail_for_touched(object);
  return found(object);
}

// Of a namespace the names are known that were set there.
int Provenance::owner_of_entry(PyObject* dict, PyObject* key) {
  if (!touched_in_.find(dict) || touched_entry(dict, key)) return owner(dict);
  meets_hidden(dict);
  return found(dict);
}

void Provenance::fail_for_touched(PyObject* object) {
  recorder_->fail("reads a " + type_name(object) + " that an opaque function has changed");
}

int Provenance::found(PyObject* object) {
  int node = known(object);
  if (node >= 0) return node;
  if (is_tensor(object) || is_immutable(object) || is_fresh(object)) return -1;
  // What classes of C are made of never changes.
  bool slot = Py_IS_TYPE(object, &PyMethodDescr_Type) || Py_IS_TYPE(object, &PyWrapperDescr_Type);
  PyTypeObject* type = slot                   ? reinterpret_cast<PyDescrObject*>(object)->d_type
                       : PyType_Check(object) ? reinterpret_cast<PyTypeObject*>(object)
                                              : nullptr;
  if (type && !PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) return -1;
  // A function that was made by the call has the code that the code that made it holds.
  if (PyCode_Check(object)) return -1;
  if (is_given(object)) return -1;
  // Nothing that was read has led to it. What this call has made is gone at its end, or part of the result.
  remember_late(object);
  return -1;
}

void Provenance::begin_step() {
  given_.clear();
  kernels_before_ = recorder_->python_kernels();
}

void Provenance::give(PyObject* result, PyObject* handed, const std::vector<bool>& others) {
  begin_step();
  const Flattened flattened(result, handed);
  for (size_t i = 0; i < flattened.containers.size(); ++i) {
    PyObject* one = flattened.containers[i];
    ever_given_.insert(one);
    others_have_[one] = i >= others.size() || others[i];
    // What nobody else holds must end when it is due.
    if (Py_REFCNT(one) > 1) given_.push_back(py::reinterpret_borrow<py::object>(one));
  }
}

// Which of the objects that were there before the call a step gives no replay compares.
bool Provenance::tells_given(PyObject* object, PyObject* other) {
  if (!ever_given_.count(object) || is_fresh(other)) return false;
  recorder_->fail(say(reason::ReadsUnknown, type_name(object)));
  return true;
}

bool Provenance::is_given(PyObject* container) const {
  return kernels_before_ == recorder_->python_kernels() &&
         std::any_of(given_.begin(), given_.end(),
                     [&](const py::object& one) { return one.ptr() == container; });
}

int Provenance::owner_of_namespace(PyObject* object, PyObject* dict) {
  int own = owner(object);
  if (own < 0 || Py_REFCNT(dict) == 1 || PyModule_Check(object)) return own;
  for (const Shared& one : shared_) {
    if (!one.dict.is(py::handle(dict))) continue;
    if (own != one.owner)
      for (int node : {one.owner, own}) read_child(node, Access::Namespace, nullptr, -1, dict);
    return one.owner;
  }
  shared_.push_back({py::reinterpret_borrow<py::object>(dict), own});
  return own;
}

int Provenance::class_node(PyTypeObject* type) {
  auto* object = reinterpret_cast<PyObject*>(type);
  int node = known(object);
  if (node >= 0 || is_fresh(object)) return node;
  node = tree_->weak(object);
  known_[object] = node;
  read_kind(node, object);
  return node;
}

void Provenance::read_names_in_errors() {
  if (failed_call_) return recorder_->fail("writes the address of a function as text");
  std::vector<PyTypeObject*> types;
  for (size_t i = 0; i < tree_->size(); ++i) {
    const Guard& guard = (*tree_)[i];
    if (!guard.weak || !still_alive(guard.weak, guard.raw) || !PyType_Check(guard.raw)) continue;
    if (is_python_class(reinterpret_cast<PyTypeObject*>(guard.raw)))
      types.push_back(reinterpret_cast<PyTypeObject*>(guard.raw));
  }
  for (PyTypeObject* type : types) read_name_of(type);
}

void Provenance::read_name_of(PyTypeObject* type) {
  static PyObject* const kNames[] = {PyUnicode_InternFromString("__name__"),
                                     PyUnicode_InternFromString("__qualname__"),
                                     PyUnicode_InternFromString("__module__")};
  auto* object = reinterpret_cast<PyObject*>(type);
  int node = class_node(type);
  for (PyObject* name : kNames) {
    if (node < 0 || _PyType_Lookup(Py_TYPE(object), name) != _PyType_Lookup(&PyType_Type, name)) continue;
    py::object value = py::reinterpret_steal<py::object>(PyType_Type.tp_getattro(object, name));
    if (!value) throw py::error_already_set();
    read_child(node, Access::Attribute, name, -1, value.ptr());
  }
}

void Provenance::meet_viewed(PyObject* view, PyObject* dict) {
  static PyObject* const name = PyUnicode_InternFromString(kProxied);
  if (int node = is_fresh(view) ? -1 : known(view); node >= 0)
    read_child(node, Access::Attribute, name, -1, dict);
  if (known(dict) < 0) owner(dict);
}

int Provenance::weak_node(PyObject* object) {
  int node = known(object);
  if (node >= 0) return node;
  node = known_[object] = tree_->weak(object);
  read_kind(node, object);
  return node;
}

int Provenance::modules_node() {
  static PyObject* name = PyUnicode_InternFromString("modules");
  PyObject* system = PyImport_AddModule("sys");
  return read_node(weak_node(system), Access::Instance, name, -1, PyImport_GetModuleDict()).first;
}

void Provenance::read_imported(const std::string& name) {
  int modules = modules_node();
  for (const std::string& part : {name.substr(0, name.find('.')), name}) {
    py::str key(part);
    read_child(modules, Access::Item, key.ptr(), -1,
               PyDict_GetItemWithError(PyImport_GetModuleDict(), key.ptr()));
  }
}

int Provenance::module_of(PyObject* globals) {
  PyObject* name = PyDict_GetItemString(globals, "__name__");
  PyObject* module = name ? PyDict_GetItemWithError(PyImport_GetModuleDict(), name) : nullptr;
  PyErr_Clear();
  bool found = module && PyModule_CheckExact(module) && PyModule_GetDict(module) == globals;
  return found ? weak_node(module) : -1;
}

int Provenance::module_node(PyObject* module) {
  py::object name = py::reinterpret_steal<py::object>(PyModule_GetNameObject(module));
  if (!name) PyErr_Clear();
  bool imported = name && PyDict_GetItemWithError(PyImport_GetModuleDict(), name.ptr()) == module;
  if (imported && known(module) < 0 && !is_fresh(module))
    read_child(modules_node(), Access::Item, name.ptr(), -1, module);
  return owner(module);
}

int Provenance::node_of_tensor(PyObject* tensor) {
  int node = known(tensor);
  const int* argument = node < 0 ? input_.find(tensor) : nullptr;
  if (!argument) return node;
  bool first;
  node = tree_->child(-1, Access::Input, nullptr, *argument, &first);
  known_.emplace(tensor, node);
  return node;
}

bool Provenance::lasting(int root) const {
  PyObject* holder = (*tree_)[root].raw;
  return still_alive((*tree_)[root].weak, holder) &&
         (PyModule_Check(holder) || PyType_Check(holder) || PyFunction_Check(holder) ||
          is_enum_member(holder));  // which its class holds
}

bool Provenance::outlasts(int node) const {
  int root = tree_->root_of(node);
  return (*tree_)[root].access != Access::Weak || lasting(root);
}

// Beyond its class: what it is says nothing of what it holds.
bool Provenance::is_looked_into(int node) const {
  bool whole = (*tree_)[node].length >= 0 || was_structural(node);
  for (size_t i = 0; !whole && i < tree_->size(); ++i) {
    const Guard& guard = (*tree_)[static_cast<int>(i)];
    whole = guard.parent == node && guard.access != Access::Type;
  }
  return whole;
}

bool Provenance::touched_what_was_read() const {
  if (replaced_what_was_read_) return true;
  auto was_read = [&](const auto& one) {
    return std::any_of(asked_.begin(), asked_.end(),
                       [&](const auto& question) { return question.second == one.second.ptr(); });
  };
  if (std::any_of(touched_names_.begin(), touched_names_.end(), was_read)) return true;
  auto attribute_was_read = [&](const TouchedNames& touched) {
    const int* node = known_.find(touched.object);
    bool read = node && *node < 0;
    for (size_t i = 0; node && !read && i < tree_->size(); ++i) {
      const Guard& guard = (*tree_)[static_cast<int>(i)];
      read = guard.parent == *node && guard.key && touched.has(guard.key.ptr());
    }
    return read;
  };
  auto name_was_read = [&](const void* dict) {
    return touched_.count(dict) && attribute_was_read(*touched_in_.find(dict));
  };
  // A namespace that was looked into by other names is as it was for whoever looks again.
  auto was_looked_into = [&](const void* object, int node) {
    const TouchedNames* names = touched_in_.find(object);
    if (!names || names->all || (*tree_)[node].length >= 0 || was_structural(node))
      return is_looked_into(node);
    bool read = false;
    for (size_t i = 0; !read && i < tree_->size(); ++i) {
      const Guard& guard = (*tree_)[static_cast<int>(i)];
      read =
          guard.parent == node && guard.access != Access::Type && (!guard.key || names->has(guard.key.ptr()));
    }
    return read;
  };
  return touched_in_.any(name_was_read) || touched_.any([&](const void* object) {
    const int* node = known_.find(object);
    bool known = node && *node >= 0;
    return cells_.count(object) || live_.count(object) || (node && !known) ||
           (known && was_looked_into(object, *node));
  });
}

namespace {
// Named tuples and members of enums, which may be given another class, and what holds such.
bool has_kind(PyObject* value) {
  if (is_enum_member(value)) return true;
  if (PyTuple_Check(value)) {
    PyObject** items = &PyTuple_GET_ITEM(value, 0);
    return is_named_tuple(value) || std::any_of(items, items + PyTuple_GET_SIZE(value), has_kind);
  }
  if (PySlice_Check(value)) {
    auto* slice = reinterpret_cast<PySliceObject*>(value);
    return has_kind(slice->start) || has_kind(slice->stop) || has_kind(slice->step);
  }
  PyObject* member;
  Py_hash_t hash;
  for (Py_ssize_t at = 0; PyFrozenSet_CheckExact(value) && _PySet_NextEntry(value, &at, &member, &hash);)
    if (has_kind(member)) return true;
  return false;
}
}  // namespace

// What an immutable value holds stays the same, but not the classes of that.
void Provenance::read_kinds_inside(int node, PyObject* value) {
  if (!PyTuple_Check(value) && !PySlice_Check(value) && !PyFrozenSet_CheckExact(value)) return;
  if (is_named_tuple(value))
    read_child(node, Access::Type, nullptr, -1, reinterpret_cast<PyObject*>(Py_TYPE(value)));
  if (PySlice_Check(value)) {
    for (const char* name : {"start", "stop", "step"}) {
      py::object end = py::handle(value).attr(name);
      if (has_kind(end.ptr())) read_child(node, Access::Attribute, py::str(name).ptr(), -1, end.ptr());
    }
    return;
  }
  for (Py_ssize_t i = 0; PyTuple_Check(value) && i < PyTuple_GET_SIZE(value); ++i)
    if (PyObject* item = PyTuple_GET_ITEM(value, i); has_kind(item))
      read_child(node, Access::At, nullptr, i, item);
  PyObject* member;
  Py_hash_t hash;
  Py_ssize_t at = 0;
  for (Py_ssize_t i = 0; PyFrozenSet_CheckExact(value) && _PySet_NextEntry(value, &at, &member, &hash); ++i)
    if (has_kind(member)) read_child(node, Access::KeyAt, nullptr, i, member);
}

// ---------------------------------------------------------------- reads
void Provenance::learn(int node, PyObject* value) {
  tree_->expect(node, value);
  Expect expected = (*tree_)[node].expect;
  if (renews_ && value && (PyLong_CheckExact(value) || is_int64(value) || is_float_of_any_kind(value)))
    follow_renewed(node);
  if (recorder_->follows_state() && tree_->can_be_loose(node)) follow_number(node, value);
  if (value && PyLong_CheckExact(value) && tree_->can_be_loose(node)) last_int_ = node;
  // Immutable values are kept as constants, and members of enums by their identity.
  if (!value) return;
  if (expected == Expect::Constant) return read_kinds_inside(node, value);
  if (is_enum_member(value)) {
    if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(value)) && members_.emplace(value, node).second) hold(value);
    return read_child(node, Access::Type, nullptr, -1, reinterpret_cast<PyObject*>(Py_TYPE(value)));
  }
  if (expected == Expect::Tensor) {
    // Found by another way once the call has set it: guarded as it was.
    if (auto before = recorder_->requires_grad_before(THPVariable_Unpack(value)))
      (*tree_)[node].tensor->set_requires_grad(*before);
    if (const int* input = input_.find(value))
      (*tree_)[node].same_input = *input;
    else
      recorder_->explain(THPVariable_Unpack(value), node, is_parameter(value));
  }
  int before = known(value);
  if (before >= 0) {
    if (before < node) (*tree_)[node].same = before;
    return;
  }
  // As a tensor that a step has given.
  if (is_fresh(value) && was_drawn(value)) recorder_->fail(say(reason::GivenAndFound));
  if (is_fresh(value)) return;
  known_[value] = node;
  hold(value);
  if (recorder_->follows_state()) follow_list(node, value);
  if (PyMethod_Check(value)) read_method(node, value);
  if (is_plain_array(value)) read_memory(node, value);
  read_generator(node, value);
  read_kind(node, value);
}

// Classes and modules are expected by identity, and may be given another class, which says what their
// attributes, calls and operators are.
void Provenance::read_kind(int node, PyObject* object) {
  auto* kind = reinterpret_cast<PyObject*>(Py_TYPE(object));
  bool may_change = PyType_Check(object) ? PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE)
                                         : PyModule_Check(object) != 0;
  if (node >= 0 && may_change) read_child(node, Access::Type, nullptr, -1, kind);
}

// A function that resumes goes on with the tensor that its steps were given.
void Provenance::read_memory(int node, PyObject* array) {
  auto is_it = [&](const at::Tensor& tensor) { return is_memory_of(tensor, array); };
  at::Tensor before = recorder_->captured_before(is_it);
  py::object memory =
      before.defined() ? py::reinterpret_steal<py::object>(THPVariable_Wrap(before)) : memory_of_array(array);
  if (!memory) return;
  memories_[array] = memory;
  any_memory_ = true;
  read_child(node, Access::Memory, nullptr, -1, memory.ptr());
  // One array in two places has one tensor.
  tree_->expect_distinct(node);
}

// What has run before a function resumes has followed what it has.
void Provenance::follow_renewed(int node) {
  if (!exchange_ || recorder_->feeding() || !tree_->can_be_loose(node)) return;
  if (std::string path = tree_->path(node, names_); !fixed_.count(path)) recorder_->follow_from_here(path);
}

namespace {
// Which object a nan is shows in containers that hold it: it is guarded, not followed.
bool is_or_holds_nan(PyObject* value) {
  if (!PyTuple_CheckExact(value)) return is_nan(value);
  PyObject* const* items = &PyTuple_GET_ITEM(value, 0);
  return std::any_of(items, items + PyTuple_GET_SIZE(value), is_or_holds_nan);
}
}  // namespace

namespace {
// A result shows which numbers of numpy's are one object; its float64 is a float, of which nobody asks that.
bool shows_which_it_is(PyObject* value) { return is_float32(value) || is_int64(value); }
}  // namespace

// One object in two places is one number.
bool Provenance::follow_with_another(int node, PyObject* value) {
  if (!shows_which_it_is(value) || recorder_->inside_operator()) return false;
  for (auto& [other, number] : state_) {
    Guard& known = (*tree_)[other];
    if (other >= node || known.same >= 0 || !known.value.is(py::handle(value))) continue;
    (*tree_)[node].same = other;
    (*tree_)[node].loose = true;
    state_[node] = number;
    return true;
  }
  return false;
}

std::string Provenance::as_fed(int node, std::string path) const {
  if (node < 0 || !recorder_->feeding()) return path;
  std::string begin = tree_->path(node, names_);
  if (path.compare(0, begin.size(), begin) != 0) return path;
  int first = tree_->first_of(node);
  for (auto& [object, below] : recorder_->paths_then()) {
    auto found = below.find(path.substr(begin.size()));
    if (found != below.end() && known(object) == first) return found->second;
  }
  return path;
}

// From now on what is read there is exchanged for a number that is followed, or compared.
void Provenance::follow_number(int node, PyObject* value) {
  const Guard& guard = (*tree_)[node];
  bool of_list = is_of_live_list(guard.access);
  if (!of_list && is_or_holds_nan(value)) return;
  if (!of_list && follow_with_another(node, value)) return;
  std::string path = tree_->path(of_list ? guard.parent : node, names_);
  NumberRecorder* numbers = recorder_->numbers();
  // A kernel in Python is no part of the program.
  if (!numbers || recorder_->inside_operator() || !recorder_->follows_state(as_fed(guard.parent, path)))
    return;
  if (PyTuple_CheckExact(value)) return follow_items(node, value);
  if (shows_which_it_is(value))
    for (int other = 0; other < node; ++other)
      if ((*tree_)[other].value.is(py::handle(value))) return;
  follow(node, value, of_list ? tree_->path(node, names_) : std::move(path));
}

// Of one that was reached by another path before, reads may have been guarded already.
void Provenance::follow_list(int node, PyObject* value) {
  if (!PyList_CheckExact(value) && !is_deque(value)) return;
  if (!exchange_ || !recorder_->numbers() || recorder_->inside_operator() || structural(node)) return;
  if ((*tree_)[node].access == Access::Made) return;
  if (!recorder_->follows_state(as_fed(node, tree_->path(node, names_)))) return;
  live_[value] = node;
  any_live_ = true;
}

// Each number in the tuple by itself.
void Provenance::follow_items(int node, PyObject* tuple) {
  tree_->expect_items(node, tuple);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    bool made;
    int item = tree_->child(node, Access::At, nullptr, i, &made);
    tree_->expect(item, PyTuple_GET_ITEM(tuple, i));
    follow(item, PyTuple_GET_ITEM(tuple, i), tree_->path(item, names_));
    items_[node].push_back(state_.at(item));
  }
}

void Provenance::follow(int node, PyObject* value, std::string path) {
  bool real = is_float_of_any_kind(value);
  NumberValue found = real ? NumberValue::of_real(float_value(value)) : NumberValue::of(whole_value(value));
  (*tree_)[node].loose = true;
  bool size = (*tree_)[node].access == Access::Length || PyBool_Check(value);
  NumberRecorder* numbers = recorder_->numbers();
  int number = numbers->given(Number::Kind::State, node, real, found, std::move(path), size);
  state_[node] = number_like(numbers, number, value);
}

std::vector<std::string> Provenance::paths_of(const std::vector<int>& nodes,
                                              const std::vector<std::string>& names) const {
  std::vector<std::string> paths;
  for (int node : nodes) paths.push_back(tree_->path(node, names));
  return paths;
}

// A replay draws from the generator that is there then, of the same device.
void Provenance::read_generator(int node, PyObject* object) {
  if (!is_random_generator(object)) return;
  static PyObject* device = PyUnicode_InternFromString("device");
  recorder_->explain(reinterpret_cast<THPGenerator*>(object)->cdata, node);
  py::object on = py::reinterpret_steal<py::object>(PyObject_GetAttr(object, device));
  if (!on) throw py::error_already_set();
  read_child(node, Access::Attribute, device, -1, on.ptr());
}

// Of a device, or of a class that is called without arguments. A function that runs again goes on with that
// of the replay, which may have drawn from it.
py::object Provenance::make_generator(PyObject* kind) {
  py::object made = recorder_->made_anew(static_cast<size_t>(made_anew_));
  bool of_class = PyType_Check(kind);
  bool found = made && (of_class ? reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())) == kind
                                 : is_random_generator(made.ptr()));
  if (!found)
    made = py::reinterpret_steal<py::object>(of_class ? make_anew(reinterpret_cast<PyTypeObject*>(kind))
                                                      : new_generator(kind));
  if (!made) throw py::error_already_set();
  read_child(-1, Access::Made, kind, made_anew_++, made.ptr());
  return made;
}

bool Provenance::may_adopt(PyObject* container) const {
  bool kind = PyList_CheckExact(container) || PyDict_CheckExact(container);
  return kind && is_fresh(container) && known(container) < 0 && !touched(container) &&
         !handed_on_.keeps(container);
}

// A function that runs again has another one: it goes on with that of the replay, which stands in its
// variables from then on.
PyObject* Provenance::adopt(PyObject* container, PyObject** place) {
  auto adopted = py::reinterpret_borrow<py::object>(container);
  VariablesWith variables(container, below_);
  bool alone = variables.count() + (place ? 1 : 0) == Py_REFCNT(container) - 1;
  if (recorder_->feeding()) {
    py::object made = recorder_->made_anew(static_cast<size_t>(made_anew_));
    if (!alone || !made || !Py_IS_TYPE(made.ptr(), Py_TYPE(container)))
      recorder_->diverge("a " + type_name(container) + " that a step fills");
    hold(container);
    variables.put(made.ptr());
    if (place) Py_SETREF(*place, Py_NewRef(made.ptr()));
    adopted = std::move(made);
  } else if (!alone) {
    recorder_->end_resuming("it hands on a " + type_name(container) + " of its own");
  }
  note_older(adopted.ptr());
  auto* kind = reinterpret_cast<PyObject*>(Py_TYPE(adopted.ptr()));
  int node = read_node(-1, Access::Made, kind, made_anew_++, adopted.ptr()).first;
  tree_->hold_made(node, adopted.ptr());
  adopted_.emplace_back(std::move(adopted), 0);
  return adopted_.back().first.ptr();
}

bool Provenance::is_adopted(PyObject* object) const {
  return std::any_of(adopted_.begin(), adopted_.end(),
                     [&](const auto& one) { return one.first.ptr() == object; });
}

bool Provenance::leaves_adopted(c10::function_ref<bool(PyObject*)> written) const {
  return std::any_of(adopted_.begin(), adopted_.end(), [&](const auto& one) {
    PyObject* object = one.first.ptr();
    return !touched(object) && (written(object) || is_looked_into(known(object)));
  });
}

// As the recording holds them, and a replay does to its end, what they hold must not tell of its own.
bool Provenance::fails_for_adopted(bool asks_all) {
  PyObject* found = nullptr;
  auto ends = [&](PyObject* one) {
    if (runs_code_at_its_end(one)) found = one;
    return found != nullptr;
  };
  for (auto& [object, holders] : adopted_) {
    Py_ssize_t before = std::exchange(holders, Py_REFCNT(object.ptr()));
    if ((!asks_all && holders >= before) || !leads_to(object.ptr(), ends)) continue;
    recorder_->fail(say(reason::LateDestructor, type_name(found)));
    return true;
  }
  return false;
}

// A bound method is its function and its object.
void Provenance::read_method(int node, PyObject* method) {
  static PyObject *function = PyUnicode_InternFromString("__func__"),
                  *self = PyUnicode_InternFromString("__self__");
  read_child(node, Access::Attribute, function, -1, PyMethod_GET_FUNCTION(method));
  read_child(node, Access::Attribute, self, -1, PyMethod_GET_SELF(method));
}

int Provenance::learn_node(int node, Access access, PyObject* key, Py_ssize_t index, PyObject* value,
                           bool* made) {
  int child = tree_->child(node, access, key, index, made);
  if ((access == Access::Namespace || access == Access::OfThread) && value) note_older(value);
  if (*made) learn(child, value);
  return child;
}

c10::ArrayRef<int> Provenance::numbers_of(int node) const {
  if (state_.empty()) return {};
  if (auto number = state_.find(node); number != state_.end()) return number->second;
  auto items = items_.find(node);
  return items == items_.end() ? c10::ArrayRef<int>() : items->second;
}

std::pair<int, bool> Provenance::read_node(int node, Access access, PyObject* key, Py_ssize_t index,
                                           PyObject* value) {
  bool made;
  int child = learn_node(node, access, key, index, value, &made);
  // The guard says of one that is followed that it is there.
  for (int number : numbers_of(child))
    if (recorder_->numbers() && !asks_presence_) recorder_->numbers()->read(number);
  return {child, made};
}

void Provenance::read_operand(int node, Access access, PyObject* key, Py_ssize_t index, PyObject* value) {
  bool made;
  int child = learn_node(node, access, key, index, value, &made);
  c10::ArrayRef<int> numbers = numbers_of(child);
  if (!numbers.empty() && value && !asks_presence_) exchange_->expect(value, numbers);
}

c10::ArrayRef<int> Provenance::follow_child(int node, Access access, PyObject* key, Py_ssize_t index,
                                            PyObject* value) {
  bool made;
  return numbers_of(learn_node(node, access, key, index, value, &made));
}

void Provenance::read_operands(int node, PyObject** sequence, c10::function_ref<bool(Py_ssize_t)> held) {
  if (py::object items = read_entries(node, *sequence, held)) exchange_->swap(sequence, std::move(items));
}

py::object Provenance::read_entries(int node, PyObject* sequence, c10::function_ref<bool(Py_ssize_t)> held) {
  Py_ssize_t count = PySequence_Fast_GET_SIZE(sequence);
  py::tuple items(count);
  bool any = false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    auto item = py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(sequence, i));
    if (!held(i)) {
      bool made;
      c10::ArrayRef<int> numbers = numbers_of(learn_node(node, Access::At, nullptr, i, item.ptr(), &made));
      any |= !numbers.empty();
      if (!numbers.empty()) item = exchange_->carried(item.ptr(), numbers);
    }
    items[static_cast<size_t>(i)] = std::move(item);
  }
  if (!any) return {};
  note_made(items.ptr());
  return std::move(items);
}

void Provenance::read_self(int node, PyObject* object) {
  bool made;
  int child = tree_->child(node, Access::Self, nullptr, -1, &made);
  if (made) tree_->expect_identity(child, object);
}

void Provenance::read_trusted(int node, PyObject* callable) {
  static PyObject* const name = PyUnicode_InternFromString("_op");
  read_self(node, callable);
  PyObject** dict = _PyObject_GetDictPtr(callable);
  PyObject* called = dict && *dict ? PyDict_GetItemWithError(*dict, name) : nullptr;
  if (called) read_child(node, Access::Instance, name, -1, called);
}

void Provenance::read_handled() {
  if (handled_around_) return recorder_->fail("reads the exception that is handled around the call");
  read_child(-1, Access::Handled, nullptr, -1, Py_False);
}

void Provenance::read_kernels() {
  if (!recorder_->hangs_on_kernels()) return;
  read_child(-1, Access::Kernels, nullptr, -1, py::int_(kernel_registrations()).ptr());
}

void Provenance::read_handled_now() {
  // One of the function's own follows from the call.
  if (handled_exception() == handled_around_) read_handled();
}

bool Provenance::handles_its_own() const {
  PyObject* now = handled_exception();
  return now && now != handled_around_;
}

// Objects without an __eq__ of Python are equal where they are the same, and so are the keys of a dict and
// the members of a set. That two were different must be so again.
void Provenance::compare_as_itself(PyObject* object) {
  // A replay compares no two of them.
  if (is_plain_array(object) && was_drawn(object))
    return recorder_->fail("compares the identity of two values of type " + type_name(object));
  if (is_immutable(object) || is_fresh(object)) return;
  int node = is_tensor(object) ? node_of_tensor(object) : owner(object);
  if (node >= 0) tree_->expect_distinct(node);
  if (!is_tensor(object)) return;
  // A step may give a tensor that is in state: a replay sees that where it has fetched that one.
  const at::Tensor& tensor = THPVariable_Unpack(object);
  if (recorder_->knows(tensor) && !recorder_->made(tensor)) recorder_->output_register(tensor);
}

bool Provenance::asked(const void* owner, const void* what) {
  size_t hash =
      spread(reinterpret_cast<uintptr_t>(owner)) * 31 ^ spread(reinterpret_cast<uintptr_t>(what) << 4);
  auto same = [&](int at) { return asked_[static_cast<size_t>(at)] == std::make_pair(owner, what); };
  if (asked_index_.find(hash, same) >= 0) return true;
  asked_index_.add(hash, static_cast<int>(asked_.size()));
  asked_.emplace_back(owner, what);
  return false;
}

Py_ssize_t Provenance::handle_keys_in(PyObject* dict) const {
  return std::count_if(handle_keys_.begin(), handle_keys_.end(), [&](const auto& one) {
    return one.first.is(py::handle(dict)) && PyDict_Contains(dict, one.second.ptr()) == 1;
  });
}

void Provenance::judge_handle_keys() {
  for (const auto& [dict, key] : handle_keys_)
    if (handle_keys_in(dict.ptr()) > 0) return recorder_->fail(say(reason::HookKey));
}

bool Provenance::fails_for_hidden(PyObject* container) const {
  if (std::find(hidden_.begin(), hidden_.end(), container) == hidden_.end()) return false;
  recorder_->fail(say(reason::OpaqueAfterWrite, hidden_from_));
  return true;
}

namespace {
PyObject* namespace_of(PyObject* object) {
  if (PyType_Check(object) || PyModule_Check(object)) return nullptr;
  PyObject** dict = _PyObject_GetDictPtr(object);
  return dict ? *dict : nullptr;
}
}  // namespace

void Provenance::place(PyObject* dict, PyObject* name, PyObject* value) {
  placed_.set(dict, name, value, recorder_->python_kernels());
}

Placed::How Provenance::is_placed(PyObject* dict, PyObject* name, py::object* value) {
  return placed_.find(dict, name, recorder_->python_kernels(), value);
}

// Null for all names.
void Provenance::replace_placed(PyObject* object, PyObject* name) {
  Placed::Replaced what = placed_.replace(object, namespace_of(object), name);
  replaced_what_was_read_ |= what == Placed::Replaced::Read;
  touched_again_ += what != Placed::Replaced::Nothing;
}

void Provenance::touch(PyObject* object) {
  replace_placed(object, nullptr);
  if (TouchedNames* known = touched_in_.find(object)) known->all = true;
  if (touched_.count(object)) return;
  if (known(object) >= 0) hold(object);
  touched_.add(object);
}

bool Provenance::TouchedNames::has(PyObject* name) const {
  auto is_it = [&](const py::object& one) { return is_text(name, one.ptr()); };
  // A key of another kind may be equal to any name.
  return all || !PyUnicode_CheckExact(name) || std::any_of(names.begin(), names.end(), is_it);
}

void Provenance::touch_attribute(PyObject* object, PyObject* name) {
  PyObject* dict = namespace_of(object);
  if (!dict) return touch(object);
  replace_placed(object, name);
  TouchedNames* known = touched_in_.find(dict);
  bool there = touched_.count(dict);  // or it is another one at the address of one that has gone
  if (!known && there) return;
  if (!known || !there) {
    if (known_.find(object)) hold(object);
    touch(dict);
    touched_in_[dict] = TouchedNames{object, {}, false};
    known = touched_in_.find(dict);
  }
  if (known->has(name)) return;
  known->names.push_back(py::reinterpret_borrow<py::object>(name));
  touched_again_ += there && this->known(object) >= 0;
}

bool Provenance::is_written(PyObject* object) const {
  PyObject* dict = namespace_of(object);
  return touched_.count(object) || (dict && touched_.count(dict));
}

bool Provenance::touched_beyond_names(PyObject* object) const {
  if (touched_.empty()) return false;
  if (touched_.count(object)) return true;
  PyObject* dict = namespace_of(object);
  if (!dict || !touched_.count(dict)) return false;
  const TouchedNames* known = touched_in_.find(dict);
  return !known || known->all;
}

bool Provenance::touched_entry(PyObject* dict, PyObject* key) const {
  // What lay at the address of a dict may have gone.
  if (!touched_.count(dict)) return false;
  const TouchedNames* known = touched_in_.find(dict);
  return !known || known->has(key);
}

bool Provenance::touched_attribute(PyObject* object, PyObject* name) const {
  if (touched_.empty()) return false;
  PyObject* dict = namespace_of(object);
  return touched_.count(object) || (dict && touched_entry(dict, name));
}

void Provenance::touch(PyTypeObject* type, PyObject* name) {
  if (touched(type, name)) return;
  touched_names_.emplace_back(py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(type)),
                              py::reinterpret_borrow<py::object>(name));
}

bool Provenance::touched(PyTypeObject* type, PyObject* name) const {
  return std::any_of(touched_names_.begin(), touched_names_.end(), [&](const auto& one) {
    return is_text(name, one.second.ptr()) &&
           PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(one.first.ptr()));
  });
}

std::vector<int> Provenance::touch_changed(const GuardTree::Look& before) {
  GuardTree::Look now = look();
  std::vector<int> changed = GuardTree::changed(before, now);
  for (int node : changed) {
    const Guard& guard = (*tree_)[node];
    PyObject *owner = guard.parent >= 0 ? now.nodes[guard.parent] : nullptr, *value = now.nodes[node];
    if (value && guard.length >= 0) touch(value);
    if (!owner) continue;
    if (guard.access == Access::Cell)
      touch(PyTuple_GET_ITEM(PyFunction_GET_CLOSURE(owner), guard.index));
    else if (PyType_Check(owner) && guard.key)
      touch(reinterpret_cast<PyTypeObject*>(owner), guard.key.ptr());
    else
      touch(owner);
  }
  return changed;
}

// What the function has found at each node, NULL where that is no object with a node of its own.
std::vector<PyObject*> Provenance::objects_by_node() {
  std::vector<PyObject*> objects(tree_->size(), nullptr);
  known_.each([&](const void* object, int& node) {
    if (node >= 0) objects[static_cast<size_t>(node)] = static_cast<PyObject*>(const_cast<void*>(object));
  });
  for (size_t i = 0; i < objects.size(); ++i)
    if (!objects[i]) objects[i] = objects[static_cast<size_t>(tree_->first_of(static_cast<int>(i)))];
  return objects;
}

bool Provenance::any_lies_in(const std::vector<int>& nodes, c10::function_ref<bool(PyObject*)> such) {
  if (nodes.empty()) return false;
  std::vector<PyObject*> objects = objects_by_node();
  for (int node : nodes)
    for (; node >= 0; node = (*tree_)[node].parent)
      if (PyObject* object = objects[static_cast<size_t>(node)]; object && such(object)) return true;
  return false;
}

void Provenance::read_structures(c10::function_ref<py::object(PyObject*)> before) {
  if (std::exchange(structures_read_, true)) return;
  // A value that the signature leaves has a node where it was read.
  auto read = [&](int node, Access access, PyObject* key, Py_ssize_t index, PyObject* value) {
    if (!leaves_values_ || !Call::is_value(value)) read_child(node, access, key, index, value);
  };
  for (PyObject* root : std::vector<PyObject*>(roots_)) {
    auto node = static_cast<size_t>(known(root));
    if (node >= structural_.size() || structural_[node] != kChangeable) continue;
    const int owner = static_cast<int>(node);
    py::object held = before(root);
    tree_->expect_length(owner, held.ptr());
    for (Py_ssize_t i = 0; PyList_Check(held.ptr()) && i < PyList_GET_SIZE(held.ptr()); ++i)
      read(owner, Access::At, nullptr, i, PyList_GET_ITEM(held.ptr(), i));
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Check(held.ptr()) && PyDict_Next(held.ptr(), &at, &key, &value);)
      read(owner, Access::Item, key, -1, value);
  }
}

bool Provenance::goes_through_changed(PyObject* iterator) const {
  return has_stepped() && !touched_.empty() && goes_through(iterator) &&
         leads_to(iterator, [&](PyObject* one) { return touched_.count(one) && was_structural(known(one)); });
}

int Provenance::note_behind(const std::vector<int>& changed) {
  ++turns_;
  read_by_turn_.push_back(static_cast<int>(tree_->size()));
  if (changed.empty() && touched_.empty() && touched_names_.empty()) return turns_;
  std::vector<PyObject*> objects = objects_by_node();
  std::unordered_set<int> known_nodes, known_contents;
  for (const LeftBehind& one : behind_) (one.contents ? known_contents : known_nodes).insert(one.node);
  auto add = [&](int node, bool contents) {
    if ((contents ? known_contents : known_nodes).insert(node).second)
      behind_.push_back({node, turns_, contents});
  };
  std::unordered_set<int> moved(changed.begin(), changed.end());
  for (int node = 0; node < static_cast<int>(objects.size()); ++node) {
    const Guard& guard = (*tree_)[node];
    PyObject *owner = guard.parent >= 0 ? objects[guard.parent] : nullptr, *object = objects[node];
    bool contents = guard.length >= 0 && object && is_written(object);
    bool moves = moved.count(node) && !contents;
    if (owner && guard.access == Access::Cell)
      moves |= touched_.count(PyTuple_GET_ITEM(PyFunction_GET_CLOSURE(owner), guard.index));
    else if (owner && PyType_Check(owner) && guard.key)
      moves |= touched(reinterpret_cast<PyTypeObject*>(owner), guard.key.ptr());
    else if (owner && (guard.access == Access::Instance || guard.access == Access::Attribute))
      moves |= touched_attribute(owner, guard.key.ptr());
    else if (owner && guard.access == Access::Item)
      moves |= touched_entry(owner, guard.key.ptr());
    else if (owner && guard.access != Access::Type && guard.access != Access::Specials)
      moves |= is_written(owner);
    if (moves) add(node, false);
    if (contents) add(node, true);
  }
  return turns_;
}

void Provenance::keep_asking(int node) {
  behind_.erase(
      std::remove_if(behind_.begin(), behind_.end(), [&](const LeftBehind& one) { return one.node == node; }),
      behind_.end());
}

void Provenance::ask_so_far(int node) {
  for (LeftBehind& one : behind_)
    if (one.node == node) one.turn = turns_ + 1;
}

Behind Provenance::behind(int turn, const std::vector<int>& renamed) const {
  Behind all;
  for (const LeftBehind& one : behind_)
    if (one.turn <= turn && renamed[one.node] >= 0)
      (one.contents ? all.contents : all.nodes).push_back(renamed[one.node]);
  std::sort(all.nodes.begin(), all.nodes.end());
  std::sort(all.contents.begin(), all.contents.end());
  // What an argument holds may have been read before the step, too: the signature held it then.
  auto is_late = [&](int node) {
    return node >= read_by_turn_[static_cast<size_t>(turn) - 1] && !was_structural((*tree_)[node].parent);
  };
  for (int node = 0; turn > 0 && node < static_cast<int>(renamed.size()); ++node)
    if (!is_late(node)) all.first_late = std::max(all.first_late, renamed[static_cast<size_t>(node)] + 1);
  return all;
}

void Provenance::add_cell(PyObject* cell, int function, Py_ssize_t index) {
  auto [known, first] = cells_.emplace(cell, std::make_pair(function, index));
  if (first) hold(cell);
  if (known->first != function) shared_cells_.insert(cell);
}

bool Provenance::seen(const void* owner, PyObject* name) {
  if (asked(owner, name)) return true;
  held_names_.push_back(
      py::reinterpret_borrow<py::object>(name));  // a computed name must not lend its address to the next
  return false;
}

// ---------------------------------------------------------------- what the call makes
namespace {
PyObject* destructor_name() {
  static PyObject* name = PyUnicode_InternFromString("__del__");
  return name;
}
}  // namespace

// By its address: a weak reference would show. No object of before the call can lie where one of this call
// has lain.
void Provenance::note_fresh(PyObject* made) {
  note_made(made);
  if (!_PyType_Lookup(Py_TYPE(made), destructor_name())) return;
  fresh_[made] = weak_reference(made);
  ends_show_ = true;
}

// ---------------------------------------------------------------- what only the end can tell
bool Provenance::holds_alone(PyObject* object) const {
  auto is_it = [&](PyObject* one) { return one == object; };
  auto leads = [&](const py::object& one) { return leads_to(one.ptr(), is_it); };
  const std::vector<py::object>& touched = touched_.held();
  return known(object) < 0 && (std::any_of(held_.begin(), held_.end(), leads) ||
                               std::any_of(touched.begin(), touched.end(), leads));
}

namespace {
// An iterator that only the caller's stack holds was not there before, and goes when it is due.
bool passes_by(PyObject* object) {
  return goes_through(object) && Py_REFCNT(object) == 1 && !PyType_SUPPORTS_WEAKREFS(Py_TYPE(object));
}
}  // namespace

Provenance::Late* Provenance::remember_late(PyObject* object) {
  if (passes_by(object) || !late_seen_.insert(object)) return nullptr;
  Late late{
      object, weak_reference(object), {}, true, "", recorder_->place, recorder_->inside_other_operator()};
  if (!late.weak) {
    late.held = py::reinterpret_borrow<py::object>(object);
    auto shows = [&](PyObject* one) { return known(one) < 0 && runs_code_at_its_end(one); };
    ends_show_ = ends_show_ || leads_to(object, shows);
  }
  late_.push_back(std::move(late));
  return &late_.back();
}

bool Provenance::give_up_for_ends() {
  if (!adopted_.empty() && fails_for_adopted(false)) return true;
  if (PyObject* ends = touched_.next_end()) {
    recorder_->fail(say(reason::LateDestructor, type_name(ends)));
    return true;
  }
  if (!ends_show_) return false;
  for (const Late& late : late_) {
    if (!late.held || Py_REFCNT(late.object) > 1) continue;
    PyObject* ends = ends_with(late.object);
    if (!ends || known(ends) >= 0) continue;
    recorder_->place = late.place;
    recorder_->fail(say(reason::LateDestructor, type_name(ends)));
    return true;
  }
  return false;
}

void Provenance::remember_write(PyObject* object, Wording what) {
  Late* late = remember_late(object);
  if (!late) return;
  late->read = false;
  late->what = what();
}

// What hangs on an object that only weak references lead to must not be kept alive by having been looked at.
void Provenance::forget_what_goes() {
  std::vector<int> roots = tree_->roots();
  std::vector<char> lasts(roots.size(), 1);
  for (size_t i = 0; i < roots.size(); ++i)
    if (roots[i] == static_cast<int>(i) && (*tree_)[roots[i]].access == Access::Weak)
      lasts[i] = lasting(roots[i]);
  known_.each([&](const void*, int& node) {
    if (node >= 0 && roots[node] != node && !lasts[roots[node]]) node = -1;
  });
  for (auto& object : held_) {
    const int* node = known_.find(object.ptr());
    if (!node || *node < 0) object = py::object();
  }
}

void Provenance::judge_destructors(const std::vector<PyObject*>& returned) {
  fresh_.each([&](const void* key, py::object& weak) {
    auto* object = static_cast<PyObject*>(const_cast<void*>(key));
    if (!weak || !still_alive(weak, object) || !_PyType_Lookup(Py_TYPE(object), destructor_name())) return;
    // One that is part of a cycle: the collector destroys it later.
    if (std::find(returned.begin(), returned.end(), object) == returned.end())
      recorder_->fail(say(reason::LateDestructor, type_name(object)));
  });
}

namespace {
// One that code of torch which is not watched has made to call it by itself: it is in a cycle with its own
// cell, and holds nothing else but numbers and the like.
bool calls_itself(PyObject* object) {
  if (!PyFunction_Check(object) || !is_trusted_code(PyFunction_GET_CODE(object))) return false;
  PyObject* closure = PyFunction_GET_CLOSURE(object);
  bool itself = false;
  for (Py_ssize_t i = 0; closure && i < PyTuple_GET_SIZE(closure); ++i) {
    PyObject* value = PyCell_GET(PyTuple_GET_ITEM(closure, i));
    itself |= value == object;
    if (value && value != object && !is_immutable(value)) return false;
  }
  return itself;
}
}  // namespace

// Whether what was read or written before anything led to it has no guard at the end of the call, either:
// something may have led to it later, but what was read until then is forgotten.
bool Provenance::stays_unknown(const Late& late, const std::vector<PyObject*>& returned) const {
  if (!late.object) return false;
  bool gone = late.weak ? !still_alive(late.weak, late.object) : Py_REFCNT(late.object) <= 1;
  if (gone || is_fresh(late.object) || calls_itself(late.object)) return false;
  if (std::find(returned.begin(), returned.end(), late.object) != returned.end()) return false;
  bool lasts = late.read && PyFunction_Check(late.object) &&
               is_trusted_code(PyFunction_GET_CODE(late.object)) && !PyFunction_GET_CLOSURE(late.object);
  int node = lasts ? known(late.object) : -1;
  return node < 0 || !by_path(node);
}

// What the call has made may hold itself in a cycle, as functions inside functions and an object whose parts
// know it do, and the collector takes that away. What it was kept from while the recording was made is in its
// youngest generation.
void Provenance::collect_cycles(const std::vector<PyObject*>& returned) {
  bool any = std::any_of(late_.begin(), late_.end(),
                         [&](const Late& late) { return late.weak && stays_unknown(late, returned); });
  if (!any) return;
  static PyObject* const collector = from_module("gc", "collect").release().ptr();
  py::reinterpret_steal<py::object>(PyObject_CallFunction(collector, "i", 0));
}

void Provenance::judge_late(const std::vector<PyObject*>& returned) {
  // An iterator of C can only be remembered by being held, and the generators that it goes through with it.
  for (const Late& late : late_) {
    if (!late.held || !goes_through(late.object) || !leads_to(late.object, waits_to_end)) continue;
    recorder_->place = late.place;
    return recorder_->fail(say(reason::LateDestructor, "generator"));
  }
  // One that only another of them holds goes with it.
  for (bool progress = true; progress;) {
    progress = false;
    for (Late& late : late_) {
      if (!late.held || Py_REFCNT(late.object) > 1) continue;
      late.object = nullptr;
      late.held = py::object();
      progress = true;
    }
  }
  collect_cycles(returned);
  for (const Late& late : late_) {
    if (recorder_->failed()) return;
    if (!stays_unknown(late, returned)) continue;
    recorder_->place = late.place;
    std::string what = late.read ? say(reason::ReadsUnknown, type_name(late.object)) : late.what;
    late.in_operator ? recorder_->fail_in_operator(what) : recorder_->fail(what);
  }
}

void Provenance::keep_cell(PyObject* cell, const std::string& name) {
  PyObject* content = PyCell_GET(cell);
  if (const auto* place = this->cell(cell))
    read_child(place->first, Access::Cell, nullptr, place->second, content);
  else
    owner(content);
  kept_cells_.push_back({py::reinterpret_borrow<py::object>(cell),
                         py::reinterpret_borrow<py::object>(content), name, recorder_->place});
}

void Provenance::judge_cells() {
  for (const KeptCell& kept : kept_cells_) {
    if (PyCell_GET(kept.cell.ptr()) == kept.content.ptr()) continue;
    recorder_->place = kept.place;
    recorder_->fail("changes a variable of a function that it has handed to " + kept.name);
  }
}

namespace {
std::string word_for(PyObject* part) { return PyCell_Check(part) ? "variable" : type_name(part); }
}  // namespace

void Provenance::judge_handed_on() {
  judge_replaced();
  judge_cells();
  const HandedOn::Kept* kept = handed_on_.changed();
  if (!kept) return;
  recorder_->place = kept->place;
  recorder_->fail(say(reason::ChangesHandedOn, type_name(kept->object.ptr()), kept->step));
}

// Whether code of a step that was given these keeps one of them. What it has written to is held here, too.
bool Provenance::keeps(const HandedParts& parts, const std::vector<PyObject*>& by_result) const {
  auto is_ours = [this](PyObject* part) {
    return !PyType_SUPPORTS_WEAKREFS(Py_TYPE(part)) && touched_.count(part);
  };
  return parts.are_kept(is_ours, by_result);
}

bool Provenance::hand_on(const HandedParts& parts, const std::string& step, bool kept) {
  // What was changed, and is kept by nobody, goes when it is due.
  auto is_touched = [this](const auto& part) { return touched(part.first.ptr()); };
  bool changed = std::any_of(parts.all().begin(), parts.all().end(), is_touched);
  std::vector<PyObject*> shown;
  if (!changed || kept || recorder_->feeding())
    shown = handed_on_.keep(parts, step, recorder_->place);
  else
    for (const auto& [part, holders] : parts.all()) shown.push_back(part.ptr());
  return reaches_any(shown);
}

bool Provenance::reaches_any(const std::vector<PyObject*>& parts) const {
  if (parts.empty()) return false;
  WithinReach reach(below_, [this](PyObject* object) { return known(object) >= 0; });
  return std::any_of(parts.begin(), parts.end(),
                     [&](PyObject* part) { return PyCell_Check(part) || reach.has(part); });
}

void Provenance::replace(PyObject* own, PyObject* other) {
  replaced_.emplace_back(py::reinterpret_borrow<py::object>(own), py::reinterpret_borrow<py::object>(other));
  judges_replaced_ = true;
  handed_on_.exchange(own, other);
  for (py::object& held : held_)  // as C code was given it
    if (held.ptr() == own) held = py::reinterpret_borrow<py::object>(other);
  for (KeptCell& kept : kept_cells_)
    if (kept.content.ptr() == own) kept.content = py::reinterpret_borrow<py::object>(other);
  note_made(other);
  VariablesWith(own, below_).put_within(other, [this](PyObject* object) { return known(object) >= 0; });
}

namespace {
// What one of these holds that is no attribute of its class.
std::vector<PyObject*> held_by(PyObject* object) {
  std::vector<PyObject*> parts;
  if (py::object contents = contents_of(object))
    for (py::handle one : contents) parts.push_back(one.ptr());
  else
    parts = goes_with(object);
  if (PyFunction_Check(object))
    parts.insert(parts.end(), {PyFunction_GET_DEFAULTS(object), PyFunction_GET_KW_DEFAULTS(object)});
  return parts;
}
}  // namespace

// What lies on the stacks shows only where no code of C runs. Where somebody else evaluates frames, what a
// caller has passed on is held by its stack until the call returns.
bool Provenance::settle_now() {
  std::unordered_map<PyObject*, Py_ssize_t> passed;
  for (const auto& [own, other] : replaced_) {
    VariablesWith(own.ptr(), below_).put_on_stacks(other.ptr());
    for (Frame f = Frame::current(); f && f.address() != below_; f = f.previous())
      if (Py_ssize_t count = f.may_hold(own.ptr())) passed[own.ptr()] += count;
  }
  judges_replaced_ = !passed.empty();
  judge_replaced(std::move(passed));
  return !judges_replaced_;
}

// A tuple or the like that leads to none of the others is as good as another one of the same contents.
void Provenance::judge_replaced(std::unordered_map<PyObject*, Py_ssize_t> holders) {
  if (replaced_.empty()) return;
  // And those of them that hold others.
  for (const auto& [own, other] : replaced_) {
    ++holders[own.ptr()];
    for (PyObject* part : held_by(own.ptr())) ++holders[part];
  }
  std::unordered_map<PyObject*, Py_ssize_t> by_recording;
  for (const py::object& held : held_)
    if (held) ++by_recording[held.ptr()];
  for (const Late& late : late_)
    if (late.held) ++holders[late.held.ptr()], ++by_recording[late.held.ptr()];
  // What nobody but the recording holds by now, as C code was given it, leads nobody there.
  for (auto [held, count] : by_recording)
    if (Py_REFCNT(held) == count)
      for (PyObject* part : goes_with(held)) ++holders[part];
  auto is_one = [&](PyObject* object) {
    return std::any_of(replaced_.begin(), replaced_.end(),
                       [&](const auto& one) { return one.first.ptr() == object; });
  };
  for (const auto& [own, other] : replaced_) {
    if (Py_REFCNT(own.ptr()) <= holders[own.ptr()]) continue;
    std::vector<PyObject*> parts = held_by(own.ptr());
    if (!contents_of(own.ptr()) && std::none_of(parts.begin(), parts.end(), is_one)) continue;
    recorder_->diverge("a " + word_for(own.ptr()) +
                       " that a step keeps, and to which more than variables, containers and attributes led");
  }
}

void Provenance::renew_handed_on(const HandedParts& given, const std::string& step) {
  if (fails_for_adopted(true)) return;
  if (const HandedOn::Kept* kept = handed_on_.renew(given))
    recorder_->fail(say(reason::SharesHandedOn, word_for(kept->object.ptr()), kept->step, step));
}

std::string Provenance::against_leaving(PyObject* part) const {
  PyObject** dict = _PyObject_GetDictPtr(part);
  if (touched(part) || (dict && *dict && touched(*dict))) return say(reason::ReadsTouched, type_name(part));
  const std::string* keeper = handed_on_.keeper_of(part);
  return keeper ? say(reason::ReturnsHandedOn, type_name(part), *keeper) : "";
}

void Provenance::finish(PyObject* result) {
  judge_handed_on();
  if (auto kept = handed_on_.let_go()) {  // the others go when it is due
    recorder_->place = kept->place;
    recorder_->fail(
        say(reason::SharesHandedOn, word_for(kept->object.ptr()), kept->step, "another function"));
  }
  forget_what_goes();
  touched_.let_go();
  std::vector<PyObject*> returned;
  if (result) Tree::containers(result, &returned);
  judge_destructors(returned);
  judge_late(returned);
}

}  // namespace lazytrace
