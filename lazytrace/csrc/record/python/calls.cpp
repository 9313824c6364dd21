// What a call does to and with the state around it: the part of the Observer that judges callables.
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>
#include <unordered_set>

#include "cpython/lru_cache.h"
#include "cpython/objects.h"
#include "cpython/values.h"
#include "record/python/callables.h"
#include "record/python/escapes.h"
#include "record/python/observer.h"

namespace lazytrace {

namespace {

using Names = std::unordered_set<std::string>;

const Names kListWriters = {"append",   "extend",   "insert",  "remove",      "pop",
                            "clear",    "sort",     "reverse", "__setitem__", "__delitem__",
                            "__iadd__", "__imul__", "__init__"};
const Names kDictWriters = {"update",      "pop",         "popitem", "clear",   "__setitem__",
                            "__delitem__", "move_to_end", "__ior__", "__init__"};
const Names kSetWriters = {"add",
                           "remove",
                           "discard",
                           "pop",
                           "clear",
                           "update",
                           "intersection_update",
                           "difference_update",
                           "symmetric_difference_update",
                           "__ior__",
                           "__iand__",
                           "__isub__",
                           "__ixor__",
                           "__init__"};

const Names* writers_of(PyObject* v) {
  if (PyDict_Check(v)) return &kDictWriters;
  if (PyAnySet_Check(v)) return &kSetWriters;
  return PyList_Check(v) ? &kListWriters : nullptr;
}

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

// Whether what the C code does with each of many arguments is known from the arguments alone.
bool is_plain(Does does) {
  switch (does) {
    case Does::Nothing:
    case Does::Reads:
    case Does::Compares:
    case Does::Text:
    case Does::Copies:
    case Does::AsksLength:
    case Does::AsksTruth:
    case Does::AsksContains:
      return true;
    default:
      return false;
  }
}

Consumer consumer_of(Does does) {
  if (does == Does::Compares || does == Does::AsksContains || does == Does::Changes ||
      does == Does::ChangesWithRest)
    return Consumer::Compares;
  return does == Does::Text || does == Does::Formats ? Consumer::Text : Consumer::Reads;
}

// A function of a module, or one that belongs to a class: bound to no object that it would read. What pybind
// makes is bound to its own record.
bool is_free(PyCFunctionObject* f) {
  PyObject* self = f->m_self;
  return !self || PyModule_Check(self) || PyType_Check(self) || (f->m_module && PyUnicode_Check(f->m_module));
}

std::string name_of(PyCFunctionObject* f) {
  std::string module = f->m_module && PyUnicode_Check(f->m_module) ? text_of(f->m_module) : "";
  if (module.empty() && f->m_self && PyModule_Check(f->m_self) && PyModule_GetName(f->m_self))
    module = PyModule_GetName(f->m_self);
  PyErr_Clear();
  return (module.empty() || module == "builtins" ? "" : module + ".") + f->m_ml->ml_name;
}

// `self` and the other arguments as one row.
std::vector<PyObject*> with_self(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  std::vector<PyObject*> all = {self};
  all.insert(all.end(), args, args + count);
  return all;
}

}  // namespace

void Observer::hand_over(PyObject* const* args, Py_ssize_t count, Consumer how) {
  for (Py_ssize_t i = 0; i < count; ++i)
    if (args[i]) consume(args[i], how);
}

// C code may call what it is handed, with arguments that nobody sees. Python functions show themselves; C
// functions do not.
void Observer::judge_callback(PyObject* v) {
  owner(v);
  PyTypeObject* type = Py_TYPE(v);
  if (PyCFunction_Check(v)) {
    auto* f = reinterpret_cast<PyCFunctionObject*>(v);
    PyObject* self = f->m_self;
    if (is_free(f)) return is_plain(function_does(f)) ? void() : fail("hands " + name_of(f) + "() to C code");
    read_bound_self(v, self);
    return judge_method_callback(c_base(Py_TYPE(self)), f->m_ml->ml_name, self);
  }
  if (type == &PyMethodDescr_Type || type == &PyWrapperDescr_Type || type == &PyClassMethodDescr_Type) {
    auto* descriptor = reinterpret_cast<PyDescrObject*>(v);
    return judge_method_callback(descriptor->d_type, text_of(descriptor->d_name), nullptr);
  }
  if (starts_with(type->tp_name, "operator."))
    return fail("hands an " + std::string(type->tp_name) + " to C code");
  call(v, nullptr, nullptr, 0);  // a partial or the wrapper of a slot
}

void Observer::judge_method_callback(PyTypeObject* type, const std::string& name, PyObject* self) {
  bool tensor = starts_with(type->tp_name, "torch._C.") && (!self || is_tensor(self));
  const Names* writers = type == &PyDict_Type || type == &PyODict_Type ? &kDictWriters
                         : type == &PySet_Type                         ? &kSetWriters
                         : type == &PyList_Type                        ? &kListWriters
                                                                       : nullptr;
  Does does = tensor ? tensor_method_does(name) : method_does(type, name);
  // The keys that it is asked for are not seen, so all entries count as read.
  bool known = tensor ? does != Does::Unknown : is_plain(does) || (self && does == Does::GetsItem);
  if (!known || (writers && writers->count(name))) return fail("hands ." + name + "() to C code");
  if (self) consume(self, Consumer::Compares);
}

void Observer::call_operator_object(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  std::string kind = Py_TYPE(callable)->tp_name;
  if (int node = owner(callable); node >= 0) read_self(node, callable);
  py::object parts = py::reinterpret_steal<py::object>(PyObject_CallMethod(callable, "__reduce__", nullptr));
  if (!parts || count != 1 || kind == "operator.methodcaller") {
    PyErr_Clear();
    return fail("calls an " + kind);
  }
  PyObject* names = PyTuple_GET_ITEM(parts.ptr(), 1);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
    PyObject* name = PyTuple_GET_ITEM(names, i);
    if (kind == "operator.itemgetter")
      read_item(args[0], name);
    else if (text_of(name).find('.') != std::string::npos)
      return fail("calls an operator.attrgetter with a dotted name");
    else
      read_attribute(args[0], name);
  }
}

// Under a filter that raises, a warning is an exception.
void Observer::read_warning_filters() {
  PyObject* module = PyImport_AddModule("warnings");
  PyObject* filters = PyDict_GetItemString(PyModule_GetDict(module), "filters");
  module_node(module);
  read_module_attribute(module, py::str("filters").ptr());
  if (filters) consume(filters, Consumer::Reads);
}

// ---------------------------------------------------------------- by kind of callable
void Observer::call(PyObject* callable, PyObject* self, PyObject* const* args, Py_ssize_t count) {
  PyTypeObject* type = Py_TYPE(callable);
  if (PyFunction_Check(callable)) return call_function(callable, self, args, count);
  if (PyMethod_Check(callable)) {
    owner(callable);
    PyObject* function = PyMethod_GET_FUNCTION(callable);
    if (PyFunction_Check(function)) return call_function(function, PyMethod_GET_SELF(callable), args, count);
    auto all = with_self(PyMethod_GET_SELF(callable), args, count);
    return call(function, nullptr, all.data(), static_cast<Py_ssize_t>(all.size()));
  }
  if (PyType_Check(callable)) return call_type(reinterpret_cast<PyTypeObject*>(callable), args, count);
  if (PyCFunction_Check(callable)) return call_builtin(callable, args, count);
  if (Py_IS_TYPE(callable, &PyMethodDescr_Type) || Py_IS_TYPE(callable, &PyWrapperDescr_Type) ||
      Py_IS_TYPE(callable, &PyClassMethodDescr_Type))
    return call_descriptor(callable, args, count);
  if (Py_IS_TYPE(callable, &_PyMethodWrapper_Type)) return call_slot_wrapper(callable, args, count);
  if (PyWeakref_CheckRef(callable)) {
    int node = owner(callable);
    PyObject* object = PyWeakref_GET_OBJECT(callable);
    return node >= 0 ? read_child(node, Access::Deref, nullptr, -1, object)
                     : fail("calls a weak reference that cannot be reached again");
  }
  if (std::strcmp(type->tp_name, "functools.partial") == 0) return call_partial(callable, args, count);
  if (starts_with(type->tp_name, "operator.")) return call_operator_object(callable, args, count);
  if (is_lru_cache(callable)) return call_cache(callable, args, count);
  call_instance(callable, args, count);
}

void Observer::call_descriptor(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  auto* descriptor = reinterpret_cast<PyDescrObject*>(callable);
  if (count < 1) return;
  std::string name = text_of(descriptor->d_name);
  // Operators as methods: judged once per descriptor, which lives as long as the class.
  static auto* operators = new AddressSet();
  if (is_tensor(args[0]) && operators->count(callable)) return call_torch("Tensor", args, count);
  if (is_tensor(args[0]) && name.rfind("__", 0) != 0 && tensor_method_does(name) == Does::Reads &&
      descriptor->d_type->tp_name == std::string("torch._C.TensorBase"))
    operators->insert(callable);
  call_method(descriptor->d_type, name, args[0], args + 1, count - 1);
}

void Observer::call_slot_wrapper(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  py::object bound = py::reinterpret_steal<py::object>(PyObject_GetAttrString(callable, "__self__"));
  py::object name = py::reinterpret_steal<py::object>(PyObject_GetAttrString(callable, "__name__"));
  if (!bound || !name) return PyErr_Clear();
  if (int node = owner(callable); node >= 0) {
    read_child(node, Access::Attribute, py::str("__self__").ptr(), -1, bound.ptr());
    read_child(node, Access::Attribute, py::str("__name__").ptr(), -1, name.ptr());
  }
  call_method(c_base(Py_TYPE(bound.ptr())), text_of(name.ptr()), bound.ptr(), args, count);
}

// What a functools cache holds is what the plain call would be given, whatever it was made of: an entry that
// is there is a read of state. One that the call makes shows itself the next time.
void Observer::call_cache(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  int node = owner(callable);
  for (Py_ssize_t i = 0; i < count; ++i)
    if (!is_key(args[i]))
      if (int argument = owner(args[i]); argument >= 0) read_self(argument, args[i]);
  py::object key = node < 0
                       ? py::object()
                       : py::reinterpret_steal<py::object>(cache_key(callable, args, count, keyword_names_));
  PyObject* result = key ? cached_result(callable, key.ptr()) : nullptr;
  if (!result) return fail("calls a function with a functools cache, which has no entry for the call");
  if (known(callable) >= 0 && (*tree_)[node].expect != Expect::Identity) read_self(node, callable);
  read_child(node, Access::Cached, key.ptr(), -1, result);
}

void Observer::call_partial(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  int node = owner(callable);
  auto part = [&](const char* name) {
    py::object value = py::reinterpret_steal<py::object>(PyObject_GetAttrString(callable, name));
    if (!value) PyErr_Clear();
    if (value && node >= 0) read_child(node, Access::Attribute, py::str(name).ptr(), -1, value.ptr());
    return value;
  };
  py::object function = part("func"), fixed = part("args"), named = part("keywords");
  if (!function || !fixed || !named) return;
  if (is_lru_cache(function.ptr()))
    return fail("calls a function with a functools cache, which has no entry for the call");
  consume(fixed.ptr(), Consumer::Reads);
  consume(named.ptr(), Consumer::Reads);
  std::vector<PyObject*> all;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(fixed.ptr()); ++i)
    all.push_back(PyTuple_GET_ITEM(fixed.ptr(), i));
  all.insert(all.end(), args, args + count);
  call(function.ptr(), nullptr, all.data(), static_cast<Py_ssize_t>(all.size()));
}

void Observer::call_instance(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  PyTypeObject* type = Py_TYPE(callable);
  static PyObject *key = PyUnicode_InternFromString("__call__"),
                  *wrapped = PyUnicode_InternFromString("__wrapped__");
  PyObject* target = _PyType_Lookup(type, key);
  bool heap = PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE);
  if (target && heap && PyFunction_Check(target)) {
    read_class(type, key, target);
    // Its frame is not watched, so which object it is counts as read.
    bool trusted = (code_flags(PyFunction_GET_CODE(target)) & (kSkipped | kOwn)) == kSkipped;
    if (int node = owner(callable); trusted && node >= 0 && !is_torch_module(callable))
      return read_self(node, callable);
    // A traced function that is called by another one: its own wrapper is not watched, what it wraps is.
    PyObject* slot = _PyType_Lookup(type, wrapped);
    if (slot && !PyFunction_Check(slot) && Py_TYPE(slot)->tp_descr_get) {
      int node = owner(callable);
      py::object inner = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(callable, wrapped));
      if (inner && node >= 0) read_child(node, Access::Attribute, wrapped, -1, inner.ptr());
      PyErr_Clear();
    }
    return;
  }
  if (target && heap && !Py_TYPE(target)->tp_descr_set && !Py_IS_TYPE(target, &PyWrapperDescr_Type) &&
      PyCallable_Check(target)) {
    read_class(type, key, target);  // __call__ = another_callable
    return call(target, nullptr, args, count);
  }
  fail("calls a " + type_name(callable) + ", which lazytrace cannot see into");
}

void Observer::call_extended(PyObject* callable, PyObject* args, PyObject* kwargs) {
  read_iteration(args);
  if (kwargs) read_whole(kwargs);
  c10::SmallVector<PyObject*, 16> all;
  if (PyTuple_Check(args) || PyList_Check(args))
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(args); ++i)
      all.push_back(PySequence_Fast_GET_ITEM(args, i));
  Py_ssize_t positional = static_cast<Py_ssize_t>(all.size());
  if (kwargs && is_lru_cache(callable))
    return fail("calls a function with a functools cache, which has no entry for the call");
  if (kwargs && PyDict_Check(kwargs) && !PyFunction_Check(callable)) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(kwargs, &position, &key, &value)) consume(value, Consumer::Reads);
  }
  call(callable, nullptr, all.data(), positional);
}

void Observer::call_function(PyObject* function, PyObject* self, PyObject* const* args, Py_ssize_t count) {
  owner(function);
  // Its frame shows itself, or is entered as trusted code.
  (void)self, (void)args, (void)count;
}

// What a function whose frame is not watched reads without being handed it.
void Observer::consume_function(PyObject* function) {
  read_function(function);
  PyObject* closure = PyFunction_GET_CLOSURE(function);
  int node = owner(function);
  for (Py_ssize_t i = 0; closure && i < PyTuple_GET_SIZE(closure); ++i) {
    PyObject* value = PyCell_GET(PyTuple_GET_ITEM(closure, i));
    if (node >= 0) read_child(node, Access::Cell, nullptr, i, value);
    consume(value, Consumer::Trusted);
  }
}

void Observer::call_type(PyTypeObject* type, PyObject* const* args, Py_ssize_t count) {
  PyTypeObject* meta = Py_TYPE(reinterpret_cast<PyObject*>(type));
  if (is_python_class(type)) {
    owner(reinterpret_cast<PyObject*>(type));
    // A Python class shows its __new__ and __init__. What its C base takes of the arguments counts as read.
    static PyObject *make = PyUnicode_InternFromString("__new__"),
                    *initialize = PyUnicode_InternFromString("__init__");
    for (PyObject* name : {make, initialize}) {
      PyObject* value = _PyType_Lookup(type, name);
      if (value) read_class(type, name, value);
    }
    if (PyType_HasFeature(meta, Py_TPFLAGS_HEAPTYPE))
      read_special(reinterpret_cast<PyObject*>(type), "__call__");
    PyTypeObject* base = c_base(type);
    if (base == &PyBaseObject_Type) return;
    // A metaclass makes a class; an exception keeps its arguments.
    if (type_does(base) == Does::Unknown && base != &PyType_Type && !starts_with(base->tp_name, "torch."))
      return fail("makes a " + type_text(type) + ", which lazytrace cannot see into");
    return hand_over(args, count, Consumer::Compares);
  }
  Does does = type_does(type);
  if (does == Does::AsksType) return call_type_itself(args, count);
  if (does == Does::AsksTruth) return count ? read_length(args[0]) : void();
  if (does == Does::Unknown)
    return fail("makes a " + std::string(type->tp_name) + ", which lazytrace cannot see into");
  if (does != Does::Nothing) hand_over(args, count, consumer_of(does));
}

std::string Observer::type_text(PyTypeObject* type) {
  return text_of(reinterpret_cast<PyHeapTypeObject*>(type)->ht_qualname);
}

void Observer::call_type_itself(PyObject* const* args, Py_ssize_t count) {
  if (count != 1) return hand_over(args, count, Consumer::Reads);
  auto* of = reinterpret_cast<PyObject*>(Py_TYPE(args[0]));
  int node = known(args[0]);
  if (node >= 0 && !is_tensor(args[0])) return read_child(node, Access::Type, nullptr, -1, of);
  class_node(Py_TYPE(args[0]));  // of a new object or a value: guarded with it
}

void Observer::call_builtin(PyObject* function, PyObject* const* args, Py_ssize_t count) {
  auto* f = reinterpret_cast<PyCFunctionObject*>(function);
  std::string name = f->m_ml->ml_name;
  PyObject* self = f->m_self;
  owner(function);
  if (!is_free(f)) {
    read_bound_self(function, self);
    if (is_tensor(self)) {
      auto all = with_self(self, args, count);
      return call_tensor_method(name, all.data(), static_cast<Py_ssize_t>(all.size()));
    }
    return call_method(c_base(Py_TYPE(self)), name, self, args, count);
  }
  Does does = function_does(f);
  if (does == Does::Unknown && self && PyType_Check(self)) {
    auto* of = reinterpret_cast<PyTypeObject*>(self);
    PyObject* of_type = PyDict_GetItemString(PyType_Type.tp_dict, name.c_str());
    if (of_type && Py_IS_TYPE(of_type, &PyMethodDescr_Type) &&
        reinterpret_cast<PyMethodDescrObject*>(of_type)->d_method == f->m_ml)
      return call_object_method(name, self, args, count);
    if (starts_with(c_base(of)->tp_name, "torch.") && name != "__new__")
      return fail("calls torch.Tensor." + name + "()");
    return call_method(c_base(of), name, self, args, count);
  }
  if (escapes_from_torch(name) && does == Does::Unknown)
    return fail("calls torch." + name + "(), whose memory lazytrace does not know");
  if (does == Does::Unknown) return fail("calls " + name_of(f) + "(), which lazytrace cannot see into");
  if (self && PyType_Check(self) && does == Does::Reads &&
      starts_with(reinterpret_cast<PyTypeObject*>(self)->tp_name, "torch."))
    return call_torch(name.c_str(), args, count);
  perform(does, name, args, count);
}

// The object that a builtin method is bound to.
void Observer::read_bound_self(PyObject* function, PyObject* self) {
  static PyObject* name = PyUnicode_InternFromString("__self__");
  int node = known(function);
  if (node >= 0 && by_path(node)) read_child(node, Access::Attribute, name, -1, self);
}

// ---------------------------------------------------------------- by what the table says
void Observer::perform(Does does, const std::string& name, PyObject* const* args, Py_ssize_t count) {
  PyObject *first = count > 0 ? args[0] : nullptr, *second = count > 1 ? args[1] : nullptr;
  switch (does) {
    case Does::Nothing:
      return;
    case Does::GetsAttribute:
      if (second) {
        read_attribute(first, second);
        if (count > 2) hand_over(args + 2, count - 2, Consumer::Reads);
      }
      return;
    case Does::SetsAttribute:
      return count == 3 ? write_attribute(first, second, args[2]) : void();
    case Does::DeletesAttribute:
      return count == 2 ? write_attribute(first, second, nullptr) : void();
    case Does::GetsNamespace:
      return count == 1 ? read_attribute(first, py::str("__dict__").ptr()) : fail("calls vars()");
    case Does::Advances:
      if (first) advance(first);
      return;
    case Does::Iterates:
      return count == 1 ? read_iteration(first) : fail("calls iter()");
    case Does::AsksLength:
      return first ? read_length(first) : void();
    case Does::AsksTruth:
      return first ? read_length(first) : void();
    case Does::AsksCall:
      return first ? read_special(first, "__call__") : void();
    case Does::AsksInstance:
    case Does::AsksSubclass:
      return count == 2 ? read_classes(first, second, does == Does::AsksSubclass) : void();
    case Does::Hashes:
      return first ? hash_object(first) : void();
    case Does::Identifies:
      return first ? identify(first) : void();
    case Does::Prints:
      if (ignore_print_ && calling_ && !ignored_) return begin_ignored(calling_);
      return fail("calls print()");
    case Does::Warns:
      read_warning_filters();
      return hand_over(args, count, Consumer::Text);
    case Does::AsksRecursionLimit:
      return read_child(-1, Access::RecursionLimit, nullptr, -1, py::int_(Py_GetRecursionLimit()).ptr());
    case Does::AsksAbc: {
      py::object token = py::module_::import("abc").attr("get_cache_token")();
      read_child(-1, Access::AbcToken, nullptr, -1, token.ptr());
      for (Py_ssize_t i = 0; i < count; ++i) read_bases(args[i]);
      return;
    }
    default:
      return perform_on_objects(does, name, args, count);
  }
}

void Observer::perform_on_objects(Does does, const std::string& name, PyObject* const* args,
                                  Py_ssize_t count) {
  PyObject *first = count > 0 ? args[0] : nullptr, *second = count > 1 ? args[1] : nullptr;
  switch (does) {
    case Does::Changes:
    case Does::ChangesWithRest:
      if (!first) return;
      hand_over(args + 1, count - 1, Consumer::Compares);
      if (is_tensor(first)) return hand_over(args, 1, Consumer::Reads);
      hand_over(args, 1, Consumer::Compares);
      if (is_immutable(first)) return;
      return write(first, [&] { return "calls " + name + "() on a " + type_name(first); });
    case Does::Calls:
      return first ? call(first, nullptr, args + 1, count - 1) : void();
    case Does::GetsItem:
      if (!second) return;
      read_item(first, second);
      return hand_over(args + 2, count - 2, Consumer::Reads);
    case Does::AsksContains:
      return second ? read_contains(first, second) : void();
    case Does::ComparesIdentity:
      return second ? read_identity(first, second) : void();
    case Does::Formats:
      return read_format(args, count);
    case Does::MakesClass:
      expect_class_ = calling_;
      return hand_over(args, count, Consumer::Reads);
    case Does::Copies:
      return first ? read_whole(first) : void();
    default:
      return hand_over(args, count, consumer_of(does));
  }
}

// "{0.k}" and "{x[k]}" ask the argument for more than its text.
void Observer::read_format(PyObject* const* args, Py_ssize_t count) {
  std::string text = text_of(args[0]);
  bool inside = false;
  for (char letter : text) {
    if (letter == '{' || letter == '}') inside = letter == '{';
    if (inside && (letter == '.' || letter == '[')) {
      // A precision ("{:.3f}") has its dot behind a colon.
      for (Py_ssize_t i = 1; i < count; ++i)
        if (!is_immutable(args[i]) || PyType_HasFeature(Py_TYPE(args[i]), Py_TPFLAGS_HEAPTYPE))
          return fail("formats a text that asks an object for its attributes");
    }
    if (letter == ':') inside = false;
  }
  hand_over(args + 1, count - 1, Consumer::Text);
}

// The classes that a class has for bases, which can be assigned to.
void Observer::read_bases(PyObject* type) {
  if (!PyType_Check(type) || !is_python_class(reinterpret_cast<PyTypeObject*>(type))) return;
  int node = class_node(reinterpret_cast<PyTypeObject*>(type));
  if (node < 0) return;
  PyObject* order = reinterpret_cast<PyTypeObject*>(type)->tp_mro;
  read_child(node, Access::Attribute, py::str("__mro__").ptr(), -1, order);
  read_whole(order);
}

void Observer::read_classes(PyObject* object, PyObject* classes, bool subclass) {
  consume(classes, Consumer::Reads);
  auto ask = [&](PyObject* cls) {
    read_special(cls, subclass ? "__subclasscheck__" : "__instancecheck__");
    read_bases(cls);
  };
  if (PyTuple_Check(classes))
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(classes); ++i) ask(PyTuple_GET_ITEM(classes, i));
  else
    ask(classes);
  if (!subclass) read_special(object, "__class__");
  read_bases(subclass && PyType_Check(object) ? object : reinterpret_cast<PyObject*>(Py_TYPE(object)));
}

// The hash of an object without a __hash__ of its own is its address, of which only what is equal to it
// follows.
void Observer::hash_object(PyObject* object) {
  if (is_immutable(object)) return;
  read_special(object, "__hash__");
  static PyObject* name = PyUnicode_InternFromString("__hash__");
  PyObject* own = _PyType_Lookup(Py_TYPE(object), name);
  if (own && PyFunction_Check(own)) return;
  fail("calls hash()");
}

void Observer::identify(PyObject* object) {
  // Tensors are the keys of sets and dicts by what they are: all that follows is which of them are one.
  if (is_tensor(object) && hashing_tensor_) return compare_as_itself(object);
  int node = known(object) >= 0 || is_tensor(object) ? known(object) : owner(object);
  if (node < 0 || is_tensor(object) || !PyType_SUPPORTS_WEAKREFS(Py_TYPE(object))) return fail("calls id()");
  if ((*tree_)[node].access != Access::Weak) read_self(node, object);
}

void Observer::call_torch(const char* name, PyObject* const* args, Py_ssize_t count) {
  hand_over(args, count, Consumer::Reads);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* v = args[i];
    if (!v || is_tensor(v) || is_immutable(v)) continue;
    if (PyList_Check(v) || PyTuple_Check(v) || PyDict_Check(v) || PyFunction_Check(v) || PyType_Check(v) ||
        PyAnySet_Check(v) || PySlice_Check(v))
      continue;
    // `self` of a static function is its class or module.
    if (PyModule_Check(v) || starts_with(Py_TYPE(v)->tp_name, "torch.")) continue;
    return fail("hands a " + type_name(v) + " to torch." + std::string(name));
  }
}

void Observer::call_tensor_method(const std::string& name, PyObject* const* args, Py_ssize_t count) {
  if (name == "__setattr__" || name == "__delattr__") return fail("sets an attribute of a tensor");
  if ((name == "__getattribute__" || name == "__getattr__") && count == 2)
    return read_tensor_attribute(args[0], args[1]);
  if (tensor_method_does(name) == Does::Unknown) return fail("calls ." + name + "() of a tensor");
  call_torch(name.c_str(), args, count);
}

void Observer::call_method(PyTypeObject* type, const std::string& name, PyObject* self, PyObject* const* args,
                           Py_ssize_t count) {
  if (is_tensor(self)) {
    auto all = with_self(self, args, count);
    return call_tensor_method(name, all.data(), static_cast<Py_ssize_t>(all.size()));
  }
  if (name == "__new__") {
    if (type == &PyType_Type) expect_class_ = calling_;
    return hand_over(args, count, Consumer::Compares);
  }
  if (type == &PyBaseObject_Type || type == &PyType_Type || type == &PySuper_Type)
    return call_object_method(name, self, args, count);
  if (PyContextVar_CheckExact(self)) return call_context_variable(name, self);
  if (PyDict_Check(self) || PyList_Check(self) || PyAnySet_Check(self) || PyTuple_Check(self))
    return call_container_method(type, name, self, args, count);
  if (PyIter_Check(self) && (name == "__next__" || name == "send" || name == "close" || name == "__iter__")) {
    advance(self);
    return hand_over(args, count, Consumer::Reads);
  }
  Does does = method_does(type, name);
  if (does == Does::Unknown && PyExceptionInstance_Check(self))
    does = method_does(reinterpret_cast<PyTypeObject*>(PyExc_BaseException), name);
  if (does == Does::Unknown) return fail("calls ." + name + "() of a " + type_name(self));
  auto all = with_self(self, args, count);
  if (does == Does::Binds) return owner(self), void();
  perform(does, name, all.data(), static_cast<Py_ssize_t>(all.size()));
}

// Setting a context variable and resetting it before the end leaves nothing behind.
void Observer::call_context_variable(const std::string& name, PyObject* variable) {
  if (name == "set") {
    context_sets_[variable]++;
  } else if (name == "reset") {
    context_sets_[variable]--;
  } else if (name != "get") {
    fail("calls ." + name + "() of a ContextVar");
  } else if (!(context_sets_.count(variable) && context_sets_[variable] > 0)) {
    int node = owner(variable);
    if (node < 0) return fail("reads a context variable that cannot be reached again");
    PyObject* value = nullptr;
    if (PyContextVar_Get(variable, nullptr, &value) < 0) PyErr_Clear();
    py::object held = py::reinterpret_steal<py::object>(value);
    read_child(node, Access::Context, nullptr, -1, value);
  }
}

void Observer::call_object_method(const std::string& name, PyObject* self, PyObject* const* args,
                                  Py_ssize_t count) {
  if (name == "__setattr__" && count == 2) return set_plain_attribute(self, args[0], args[1]);
  if (name == "__delattr__" && count == 1)
    return write(self, [&] { return "deletes ." + text_of(args[0]) + " of a " + type_name(self); });
  if (name == "__getattribute__" && count == 1) {
    PyObject* descriptor = _PyType_Lookup(Py_TYPE(self), args[0]);
    if (PyType_HasFeature(Py_TYPE(self), Py_TPFLAGS_HEAPTYPE)) read_class(Py_TYPE(self), args[0], descriptor);
    if (descriptor && Py_TYPE(descriptor)->tp_descr_set)
      return read_data_descriptor(self, args[0], descriptor);
    return read_instance(self, args[0], descriptor);
  }
  static const Names kAsked = {"__init__", "__call__", "__eq__", "__ne__"};
  static const Names kNothing = {"__init_subclass__", "__subclasshook__", "__prepare__", "__or__", "__ror__"};
  static const Names kText = {"__repr__", "__str__", "__format__"};
  if (kNothing.count(name)) return;
  if (kText.count(name)) return name_by_address(self);
  if (name == "__eq__" || name == "__ne__") compare_as_itself(self);
  if (kAsked.count(name)) return hand_over(args, count, Consumer::Compares);
  if (name == "__instancecheck__" || name == "__subclasscheck__") {
    read_bases(self);
    if (count) read_bases(PyType_Check(args[0]) ? args[0] : reinterpret_cast<PyObject*>(Py_TYPE(args[0])));
    return;
  }
  if (name == "mro" && PyType_Check(self)) return read_bases(self);
  fail("calls ." + name + "()");
}

void Observer::set_plain_attribute(PyObject* self, PyObject* name, PyObject* value) {
  auto sets = [&] { return "sets ." + text_of(name) + " of a " + type_name(self); };
  PyObject* descriptor = PyUnicode_Check(name) ? _PyType_Lookup(Py_TYPE(self), name) : nullptr;
  PyObject** dict = PyType_Check(self) ? nullptr : _PyObject_GetDictPtr(self);
  bool plain = dict && *dict && PyUnicode_Check(name) && !(descriptor && Py_TYPE(descriptor)->tp_descr_set);
  if (PyUnicode_Check(name) && PyType_HasFeature(Py_TYPE(self), Py_TPFLAGS_HEAPTYPE))
    read_class(Py_TYPE(self), name, descriptor);
  if (plain) return write_entry(self, name, value, sets);
  write(self, sets);
}

void Observer::call_container_method(PyTypeObject* type, const std::string& name, PyObject* self,
                                     PyObject* const* args, Py_ssize_t count) {
  const Names* writers = writers_of(self);
  auto what = [&] { return "calls ." + name + "() of a " + type_name(self); };
  if (PyList_CheckExact(self) && name == "append" && count == 1)
    return write_again(Effect::Kind::Append, self, self, nullptr, -1, args[0], what);
  if (PyDict_CheckExact(self) && name == "__setitem__" && count == 2) {
    use_as_key(args[0]);
    return write_item(self, args[0], args[1]);
  }
  if (writers && writers->count(name)) {
    hand_over(args, count, Consumer::Compares);
    if (name == "sort" || name == "remove") consume(self, Consumer::Compares);
    return write(self, what);
  }
  if (PyDict_Check(self) && count >= 1 && name == "setdefault") {
    use_as_key(args[0]);
    int present = is_key(args[0]) ? PyDict_Contains(self, args[0]) : -1;
    return present == 1 ? read_dict_item(self, args[0]) : write(self, what);
  }
  Does does = method_does(type, name);
  if (does == Does::Unknown) return fail(what());
  if (does == Does::GetsItem && count >= 1) {
    use_as_key(args[0]);
    PyDict_Check(self) ? read_dict_item(self, args[0]) : read_item(self, args[0]);
    return hand_over(args + 1, count - 1, Consumer::Reads);
  }
  auto all = with_self(self, args, count);
  perform(does, name, all.data(), static_cast<Py_ssize_t>(all.size()));
}

}  // namespace lazytrace
