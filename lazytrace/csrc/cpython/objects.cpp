#include "cpython/objects.h"

#include <Python.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

// CPython's own headers are C: they take other atomics in C++, and define this once more.
#undef HAVE_STD_ATOMIC
#undef _PyGC_FINALIZED
#define Py_BUILD_CORE
#include <internal/pycore_dict.h>
#undef Py_BUILD_CORE

#include "cpython/imports.h"
#include "cpython/values.h"

namespace lazytrace {

namespace py = pybind11;

namespace {

// Looked up once; a type of an imported module lives as long as the process.
PyTypeObject* imported_type(const char* module, const char* name) {
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* m = PyDict_GetItemString(modules, module);
  if (!m) return nullptr;
  PyObject* type = PyObject_GetAttrString(m, name);
  if (!type) PyErr_Clear();
  Py_XDECREF(type);
  return reinterpret_cast<PyTypeObject*>(type);
}

PyTypeObject* numpy_type(const char* name, PyTypeObject** slot) {
  if (!*slot) *slot = imported_type("numpy", name);
  return *slot;
}

}  // namespace

bool is_numpy_scalar(PyObject* v) {
  static PyTypeObject* generic = nullptr;
  PyTypeObject* type = numpy_type("generic", &generic);
  if (!type || !PyObject_TypeCheck(v, type)) return false;
  static PyTypeObject* object = nullptr;
  PyTypeObject* holder = numpy_type("void", &object);  // structured scalars can be written to
  return !holder || !PyObject_TypeCheck(v, holder);
}

bool is_numpy_array(PyObject* v) {
  static PyTypeObject* array = nullptr;
  PyTypeObject* type = numpy_type("ndarray", &array);
  return type && PyObject_TypeCheck(v, type);
}

bool is_builtin_dtype(PyObject* v) {
  static PyTypeObject* dtype = nullptr;
  PyTypeObject* type = numpy_type("dtype", &dtype);
  if (!type || !PyObject_TypeCheck(v, type)) return false;
  auto kind = py::reinterpret_steal<py::object>(PyObject_GetAttrString(v, "type"));
  auto one = py::reinterpret_steal<py::object>(
      kind ? PyObject_CallOneArg(reinterpret_cast<PyObject*>(type), kind.ptr()) : nullptr);
  if (!one) PyErr_Clear();
  return one.ptr() == v;
}

bool is_plain_array(PyObject* v) {
  static PyTypeObject* array = nullptr;
  return Py_IS_TYPE(v, numpy_type("ndarray", &array));
}

std::string numpy_bytes(PyObject* scalar) {
  py::object bytes = py::reinterpret_steal<py::object>(PyObject_CallMethod(scalar, "tobytes", nullptr));
  py::object dtype = py::reinterpret_steal<py::object>(PyObject_GetAttrString(scalar, "dtype"));
  // Its own text is written by Python code of numpy's.
  py::object text =
      py::reinterpret_steal<py::object>(dtype ? PyObject_GetAttrString(dtype.ptr(), "str") : nullptr);
  if (!bytes || !text) {
    PyErr_Clear();
    return "";
  }
  return text_of(text.ptr()) + ":" +
         std::string(PyBytes_AS_STRING(bytes.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(bytes.ptr())));
}

namespace {
// A member of an enum that is derived from list or dict is a container.
bool holds_one_value(PyTypeObject* type) {
  PyTypeObject* base = c_base(type);
  return base == &PyBaseObject_Type || base == &PyLong_Type || base == &PyFloat_Type ||
         base == &PyComplex_Type || base == &PyUnicode_Type || base == &PyBytes_Type;
}
}  // namespace

bool is_enum_member(PyObject* v) {
  if (Py_IS_TYPE(Py_TYPE(v), &PyType_Type)) return false;
  static PyTypeObject* meta = nullptr;
  if (!meta) meta = imported_type("enum", "EnumMeta");
  return meta && PyObject_TypeCheck(reinterpret_cast<PyObject*>(Py_TYPE(v)), meta) &&
         holds_one_value(Py_TYPE(v));
}

bool is_python_class(PyTypeObject* type) {
  // A class statement gives every class the same deallocator; a heap type that C code made (random.Random)
  // has its own.
  static const destructor deallocator = imported_type("abc", "ABC")->tp_dealloc;
  // Some of those take the common one; what a class statement makes never has a table of methods.
  return PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && type->tp_dealloc == deallocator && !type->tp_methods;
}

const char* c_name(PyTypeObject* type) { return is_python_class(type) ? "" : type->tp_name; }

bool is_tensor(PyObject* v) {
  if (THPVariable_CheckExact(v)) return true;
  // Classes that Python made of torch.Tensor have its metaclass or one made of it: nearly everything else is
  // told apart without a walk along its bases.
  PyTypeObject* type = Py_TYPE(v);
  return PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && !Py_IS_TYPE(type, &PyType_Type) &&
         PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(THPVariableClass));
}

PyTypeObject* parameter_class() {
  static auto* parameter =
      reinterpret_cast<PyTypeObject*>(from_module("torch.nn", "Parameter").release().ptr());
  return parameter;
}

bool is_parameter_class(PyTypeObject* type) { return PyType_IsSubtype(type, parameter_class()); }

bool is_parameter(PyObject* v) { return is_parameter_class(Py_TYPE(v)); }

bool is_free_builtin(PyObject* v) {
  if (!PyCFunction_Check(v)) return false;
  PyObject* self = reinterpret_cast<PyCFunctionObject*>(v)->m_self;
  return !self || PyModule_Check(self) || PyType_Check(self);
}

bool is_torch_class(PyTypeObject* type) {
  static PyObject* name = PyUnicode_InternFromString("__module__");
  PyObject* module = type->tp_dict ? PyDict_GetItemWithError(type->tp_dict, name) : nullptr;
  std::string text = module ? text_of(module) : "";
  return text == "torch" || text.rfind("torch.", 0) == 0;
}

bool is_text(PyObject* v, PyObject* other) {
  if (v == other || (PyUnicode_CHECK_INTERNED(v) && PyUnicode_CHECK_INTERNED(other))) return v == other;
  return PyUnicode_Compare(v, other) == 0;
}

bool is_torch_module(PyObject* v) {
  static PyTypeObject* module = nullptr;
  if (!module) module = imported_type("torch.nn", "Module");
  return module && PyType_IsSubtype(Py_TYPE(v), module);
}

PyTypeObject* c_base(PyTypeObject* type) {
  while (type && is_python_class(type)) type = type->tp_base;
  return type;
}

bool has_c_layout_of(PyObject* v, PyTypeObject* type) { return c_base(Py_TYPE(v)) == type; }

// torch.return_types and the like: made by PyStructSequence, every field in the tuple.
bool is_struct_sequence(PyTypeObject* type) {
  if (!PyType_IsSubtype(type, &PyTuple_Type) || !type->tp_dict) return false;
  PyObject* fields = PyDict_GetItemString(type->tp_dict, "n_fields");
  PyObject* shown = PyDict_GetItemString(type->tp_dict, "n_sequence_fields");
  return fields && shown && PyLong_Check(fields) && PyLong_Check(shown) &&
         PyLong_AsLong(fields) == PyLong_AsLong(shown);
}

bool is_named_tuple(PyObject* v) {
  if (is_struct_sequence(Py_TYPE(v))) return true;
  if (!PyTuple_Check(v) || PyTuple_CheckExact(v) || !has_c_layout_of(v, &PyTuple_Type)) return false;
  PyObject** dict = _PyObject_GetDictPtr(v);
  return !dict;  // __slots__ = (): nothing beside the items
}

bool is_ordered_dict_type(PyTypeObject* type) { return PyType_IsSubtype(type, &PyODict_Type); }

namespace {
PyTypeObject* class_of_collections(const char* name) {
  return reinterpret_cast<PyTypeObject*>(from_module("collections", name).release().ptr());
}

PyTypeObject* default_dict_class() {
  static PyTypeObject* type = class_of_collections("defaultdict");
  return type;
}
}  // namespace

bool is_default_dict(PyObject* v) { return Py_IS_TYPE(v, default_dict_class()); }

bool is_alias_of_types(PyObject* v) {
  return Py_IS_TYPE(v, &Py_GenericAliasType) || std::strcmp(c_name(Py_TYPE(v)), "types.UnionType") == 0;
}

bool is_deque(PyObject* v) {
  static PyTypeObject* type = class_of_collections("deque");
  return Py_IS_TYPE(v, type);
}

Py_ssize_t size_of_list(PyObject* v) {
  if (PyList_CheckExact(v)) return PyList_GET_SIZE(v);
  return is_deque(v) ? PySequence_Size(v) : -1;
}

PyObject* entry_of_list(PyObject* v, Py_ssize_t index) {
  Py_ssize_t size = size_of_list(v), at = index < 0 ? size + index : index;
  if (at < 0 || at >= size) return nullptr;
  return PyList_Check(v) ? Py_NewRef(PyList_GET_ITEM(v, at)) : PySequence_GetItem(v, at);
}

namespace {

// Calls visit(member descriptor) for every slot of the Python classes of `type`.
template <typename F>
bool each_slot(PyTypeObject* type, F visit) {
  PyObject* mro = type->tp_mro;
  for (Py_ssize_t i = 0; mro && i < PyTuple_GET_SIZE(mro); ++i) {
    auto* cls = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro, i));
    // A defaultdict keeps its factory in one.
    if (!PyType_HasFeature(cls, Py_TPFLAGS_HEAPTYPE) && cls != default_dict_class()) continue;
    PyObject *key, *value;
    Py_ssize_t pos = 0;
    while (PyDict_Next(cls->tp_dict, &pos, &key, &value))
      if (Py_IS_TYPE(value, &PyMemberDescr_Type) && !visit(key, value)) return false;
  }
  return true;
}

}  // namespace

bool is_rebuildable(PyObject* v) {
  PyTypeObject* type = Py_TYPE(v);
  if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE))
    return Py_IS_TYPE(v, &PyODict_Type) || is_default_dict(v);
  PyTypeObject* base = c_base(type);
  if (base != &PyBaseObject_Type && base != &PyDict_Type && base != &PyODict_Type && base != &PyList_Type)
    return false;
  return !PyType_Check(v);
}

PyObject* instance_state(PyObject* v, bool* single) {
  PyObject* state = PyDict_New();
  if (!state) return nullptr;
  PyObject** found = _PyObject_GetDictPtr(v);
  PyObject* dict = found ? PyObject_GenericGetDict(v, nullptr) : nullptr;
  if (dict) PyDict_Update(state, dict);
  Py_XDECREF(dict);
  PyErr_Clear();
  Py_ssize_t places = PyDict_GET_SIZE(state);
  each_slot(Py_TYPE(v), [&](PyObject* name, PyObject* descr) {
    PyObject* value = Py_TYPE(descr)->tp_descr_get(descr, v, reinterpret_cast<PyObject*>(Py_TYPE(v)));
    if (value) ++places, PyDict_SetItem(state, name, value);
    Py_XDECREF(value);
    PyErr_Clear();
    return true;
  });
  if (single) *single = places == PyDict_GET_SIZE(state);
  return state;
}

int set_instance_state(PyObject* v, PyObject* state) {
  PyObject *key, *value;
  Py_ssize_t pos = 0;
  PyObject* dict = nullptr;
  while (PyDict_Next(state, &pos, &key, &value)) {
    bool slot = false;
    int failed = 0;
    each_slot(Py_TYPE(v), [&](PyObject* name, PyObject* descr) {
      if (PyUnicode_Compare(name, key) != 0) return true;
      slot = true;
      failed = Py_TYPE(descr)->tp_descr_set(descr, v, value);
      return false;
    });
    if (!slot) {
      if (!dict) dict = PyObject_GenericGetDict(v, nullptr);
      failed = dict ? PyDict_SetItem(dict, key, value) : -1;
    }
    if (failed) {
      Py_XDECREF(dict);
      return -1;
    }
  }
  Py_XDECREF(dict);
  return 0;
}

PyObject* new_instance(PyTypeObject* type) {
  PyTypeObject* base = c_base(type);
  PyObject* empty = PyTuple_New(0);
  PyObject* made = base->tp_new(type, empty, nullptr);
  Py_DECREF(empty);
  return made;
}

PyObject* new_named_tuple(PyTypeObject* type, PyObject* items) {
  PyObject* args = PyTuple_Pack(1, items);
  if (!args) return nullptr;
  bool own = is_struct_sequence(type) || type == &THPSizeType;
  PyObject* made = own ? type->tp_new(type, args, nullptr) : PyTuple_Type.tp_new(type, args, nullptr);
  Py_DECREF(args);
  return made;
}

// The hash of each key is known, so none is asked for it.
PyObject* ordered_items(PyObject* mapping) {
  if (PyDict_CheckExact(mapping)) return PyDict_Copy(mapping);
  PyObject* result = PyDict_New();
  if (!result) return nullptr;
  std::unordered_map<PyObject*, std::pair<PyObject*, Py_hash_t>> entries;
  PyObject *key, *value;
  Py_hash_t hash;
  // What goes through an OrderedDict hashes its keys: of others the order is not known.
  bool ordered = PyODict_Check(mapping) && has_silent_keys(mapping);
  for (Py_ssize_t at = 0; _PyDict_Next(mapping, &at, &key, &value, &hash);)
    ordered ? void(entries[key] = {value, hash}) : void(_PyDict_SetItem_KnownHash(result, key, value, hash));
  // The iterator of the C base: an overridden __iter__ is user code.
  PyObject* iterator = ordered ? PyODict_Type.tp_iter(mapping) : nullptr;
  while ((key = iterator ? PyIter_Next(iterator) : nullptr)) {
    if (auto at = entries.find(key); at != entries.end())
      _PyDict_SetItem_KnownHash(result, key, at->second.first, at->second.second);
    Py_DECREF(key);
  }
  Py_XDECREF(iterator);
  PyErr_Clear();
  return result;
}

int fill_mapping(PyObject* mapping, PyObject* items) {
  auto assign = c_base(Py_TYPE(mapping))->tp_as_mapping->mp_ass_subscript;
  PyObject *key, *value;
  Py_ssize_t pos = 0;
  while (PyDict_Next(items, &pos, &key, &value))
    if (assign(mapping, key, value) < 0) return -1;
  return 0;
}

std::string text_of(PyObject* v) {
  if (!v || !PyUnicode_Check(v)) return "";
  const char* text = PyUnicode_AsUTF8(v);
  if (!text) PyErr_Clear();
  return text ? text : "";
}

// CPython 3.11 keeps the dict before the object, and before that the values of one that is not made yet: the
// byte at -2 counts them (_PyDictValues_AddToInsertionOrder in pycore_dict.h).
bool has_attributes(PyObject* v) {
  if (!PyType_HasFeature(Py_TYPE(v), Py_TPFLAGS_MANAGED_DICT)) {
    PyObject** dict = _PyObject_GetDictPtr(v);
    return dict && *dict && PyDict_GET_SIZE(*dict);
  }
  if (PyObject* dict = reinterpret_cast<PyObject**>(v)[-3]) return PyDict_GET_SIZE(dict);
  const unsigned char* values = reinterpret_cast<unsigned char**>(v)[-4];
  return values && values[-2];
}

void make_namespace(PyObject* v) {
  PyObject* dict = PyObject_GenericGetDict(v, nullptr);
  if (!dict) throw py::error_already_set();
  Py_DECREF(dict);
}

bool has_plain_keys(PyObject* dict) {
  return reinterpret_cast<PyDictObject*>(dict)->ma_keys->dk_kind != DICT_KEYS_GENERAL;
}

namespace {
// What lies at a place of the table of a dict: which entry, or less than 0 (dictkeys_get_index in
// dictobject.c).
Py_ssize_t entry_at(const PyDictKeysObject* keys, size_t place) {
  auto at = [&](auto* indices) { return static_cast<Py_ssize_t>(indices[place]); };
  if (DK_LOG_SIZE(keys) < 8) return at(reinterpret_cast<const int8_t*>(keys->dk_indices));
  if (DK_LOG_SIZE(keys) < 16) return at(reinterpret_cast<const int16_t*>(keys->dk_indices));
  if (DK_LOG_SIZE(keys) < 32) return at(reinterpret_cast<const int32_t*>(keys->dk_indices));
  return at(reinterpret_cast<const int64_t*>(keys->dk_indices));
}
}  // namespace

std::vector<PyObject*> keys_of_hash(PyObject* dict, Py_hash_t hash) {
  std::vector<PyObject*> found;
  PyDictKeysObject* keys = reinterpret_cast<PyDictObject*>(dict)->ma_keys;
  if (keys->dk_kind != DICT_KEYS_GENERAL) return found;
  // As a look-up goes through the table (PERTURB_SHIFT in dictobject.c).
  size_t mask = (size_t{1} << DK_LOG_SIZE(keys)) - 1, perturb = static_cast<size_t>(hash);
  for (size_t place = perturb & mask;; place = (place * 5 + (perturb >>= 5) + 1) & mask) {
    Py_ssize_t at = entry_at(keys, place);
    if (at == DKIX_EMPTY) return found;
    if (at < 0) continue;
    const PyDictKeyEntry& entry = DK_ENTRIES(keys)[at];
    if (entry.me_key && entry.me_hash == hash) found.push_back(entry.me_key);
  }
}

std::vector<PyObject*> members_of_hash(PyObject* set, Py_hash_t hash) {
  // As set_lookkey in setobject.c goes through the table.
  constexpr size_t kNeighbours = 9;  // LINEAR_PROBES
  std::vector<PyObject*> found;
  auto* table = reinterpret_cast<PySetObject*>(set);
  auto mask = static_cast<size_t>(table->mask), perturb = static_cast<size_t>(hash);
  for (size_t place = perturb & mask;; place = (place * 5 + 1 + (perturb >>= 5)) & mask) {
    size_t end = place + kNeighbours <= mask ? place + kNeighbours : place;
    for (size_t i = place; i <= end; ++i) {
      const setentry& entry = table->table[i];
      if (!entry.key) return found;
      if (entry.hash == hash) found.push_back(entry.key);
    }
  }
}

bool has_silent_keys(PyObject* dict) {
  if (has_plain_keys(dict)) return true;
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value);)
    if (!is_silent_key(key)) return false;
  return true;
}

bool is_silent_key(PyObject* key) {
  if (PyUnicode_CheckExact(key) || is_key_by_identity(key) || is_key(key)) return true;
  // One of a class that inherits both from a class of C.
  static PyObject *const hash = PyUnicode_InternFromString("__hash__"), *const equal =
                                                                            PyUnicode_InternFromString(
                                                                                "__eq__");
  for (PyObject* name : {hash, equal}) {
    PyObject* method = _PyType_Lookup(Py_TYPE(key), name);
    if (!method || !Py_IS_TYPE(method, &PyWrapperDescr_Type)) return false;
  }
  if (!PyTuple_Check(key)) return PyUnicode_Check(key) || PyLong_Check(key) || PyFloat_Check(key);
  PyObject** items = PySequence_Fast_ITEMS(key);
  return std::all_of(items, items + PyTuple_GET_SIZE(key), is_silent_key);
}

bool handles_exception() {
  PyObject* handled = PyErr_GetHandledException();
  Py_XDECREF(handled);
  return handled && handled != Py_None;
}

std::string type_name(PyObject* v) {
  PyTypeObject* type = Py_TYPE(v);
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
    std::string text = text_of(reinterpret_cast<PyHeapTypeObject*>(type)->ht_qualname);
    if (!text.empty()) return text;
  }
  const char* dot = std::strrchr(type->tp_name, '.');
  return dot ? dot + 1 : type->tp_name;
}

std::string short_repr(PyObject* v) {
  if (is_tensor(v)) return "a tensor";
  if (PyMethod_Check(v)) return short_repr(PyMethod_GET_FUNCTION(v));
  // The repr of anything else may be the user's code.
  if (PyFunction_Check(v)) return text_of(reinterpret_cast<PyFunctionObject*>(v)->func_qualname);
  if (PyCFunction_Check(v)) return reinterpret_cast<PyCFunctionObject*>(v)->m_ml->ml_name;
  if (PyModule_Check(v) && PyModule_GetName(v)) return PyModule_GetName(v);
  PyErr_Clear();
  if (!is_immutable(v) || is_enum_member(v)) return "a " + type_name(v);
  PyObject* repr = PyObject_Repr(v);
  if (!repr) {
    PyErr_Clear();
    return "a " + type_name(v);
  }
  std::string text = text_of(repr);
  Py_DECREF(repr);
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

PyObject* new_generator(PyObject* device) { return PyObject_CallOneArg(THPGeneratorClass, device); }

PyObject* make_anew(PyTypeObject* type) {
  PyTypeObject* base = c_base(type);
  if (base == type) return PyObject_CallNoArgs(reinterpret_cast<PyObject*>(type));
  static PyObject* const seed = PyUnicode_InternFromString("seed");
  static PyObject* const next = PyUnicode_InternFromString("gauss_next");
  auto made = py::reinterpret_steal<py::object>(new_instance(type));
  if (!made) return nullptr;
  auto* seeds = PyDict_GetItemWithError(base->tp_dict, seed);
  auto seeded = py::reinterpret_steal<py::object>(seeds ? PyObject_CallOneArg(seeds, made.ptr()) : nullptr);
  bool is_set = seeded && PyObject_GenericSetAttr(made.ptr(), next, Py_None) == 0;
  return is_set ? made.release().ptr() : nullptr;
}

bool is_random_generator(PyObject* v) {
  return Py_IS_TYPE(v, reinterpret_cast<PyTypeObject*>(THPGeneratorClass));
}

bool is_key_by_identity(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (!is_tensor(object))
    return type->tp_hash == PyBaseObject_Type.tp_hash &&
           type->tp_richcompare == PyBaseObject_Type.tp_richcompare;
  static PyObject* name = PyUnicode_InternFromString("__hash__");
  static PyObject* usual = Py_NewRef(_PyType_Lookup(reinterpret_cast<PyTypeObject*>(THPVariableClass), name));
  return _PyType_Lookup(type, name) == usual;
}

bool next_entry(PyObject* container, Py_ssize_t* at, PyObject** key, PyObject** value) {
  if (PyDict_Check(container)) return PyDict_Next(container, at, key, value);
  Py_hash_t hash;
  *value = nullptr;
  return PyAnySet_Check(container) && _PySet_NextEntry(container, at, key, &hash);
}

PyObject* key_at(PyObject* container, Py_ssize_t place, PyObject** value) {
  PyObject *key = nullptr, *held = nullptr;
  Py_ssize_t at = 0;
  for (Py_ssize_t i = 0; i <= place; ++i)
    if (!next_entry(container, &at, &key, &held)) return nullptr;
  if (value) *value = held;
  return key;
}

// The hash of a tensor is its id(), of which two objects never have the same; so is that of object.
PyObject* entry_of(PyObject* dict, PyObject* object) {
  Py_hash_t hash = is_tensor(object) ? static_cast<Py_hash_t>(reinterpret_cast<uintptr_t>(object))
                                     : _Py_HashPointer(object);
  PyObject* value = _PyDict_GetItem_KnownHash(dict, object, hash);
  PyErr_Clear();
  return value;
}

}  // namespace lazytrace
