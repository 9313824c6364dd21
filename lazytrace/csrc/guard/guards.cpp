#include "guard/guards.h"

#include <structmember.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "cpython/array_memory.h"
#include "cpython/carrier.h"
#include "cpython/class_entry.h"
#include "cpython/context_value.h"
#include "cpython/dict_proxy.h"
#include "cpython/dict_view.h"
#include "cpython/exhausted.h"
#include "cpython/frame.h"
#include "cpython/imports.h"
#include "cpython/lru_cache.h"
#include "cpython/objects.h"
#include "cpython/slots.h"
#include "cpython/thread_local.h"
#include "cpython/totals.h"
#include "cpython/values.h"
#include "cpython/warning_filters.h"
#include "guard/word_maker.h"
#include "program/value_tree.h"
#include "torch/autograd_graph.h"
#include "torch/frame_evaluator.h"
#include "torch/overrides.h"
#include "torch/switches.h"

namespace lazytrace {

py::object weak_reference(PyObject* object) {
  if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(object))) return {};
  PyObject* weak = PyWeakref_NewRef(object, nullptr);
  if (!weak) PyErr_Clear();
  return py::reinterpret_steal<py::object>(weak);
}

bool still_alive(const py::object& weak, PyObject* object) {
  return !weak || PyWeakref_GET_OBJECT(weak.ptr()) == object;
}

namespace {
py::tuple find_special_names(PyTypeObject* type) {
  static const auto* names = [] {
    auto* all = new std::vector<PyObject*>();
#define SPECIAL(name) all->push_back(PyUnicode_InternFromString("__" #name "__"));
#include "cpython/special_methods.def"
#undef SPECIAL
    return all;
  }();
  py::list found;
  PyTypeObject* base = c_base(type);
  for (PyObject* name : *names)
    if (_PyType_Lookup(type, name) != (base == type ? nullptr : _PyType_Lookup(base, name)))
      found.append(py::reinterpret_borrow<py::object>(name));
  return py::tuple(found);
}
}  // namespace

// A hundred names are looked up, at recordings and where guards are checked. A class has another version
// after each change of its own or of a base, and no other class ever has that one; classes of C do not
// change.
py::tuple special_names(PyTypeObject* type) {
  struct Known {
    PyTypeObject* type = nullptr;  // compared, never dereferenced
    unsigned version = 0;
    py::object names;
  };
  static auto* known = new std::array<Known, 256>();
  Known& at = (*known)[(reinterpret_cast<uintptr_t>(type) >> 5) % known->size()];
  bool valid = PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG);
  if (valid && at.type == type && at.version == type->tp_version_tag)
    return py::reinterpret_borrow<py::tuple>(at.names);
  py::tuple names = find_special_names(type);
  // The lookups give it a version where it had none.
  if (PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG)) at = {type, type->tp_version_tag, names};
  return names;
}

// ---------------------------------------------------------------- building
namespace {
// How many guards the last recording of this thread came to: the next one is often as large, and moving
// thousands of guards to larger memory again and again shows in its time.
thread_local size_t usual_size = 256;
}  // namespace

GuardTree::GuardTree() { nodes_.reserve(usual_size); }

int GuardTree::root(Py_ssize_t index) {
  bool made;
  return child(-1, Access::Root, nullptr, index, &made);
}

int GuardTree::weak(PyObject* object) {
  const int* found = weak_.find(object);
  if (found && still_alive(nodes_[*found].weak, object)) return *found;
  py::object reference = weak_reference(object);
  if (!reference) return -1;
  nodes_.emplace_back();
  Guard& guard = nodes_.back();
  guard.access = Access::Weak;
  guard.raw = object;
  guard.weak = std::move(reference);
  guard.shown = PyType_Check(object) ? reinterpret_cast<PyTypeObject*>(object)->tp_name : short_repr(object);
  return weak_[object] = static_cast<int>(nodes_.size()) - 1;
}

namespace {
bool same_key(const py::object& known, PyObject* key) {
  if (known.ptr() == key) return true;
  if (!known || !key || Py_TYPE(known.ptr()) != Py_TYPE(key)) return false;
  return is_key(key) && same_immutable(known.ptr(), key);
}
}  // namespace

namespace {
size_t bucket_of(int parent, Access access, PyObject* key, Py_ssize_t index) {
  Py_hash_t hash = key ? PyObject_Hash(key) : index;
  if (hash == -1) PyErr_Clear();
  size_t place = static_cast<size_t>(parent + 1) * 31 + static_cast<size_t>(access);
  return (place * 0x9E3779B97F4A7C15u ^ static_cast<size_t>(hash)) * 0x9E3779B97F4A7C15u >> 20;
}
}  // namespace

int GuardTree::find(int parent, Access access, PyObject* key, Py_ssize_t index) const {
  return find(bucket_of(parent, access, key, index), parent, access, key, index);
}

int GuardTree::find(size_t hash, int parent, Access access, PyObject* key, Py_ssize_t index) const {
  return index_.find(hash, [&](int node) {
    const Guard& known = nodes_[node];
    return known.parent == parent && known.access == access && known.index == index &&
           same_key(known.key, key);
  });
}

bool GuardTree::has_read_as_other(int parent, PyObject* key) const {
  return std::any_of(nodes_.begin(), nodes_.end(), [&](const Guard& known) {
    if (known.parent != parent || known.access != Access::Item) return false;
    return is_equal_key(known.key.ptr(), key) && !same_immutable(known.key.ptr(), key);
  });
}

int GuardTree::child(int parent, Access access, PyObject* key, Py_ssize_t index, bool* made) {
  size_t hash = bucket_of(parent, access, key, index);
  int known = find(hash, parent, access, key, index);
  *made = known < 0;
  if (known >= 0) return known;
  nodes_.emplace_back();
  Guard& guard = nodes_.back();
  guard.parent = parent;
  guard.access = access;
  guard.index = index;
  if (key) guard.key = py::reinterpret_borrow<py::object>(key);
  int node = static_cast<int>(nodes_.size()) - 1;
  index_.add(hash, node);
  return node;
}

namespace {
py::object plain_value(PyObject* v) {
  if (PyUnicode_Check(v)) return py::reinterpret_steal<py::object>(PyUnicode_FromObject(v));
  if (PyLong_Check(v))
    return py::reinterpret_steal<py::object>(_PyLong_Copy(reinterpret_cast<PyLongObject*>(v)));
  if (PyFloat_Check(v)) return py::reinterpret_steal<py::object>(PyFloat_FromDouble(PyFloat_AS_DOUBLE(v)));
  if (PyBytes_Check(v))
    return py::reinterpret_steal<py::object>(
        PyBytes_FromStringAndSize(PyBytes_AS_STRING(v), PyBytes_GET_SIZE(v)));
  if (PyComplex_Check(v))
    return py::reinterpret_steal<py::object>(PyComplex_FromCComplex(PyComplex_AsCComplex(v)));
  return {};
}
}  // namespace

namespace {
// Descriptors of C classes, operator.itemgetter, a match and its text, and the like: they cannot be
// referenced weakly, and hold no user object.
bool may_be_held(PyObject* v) {
  PyTypeObject* type = Py_TYPE(v);
  if (type == &PyMethodDescr_Type || type == &PyWrapperDescr_Type || type == &PyGetSetDescr_Type ||
      type == &PyClassMethodDescr_Type)
    return !is_python_class(reinterpret_cast<PyDescrObject*>(v)->d_type);
  const char* name = c_name(type);
  return std::strncmp(name, "operator.", 9) == 0 || std::strncmp(name, "torch.", 6) == 0 ||
         std::strcmp(name, "re.Match") == 0;
}

// Objects of C classes that are what they are; containers, bound methods and properties are their contents.
bool known_by_identity(PyObject* v) {
  if (PyType_Check(v) || PyModule_Check(v) || PyCFunction_Check(v)) return true;
  // A generator is only drawn from: another one of the same device will do.
  if (is_random_generator(v)) return false;
  // Another array of the same look will do, too: its values are read by steps.
  if (memory_of_array(v)) return false;
  // A step advances it, as any other iterator.
  if (PyGen_CheckExact(v)) return false;
  if (is_python_class(Py_TYPE(v)) || PyMethod_Check(v) || PyAnySet_Check(v) || Py_IS_TYPE(v, &PyODict_Type))
    return false;
  return PyType_SUPPORTS_WEAKREFS(Py_TYPE(v)) || may_be_held(v);
}
}  // namespace

namespace {
void expect_type(Guard* guard, PyObject* value) {
  guard->expect = Expect::Type;
  guard->raw = reinterpret_cast<PyObject*>(Py_TYPE(value));
  guard->weak = weak_reference(guard->raw);
  if (PyTuple_CheckExact(value)) guard->length = PyTuple_GET_SIZE(value);
}
}  // namespace

void GuardTree::expect(int node, PyObject* value) {
  Guard& guard = nodes_[node];
  if (!value) {
    guard.expect = Expect::Absent;
  } else if (is_tensor(value)) {
    guard.expect = Expect::Tensor;
    guard.tensor = std::make_unique<TensorMeta>(TensorMeta::of(THPVariable_Unpack(value)));
    guard.tensor_type = Py_TYPE(value);
    guard.attributes = has_attributes(value);
  } else if (is_enum_member(value)) {
    return expect_identity(node, value);  // holding it would hold its class, and the functions in it
  } else if (is_immutable(value)) {
    guard.expect = Expect::Constant;
    guard.value = py::reinterpret_borrow<py::object>(value);
  } else if (PyFunction_Check(value)) {
    guard.expect = Expect::Code;
    guard.value = py::reinterpret_borrow<py::object>(PyFunction_GET_CODE(value));
  } else if (known_by_identity(value)) {
    return expect_identity(node, value);
  }
  if (guard.expect == Expect::Anything) {
    expect_type(&guard, value);
    guard.plain = plain_value(value);
    if (std::strcmp(c_name(Py_TYPE(value)), "types.UnionType") == 0) expect_members(node, value);
  }
}

// A union cannot be referenced weakly, and may not be held: it is the classes in it.
void GuardTree::expect_members(int node, PyObject* united) {
  static PyObject* name = PyUnicode_InternFromString("__args__");
  py::object members = py::reinterpret_steal<py::object>(PyObject_GetAttr(united, name));
  if (!members) throw py::error_already_set();
  bool made;
  int tuple = child(node, Access::Attribute, name, -1, &made);
  if (made) expect(tuple, members.ptr());
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(members.ptr()); ++i) {
    int member = child(tuple, Access::At, nullptr, i, &made);
    if (made) expect(member, PyTuple_GET_ITEM(members.ptr(), i));
  }
}

void GuardTree::expect_identity(int node, PyObject* value) {
  Guard& guard = nodes_[node];
  guard.expect = Expect::Identity;
  guard.raw = value;
  guard.weak = weak_reference(value);
  // An object that has no weak references is held instead: C functions and descriptors, which hold no user
  // state.
  if (!guard.weak) guard.value = py::reinterpret_borrow<py::object>(value);
  guard.shown = PyType_Check(value) ? reinterpret_cast<PyTypeObject*>(value)->tp_name : short_repr(value);
}

namespace {
Py_ssize_t length_of(PyObject* v) {
  if (PyDict_Check(v)) return PyDict_GET_SIZE(v);
  if (PyList_Check(v)) return PyList_GET_SIZE(v);
  if (PyTuple_Check(v)) return PyTuple_GET_SIZE(v);
  if (PyAnySet_Check(v)) return PySet_GET_SIZE(v);
  return size_of_list(v);
}
}  // namespace

// Of what is made for the check that is nothing to ask then. A step that fills it changes what is read behind
// the step alone.
void GuardTree::expect_length(int node, PyObject* value) {
  if (nodes_[node].access == Access::Made) {
    bool made = false;
    int asked = child(node, Access::Length, nullptr, -1, &made);
    if (made) expect(asked, py::int_(length_of(value)).ptr());
    return;
  }
  nodes_[node].length = length_of(value);
}

std::vector<int> GuardTree::roots() const {
  std::vector<int> roots(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i)
    roots[i] = nodes_[i].parent < 0 ? static_cast<int>(i) : roots[nodes_[i].parent];
  return roots;
}

std::vector<py::object> GuardTree::made(const Values& values) const {
  std::vector<py::object> made;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].access != Access::Made) continue;
    auto which = static_cast<size_t>(nodes_[i].index);
    if (made.size() <= which) made.resize(which + 1);
    made[which] = py::reinterpret_borrow<py::object>(values.nodes[i]);
  }
  return made;
}

void GuardTree::put_made(const std::vector<py::object>& made, Values* values) const {
  if (made.empty()) return;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].access != Access::Made) continue;
    auto which = static_cast<size_t>(nodes_[i].index);
    if (which >= made.size() || !made[which]) continue;
    // Another way through the function may make another kind of thing there.
    if (!values->nodes[i] || Py_TYPE(values->nodes[i]) != Py_TYPE(made[which].ptr())) continue;
    values->nodes[i] = made[which].ptr();
    values->held.push_back(made[which]);
  }
}

std::vector<int> GuardTree::prune() {
  let_go_of_made();
  std::vector<int> renamed(nodes_.size(), -1);
  size_t kept = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    Guard& guard = nodes_[i];
    bool keyless = guard.access == Access::Entry && renamed[guard.index] < 0;
    bool gone = keyless || (guard.access == Access::Weak ? PyWeakref_GET_OBJECT(guard.weak.ptr()) == Py_None
                                                         : guard.parent >= 0 && renamed[guard.parent] < 0);
    if (gone) continue;
    if (guard.parent >= 0) guard.parent = renamed[guard.parent];
    if (guard.same >= 0) guard.same = renamed[guard.same];
    if (guard.access == Access::Entry) guard.index = renamed[guard.index];
    renamed[i] = static_cast<int>(kept);
    if (kept != i) nodes_[kept] = std::move(guard);
    ++kept;
  }
  nodes_.resize(kept);
  list_namespaces();
  for (int& node : distinct_) node = renamed[node];
  distinct_.erase(std::remove(distinct_.begin(), distinct_.end(), -1), distinct_.end());
  usual_size = std::max<size_t>(256, renamed.size() + renamed.size() / 8);
  if (nodes_.capacity() > 2 * kept + 64) nodes_.shrink_to_fit();
  index_ = {};
  weak_ = {};
  forget_failure();
  return renamed;
}

// The first node that has the namespace of an object stands for the object, too.
void GuardTree::list_namespaces() {
  std::vector<int> names_of(nodes_.size(), -1);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].access != Access::Namespace) continue;
    int& names = names_of[first_of(nodes_[i].parent)];
    if (names < 0) names = first_of(static_cast<int>(i));
  }
  objects_.resize(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    int first = first_of(static_cast<int>(i));
    objects_[i] = names_of[first] >= 0 ? names_of[first] : first;
  }
}

// ---------------------------------------------------------------- checking
namespace {
FunctionField function_field(PyObject* name) {
  static PyObject* defaults = PyUnicode_InternFromString("__defaults__");
  static PyObject* keywords = PyUnicode_InternFromString("__kwdefaults__");
  if (name == defaults) return FunctionField::Defaults;
  return name == keywords ? FunctionField::KeywordDefaults : FunctionField::None;
}

PyObject* field_of_function(PyObject* function, FunctionField field) {
  auto* f = reinterpret_cast<PyFunctionObject*>(function);
  PyObject* value = field == FunctionField::Defaults ? f->func_defaults : f->func_kwdefaults;
  return value ? value : Py_None;
}

// What a member of a C struct refers to (__func__, __self__, a slot, the mapping of a proxy), straight from
// its place, or null where a slot is empty; nothing where `name` is anything else. Borrowed from the owner.
// Neither a __getattr__ nor a __getattribute__ of the class runs: which of these there are is guarded.
std::optional<PyObject*> member_of(PyObject* owner, PyObject* name) {
  auto unless_null = [](PyObject* v) { return v ? std::make_optional(v) : std::nullopt; };
  if (Py_IS_TYPE(owner, &PyDictProxy_Type) && PyUnicode_CompareWithASCIIString(name, kProxied) == 0)
    return unless_null(dict_behind(owner));
  if (is_dict_view(owner) && PyUnicode_CompareWithASCIIString(name, kProxied) == 0)
    return unless_null(dict_of_view(owner));
  if (PyFunction_Check(owner)) {
    FunctionField field = function_field(name);
    if (field != FunctionField::None) return unless_null(field_of_function(owner, field));
  }
  PyTypeObject* type = Py_TYPE(owner);
  if (type->tp_getattro != PyObject_GenericGetAttr && !is_python_class(type)) return std::nullopt;
  PyObject* found = _PyType_Lookup(type, name);
  if (!found || !Py_IS_TYPE(found, &PyMemberDescr_Type)) return std::nullopt;
  const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(found)->d_member;
  if (member->type != T_OBJECT && member->type != T_OBJECT_EX) return std::nullopt;
  PyObject* held = *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(owner) + member->offset);
  return held || member->type == T_OBJECT_EX ? held : Py_None;
}
}  // namespace

namespace {

PyObject* entry_of_instance(PyObject* owner, PyObject* name) {
  PyObject** dict = _PyObject_GetDictPtr(owner);
  return dict && *dict ? PyDict_GetItemWithError(*dict, name) : nullptr;
}

PyObject* entry_of_class(Access access, PyObject* owner, PyObject* name) {
  if (!PyType_Check(owner)) return nullptr;
  auto* type = reinterpret_cast<PyTypeObject*>(owner);
  if (access == Access::Class) return class_entry(type, name, _PyType_Lookup(type, name));
  return PyDict_GetItemWithError(type->tp_dict, name);
}

PyObject* element_of(PyObject* owner, Py_ssize_t index) {
  if (!PyList_Check(owner) && !PyTuple_Check(owner)) return nullptr;
  return index < PySequence_Fast_GET_SIZE(owner) ? PySequence_Fast_GET_ITEM(owner, index) : nullptr;
}

PyObject* contents_of_cell(PyObject* owner, Py_ssize_t index) {
  PyObject* closure = PyFunction_Check(owner) ? PyFunction_GET_CLOSURE(owner) : nullptr;
  return closure && index < PyTuple_GET_SIZE(closure) ? PyCell_GET(PyTuple_GET_ITEM(closure, index))
                                                      : nullptr;
}

PyObject* abc_token() {
  static PyObject* token = from_module("abc", "get_cache_token").release().ptr();
  return PyObject_CallNoArgs(token);
}

// What is made for the reader; a new reference, or null.
PyObject* computed(const Guard& g, PyObject* owner) {
  switch (g.access) {
    case Access::Specials:
      return PyType_Check(owner) ? special_names(reinterpret_cast<PyTypeObject*>(owner)).release().ptr()
                                 : nullptr;
    case Access::AbcToken:
      return abc_token();
    case Access::RecursionLimit:
      return PyLong_FromLong(Py_GetRecursionLimit());
    case Access::FramesLeft:
      return PyBool_FromLong(frames_left() >= g.index);
    case Access::WarningFilters:
      return PyLong_FromLong(warning_filters_version());
    case Access::Kernels:
      return PyLong_FromUnsignedLongLong(kernel_registrations());
    case Access::FrameEvaluator:
      return frame_evaluator().release().ptr();
    case Access::Switch:
      return PyLong_FromLong(switch_now(static_cast<size_t>(g.index)));
    case Access::FromStart:
    case Access::FromEnd:
      return entry_of_list(owner, g.access == Access::FromEnd ? -g.index : g.index);
    case Access::Length: {
      Py_ssize_t size = PyDict_Check(owner) ? PyDict_GET_SIZE(owner) : size_of_list(owner);
      return size < 0 ? nullptr : PyLong_FromSsize_t(size);
    }
    case Access::Total:
      return total_of(g.key.ptr(), owner, g.index).release().ptr();
    case Access::Memory:
      return memory_of_array(owner).release().ptr();
    case Access::Made:
      return PyType_Check(g.key.ptr()) ? make_anew(reinterpret_cast<PyTypeObject*>(g.key.ptr()))
                                       : new_generator(g.key.ptr());
    case Access::Hooks:
      return is_tensor(owner) ? hooks_of(THPVariable_Unpack(owner), g.index == 1) : nullptr;
    default:
      return PyObject_GetAttr(owner, g.key.ptr());
  }
}

}  // namespace

PyObject* GuardTree::read(const Guard& g, PyObject* owner, PyObject* const* roots, size_t count,
                          Values* values) const {
  switch (g.access) {
    case Access::Root:
      return static_cast<size_t>(g.index) < count ? roots[g.index] : nullptr;
    case Access::Input: {
      if (!values->inputs || static_cast<size_t>(g.index) >= values->inputs->size()) return nullptr;
      return (*values->inputs)[g.index];
    }
    case Access::Weak: {
      PyObject* object = PyWeakref_GET_OBJECT(g.weak.ptr());
      return object == Py_None ? nullptr : object;
    }
    case Access::Instance:
      return entry_of_instance(owner, g.key.ptr());
    case Access::Namespace: {
      PyObject* dict = PyObject_GenericGetDict(owner, nullptr);
      Py_XDECREF(dict);  // the owner keeps it
      return dict;
    }
    case Access::Type:
      return reinterpret_cast<PyObject*>(Py_TYPE(owner));
    case Access::Class:
    case Access::Own:
      return entry_of_class(g.access, owner, g.key.ptr());
    case Access::Item:
      return PyDict_Check(owner) ? PyDict_GetItemWithError(owner, g.key.ptr()) : nullptr;
    case Access::Entry: {
      PyObject* key = values->nodes[static_cast<size_t>(g.index)];
      return key && PyDict_Check(owner) && is_key_by_identity(key) ? entry_of(owner, key) : nullptr;
    }
    case Access::At:
      return element_of(owner, g.index);
    case Access::Member:
      return PyAnySet_Check(owner) && PySet_Contains(owner, g.key.ptr()) == 1 ? g.key.ptr() : nullptr;
    case Access::KeyAt:
      return key_at(owner, g.index);
    case Access::ValueAt: {
      PyObject* value = nullptr;
      key_at(owner, g.index, &value);
      return value;
    }
    case Access::Cell:
      return contents_of_cell(owner, g.index);
    case Access::Globals:
      return PyFunction_Check(owner) ? PyFunction_GET_GLOBALS(owner) : nullptr;
    case Access::Handled:
      return handles_exception() ? Py_True : Py_False;
    case Access::Cached:
      return cached_result(owner, g.key.ptr());
    case Access::Self:
      return owner;
    case Access::Deref:
      return PyWeakref_Check(owner) ? PyWeakref_GET_OBJECT(owner) : nullptr;
    case Access::Exhausted:
      return is_exhausted(owner) ? Py_True : Py_False;
    case Access::Context:
      if (!PyContextVar_CheckExact(owner)) return nullptr;
      values->held.push_back(value_of_context(owner, g.index >= 0));
      return values->held.back().ptr();
    case Access::OfThread:
      if (!is_thread_local(owner)) return nullptr;
      values->held.push_back(attributes_in_thread(owner));
      return values->held.back().ptr();
    case Access::Attribute:
      if (std::optional<PyObject*> held = member_of(owner, g.key.ptr())) return *held;
      break;
    default:
      break;
  }
  PyObject* value = computed(g, owner);
  if (value) values->held.push_back(py::reinterpret_steal<py::object>(value));
  return value;
}

bool GuardTree::accepts_shape(const Guard& g, PyObject* value) const {
  if (length_of(value) != g.length) return false;
  if (!g.keys) return true;
  // Through the iterator of the C base: an OrderedDict has an order of its own.
  py::object iterator = py::reinterpret_steal<py::object>(c_base(Py_TYPE(value))->tp_iter(value));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(g.keys.ptr()); ++i) {
    py::object key = py::reinterpret_steal<py::object>(iterator ? PyIter_Next(iterator.ptr()) : nullptr);
    PyObject* expected = PyTuple_GET_ITEM(g.keys.ptr(), i);
    if (!key || (key.ptr() != expected && !(is_key(expected) && same_immutable(key.ptr(), expected))))
      return false;
  }
  return true;
}

bool same_kind_of_number(PyObject* a, PyObject* b) {
  if (PyFloat_CheckExact(a)) return PyFloat_CheckExact(b);
  if (is_followable_scalar(a)) return Py_IS_TYPE(b, Py_TYPE(a));
  if (!PyLong_CheckExact(a) || !PyLong_CheckExact(b)) return false;
  int overflow = 0, other = 0;
  PyLong_AsLongLongAndOverflow(a, &overflow);
  PyLong_AsLongLongAndOverflow(b, &other);
  return !overflow && !other;
}

namespace {
bool same_kind_of_value(PyObject* a, PyObject* b) {
  return (PyBool_Check(a) && PyBool_Check(b)) || same_kind_of_number(a, b);
}
}  // namespace

bool same_kind_of_numbers(PyObject* a, PyObject* b) {
  if (!PyTuple_CheckExact(a)) return same_kind_of_value(a, b);
  if (!PyTuple_CheckExact(b) || PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b) || !PyTuple_GET_SIZE(a))
    return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i)
    if (!same_kind_of_value(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
  return true;
}

void GuardTree::expect_items(int node, PyObject* tuple) {
  nodes_[node].value = py::object();
  expect_type(&nodes_[node], tuple);
}

bool GuardTree::accepts(const Guard& g, PyObject* value, const std::vector<PyObject*>& inputs,
                        const Values& values) const {
  switch (g.expect) {
    case Expect::Anything:
      break;
    case Expect::Absent:
      return false;
    case Expect::Constant:
      if (value != g.value.ptr() && !same_immutable(value, g.value.ptr()) &&
          !(g.loose && same_kind_of_value(g.value.ptr(), value) && !is_nan(value)))  // see same_immutable()
        return false;
      break;
    case Expect::Identity:
      if (value != g.raw || (g.weak && !still_alive(g.weak, g.raw))) return false;
      break;
    case Expect::Type:
      if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != g.raw || !still_alive(g.weak, g.raw)) return false;
      if (g.plain && !same_immutable(g.plain.ptr(), plain_value(value).ptr())) return false;
      break;
    case Expect::Code:
      if (!PyFunction_Check(value) || PyFunction_GET_CODE(value) != g.value.ptr()) return false;
      break;
    case Expect::Tensor: {
      if (Py_TYPE(value) != g.tensor_type || has_attributes(value) != g.attributes) return false;
      const at::Tensor& tensor = THPVariable_Unpack(value);
      if (!(g.loose ? g.tensor->matches_loosely(tensor) : g.tensor->matches(tensor))) return false;
      break;
    }
  }
  if (g.length >= 0 && !accepts_shape(g, value)) return false;
  if (g.same >= 0 && values.nodes[g.same] != value) return false;
  if (g.same_input >= 0 && static_cast<size_t>(g.same_input) < inputs.size() &&
      !(is_tensor(value) && THPVariable_Unpack(inputs[g.same_input]).is_same(THPVariable_Unpack(value))))
    return false;
  return true;
}

namespace {
// The dict or class that a guard reads an entry of, and its version; 0 where it has none.
GuardGroup namespace_of(Access access, PyObject* owner) {
  if (access == Access::Class || access == Access::Own || access == Access::Specials) {
    auto* type = reinterpret_cast<PyTypeObject*>(owner);
    bool valid = PyType_Check(owner) && PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG);
    return {owner, valid ? type->tp_version_tag : 0};
  }
  PyObject* dict = owner;
  if (access == Access::Instance) {
    PyObject** place = _PyObject_GetDictPtr(owner);
    dict = place ? *place : nullptr;
  }
  bool known = dict && PyDict_Check(dict);
  return {dict, known ? reinterpret_cast<PyDictObject*>(dict)->ma_version_tag : 0};
}
}  // namespace

void GuardTree::loosen() {
  for (Guard& g : nodes_) {
    if (g.expect == Expect::Tensor) g.loose = !is_parameter_class(g.tensor_type);
  }
}

void GuardTree::group() {
  // A node is the owner of four namespaces at most.
  auto kind_of = [](Access access) {
    switch (access) {
      case Access::Instance:
        return 0;
      case Access::Item:
        return 1;
      case Access::Class:
      case Access::Specials:
        return 2;
      case Access::Own:
        return 3;
      default:
        return -1;
    }
  };
  std::vector<int> known(nodes_.size() * 4, -1);
  for (Guard& g : nodes_) {
    g.steady = !g.plain && g.length < 0 && g.same < 0 && g.same_input < 0 && g.capture < 0 &&
               (g.expect == Expect::Anything || g.expect == Expect::Absent || g.expect == Expect::Constant ||
                g.expect == Expect::Identity);
    int kind = kind_of(g.access);
    if (kind < 0 || g.parent < 0) continue;
    int& group = known[static_cast<size_t>(g.parent) * 4 + static_cast<size_t>(kind)];
    if (group < 0) {
      group = static_cast<int>(groups_.size());
      groups_.emplace_back();
    }
    g.group = group;
  }
  seen_.assign(nodes_.size(), nullptr);
  plan();
}

// Whether a task says all of the guard. What fails it is asked again in full.
bool GuardTree::is_simple(const Guard& g) {
  if (g.plain || g.length >= 0 || g.same_input >= 0 || g.capture >= 0) return false;
  if (g.expect == Expect::Absent || g.expect == Expect::Tensor) return false;
  switch (g.access) {
    case Access::Weak:
      return g.expect == Expect::Anything;
    case Access::Namespace:
    case Access::Type:
    case Access::At:
    case Access::Cell:
    case Access::Globals:
    case Access::Self:
      return true;
    case Access::Attribute:
      return function_field(g.key.ptr()) != FunctionField::None;
    default:
      return g.group >= 0 && g.access != Access::Specials;
  }
}

GuardTree::Task GuardTree::task_of(const Guard& g, int node) {
  Task task{};
  task.kind = is_simple(g) ? Task::Kind::Simple : Task::Kind::Guard;
  task.access = g.access;
  task.expect = g.expect;
  task.grouped = g.group >= 0;
  task.node = node;
  task.parent = g.parent;
  task.group = g.group;
  task.same = g.same;
  task.index = g.access == Access::Attribute ? static_cast<Py_ssize_t>(function_field(g.key.ptr())) : g.index;
  task.expected = g.expect == Expect::Identity || g.expect == Expect::Type ? g.raw : g.value.ptr();
  task.weak = g.weak.ptr();
  return task;
}

bool GuardTree::asks_itself(const Guard& g) { return !g.steady && g.demand != Demand::Way; }

namespace {
// Whether it says more of which objects are written to than that of another node. A function of the same code
// may be another one, and an instance of a subclass of str, int, float or bytes has attributes.
bool may_be_written(const Guard& guard) {
  if (guard.same >= 0 || guard.access == Access::Self) return false;
  bool constant = guard.expect == Expect::Constant || guard.expect == Expect::Absent;
  return !constant || guard.plain || guard.demand != Demand::All;
}
}  // namespace

// Most namespaces are unchanged at most calls, and most guards on their entries are steady. The others are
// few, and most of these are on functions, whose code can be exchanged in place.
void GuardTree::plan() {
  tasks_.clear();
  tensors_.clear();
  writable_.clear();
  tasks_.reserve(nodes_.size() + groups_.size());
  begins_.assign(groups_.size() + 1, 0);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Guard& g = nodes_[i];
    int node = static_cast<int>(i);
    if (g.expect == Expect::Tensor && g.same < 0 && g.same_input < 0 && g.access != Access::Input)
      tensors_.push_back(node);
    if (g.demand == Demand::Nothing) continue;
    if (may_be_written(g)) writable_.push_back(node);
    Task task = task_of(g, node);
    if (g.group >= 0) {
      Task of_namespace = task;
      of_namespace.kind = Task::Kind::Namespace;
      if (begins_[g.group + 1]++ == 0) tasks_.push_back(of_namespace);
      if (!asks_itself(g)) continue;
    }
    tasks_.push_back(task);
  }
  list_members();
  list_leading();
}

void GuardTree::list_leading() {
  leads_.assign(nodes_.size(), 0);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Guard& g = nodes_[i];
    if (g.demand == Demand::Nothing) continue;
    if (g.parent >= 0) leads_[g.parent] = 1;
    if (g.same >= 0) leads_[g.same] = 1;
    if (g.access == Access::Entry) leads_[g.index] = 1;
    if (g.group >= 0 && asks_itself(g)) leads_[i] = 1;
  }
  quick_ = {};
  quick_.restless.assign(tasks_.size(), 0);
  quick_.roving.assign(nodes_.size(), 0);
}

// By group, in the order of the nodes; how many there are of each has been counted.
void GuardTree::list_members() {
  for (size_t group = 1; group < begins_.size(); ++group) begins_[group] += begins_[group - 1];
  members_.resize(static_cast<size_t>(begins_.back()));
  std::vector<int> next(begins_.begin(), begins_.end() - 1);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Guard& g = nodes_[i];
    if (g.demand != Demand::Nothing && g.group >= 0) members_[next[g.group]++] = static_cast<int>(i);
  }
}

void GuardTree::promise(Py_ssize_t first_argument, const std::vector<int>& needed) {
  std::vector<int> roots = this->roots();
  for (size_t i = 0; i < nodes_.size(); ++i) {
    Guard& g = nodes_[i];
    const Guard& root = nodes_[roots[i]];
    bool of_state =
        root.access == Access::Weak || (root.access == Access::Root && root.index < first_argument);
    g.demand = of_state && g.capture < 0 ? Demand::Nothing : Demand::All;
  }
  for (int node : needed) nodes_[node].demand = Demand::All;
  auto lead_to = [&](int node) {
    if (node >= 0 && nodes_[node].demand == Demand::Nothing) nodes_[node].demand = Demand::Way;
  };
  // What a node hangs on stands before it.
  for (size_t i = nodes_.size(); i-- > 0;) {
    const Guard& g = nodes_[i];
    if (g.demand == Demand::Nothing) continue;
    lead_to(g.parent);
    lead_to(g.same);
    if (g.access == Access::Entry) lead_to(static_cast<int>(g.index));
  }
  plan_again();
}

void GuardTree::doubt() {
  for (Guard& g : nodes_) g.demand = Demand::All;
  plan_again();
}

// What the last check has seen holds for other guards than those that are left.
void GuardTree::plan_again() {
  passed_ = false;
  groups_.assign(groups_.size(), {});
  seen_.assign(nodes_.size(), nullptr);
  plan();
}

size_t GuardTree::left_out() const {
  return static_cast<size_t>(std::count_if(nodes_.begin(), nodes_.end(),
                                           [](const Guard& g) { return g.demand == Demand::Nothing; }));
}

GuardTree::Standing GuardTree::standing(const Guard& g, PyObject* owner, std::vector<GuardGroup>* now) const {
  GuardGroup& found = (*now)[g.group];
  found = namespace_of(g.access, owner);
  const GuardGroup& before = groups_[g.group];
  return found.version && found.version == before.version && found.holder == before.holder
             ? Standing::Unchanged
             : Standing::Changed;
}

namespace {
// Some reads make objects. What a collection then would finalize could change what is being compared, of
// which nothing is held.
class NoCollection {
 public:
  NoCollection() : was_(PyGC_Disable()) {}
  ~NoCollection() {
    if (was_) PyGC_Enable();
  }
  NoCollection(const NoCollection&) = delete;
  NoCollection& operator=(const NoCollection&) = delete;

 private:
  int was_;
};
}  // namespace

int GuardTree::check(PyObject* const* roots, size_t count, const std::vector<PyObject*>& inputs,
                     Values* values) const {
  NoCollection while_comparing;
  values->inputs = &inputs;
  values->captures.clear();  // of a trace that was asked before
  if (failed_ >= 0 && fails_again(roots, count, inputs, values)) return failed_;
  // Without namespaces there is nothing to leave out.
  int failed = passed_ && !groups_.empty() ? check_changes(roots, count, inputs, values) : kChanged;
  if (failed == kChanged) failed = check_all(roots, count, inputs, values);
  failed_ = failed;
  if (failed >= 0) return failed;
  return distinct_.empty() ? -1 : merged(*values).first;
}

namespace {
// Whether it can be read of any object whatever, without Python code.
bool is_read_of_anything(Access access) {
  switch (access) {
    case Access::Root:
    case Access::Input:
    case Access::Weak:
    case Access::Instance:
    case Access::Type:
    case Access::Class:
    case Access::Own:
    case Access::Item:
    case Access::At:
    case Access::Cell:
    case Access::Globals:
    case Access::FromStart:
    case Access::FromEnd:
    case Access::Length:
      return true;
    default:
      return false;
  }
}
}  // namespace

// Whether the node that failed last does so once more, or one that leads to it: of many traces of one
// signature that differ in what state holds, each fails at once so. False where that hangs on other nodes.
bool GuardTree::fails_again(PyObject* const* roots, size_t count, const std::vector<PyObject*>& inputs,
                            Values* values) const {
  c10::SmallVector<int, 8> way;
  for (int node = failed_; node >= 0; node = nodes_[node].parent) {
    if (!is_read_of_anything(nodes_[node].access) || nodes_[node].same >= 0) return false;
    way.push_back(node);
  }
  PyObject* value = nullptr;
  for (auto at = way.rbegin(); at != way.rend(); ++at) {
    const Guard& g = nodes_[*at];
    if (g.demand == Demand::Nothing) return false;
    value = read(g, value, roots, count, values);
    if (PyErr_Occurred()) PyErr_Clear();
    if (!value || !accepts(g, value, inputs, *values)) return value || g.expect != Expect::Absent;
  }
  return false;
}

namespace {
void collect(const Guard& g, PyObject* value, std::vector<PyObject*>* captures) {
  if (captures->size() <= static_cast<size_t>(g.capture)) captures->resize(g.capture + 1);
  (*captures)[g.capture] = value;
}
}  // namespace

// The entries of a namespace that has changed, where nothing else asks for them.
bool GuardTree::read_again(const Task& task, PyObject* const* roots, size_t count,
                           const std::vector<PyObject*>& inputs, Values* values) const {
  PyObject* owner = values->nodes[task.parent];
  for (int at = begins_[task.group]; at < begins_[task.group + 1]; ++at) {
    int node = members_[at];
    const Guard& g = nodes_[node];
    PyObject* value = read(g, owner, roots, count, values);
    if (PyErr_Occurred()) PyErr_Clear();
    values->nodes[node] = value;
    if (asks_itself(g) || (!value && g.expect == Expect::Absent)) continue;
    if (g.same >= 0) return false;  // what it is compared with may not have been read again yet
    if (!value || !accepts(g, value, inputs, *values)) return false;
    if (g.access == Access::Specials) values->nodes[node] = Py_None;
  }
  return true;
}

bool GuardTree::holds(const Task& task, std::vector<PyObject*>* nodes) {
  PyObject* owner = task.parent >= 0 ? (*nodes)[task.parent] : nullptr;
  PyObject* value = nullptr;
  if (task.grouped) {
    value = (*nodes)[task.node];
  } else if (task.access == Access::Weak) {
    value = PyWeakref_GET_OBJECT(task.weak);
    if (value == Py_None) return false;
  } else if (task.access == Access::Attribute) {
    if (!PyFunction_Check(owner)) return false;
    value = field_of_function(owner, static_cast<FunctionField>(task.index));
  } else if (task.access == Access::Globals) {
    value = PyFunction_Check(owner) ? PyFunction_GET_GLOBALS(owner) : nullptr;
  } else if (task.access == Access::Namespace) {
    PyObject** dict = _PyObject_GetDictPtr(owner);
    value = dict ? *dict : nullptr;
  } else if (task.access == Access::At) {
    value = element_of(owner, task.index);
  } else if (task.access == Access::Cell) {
    value = contents_of_cell(owner, task.index);
  } else {
    value = task.access == Access::Type ? reinterpret_cast<PyObject*>(Py_TYPE(owner)) : owner;
  }
  if (!value) return false;
  PyObject* found = value;
  if (task.expect == Expect::Type) found = reinterpret_cast<PyObject*>(Py_TYPE(value));
  if (task.expect == Expect::Code) found = PyFunction_Check(value) ? PyFunction_GET_CODE(value) : nullptr;
  if (task.expect != Expect::Anything && found != task.expected) return false;
  if (task.weak && task.expect != Expect::Anything && PyWeakref_GET_OBJECT(task.weak) != task.expected)
    return false;
  if (task.same >= 0 && (*nodes)[task.same] != value) return false;
  (*nodes)[task.node] = value;
  return true;
}

int GuardTree::ask(const Task& task, Checking* checking) const {
  Values* values = checking->values;
  if (task.kind == Task::Kind::Simple && holds(task, &values->nodes)) return -1;
  PyObject* owner = task.parent >= 0 ? values->nodes[task.parent] : nullptr;
  if (task.kind == Task::Kind::Namespace) {
    GuardGroup now = namespace_of(task.access, owner);
    const GuardGroup& before = groups_[task.group];
    if (now.version && now.version == before.version && now.holder == before.holder) return -1;
    checking->changed.emplace_back(task.group, now);
    return read_again(task, checking->roots, checking->count, checking->inputs, values) ? -1 : kChanged;
  }
  const Guard& g = nodes_[task.node];
  PyObject*& value = values->nodes[task.node];
  if (g.group < 0) {
    value = read(g, owner, checking->roots, checking->count, values);
    if (PyErr_Occurred()) PyErr_Clear();
  }
  if (!value && g.expect == Expect::Absent) return -1;
  if (!value || !accepts(g, value, checking->inputs, *values)) return task.node;
  if (g.capture >= 0) collect(g, value, &values->captures);
  return -1;
}

// Whether a task has found another object than words behind it start from.
bool GuardTree::leads_elsewhere(const Task& task, const Values& values) const {
  auto is_other = [&](int node) {
    if (!leads_[node] || quick_.roving[node] || values.nodes[node] == quick_.nodes[node]) return false;
    quick_.roving[node] = 1;
    return true;
  };
  if (task.kind != Task::Kind::Namespace) return is_other(task.node);
  bool other = false;
  for (int at = begins_[task.group]; at < begins_[task.group + 1]; ++at) other |= is_other(members_[at]);
  return other;
}

int GuardTree::ask_quickly(Checking* checking, size_t* at) const {
  auto* known = reinterpret_cast<PyObject* const*>(quick_.nodes.data());
  checking->values->nodes.assign(known, known + quick_.nodes.size());
  size_t word = 0;
  for (const Stretch& stretch : quick_.stretches) {
    size_t other = quick_.first_other(word, stretch.words);
    if (other < stretch.words) {
      quick_.restless[quick_.words[other].task] = 1;
      quick_.drop();
      return -1;
    }
    word = stretch.words;
    *at = stretch.task;
    if (stretch.task == tasks_.size()) return -1;
    const Task& task = tasks_[(*at)++];
    size_t changed = checking->changed.size();
    int failed = ask(task, checking);
    if (failed != -1) return failed;
    bool same = task.kind == Task::Kind::Namespace && checking->changed.size() == changed;
    if (same || !leads_elsewhere(task, *checking->values)) continue;
    quick_.drop();
    return -1;
  }
  return -1;
}

// What may be otherwise than at the last check that passed: the entries of namespaces that have changed
// since, and what no namespace stands for. kChanged: all has to be looked at.
int GuardTree::check_changes(PyObject* const* roots, size_t count, const std::vector<PyObject*>& inputs,
                             Values* values) const {
  Checking checking{roots, count, inputs, values, {}};
  size_t at = 0;
  int failed = -1;
  if (quick_.ready)
    failed = ask_quickly(&checking, &at);
  else
    values->nodes = seen_;
  for (; failed == -1 && at < tasks_.size(); ++at) failed = ask(tasks_[at], &checking);
  if (failed != -1) return failed;
  for (auto& [group, now] : checking.changed) {
    groups_[group] = now;
    for (int member = begins_[group]; member < begins_[group + 1]; ++member) {
      int node = members_[member];
      seen_[node] = values->nodes[node];
      if (quick_.ready) quick_.nodes[node] = values->nodes[node];
    }
  }
  if (!quick_.ready && ++quick_.calm > quick_.patience) WordMaker(*this, values->nodes).make();
  return -1;
}

int GuardTree::check_all(PyObject* const* roots, size_t count, const std::vector<PyObject*>& inputs,
                         Values* values) const {
  values->nodes.assign(nodes_.size(), nullptr);
  std::vector<GuardGroup>& now = values->groups;
  std::vector<Standing>& standings = values->standings;
  now.resize(groups_.size());
  standings.assign(groups_.size(), Standing::Unknown);
  bool changed = false;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Guard& g = nodes_[i];
    if (g.demand == Demand::Nothing) continue;
    PyObject* owner = g.parent >= 0 ? values->nodes[g.parent] : nullptr;
    PyObject* value;
    Standing known = Standing::Changed;
    if (g.group >= 0) {
      Standing& group = standings[g.group];
      if (group == Standing::Unknown) group = standing(g, owner, &now);
      known = group;
    }
    if (known == Standing::Unchanged) {
      value = seen_[i];
      if (g.steady) {
        values->nodes[i] = value;
        continue;
      }
    } else {
      value = read(g, owner, roots, count, values);
      if (PyErr_Occurred()) PyErr_Clear();
      changed |= g.group >= 0;
    }
    if (!value) {
      if (g.expect == Expect::Absent) continue;
      return static_cast<int>(i);
    }
    if (!accepts(g, value, inputs, *values)) return static_cast<int>(i);
    // The names of special methods are made for the check; nothing hangs on them.
    values->nodes[i] = g.access == Access::Specials ? Py_None : value;
    if (g.capture >= 0) collect(g, value, &values->captures);
  }
  if (changed) {
    groups_ = now;
    seen_ = values->nodes;
    quick_.drop();
  }
  passed_ = true;
  return -1;
}

namespace {
// Which place a node is read from; none where it is not one that can be set.
std::optional<Effect> place_of(const Guard& guard, PyObject* owner) {
  Effect place;
  place.key = guard.key;
  place.index = guard.index;
  switch (guard.access) {
    case Access::Instance:
      place.kind = Effect::Kind::Attribute;
      return place;
    case Access::Item:
      place.kind = Effect::Kind::Item;
      return PyDict_Check(owner) ? std::optional<Effect>(place) : std::nullopt;
    case Access::At:
      place.kind = Effect::Kind::At;
      return PyList_Check(owner) ? std::optional<Effect>(place) : std::nullopt;
    case Access::Class:
    case Access::Own:
      place.kind = Effect::Kind::Class;
      return is_python_class(reinterpret_cast<PyTypeObject*>(owner)) ? std::optional<Effect>(place)
                                                                     : std::nullopt;
    case Access::Type:
      place.kind = Effect::Kind::Type;
      return place;
    case Access::Attribute:
      place.kind = Effect::Kind::Attribute;
      return is_slot(owner, guard.key.ptr()) ? std::optional<Effect>(place) : std::nullopt;
    case Access::Cell:
      place.kind = Effect::Kind::Cell;
      return place;
    default:
      return std::nullopt;
  }
}

// That by which a lookup on the class finds it, or else the class itself.
PyObject* class_that_has(PyObject* type, PyObject* name) {
  PyObject* order = reinterpret_cast<PyTypeObject*>(type)->tp_mro;
  for (Py_ssize_t i = 0; order && i < PyTuple_GET_SIZE(order); ++i) {
    PyObject* entries = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(order, i))->tp_dict;
    if (entries && PyDict_GetItemWithError(entries, name)) return PyTuple_GET_ITEM(order, i);
  }
  return type;
}

Effect place_of_kind(Effect::Kind kind) {
  Effect place;
  place.kind = kind;
  return place;
}

// Goes once more through nodes of which a check has found where they lead, and gives the first for which this
// holds, or -1. What follows from a node is that which was found, as the function has that, unless `differs`
// puts another into `now`.
template <typename F>
int first_where(const std::vector<Guard>& nodes, const GuardTree::Values& found,
                const std::vector<PyObject*>& inputs, F differs) {
  GuardTree::Values now;
  now.inputs = &inputs;
  now.nodes.assign(nodes.size(), nullptr);
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Guard& g = nodes[i];
    PyObject* owner = g.parent >= 0 ? now.nodes[g.parent] : nullptr;
    if (g.demand == Demand::Nothing || (g.parent >= 0 && !owner)) continue;
    now.nodes[i] = found.nodes[i];
    if (differs(i, owner, &now)) return static_cast<int>(i);
  }
  return -1;
}
}  // namespace

// Entries that were added lie behind the others; one that is gone is known where it was read, and looked for
// by nobody elsewhere.
py::object GuardTree::content_before(size_t node, PyObject* container, const Values& found) const {
  const Guard& guard = nodes_[node];
  auto read_there = [&](Access access, PyObject* key, Py_ssize_t index) -> PyObject* {
    for (size_t i = node + 1; i < nodes_.size(); ++i) {
      const Guard& one = nodes_[i];
      if (one.parent != static_cast<int>(node) || one.access != access) continue;
      if (key ? same_immutable(one.key.ptr(), key) : one.index == index) return found.nodes[i];
    }
    return nullptr;
  };
  auto is_read = [&](int owner, PyObject* key) {
    return std::any_of(nodes_.begin(), nodes_.end(), [&](const Guard& one) {
      return one.parent == owner && one.access == Access::Item && same_immutable(one.key.ptr(), key);
    });
  };
  if (PyList_Check(container)) {
    py::list before;
    for (Py_ssize_t i = 0; i < guard.length; ++i) {
      PyObject* one =
          i < PyList_GET_SIZE(container) ? PyList_GET_ITEM(container, i) : read_there(Access::At, nullptr, i);
      before.append(one ? py::handle(one) : py::none());
    }
    return std::move(before);
  }
  if (!PyDict_Check(container)) return {};
  py::dict before;
  auto keep = [&](py::handle key) {
    PyObject* one = PyDict_GetItemWithError(container, key.ptr());
    if (!one) one = read_there(Access::Item, key.ptr(), -1);
    before[key] = one ? py::handle(one) : py::none();
  };
  if (guard.keys) {
    for (py::handle key : guard.keys) {
      if (!is_immutable(key.ptr())) return {};
      keep(key);
    }
    return std::move(before);
  }
  // So many: those that were read, the first of the others, and as many more as are missing.
  before = content_of(container);
  auto size = static_cast<size_t>(guard.length);
  py::list keys(before);
  for (size_t i = keys.size(); i-- > 0 && before.size() > size;)
    if (!is_read(static_cast<int>(node), keys[i].ptr())) before.attr("pop")(keys[i]);
  for (size_t i = node + 1; i < nodes_.size(); ++i)
    if (nodes_[i].parent == static_cast<int>(node) && nodes_[i].access == Access::Item && found.nodes[i])
      keep(nodes_[i].key);
  while (before.size() < size) before[py::module_::import("builtins").attr("object")()] = py::none();
  return std::move(before);
}

// Of a list or deque. What nobody has read is whatever is there, or None.
py::object GuardTree::entries_before(int node, PyObject* container, const Values& found) const {
  py::list before = py::reinterpret_steal<py::list>(PySequence_List(container));
  auto each = [&](Access access, auto use) {
    for (size_t i = static_cast<size_t>(node) + 1; i < nodes_.size(); ++i)
      if (nodes_[i].parent == node && nodes_[i].access == access && found.nodes[i])
        use(static_cast<size_t>(nodes_[i].index), py::handle(found.nodes[i]));
  };
  each(Access::Length, [&](size_t, py::handle length) {
    while (before.size() < length.cast<size_t>()) before.append(py::none());
    while (before.size() > length.cast<size_t>()) before.attr("pop")();
  });
  auto put = [&](size_t at, py::handle entry) {
    while (before.size() <= at) before.append(py::none());
    before[at] = entry;
  };
  each(Access::At, put);
  each(Access::FromStart, put);
  each(Access::FromEnd, [&](size_t at, py::handle entry) {
    while (before.size() < at) before.insert(0, py::none());
    put(before.size() - at, entry);
  });
  return std::move(before);
}

namespace {
// The hooks that a tensor has had, where others were set or taken off since. Under which key one was that is
// gone nobody has asked.
bool show_hooks(const at::Tensor& tensor, bool accumulated, PyObject* before, EarlierState* all) {
  py::object now = py::reinterpret_steal<py::object>(hooks_of(tensor, accumulated));
  if (now && before &&
      same_content(py::list(now).ptr(), py::list(py::reinterpret_borrow<py::object>(before)).ptr()))
    return true;
  PyObject* dict = dict_of_hooks(tensor, accumulated);
  if (!dict || !PyDict_Check(dict) || !before) return false;
  py::dict content;
  for (py::handle hook : py::reinterpret_borrow<py::tuple>(before)) {
    PyObject *key, *one, *found = nullptr;
    for (Py_ssize_t at = 0; !found && PyDict_Next(dict, &at, &key, &one);)
      if (one == hook.ptr() && !content.contains(py::handle(key))) found = key;
    content[found ? py::reinterpret_borrow<py::object>(found)
                  : py::module_::import("builtins").attr("object")()] = hook;
  }
  return all->add(place_of_kind(Effect::Kind::Content), dict, std::move(content));
}
}  // namespace

bool GuardTree::earlier(const Values& found, PyObject* const* roots, size_t count,
                        const std::vector<PyObject*>& inputs, EarlierState* all) const {
  auto stays = [&](size_t i, PyObject* owner, Values* now) {
    const Guard& g = nodes_[i];
    if (g.access == Access::Made) return false;
    PyObject* before = found.nodes[i];
    size_t held = now->held.size();
    PyObject* value = read(g, owner, roots, count, now);
    if (PyErr_Occurred()) PyErr_Clear();
    if (g.access == Access::Hooks && owner)
      return !show_hooks(THPVariable_Unpack(owner), g.index == 1, before, all);
    bool made = !is_of_live_list(g.access) && (g.access == Access::Specials || now->held.size() > held);
    if (made) return false;  // check() asks
    bool constants = value && before && is_immutable(value) && is_immutable(before);
    if (value != before && !(constants && same_immutable(value, before))) {
      // Another entry of it may have shown that before.
      bool gone = g.access == Access::At && owner && PyList_Check(owner) && !value;
      if (gone || (is_of_live_list(g.access) && owner && !PyDict_Check(owner)))
        return !all->add(place_of_kind(Effect::Kind::Content), owner, entries_before(g.parent, owner, found));
      if (g.access == Access::Class && owner) owner = class_that_has(owner, g.key.ptr());
      std::optional<Effect> place = owner ? place_of(g, owner) : std::nullopt;
      if (!place || !all->add(std::move(*place), owner, py::reinterpret_borrow<py::object>(before)))
        return true;
    }
    if (before && g.expect == Expect::Type && g.raw != reinterpret_cast<PyObject*>(Py_TYPE(before)) &&
        !all->add(place_of_kind(Effect::Kind::Type), before, py::reinterpret_borrow<py::object>(g.raw)))
      return true;
    if (!before || g.length < 0 || accepts(g, before, inputs, *now)) return false;
    py::object content = content_before(i, before, found);
    return !content || !all->add(place_of_kind(Effect::Kind::Content), before, std::move(content));
  };
  return first_where(nodes_, found, inputs, stays) < 0;
}

int GuardTree::moved(const Values& found, PyObject* const* roots, size_t count,
                     const std::vector<PyObject*>& inputs, const Behind& behind) const {
  auto is_among = [](const std::vector<int>& nodes, size_t node) {
    return std::binary_search(nodes.begin(), nodes.end(), static_cast<int>(node));
  };
  auto differs = [&](size_t i, PyObject* owner, Values* now) {
    const Guard& g = nodes_[i];
    PyObject* before = found.nodes[i];
    bool holds_on = !is_among(behind.contents, i);
    if (is_among(behind.nodes, i))
      return before && g.length >= 0 && holds_on && !accepts(g, before, inputs, *now);
    if (g.access == Access::Made) return before && holds_on && !accepts(g, before, inputs, *now);
    size_t held = now->held.size();
    PyObject* value = read(g, owner, roots, count, now);
    if (PyErr_Occurred()) PyErr_Clear();
    if (!value || !before) return value != before;
    now->nodes[i] = g.access == Access::Specials ? Py_None : value;
    bool made = !is_of_live_list(g.access) &&
                (g.access == Access::Specials || now->held.size() > held);  // for whoever asks
    bool tensor = g.expect == Expect::Tensor, constant = g.access != Access::Specials && is_immutable(value);
    bool same = (made && !constant) || value == before;
    if (!same && (tensor || !is_immutable(value) || !same_immutable(value, before))) return true;
    // The steps of a program may change how those look that they are given, though not which class they are
    // of: another may do other things for each operator.
    bool given = tensor && (g.access == Access::Input || g.same_input >= 0 ||
                            nodes_[static_cast<size_t>(first_of(static_cast<int>(i)))].capture >= 0);
    if (given) return Py_TYPE(value) != g.tensor_type;
    return (tensor || !g.loose) && holds_on && !accepts(g, value, inputs, *now);
  };
  return first_where(nodes_, found, inputs, differs);
}

GuardTree::Look GuardTree::look(PyObject* const* roots, size_t count,
                                const std::vector<PyObject*>& inputs) const {
  Values values;
  values.inputs = &inputs;
  values.nodes.assign(nodes_.size(), nullptr);
  Look look;
  look.holds.assign(nodes_.size(), 0);
  look.made.assign(nodes_.size(), 0);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Guard& g = nodes_[i];
    PyObject* owner = g.parent >= 0 ? values.nodes[g.parent] : nullptr;
    if (g.parent >= 0 && !owner) continue;
    size_t held = values.held.size();
    bool is_here = g.access == Access::Made && g.value;
    PyObject* value = is_here ? g.value.ptr() : read(g, owner, roots, count, &values);
    if (PyErr_Occurred()) PyErr_Clear();
    look.holds[i] = value ? accepts(g, value, inputs, values) : g.expect == Expect::Absent;
    look.made[i] = values.held.size() > held && !is_of_live_list(g.access);
    values.nodes[i] = value;
    values.held.push_back(py::reinterpret_borrow<py::object>(value));
  }
  look.nodes = std::move(values.nodes);
  look.held = std::move(values.held);
  return look;
}

std::vector<int> GuardTree::changed(const Look& before, const Look& now) {
  std::vector<int> found;
  for (size_t i = 0; i < before.nodes.size(); ++i) {
    PyObject *was = before.nodes[i], *is = now.nodes[i];
    bool same = was == is || before.made[i] || now.made[i] ||
                (was && is && is_immutable(was) && is_immutable(is) && same_immutable(was, is));
    if (!same || (before.holds[i] && !now.holds[i])) found.push_back(static_cast<int>(i));
  }
  return found;
}

std::pair<int, int> GuardTree::merged(const Values& values) const {
  // Most recordings compare a few objects.
  if (distinct_.size() <= 16) {
    for (size_t i = 0; i < distinct_.size(); ++i)
      for (size_t k = 0; k < i; ++k)
        if (values.nodes[distinct_[i]] == values.nodes[distinct_[k]] && values.nodes[distinct_[i]])
          return {distinct_[i], distinct_[k]};
    return {-1, -1};
  }
  std::vector<std::pair<PyObject*, int>> objects;
  for (int node : distinct_)
    if (values.nodes[node]) objects.emplace_back(values.nodes[node], node);
  std::sort(objects.begin(), objects.end());
  for (size_t i = 1; i < objects.size(); ++i)
    if (objects[i].first == objects[i - 1].first) return {objects[i].second, objects[i - 1].second};
  return {-1, -1};
}

std::vector<int> GuardTree::walk(PyObject* const* roots, size_t count, const std::vector<PyObject*>& inputs,
                                 Values* all) const {
  Values& values = *all;
  values.nodes.assign(nodes_.size(), nullptr);
  values.inputs = &inputs;
  std::vector<int> failed;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Guard& g = nodes_[i];
    if (g.demand == Demand::Nothing) continue;
    PyObject* owner = g.parent >= 0 ? values.nodes[g.parent] : nullptr;
    if (g.parent >= 0 && !owner) continue;
    PyObject* value = read(g, owner, roots, count, &values);
    PyErr_Clear();
    bool holds = value ? accepts(g, value, inputs, values) : g.expect == Expect::Absent;
    if (holds)
      values.nodes[i] = value;
    else
      failed.push_back(static_cast<int>(i));
  }
  if (failed.empty())
    if (int node = merged(values).first; node >= 0) failed.push_back(node);
  return failed;
}

int GuardTree::node_of_capture(size_t slot) const {
  for (size_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i].capture == static_cast<int>(slot)) return static_cast<int>(i);
  return -1;
}

int GuardTree::node_of_input(int reg) const {
  for (size_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i].access == Access::Input && nodes_[i].index == reg) return static_cast<int>(i);
  return -1;
}

// ---------------------------------------------------------------- explaining
std::string GuardTree::attribute_path(int owner, const std::string& name,
                                      const std::vector<std::string>& names) const {
  const Guard& g = nodes_[owner];
  bool module = g.access == Access::Weak && PyModule_Check(PyWeakref_GET_OBJECT(g.weak.ptr()));
  return module ? "global " + name : path(owner, names) + "." + name;
}

namespace {

// The name of a cell of a function, from the code that the guard on the function holds.
std::string name_of_cell(const Guard& function, Py_ssize_t index) {
  PyObject* code = function.value.ptr();
  if (code && PyCode_Check(code)) {
    PyObject* names = PyCode_GetFreevars(reinterpret_cast<PyCodeObject*>(code));
    py::object held = py::reinterpret_steal<py::object>(names);
    if (names) return text_of(PyTuple_GET_ITEM(names, index));
    PyErr_Clear();
  }
  return "closure cell " + std::to_string(index);
}

// Of what hangs on nothing.
std::string name_of_state(Access access, Py_ssize_t index) {
  switch (access) {
    case Access::AbcToken:
      return "classes registered with an ABC";
    case Access::RecursionLimit:
      return "sys.getrecursionlimit()";
    case Access::FramesLeft:
      return "how many frames the limit of recursion leaves";
    case Access::WarningFilters:
      return "the filters of warnings";
    case Access::Kernels:
      return "the kernels that Python has given operators";
    case Access::FrameEvaluator:
      return "torch's frame evaluator";
    case Access::Switch:
      return switch_name(static_cast<size_t>(index));
    case Access::Handled:
      return "whether an exception is handled around the call";
    default:
      return "?";
  }
}

}  // namespace

std::string GuardTree::path(int node, const std::vector<std::string>& names) const {
  return path_of(nodes_[node], names);
}

GuardTree::Paths GuardTree::paths(const Values& values, const std::vector<std::string>& names) const {
  Paths paths;
  for (size_t i = 0; i < nodes_.size() && i < values.nodes.size(); ++i) {
    int parent = nodes_[i].parent;
    PyObject* owner = parent < 0 ? nullptr : values.nodes[static_cast<size_t>(parent)];
    if (!owner) continue;
    std::string begin = path(parent, names), whole = path(static_cast<int>(i), names);
    if (whole.compare(0, begin.size(), begin) != 0) continue;
    paths[owner].emplace(whole.substr(begin.size()), whole);
    paths[owner].emplace("", begin);
  }
  return paths;
}

std::string GuardTree::path_below(int parent, Access access, PyObject* key, Py_ssize_t index,
                                  const std::vector<std::string>& names) const {
  Guard place;
  place.parent = parent;
  place.access = access;
  place.index = index;
  if (key) place.key = py::reinterpret_borrow<py::object>(key);
  return path_of(place, names);
}

std::string GuardTree::path_of(const Guard& g, const std::vector<std::string>& names) const {
  std::string name = g.key ? text_of(g.key.ptr()) : "";
  auto parent = [&] { return path(g.parent, names); };
  switch (g.access) {
    case Access::Root:
      return static_cast<size_t>(g.index) < names.size() ? names[g.index]
                                                         : "argument " + std::to_string(g.index);
    case Access::Input:
      return "tensor argument " + std::to_string(g.index);
    case Access::Weak:
      return g.shown;
    case Access::Instance:
    case Access::Attribute:
    case Access::Own:
      return attribute_path(g.parent, name, names);
    case Access::Class:
      if (nodes_[g.parent].access == Access::Type) return path(nodes_[g.parent].parent, names) + "." + name;
      return parent() + "." + name;
    case Access::Specials:
      return "special methods of " + parent();
    case Access::Namespace:
    case Access::OfThread:
      return parent() + ".__dict__";
    case Access::Made:
      if (!PyType_Check(g.key.ptr())) return "a torch.Generator of its own";
      return std::string("a ") + reinterpret_cast<PyTypeObject*>(g.key.ptr())->tp_name + " of its own";
    case Access::Type:
      return "type(" + parent() + ")";
    case Access::Item:
      return item_path(g, names);
    case Access::Entry:
      return parent() + "[" + path(static_cast<int>(g.index), names) + "]";
    case Access::At:
      return parent() + "[" + std::to_string(g.index) + "]";
    case Access::FromStart:
      return parent() + "[" + std::to_string(g.index) + "]";
    case Access::FromEnd:
      return parent() + "[-" + std::to_string(g.index) + "]";
    case Access::Length:
      return "len(" + parent() + ")";
    case Access::Total:
      return name + "(" + parent() + (g.index ? "[" + std::to_string(g.index) + ":])" : ")");
    case Access::Member:
      return short_repr(g.key.ptr()) + " in " + parent();
    case Access::KeyAt:
      return "key " + std::to_string(g.index) + " of " + parent();
    case Access::ValueAt:
      return "value " + std::to_string(g.index) + " of " + parent();
    case Access::Globals:
      return parent() + ".__globals__";
    case Access::Cached:
      return parent() + "(" + short_repr(g.key.ptr()) + ")";
    case Access::Self:
    case Access::Memory:
      return parent();
    case Access::Deref:
      return parent() + "()";
    case Access::Exhausted:
      return "the end of " + parent();
    case Access::Hooks:
      return parent() + (g.index ? "._post_accumulate_grad_hooks" : "._backward_hooks");
    case Access::Context:
      return parent() + ".get()";
    case Access::Cell:
      return name_of_cell(nodes_[g.parent], g.index);
    default:
      return name_of_state(g.access, g.index);
  }
}

// Parameters, buffers and modules of a module as a person would write them.
std::string GuardTree::item_path(const Guard& g, const std::vector<std::string>& names) const {
  const Guard& p = nodes_[g.parent];
  std::string name = text_of(g.key.ptr());
  if (p.access == Access::Globals) return "global " + name;
  if (p.access == Access::Namespace || p.access == Access::OfThread)
    return attribute_path(p.parent, name, names);
  std::string holder = p.key ? text_of(p.key.ptr()) : "";
  bool in_namespace = p.access == Access::Item && nodes_[p.parent].access == Access::Namespace;
  bool of_module = holder == "_modules" || holder == "_parameters" || holder == "_buffers";
  if ((p.access != Access::Instance && !in_namespace) || !of_module)
    return path(g.parent, names) + "[" + short_repr(g.key.ptr()) + "]";
  std::string owner = path(in_namespace ? nodes_[p.parent].parent : p.parent, names);
  bool number = !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
  return number ? owner + "[" + name + "]" : owner + "." + name;
}

// In words, what a guard expects; worked out when a person asks, for a recording makes hundreds of guards.
std::string GuardTree::expected(const Guard& g) const {
  if (g.expect == Expect::Constant && g.loose) return "any " + type_name(g.value.ptr());
  if (g.expect == Expect::Constant) return short_repr(g.value.ptr());
  if (g.expect == Expect::Type && still_alive(g.weak, g.raw)) {
    auto* type = reinterpret_cast<PyHeapTypeObject*>(g.raw);
    bool named = PyType_HasFeature(&type->ht_type, Py_TPFLAGS_HEAPTYPE);
    return "a " + (named ? text_of(type->ht_qualname) : std::string(type->ht_type.tp_name));
  }
  return g.shown;
}

std::vector<std::string> GuardTree::differing_numbers(PyObject* const* roots, size_t count,
                                                      const std::vector<PyObject*>& inputs,
                                                      const std::vector<std::string>& names,
                                                      const std::vector<int>& rewritten) const {
  Values values;
  std::vector<std::string> found;
  for (int node : walk(roots, count, inputs, &values)) {
    const Guard& g = nodes_[node];
    PyObject* owner = g.parent >= 0 ? values.nodes[g.parent] : nullptr;
    if ((!owner && g.access != Access::Root) || g.loose) continue;
    PyObject* value = read(g, owner, roots, count, &values);
    PyErr_Clear();
    bool number = value && can_be_loose(node) && same_kind_of_numbers(g.value.ptr(), value);
    bool within = number && nodes_[g.parent].raw == reinterpret_cast<PyObject*>(&PyList_Type) &&
                  std::find(rewritten.begin(), rewritten.end(), g.parent) != rewritten.end();
    bool longer = value && g.length >= 0 && PyList_CheckExact(value) && !number && g.expect == Expect::Type &&
                  reinterpret_cast<PyObject*>(&PyList_Type) == g.raw && length_of(value) != g.length;
    if (number || longer) found.push_back(path(within ? g.parent : node, names));
    for (int other : number && !within ? alike(node) : std::vector<int>())
      found.push_back(path(other, names));
  }
  return found;
}

// The same entry of the other rows of a list, or the other truth values of one: what a list of transitions
// has brought once it will bring again.
std::vector<int> GuardTree::alike(int node) const {
  const Guard& g = nodes_[node];
  auto is_of_list = [&](const Guard& entry) {
    return entry.access == Access::At &&
           nodes_[entry.parent].raw == reinterpret_cast<PyObject*>(&PyList_Type);
  };
  bool flag = is_of_list(g) && PyBool_Check(g.value.ptr());
  const Guard* row = g.access == Access::At && nodes_[g.parent].parent >= 0 ? &nodes_[g.parent] : nullptr;
  if (!flag && !(row && is_of_list(*row))) return {};
  std::vector<int> found;
  for (int other = 0; other < static_cast<int>(nodes_.size()); ++other) {
    const Guard& one = nodes_[other];
    if (one.access != Access::At || other == node || one.loose || !can_be_loose(other)) continue;
    if (!same_kind_of_numbers(g.value.ptr(), one.value.ptr())) continue;
    const Guard& parent = nodes_[one.parent];
    bool of_row =
        !flag && one.index == g.index && parent.access == Access::At && parent.parent == row->parent;
    if (of_row || (flag && one.parent == g.parent)) found.push_back(other);
  }
  return found;
}

bool GuardTree::can_be_loose(int node) const {
  const Guard& g = nodes_[node];
  bool place = g.access == Access::Instance || g.access == Access::Item || g.access == Access::At ||
               g.access == Access::Cell || g.access == Access::Attribute || g.access == Access::Own ||
               is_of_live_list(g.access);
  if (!place || g.expect != Expect::Constant) return false;
  // Under a name a truth value says which way a function goes: a recording for each is what it comes to.
  bool entry = g.access == Access::At || is_of_live_list(g.access);
  return (entry || !PyBool_Check(g.value.ptr())) && same_kind_of_numbers(g.value.ptr(), g.value.ptr());
}

bool GuardTree::differs_in_size(int node, PyObject* const* roots, size_t count,
                                const std::vector<PyObject*>& inputs) const {
  const Guard& g = nodes_[node];
  if (g.expect != Expect::Tensor || is_parameter_class(g.tensor_type)) return false;
  Values values;
  walk(roots, count, inputs, &values);
  PyObject* owner = g.parent >= 0 ? values.nodes[g.parent] : nullptr;
  PyObject* value = g.parent >= 0 && !owner ? nullptr : read(g, owner, roots, count, &values);
  PyErr_Clear();
  return value && Py_TYPE(value) == g.tensor_type && g.tensor->matches_loosely(THPVariable_Unpack(value));
}

py::tuple GuardTree::explain(int node, PyObject* const* roots, size_t count,
                             const std::vector<std::string>& names) const {
  Values values;
  const std::vector<PyObject*> none;
  walk(roots, count, none, &values);
  return explain(node, roots, count, names, &values);
}

py::list GuardTree::explain_all(PyObject* const* roots, size_t count, const std::vector<PyObject*>& inputs,
                                const std::vector<std::string>& names) const {
  Values values;
  py::list rows;
  for (int node : walk(roots, count, inputs, &values))
    rows.append(explain(node, roots, count, names, &values));
  return rows;
}

namespace {
const char* attributed(bool attributes) {
  return attributes ? "a tensor with attributes of its own" : "a tensor without";
}
}  // namespace

py::tuple GuardTree::explain(int node, PyObject* const* roots, size_t count,
                             const std::vector<std::string>& names, Values* all) const {
  const Guard& g = nodes_[node];
  std::string where = path(node, names), before = expected(g), after, remark;
  Values& values = *all;
  if (auto [one, other] = merged(values); one == node)
    return py::make_tuple(where, "another object than " + path(other, names), "the same object", remark);
  PyObject* owner = g.parent >= 0 ? values.nodes[g.parent] : nullptr;
  PyObject* value = g.parent >= 0 && !owner ? nullptr : read(g, owner, roots, count, &values);
  PyErr_Clear();
  if (g.expect == Expect::Absent) {
    // What the instance did not have, its class may.
    PyObject* of_class =
        g.access == Access::Instance && owner ? _PyType_Lookup(Py_TYPE(owner), g.key.ptr()) : nullptr;
    before = of_class && is_immutable(of_class) ? short_repr(of_class) : "nothing";
  }
  if (!value) {
    after = g.access == Access::Weak ? "gone" : "nothing";
    if (before.empty()) before = "something";
  } else if (g.expect == Expect::Tensor && is_tensor(value)) {
    const at::Tensor& tensor = THPVariable_Unpack(value);
    std::string difference = g.loose ? g.tensor->loose_difference(tensor) : g.tensor->difference(tensor);
    if (difference.empty() && !tensor.is_leaf()) difference = "is_leaf True -> False";  // it has no .grad
    if (difference.empty())
      difference =
          has_hooks(tensor) ? "hooks none -> set" : "grad another -> " + TensorMeta::of(tensor.grad()).text();
    size_t space = difference.find(' '), arrow = difference.find(" -> ");
    if (arrow != std::string::npos && space < arrow) {
      where += "." + difference.substr(0, space);
      before = difference.substr(space + 1, arrow - space - 1);
      after = difference.substr(arrow + 4);
    } else if (bool now = has_attributes(value); now != g.attributes) {
      before = attributed(g.attributes), after = attributed(now);
    } else {
      before = "a tensor", after = "another tensor";
    }
  } else if (g.expect == Expect::Type && reinterpret_cast<PyObject*>(Py_TYPE(value)) == g.raw &&
             g.length >= 0) {
    where = "len(" + where + ")";
    before = std::to_string(g.length), after = std::to_string(length_of(value));
    if (before == after) where = "keys of " + path(node, names), before = "those", after = "others";
  } else if (g.expect == Expect::Type) {
    after = is_immutable(value) ? short_repr(value) : "a " + type_name(value);
  } else if (g.expect == Expect::Code) {
    before = "a function", after = PyFunction_Check(value) ? "another function" : short_repr(value);
  } else {
    after = short_repr(value);
    if (g.expect == Expect::Tensor) before = g.tensor->text();
    if (before == after) after = "another " + after;
  }
  if (g.access == Access::Cell && g.parent >= 0) {
    const Guard& p = nodes_[g.parent];
    PyObject* code = p.value && PyCode_Check(p.value.ptr()) ? p.value.ptr() : nullptr;
    if (code) {
      auto* c = reinterpret_cast<PyCodeObject*>(code);
      std::string file = text_of(c->co_filename);
      remark = "closure of " + text_of(c->co_name) + ", " + file.substr(file.rfind('/') + 1) + ":" +
               std::to_string(c->co_firstlineno);
    }
  }
  return py::make_tuple(where, before, after, remark);
}

}  // namespace lazytrace
