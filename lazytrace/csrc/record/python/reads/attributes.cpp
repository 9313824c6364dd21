#include "record/python/reads/attributes.h"

#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "cpython/frame.h"
#include "cpython/objects.h"
#include "cpython/text_carrier.h"
#include "cpython/thread_local.h"
#include "cpython/values.h"
#include "support/reasons.h"
#include "torch/autograd_graph.h"

namespace lazytrace {

enum class TensorState { Plain, Requires, Hidden, Leaf, GradFn, Data, Gradient, Version, Address };

// What the observer keeps in mind of an attribute that it has seen read. Good for one recording.
struct Memo {
  enum class Kind : uint8_t {
    Nothing,
    Itself,     // a module or a class that was asked itself: nothing
    Settled,    // of an instance: all that is read is its class
    Instance,   // the class, and the entry of the instance
    Namespace,  // the class, and the instance's __dict__
    Tensor,     // the class, of a tensor
    Method,     // the same, and what may have been put on the tensor itself
    Super,      // the classes behind `start` in the order of the class
  } kind = Kind::Nothing;
  uint64_t recording = 0;
  const void* object =
      nullptr;  // the class, of an instance; the __dict__ of a module; a class that was asked
  uint64_t version = 0;
  py::object name;
  PyObject* descriptor = nullptr;  // borrowed: what the class has under the name, in this version
  const void* start = nullptr;     // Super: the class that the search begins behind
};

namespace {

// Attributes that torch computes of a tensor, by interned name. Those that are not listed (`_base`,
// `grad_dtype`) say what it keeps beside the values, and may change while neither shape nor dtype
// does.
TensorState tensor_state(PyObject* name, PyObject* descriptor) {
  static const auto* known = [] {
    auto* table = new std::unordered_map<PyObject*, TensorState>();
    for (const char* look : {"T",
                             "H",
                             "mT",
                             "mH",
                             "shape",
                             "dtype",
                             "layout",
                             "device",
                             "ndim",
                             "nbytes",
                             "itemsize",
                             "real",
                             "imag",
                             "is_cuda",
                             "is_mtia",
                             "is_cpu",
                             "is_xla",
                             "is_xpu",
                             "is_ipu",
                             "is_sparse",
                             "is_sparse_csr",
                             "is_mkldnn",
                             "is_mps",
                             "is_maia",
                             "is_vulkan",
                             "is_quantized",
                             "is_meta",
                             "is_nested",
                             "__class__",
                             "__dict__",
                             "_has_symbolic_sizes_strides",
                             "_python_dispatch"})
      (*table)[PyUnicode_InternFromString(look)] = TensorState::Plain;
    (*table)[PyUnicode_InternFromString("requires_grad")] = TensorState::Requires;
    (*table)[PyUnicode_InternFromString("is_leaf")] = TensorState::Leaf;
    (*table)[PyUnicode_InternFromString("grad_fn")] = TensorState::GradFn;
    (*table)[PyUnicode_InternFromString("data")] = TensorState::Data;
    (*table)[PyUnicode_InternFromString("grad")] = TensorState::Gradient;
    (*table)[PyUnicode_InternFromString("_version")] = TensorState::Version;
    (*table)[PyUnicode_InternFromString("_cdata")] = TensorState::Address;
    return table;
  }();
  py::object held = py::reinterpret_borrow<py::object>(name);
  PyObject* interned = held.release().ptr();
  PyUnicode_InternInPlace(&interned);
  auto found = known->find(interned);
  Py_DECREF(interned);
  if (found != known->end()) return found->second;
  // Methods are called, what was put on a tensor is read, and what Python code computes is watched.
  return descriptor && Py_IS_TYPE(descriptor, &PyGetSetDescr_Type) ? TensorState::Hidden : TensorState::Plain;
}

// What read_attribute() will do again for the next object of this class, or for this module or class.
Memo::Kind kind_of(PyObject* object, PyObject* name, PyObject* descriptor) {
  if (PyModule_Check(object) || PyType_Check(object)) return Memo::Kind::Itself;
  PyTypeObject* type = Py_TYPE(object);
  bool data = descriptor && Py_TYPE(descriptor)->tp_descr_set;
  if (is_tensor(object)) {
    if (tensor_state(name, descriptor) != TensorState::Plain) return Memo::Kind::Nothing;
    return data ? Memo::Kind::Tensor : Memo::Kind::Method;
  }
  if (Py_IS_TYPE(object, &PySuper_Type)) return Memo::Kind::Nothing;
  if (overrides_getattribute(type)) return Memo::Kind::Settled;
  if (!generic_lookup(type)) return Memo::Kind::Nothing;
  if (!data) return Memo::Kind::Instance;
  if (Py_IS_TYPE(descriptor, &PyProperty_Type)) return Memo::Kind::Settled;
  bool computed = Py_IS_TYPE(descriptor, &PyGetSetDescr_Type);
  return computed && text_of(name) == "__dict__" ? Memo::Kind::Namespace : Memo::Kind::Nothing;
}

uint64_t version_of(PyTypeObject* type) {
  return PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0;
}

// One for each (object, name) of the last recordings, whoever comes last: asked and filled with the GIL.
Memo& memo_of(const void* object, PyObject* name) {
  static auto* memos = new std::array<Memo, 1024>();
  size_t place = spread(reinterpret_cast<uintptr_t>(object)) * 31 + spread(reinterpret_cast<uintptr_t>(name));
  return (*memos)[place & (memos->size() - 1)];
}

}  // namespace

PyObject* AttributeReads::read_attribute(PyObject* object, PyObject* name) {
  PyTypeObject* type = Py_TYPE(object);
  if (is_tensor(object)) return read_tensor_attribute(object, name), nullptr;
  if (PyModule_Check(object)) return read_module_attribute(object, name), nullptr;
  if (PyType_Check(object)) return read_type_attribute(object, name), nullptr;
  if (Py_IS_TYPE(object, &PySuper_Type)) return read_super_attribute(object, name), nullptr;
  if (overrides_getattribute(type)) return classes_->read_special(object, "__getattribute__"), nullptr;
  if (is_text(object)) return nullptr;
  if (unseen_->is_made(object)) {  // what becomes of a method shows where it is called
    if (!Unseen::is_method(name)) recorder_->fail(say(reason::ComputesWithArray));
    return nullptr;
  }
  if (PyMethod_Check(object)) return read_method_attribute(object, name);
  if (is_known_of_array(object, name)) return nullptr;
  if (!generic_lookup(type)) return read_strange_attribute(object, name), nullptr;
  PyObject* descriptor = _PyType_Lookup(type, name);
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
    classes_->read_special(object, "__getattribute__");
    classes_->read_class(type, name, descriptor);
  } else {
    classes_->know_static(descriptor);
  }
  if (descriptor && Py_TYPE(descriptor)->tp_descr_set)
    return read_data_descriptor(object, name, descriptor), nullptr;
  return read_instance(object, name, descriptor);
}

PyObject* AttributeReads::read_plainly(PyObject* object, PyObject* name) {
  PyObject* descriptor = _PyType_Lookup(Py_TYPE(object), name);
  if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE))
    classes_->read_class(Py_TYPE(object), name, descriptor);
  if (descriptor && Py_TYPE(descriptor)->tp_descr_set)
    return read_data_descriptor(object, name, descriptor), nullptr;
  return read_instance(object, name, descriptor);
}

bool AttributeReads::is_known_of_array(PyObject* object, PyObject* name) const {
  return unseen_->is_given(object) && Unseen::is_said_by_look(name);
}

// Of a threading.local. Its methods are found behind what this thread has set.
void AttributeReads::read_of_thread(PyObject* object, PyObject* name) {
  int node = provenance_->owner(object);
  py::object dict = attributes_in_thread(object);
  PyObject* descriptor = _PyType_Lookup(Py_TYPE(object), name);
  bool whole = text_of(name) == "__dict__";
  bool computed = !whole && descriptor && Py_TYPE(descriptor)->tp_descr_set;
  if (node < 0 || !dict || computed || provenance_->touched(object))
    return recorder_->fail("reads ." + text_of(name) + " of a " + type_name(object));
  if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE)) {
    classes_->read_special(object, "__getattribute__");
    classes_->read_class(Py_TYPE(object), name, descriptor);
  }
  provenance_->read_child(node, Access::OfThread, nullptr, -1, dict.ptr());
  if (!whole) containers_->read_dict_item(dict.ptr(), name);
}

// Of an object whose class of C looks attributes up in its own way.
void AttributeReads::read_strange_attribute(PyObject* object, PyObject* name) {
  if (is_numpy_array(object)) return recorder_->fail("reads ." + text_of(name) + " of a numpy array");
  if (is_thread_local(object)) return read_of_thread(object, name);
  if (is_alias_of_types(object)) return read_part_of_alias(object, name);
  recorder_->fail("reads ." + text_of(name) + " of a " + type_name(object));
}

// `(int | str).__args__`, of what never changes.
void AttributeReads::read_part_of_alias(PyObject* alias, PyObject* name) {
  static PyObject *const parts = PyUnicode_InternFromString("__args__"), *const origin =
                                                                             PyUnicode_InternFromString(
                                                                                 "__origin__");
  bool whole = is_text(name, parts);
  if (!whole && !(is_text(name, origin) && Py_IS_TYPE(alias, &Py_GenericAliasType)))
    return recorder_->fail("reads ." + text_of(name) + " of a " + type_name(alias));
  py::object found = py::reinterpret_steal<py::object>(PyObject_GetAttr(alias, name));
  if (!found) throw py::error_already_set();
  if (int node = provenance_->owner(alias); node >= 0) {
    int part = provenance_->read_node(node, Access::Attribute, name, -1, found.ptr()).first;
    if (whole) provenance_->know_first(found.ptr(), part);  // a guard on a union has asked for it
  }
  if (!whole) return;
  containers_->read_whole(found.ptr());
  int tuple = provenance_->known(found.ptr());
  for (Py_ssize_t i = 0; tuple >= 0 && i < PyTuple_GET_SIZE(found.ptr()); ++i) {
    PyObject* part = PyTuple_GET_ITEM(found.ptr(), i);
    provenance_->know_first(part, provenance_->read_node(tuple, Access::At, nullptr, i, part).first);
  }
}

// A bound method has its function and its object, which are read wherever it is found. All else that it is
// asked for it asks its function.
PyObject* AttributeReads::read_method_attribute(PyObject* method, PyObject* name) {
  static PyObject* const documentation = PyUnicode_InternFromString("__doc__");
  provenance_->owner(method);
  if (_PyType_Lookup(&PyMethod_Type, name) && !is_text(name, documentation)) return nullptr;
  return read_attribute(PyMethod_GET_FUNCTION(method), name);
}

void AttributeReads::read_copied_attributes(PyObject* function) {
  static PyObject* const kNames[] = {
      PyUnicode_InternFromString("__module__"), PyUnicode_InternFromString("__name__"),
      PyUnicode_InternFromString("__qualname__"), PyUnicode_InternFromString("__doc__")};
  if (is_immutable(function) || provenance_->is_fresh(function)) return;
  for (PyObject* name : kNames) read_attribute(function, name);
  read_abstractness(function);
}

void AttributeReads::read_abstractness(PyObject* function) {
  static PyObject* const name = PyUnicode_InternFromString("__isabstractmethod__");
  if (!is_immutable(function) && !provenance_->is_fresh(function)) read_attribute(function, name);
}

// A member of an enum is a value, and has attributes of its own.
int AttributeReads::node_of(PyObject* object) {
  return is_enum_member(object) ? provenance_->member_node(object) : provenance_->owner(object);
}

void AttributeReads::read_namespace(PyObject* object) {
  int node = node_of(object);
  PyObject* dict = PyObject_GenericGetDict(object, nullptr);
  if (node >= 0 && dict) provenance_->read_child(node, Access::Namespace, nullptr, -1, dict);
  Py_XDECREF(dict);
  PyErr_Clear();
}

void AttributeReads::read_entry_of(PyObject* object, int node, PyObject* name, PyObject* value) {
  provenance_->read_operand(node, Access::Instance, name, -1, value);
  if (provenance_->touched(object)) provenance_->ask_so_far(tree_->find(node, Access::Instance, name, -1));
}

// By another way to the same namespace: that it is the same one.
void AttributeReads::read_way_to_written(PyObject* object, PyObject* dict) {
  int own = provenance_->owner_of_namespace(object, dict);
  std::vector<int> others;
  for (const Writes::Write& write : log_->all())
    if (write.container.is(py::handle(dict)) && write.effect.owner != own)
      others.push_back(write.effect.kind == Effect::Kind::Attribute ? write.effect.owner : -1);
  if (!others.empty()) read_namespace(object);
  for (int owner : others)
    if (owner >= 0) provenance_->read_child(owner, Access::Namespace, nullptr, -1, dict);
}

PyObject* AttributeReads::read_instance(PyObject* object, PyObject* name, PyObject* descriptor) {
  if (late_->read_attribute(object, name)) return nullptr;
  PyObject** dict = _PyObject_GetDictPtr(object);
  PyObject* value = dict && *dict ? PyDict_GetItemWithError(*dict, name) : nullptr;
  // A method of the class is what it was, as each replay finds out behind the call that changed the object.
  bool method = dict && *dict && !value && descriptor && PyFunction_Check(descriptor);
  if (method && provenance_->touched(object)) {
    int node = provenance_->known(object);
    if (node >= 0)
      provenance_->keep_asking(provenance_->read_node(node, Access::Instance, name, -1, nullptr).first);
    return nullptr;
  }
  bool has = dict && *dict, wrote = has && log_->wrote(*dict, name);
  if (has && !wrote && provenance_->touched_attribute(object, name))
    return recorder_->fail(say(reason::ReadsTouched, type_name(object))), nullptr;
  if (wrote) provenance_->meets_hidden(*dict);
  bool gone = wrote && !value && log_->is_out(*dict, name);
  if (wrote && (value || gone)) read_way_to_written(object, *dict);
  if (wrote && value) return nullptr;
  bool entry = dict && *dict && !is_enum_member(object);
  int node = entry ? provenance_->owner_of_namespace(object, *dict) : dict ? node_of(object) : -1;
  if (node >= 0 && !gone) read_entry_of(object, node, name, value);
  if (value || descriptor) return nullptr;
  classes_->read_special(object, "__getattr__");
  static PyObject* fallback = PyUnicode_InternFromString("__getattr__");
  PyObject* getter = _PyType_Lookup(Py_TYPE(object), fallback);
  return getter && !PyFunction_Check(getter) && !PyType_Check(getter) ? getter : nullptr;
}

namespace {
// The place of a field of a named tuple, or null.
py::object field_of(PyObject* descriptor) {
  if (std::strcmp(c_name(Py_TYPE(descriptor)), "_collections._tuplegetter") != 0) return {};
  auto parts = py::reinterpret_steal<py::object>(PyObject_CallMethod(descriptor, "__reduce__", nullptr));
  if (!parts) throw py::error_already_set();
  return py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(PyTuple_GET_ITEM(parts.ptr(), 1), 0));
}
}  // namespace

namespace {
// What a step that advances an iterator changes of it, and no instruction shows: where a generator waits, how
// many lines a reader has read.
bool moves_unseen(PyObject* object) {
  if (PyFrame_Check(object)) return Frame::rests(object);
  return PyIter_Check(object) && !is_python_class(Py_TYPE(object));
}
}  // namespace

void AttributeReads::read_data_descriptor(PyObject* object, PyObject* name, PyObject* descriptor) {
  if (is_property(descriptor)) {
    if (!gets_by_python(descriptor)) recorder_->fail("reads ." + text_of(name) + ", a property made in C");
    if (Py_IS_TYPE(descriptor, &PyProperty_Type)) return;
  }
  bool member = Py_IS_TYPE(descriptor, &PyMemberDescr_Type),
       computed = Py_IS_TYPE(descriptor, &PyGetSetDescr_Type);
  if (!member && !computed) {
    // A Python descriptor shows itself in its __get__; one written in C must be known.
    if (PyType_HasFeature(Py_TYPE(descriptor), Py_TPFLAGS_HEAPTYPE))
      return classes_->read_special(descriptor, "__get__");
    if (py::object field = field_of(descriptor))
      if (PyTuple_Check(object)) return containers_->read_sequence_item(object, field.ptr());
    if (PyTuple_Check(object)) return containers_->read_whole(object);
    return recorder_->fail("reads ." + text_of(name) + " of a " + type_name(object));
  }
  static PyObject *const dict = PyUnicode_InternFromString("__dict__"),
                         *const locals = PyUnicode_InternFromString("f_locals"),
                         *const arguments = PyUnicode_InternFromString("args"),
                         *const context = PyUnicode_InternFromString("__context__"),
                         *const weak = PyUnicode_InternFromString("__weakref__"),
                         *const kind = PyUnicode_InternFromString("__class__");
  if (is_text(name, dict)) return read_namespace(object);
  // Arguments that the code never reads are no part of the key.
  if (PyFrame_Check(object) && is_text(name, locals)) return recorder_->fail("reads .f_locals of a frame");
  if (PyExceptionInstance_Check(object) && is_text(name, arguments)) provenance_->read_names_in_errors();
  if (PyExceptionInstance_Check(object) && is_text(name, context)) provenance_->read_handled();
  if (is_text(name, weak)) return recorder_->fail("reads the weak references of a " + type_name(object));
  int node = node_of(object);
  if (is_text(name, kind)) {
    provenance_->class_node(Py_TYPE(object));
    return node >= 0 ? provenance_->read_child(node, Access::Type, nullptr, -1,
                                               reinterpret_cast<PyObject*>(Py_TYPE(object)))
                     : void();
  }
  py::object value = py::reinterpret_steal<py::object>(
      Py_TYPE(descriptor)->tp_descr_get(descriptor, object, reinterpret_cast<PyObject*>(Py_TYPE(object))));
  if (!value) PyErr_Clear();
  if (computed && value && !is_immutable(value.ptr()) && !is_tensor(value.ptr())) {
    // One that is made at each access shows memory that no guard knows.
    py::object again = py::reinterpret_steal<py::object>(
        Py_TYPE(descriptor)->tp_descr_get(descriptor, object, reinterpret_cast<PyObject*>(Py_TYPE(object))));
    if (!again) PyErr_Clear();
    if (again.ptr() != value.ptr())
      return recorder_->fail("reads ." + text_of(name) + " of a " + type_name(object));
    // A function makes its __annotations__ when they are asked for.
    if (node >= 0 && PyDict_CheckExact(value.ptr())) provenance_->note_older(value.ptr());
  }
  if (node < 0 || (member && log_->wrote(object, name))) return;
  if (provenance_->has_stepped() && moves_unseen(object))
    return late_->read_slot(object, name) ? void()
                                          : recorder_->fail(say(reason::ReadsTouched, type_name(object)));
  // What it puts on the stack is what the slot holds.
  provenance_->read_operand(node, Access::Attribute, name, -1, value.ptr());
}

void AttributeReads::read_type_attribute(PyObject* object, PyObject* name) {
  auto* type = reinterpret_cast<PyTypeObject*>(object);
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) provenance_->owner(object);
  PyTypeObject* meta = Py_TYPE(object);
  PyObject* meta_value = _PyType_Lookup(meta, name);
  classes_->read_special(object, "__getattribute__");
  if (meta->tp_getattro != PyType_Type.tp_getattro && overrides_getattribute(meta)) return;
  bool data = meta_value && Py_TYPE(meta_value)->tp_descr_set;
  // One made in Python shows itself in its __get__.
  if (data && is_python_class(Py_TYPE(meta_value))) return classes_->read_class(meta, name, meta_value);
  if (data && !Py_IS_TYPE(meta_value, &PyProperty_Type)) {
    if (text_of(name) == "__dict__") return recorder_->fail("reads the __dict__ of a class");
    py::object found =
        py::reinterpret_steal<py::object>(PyObject_GetAttr(object, name));  // __name__, __mro__ and the like
    if (!found) return PyErr_Clear();
    if (int node = is_python_class(type) ? provenance_->owner(object) : -1; node >= 0) {
      if (PyDict_CheckExact(found.ptr())) provenance_->note_older(found.ptr());
      provenance_->read_child(node, Access::Attribute, name, -1, found.ptr());
    }
    return PyTuple_Check(found.ptr()) ? containers_->read_whole(found.ptr()) : void();
  }
  if (PyType_HasFeature(meta, Py_TPFLAGS_HEAPTYPE)) classes_->read_class(meta, name, meta_value);
  PyObject* value = _PyType_Lookup(type, name);
  if (read_own_number(type, name, value)) return;
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE))
    classes_->read_class(type, name, value);
  else
    classes_->know_static(value);
  if (!value && !meta_value) classes_->read_special(object, "__getattr__");
}

// A number that the class has of its own is followed as one of an instance is: `Node.count += 1`.
bool AttributeReads::read_own_number(PyTypeObject* type, PyObject* name, PyObject* value) {
  auto* object = reinterpret_cast<PyObject*>(type);
  if (!value || !is_python_class(type) || PyDict_GetItemWithError(type->tp_dict, name) != value) return false;
  if (log_->wrote(object, name)) return true;
  bool number = PyLong_CheckExact(value) || PyFloat_CheckExact(value);
  if (!number || provenance_->is_fresh(object) || provenance_->touched(type, name)) return false;
  int node = provenance_->class_node(type);
  PyObject* interned = Py_NewRef(name);  // which may be a text that was put together
  PyUnicode_InternInPlace(&interned);
  bool counted = provenance_->has_counted(type, interned);
  Py_DECREF(interned);
  if (node >= 0 && counted) {
    // The next recording follows it from the first step on that counts.
    provenance_->note_varying(provenance_->read_node(node, Access::Own, name, -1, value).first);
    recorder_->fail(say(reason::ReadsTouched, type->tp_name));
    return true;
  }
  if (node < 0 || !provenance_->will_follow(node, Access::Own, name, -1)) return false;
  provenance_->read_operand(node, Access::Own, name, -1, value);
  return true;
}

void AttributeReads::read_super_attribute(PyObject* object, PyObject* name) {
  int node = provenance_->known(object);
  if (node >= 0 && provenance_->by_path(node)) return recorder_->fail("reads a super");
  static PyObject *const this_class = PyUnicode_InternFromString("__thisclass__"),
                         *const self_class = PyUnicode_InternFromString("__self_class__");
  py::object start = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(object, this_class));
  py::object type = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(object, self_class));
  if (!start || !type || !PyType_Check(type.ptr())) return PyErr_Clear();
  // Whatever becomes of a class in its order gives it another version.
  Memo& memo = memo_of(type.ptr(), name);
  uint64_t version = version_of(reinterpret_cast<PyTypeObject*>(type.ptr()));
  if (memo.kind == Memo::Kind::Super && memo.start == start.ptr() && holds(memo, type.ptr(), name, version))
    return lose_sight_of(type.ptr(), memo.descriptor), read_through_super(object, name, memo.descriptor);
  PyObject* found = read_behind_start(start.ptr(), type.ptr(), name);
  lose_sight_of(type.ptr(), found);
  if (!found) return;
  if (version)
    memo = {Memo::Kind::Super,
            provenance_->number(),
            type.ptr(),
            version,
            py::reinterpret_borrow<py::object>(name),
            found,
            start.ptr()};
  read_through_super(object, name, found);
}

// What is found in the classes of tensors may say what autograd knows of one. Of a method its call says it.
void AttributeReads::lose_sight_of(PyObject* type, PyObject* found) {
  bool tensor = PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type),
                                 reinterpret_cast<PyTypeObject*>(THPVariableClass));
  if (tensor && !(found && Py_IS_TYPE(found, &PyMethodDescr_Type))) recorder_->lost_sight();
}

// What the classes behind `start` have under the name, null: nothing.
PyObject* AttributeReads::read_behind_start(PyObject* start, PyObject* type, PyObject* name) {
  containers_->read_bases(type);
  PyObject* mro = reinterpret_cast<PyTypeObject*>(type)->tp_mro;
  bool after = false;
  for (Py_ssize_t i = 0; mro && i < PyTuple_GET_SIZE(mro); ++i) {
    auto* cls = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro, i));
    if (after) {
      PyObject* value = PyDict_GetItemWithError(cls->tp_dict, name);
      int node = PyType_HasFeature(cls, Py_TPFLAGS_HEAPTYPE) ? provenance_->class_node(cls) : -1;
      if (node < 0) {
        classes_->know_static(value);
        if (value) classes_->read_binding(value);
      } else {
        auto [child, made] = provenance_->read_node(node, Access::Own, name, -1, value);
        if (made && value) classes_->read_behind(child, value);
      }
      if (value) return value;
    }
    after |= reinterpret_cast<PyObject*>(cls) == start;
  }
  return nullptr;
}

// What a descriptor that super() has found reads of the object: a slot, a field, what C code computes.
void AttributeReads::read_through_super(PyObject* super, PyObject* name, PyObject* descriptor) {
  static PyObject* const self_name = PyUnicode_InternFromString("__self__");
  static PyObject* const class_name = PyUnicode_InternFromString("__self_class__");
  if (!Py_TYPE(descriptor)->tp_descr_set) return;
  py::object self = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(super, self_name));
  py::object type = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(super, class_name));
  if (!self || !type) return PyErr_Clear();
  if (self.is(type)) return;  // a class, which is given the descriptor itself
  PyTypeObject* own = Py_TYPE(self.ptr());
  if (Py_IS_TYPE(descriptor, &PyProperty_Type) || is_python_class(Py_TYPE(descriptor)))
    return read_data_descriptor(self.ptr(), name, descriptor);
  if (_PyType_Lookup(own, name) != descriptor)
    return recorder_->fail("reads ." + text_of(name) + " of a super");
  // What guards read again is what the object itself gives under the name.
  if (is_tensor(self.ptr())) return read_tensor_attribute(self.ptr(), name);
  if (PyType_Check(self.ptr())) return read_type_attribute(self.ptr(), name);
  if (PyModule_Check(self.ptr())) return read_module_attribute(self.ptr(), name);
  if (PyType_HasFeature(own, Py_TPFLAGS_HEAPTYPE)) classes_->read_class(own, name, descriptor);
  read_data_descriptor(self.ptr(), name, descriptor);
}

void AttributeReads::read_module_attribute(PyObject* module, PyObject* name) {
  if (!PyModule_CheckExact(module)) {
    // A module with a class of its own: torch.backends and others have properties.
    classes_->read_special(module, "__getattribute__");
    if (overrides_getattribute(Py_TYPE(module))) return;
    PyObject* descriptor = _PyType_Lookup(Py_TYPE(module), name);
    classes_->read_class(Py_TYPE(module), name, descriptor);
    if (descriptor && Py_TYPE(descriptor)->tp_descr_set)
      return read_data_descriptor(module, name, descriptor);
  }
  int node = provenance_->module_node(module);
  if (node < 0) return;
  static PyObject* const own = PyUnicode_InternFromString("__dict__");
  if (PyUnicode_Compare(name, own) == 0)
    return provenance_->read_child(node, Access::Namespace, nullptr, -1, PyModule_GetDict(module));
  if (log_->wrote(PyModule_GetDict(module), name))
    return (void)provenance_->meets_hidden(PyModule_GetDict(module));
  PyObject* value = PyDict_GetItemWithError(PyModule_GetDict(module), name);
  provenance_->read_operand(node, Access::Instance, name, -1, value);
  if (value) return;
  py::str fallback("__getattr__");
  PyObject* getter = PyDict_GetItemWithError(PyModule_GetDict(module), fallback.ptr());
  provenance_->read_child(node, Access::Instance, fallback.ptr(), -1, getter);
  if (!getter) return classes_->read_special(module, "__getattr__");
  PyObject* code = PyMethod_Check(getter) ? PyMethod_GET_FUNCTION(getter) : getter;
  if (!PyFunction_Check(code) && !is_python_class(Py_TYPE(code)))
    recorder_->fail("looks up __getattr__ of a module, which is a " + type_name(code));
}

// ---------------------------------------------------------------- tensors
namespace {
bool has_no_history(const at::Tensor& tensor) { return !is_stale(tensor) && !tensor.grad_fn(); }
}  // namespace

bool AttributeReads::may_read(TensorState state, PyObject* tensor, bool argument) const {
  // Made by an operator of this call: what autograd knows of it follows from the call.
  bool made = !argument && provenance_->known(tensor) < 0;
  if (state == TensorState::Leaf) return made || argument;
  if (state == TensorState::Version) return made && recorder_->made_with_memory(THPVariable_Unpack(tensor));
  if (state != TensorState::GradFn) return false;
  const at::Tensor& t = THPVariable_Unpack(tensor);
  // The key tells which arguments have one. A view whose base was written to has another one when it is
  // asked.
  if (only_none_ && !is_stale(t)) return made || argument;
  return made && has_no_history(t);
}

// That a tensor of before the call has no history, a guard can ask again.
bool AttributeReads::read_leafness(PyObject* tensor) {
  static PyObject* const history = PyUnicode_InternFromString("grad_fn");
  if (!has_no_history(THPVariable_Unpack(tensor))) return false;
  int node = provenance_->node_of_tensor(tensor);
  if (node >= 0) provenance_->read_child(node, Access::Attribute, history, -1, Py_None);
  return node >= 0;
}

// Where torch's own object lies, by which code asks whether two tensors are one. A guard asks that again of
// one of before the call; of others it is another one at each.
bool AttributeReads::read_address(PyObject* tensor, PyObject* name) {
  int node = provenance_->is_input(tensor) ? -1 : provenance_->node_of_tensor(tensor);
  if (node < 0 || provenance_->touched_count() > 0) return false;
  auto address = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(tensor, name));
  if (!address) PyErr_Clear();
  if (address) provenance_->read_child(node, Access::Attribute, name, -1, address.ptr());
  return static_cast<bool>(address);
}

void AttributeReads::read_tensor_attribute(PyObject* tensor, PyObject* name) {
  recorder_->saw(THPVariable_Unpack(tensor));
  bool argument = provenance_->is_input(tensor);
  PyObject* descriptor = _PyType_Lookup(Py_TYPE(tensor), name);
  classes_->read_class(Py_TYPE(tensor), name, descriptor);
  TensorState state = tensor_state(name, descriptor);
  if (state != TensorState::Plain) recorder_->saw_gradients(THPVariable_Unpack(tensor));
  if (state == TensorState::Gradient) return gradients_->read(tensor);
  if (state == TensorState::Data) return recorder_->saw_data(THPVariable_Unpack(tensor));
  bool leafness = state == TensorState::GradFn || (state == TensorState::Leaf && !argument);
  if (leafness && read_leafness(tensor)) return;
  if (state == TensorState::Address && read_address(tensor, name)) return;
  bool plain = state == TensorState::Plain || state == TensorState::Requires;
  if (!plain && !may_read(state, tensor, argument))
    return recorder_->fail("reads ." + text_of(name) + " of a tensor");
  if (state == TensorState::Version) recorder_->ask_version(THPVariable_Unpack(tensor));
  // What is handed on as it is would be another dict at each call.
  static PyObject* own = PyUnicode_InternFromString("__dict__");
  const at::Tensor& t = THPVariable_Unpack(tensor);
  if (PyUnicode_Compare(name, own) == 0 && (!recorder_->made(t) || recorder_->is_decorated(t)))
    return recorder_->fail("reads .__dict__ of a tensor");
  if (!descriptor || !Py_TYPE(descriptor)->tp_descr_set) read_tensor_entry(tensor, name, descriptor);
}

// What was put on the tensor itself under the name of a method, or of nothing that its class has.
void AttributeReads::read_tensor_entry(PyObject* tensor, PyObject* name, PyObject* descriptor) {
  if (!has_attributes(tensor) && descriptor) return;  // a method, and a guard says that nothing hides it
  PyObject** dict = _PyObject_GetDictPtr(tensor);
  PyObject* value = dict && *dict ? PyDict_GetItemWithError(*dict, name) : nullptr;
  int node = provenance_->node_of_tensor(tensor);
  if (node >= 0 && late_->read_attribute(tensor, name)) return;
  bool wrote = node >= 0 && dict && *dict && log_->wrote(*dict, name);
  if (node >= 0 && provenance_->touched_attribute(tensor, name) && !wrote)
    return recorder_->fail(say(reason::ReadsTouched, type_name(tensor)));
  if (wrote) {
    provenance_->meets_hidden(*dict);
    if (value || log_->is_out(*dict, name)) return;
  }
  if (node >= 0) return read_entry_of(tensor, node, name, value);
  const at::Tensor& t = THPVariable_Unpack(tensor);
  if (recorder_->is_decorated(t) || (value && !recorder_->made(t)))
    recorder_->fail("reads ." + text_of(name) + ", an attribute that was put on a tensor");
}

// ---------------------------------------------------------------- what was read before
// CPython gives a class and a dict
// another version at each change, and no version twice: where the version is that of the memo, the class or
// the module is the same, and so is what it has under the name.
PyObject* AttributeReads::read_attribute_again(PyObject* object, PyObject* name) {
  PyTypeObject* type = Py_TYPE(object);
  Memo& of_type = memo_of(type, name);
  bool of_instance = of_type.kind != Memo::Kind::Itself && of_type.kind != Memo::Kind::Super;
  if (of_instance && holds(of_type, type, name, version_of(type))) return repeat(of_type, object, name);
  bool module = PyModule_Check(object), itself = PyType_Check(object);
  // What a module or a class has is its own.
  PyObject* dict = module ? PyModule_GetDict(object) : nullptr;
  auto version_now = [&] {
    return module ? reinterpret_cast<PyDictObject*>(dict)->ma_version_tag
                  : version_of(itself ? reinterpret_cast<PyTypeObject*>(object) : type);
  };
  const void* key = module ? dict : itself ? object : reinterpret_cast<PyObject*>(type);
  Memo& memo = memo_of(key, name);
  if (memo.kind == Memo::Kind::Itself && (module || itself) && holds(memo, key, name, version_now()))
    return nullptr;
  PyObject* getter = read_attribute(object, name);
  PyObject* descriptor = module || itself ? nullptr : _PyType_Lookup(type, name);
  uint64_t version = version_now();
  Memo::Kind kind = version ? kind_of(object, name, descriptor) : Memo::Kind::Nothing;
  memo = {kind, provenance_->number(), key, version, py::reinterpret_borrow<py::object>(name), descriptor};
  return getter;
}

bool AttributeReads::holds(const Memo& memo, const void* object, PyObject* name, uint64_t version) const {
  return memo.recording == provenance_->number() && memo.object == object && memo.name.ptr() == name &&
         memo.version == version && memo.kind != Memo::Kind::Nothing && provenance_->untouched();
}

PyObject* AttributeReads::repeat(const Memo& memo, PyObject* object, PyObject* name) {
  switch (memo.kind) {
    case Memo::Kind::Nothing:
    case Memo::Kind::Itself:
    case Memo::Kind::Super:
    case Memo::Kind::Settled:
      return nullptr;
    case Memo::Kind::Instance:
      return read_instance(object, name, memo.descriptor);
    case Memo::Kind::Namespace:
      return read_namespace(object), nullptr;
    case Memo::Kind::Tensor:
      return recorder_->saw(THPVariable_Unpack(object)), nullptr;
    case Memo::Kind::Method:
      recorder_->saw(THPVariable_Unpack(object));
      return read_tensor_entry(object, name, memo.descriptor), nullptr;
  }
  return nullptr;
}

}  // namespace lazytrace
