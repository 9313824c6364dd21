// What a call into C does to and with the state around it: the part of the Observer that judges callables.
#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>
#include <unordered_set>

#include "cpython/objects.h"
#include "program/value_tree.h"
#include "record/python/observer.h"

namespace lazytrace {

namespace {

using Names = std::unordered_set<std::string>;

// Functions of builtins whose result follows from what their arguments hold.
const Names kPureBuiltins = {"abs",        "all",    "any",    "ascii",      "bin",        "chr",
                             "divmod",     "format", "hex",    "isinstance", "issubclass", "iter",
                             "len",        "max",    "min",    "oct",        "ord",        "pow",
                             "repr",       "round",  "sorted", "sum",        "callable",   "__build_class__",
                             "__import__", "aiter"};

// C modules without state: what they return follows from their arguments.
const Names kPureModules = {"math",    "cmath",     "_operator", "itertools", "_functools", "_abc",
                            "_bisect", "_warnings", "_string",   "_stat",     "_typing",    "_statistics"};

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

// Methods of a tensor that let its memory or its autograd state out of the dispatcher's sight.
const Names kTensorEscapes = {"tolist",
                              "numpy",
                              "data_ptr",
                              "__array__",
                              "register_hook",
                              "requires_grad_",
                              "backward",
                              "apply_",
                              "map_",
                              "map2_",
                              "storage",
                              "untyped_storage",
                              "_typed_storage",
                              "storage_offset",
                              "share_memory_",
                              "retain_grad",
                              "register_post_accumulate_grad_hook",
                              "__dlpack__",
                              "_make_subclass",
                              "_make_wrapper_subclass",
                              "as_subclass",
                              "__setstate__",
                              "__reduce_ex__",
                              "_set_grad",
                              "is_set_to",
                              "is_shared",
                              "is_pinned",
                              "record_stream",
                              "__deepcopy__",
                              "rename_",
                              "rename",
                              "names",
                              "refine_names",
                              "align_to",
                              "_is_view",
                              "set_",
                              "_clear_non_serializable_cached_data",
                              "new",
                              "data",
                              "_use_count",
                              "_version",
                              "untyped_storage_"};
// Functions that take memory that the dispatcher does not know.
const Names kTorchEscapes = {"from_numpy", "frombuffer", "from_file", "from_dlpack", "_from_numpy"};
// Functions of torch._C that read or switch what the signature or the recorder holds already.
const Names kTorchState = {"_get_tracing_state",
                           "is_grad_enabled",
                           "_set_grad_enabled",
                           "set_grad_enabled",
                           "is_inference_mode_enabled",
                           "is_inference",
                           "_is_torch_function_enabled",
                           "_is_torch_function_all_disabled",
                           "_has_torch_function",
                           "_has_torch_function_unary",
                           "_has_torch_function_variadic",
                           "_log_api_usage_once",
                           "is_autocast_enabled",
                           "get_autocast_dtype",
                           "is_autocast_cache_enabled",
                           "is_autocast_cpu_enabled",
                           "get_autocast_gpu_dtype",
                           "get_autocast_cpu_dtype",
                           "is_any_autocast_enabled",
                           "set_autocast_enabled",
                           "set_autocast_dtype",
                           "set_autocast_cache_enabled",
                           "autocast_increment_nesting",
                           "autocast_decrement_nesting",
                           "clear_autocast_cache",
                           "get_default_dtype",
                           "is_anomaly_enabled",
                           "_are_functorch_transforms_active",
                           "_len_torch_function_stack",
                           "_len_torch_dispatch_stack",
                           "_is_tracing",
                           "_jit_get_inline_everything_mode",
                           "_get_deterministic_algorithms",
                           "_get_cudnn_enabled",
                           "_get_mkldnn_enabled",
                           "_get_nnpack_enabled",
                           "_is_autocast_available",
                           "_get_privateuse1_backend_name",
                           "_get_math_sdp_enabled",
                           "_get_flash_sdp_enabled",
                           "_get_mem_efficient_sdp_enabled",
                           "_has_mps",
                           "_functorch",
                           "_get_default_device",
                           "wait",
                           "_get_cublas_allow_tf32",
                           "is_autocast_xla_enabled",
                           "_cuda_isCurrentStreamCapturing",
                           "_get_cudnn_allow_tf32",
                           "_is_compiling"};

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }
bool starts_with(const char* text, const char* prefix) {
  return std::strncmp(text, prefix, std::strlen(prefix)) == 0;
}

std::string module_of(PyObject* function) {
  auto* f = reinterpret_cast<PyCFunctionObject*>(function);
  if (f->m_module && PyUnicode_Check(f->m_module)) return text_of(f->m_module);
  if (f->m_self && PyModule_Check(f->m_self)) {
    const char* name = PyModule_GetName(f->m_self);
    if (!name) PyErr_Clear();
    return name ? name : "";
  }
  return "";
}

bool is_lru_cache(PyTypeObject* type) {
  return std::strcmp(type->tp_name, "functools._lru_cache_wrapper") == 0;
}

}  // namespace

namespace {
// Method definitions are static, and one that only runs operators does so whatever it is called with.
bool runs_operators(PyCFunctionObject* f) {
  static auto* known = new AddressSet();
  if (known->count(f->m_ml)) return true;
  PyObject* self = f->m_self;
  bool of_class =
      self && PyType_Check(self) && starts_with(reinterpret_cast<PyTypeObject*>(self)->tp_name, "torch.");
  static const Names kModules = {"torch._C._nn",
                                 "torch._C._linalg",
                                 "torch._C._fft",
                                 "torch._C._special",
                                 "torch._C._sparse",
                                 "torch._C._nested",
                                 "torch._C._VariableFunctions"};
  if ((!of_class && !kModules.count(module_of(reinterpret_cast<PyObject*>(f)))) ||
      kTorchEscapes.count(f->m_ml->ml_name))
    return false;
  known->insert(f->m_ml);
  return true;
}
}  // namespace

void Observer::hand_over(PyObject* const* args, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!args[i] || is_tensor(args[i]) || is_immutable(args[i])) continue;
    if (PyIter_Check(args[i])) advance(args[i]);
    judge_callback(args[i]);
    read_deep(args[i]);
  }
}

// C code may call what it is handed, with arguments that nobody sees. Python functions show themselves; C
// functions do not.
void Observer::judge_callback(PyObject* v) {
  if (PyCFunction_Check(v)) {
    auto* f = reinterpret_cast<PyCFunctionObject*>(v);
    std::string name = f->m_ml->ml_name;
    static const Names kNeedArguments = {"getattr", "setattr", "delattr", "hasattr", "next",
                                         "vars",    "id",      "iter",    "hash"};
    if (f->m_self && PyModule_Check(f->m_self) && kNeedArguments.count(name))
      return fail("hands " + name + "() to C code");
    return runs_operators(f) ? void() : call_builtin(v, nullptr, 0);
  }
  if (Py_IS_TYPE(v, &PyMethodDescr_Type) || Py_IS_TYPE(v, &PyWrapperDescr_Type)) {
    auto* descriptor = reinterpret_cast<PyDescrObject*>(v);
    std::string name = text_of(descriptor->d_name);
    bool changes = kListWriters.count(name) || kDictWriters.count(name) || kSetWriters.count(name) ||
                   name == "__setattr__";
    bool immutable = descriptor->d_type == &PyUnicode_Type || descriptor->d_type == &PyLong_Type ||
                     descriptor->d_type == &PyFloat_Type;
    bool tensor = starts_with(descriptor->d_type->tp_name, "torch.");
    if (tensor ? kTensorEscapes.count(name) > 0 : !immutable && (changes || name.rfind("__get", 0) == 0))
      return fail("hands ." + name + "() to C code");
  }
  if (starts_with(Py_TYPE(v)->tp_name, "operator."))
    return fail("hands an " + std::string(Py_TYPE(v)->tp_name) + " to C code");
  if (Py_IS_TYPE(v, &_PyMethodWrapper_Type) || std::strcmp(Py_TYPE(v)->tp_name, "functools.partial") == 0)
    return call(v, nullptr, nullptr, 0);
}

void Observer::call_operator_object(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  std::string kind = Py_TYPE(callable)->tp_name;
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

// operator.setitem and the like change their first argument; operator.call calls it.
void Observer::call_operator_function(const std::string& name, PyObject* const* args, Py_ssize_t count) {
  hand_over(args, count);
  static const Names kWriters = {"setitem", "delitem"};
  bool in_place = name.size() > 2 && name[0] == 'i' && name != "index" && name != "indexOf" &&
                  name != "inv" && name != "invert" && name != "is_" && name != "is_not";
  if (count && (kWriters.count(name) || in_place) && !is_tensor(args[0]) && !is_immutable(args[0]))
    return write(args[0], [&] { return "calls operator." + name + "() on a " + type_name(args[0]); });
  if (count && name == "call") return call(args[0], nullptr, args + 1, count - 1);
  if (count == 2 && name == "getitem") return read_item(args[0], args[1]);
  if (count == 2 && name == "contains") return read_contains(args[0], args[1]);
  if (count == 2 && (name == "is_" || name == "is_not")) return read_identity(args[0], args[1]);
}

// Under a filter that raises, a warning is an exception.
void Observer::read_warning_filters() {
  PyObject* module = PyImport_AddModule("warnings");
  PyObject* filters = PyDict_GetItemString(PyModule_GetDict(module), "filters");
  read_module_attribute(module, py::str("filters").ptr());
  if (filters) read_deep(filters);
}

void Observer::call(PyObject* callable, PyObject* self, PyObject* const* args, Py_ssize_t count) {
  PyTypeObject* type = Py_TYPE(callable);
  if (PyFunction_Check(callable)) return call_function(callable, self, args, count);
  if (PyMethod_Check(callable)) {
    PyObject* function = PyMethod_GET_FUNCTION(callable);
    int node = owner(callable);
    if (node >= 0 && by_path(node)) {
      static PyObject *held_function = PyUnicode_InternFromString("__func__"),
                      *held_self = PyUnicode_InternFromString("__self__");
      read_child(node, Access::Attribute, held_function, -1, function);
      read_child(node, Access::Attribute, held_self, -1, PyMethod_GET_SELF(callable));
    }
    if (PyFunction_Check(function)) return call_function(function, PyMethod_GET_SELF(callable), args, count);
    std::vector<PyObject*> all = {PyMethod_GET_SELF(callable)};
    all.insert(all.end(), args, args + count);
    return call(function, nullptr, all.data(), static_cast<Py_ssize_t>(all.size()));
  }
  if (PyType_Check(callable)) return call_type(reinterpret_cast<PyTypeObject*>(callable), args, count);
  if (PyCFunction_Check(callable)) return call_builtin(callable, args, count);
  if (Py_IS_TYPE(callable, &PyMethodDescr_Type) || Py_IS_TYPE(callable, &PyWrapperDescr_Type) ||
      Py_IS_TYPE(callable, &PyClassMethodDescr_Type)) {
    auto* descriptor = reinterpret_cast<PyDescrObject*>(callable);
    if (count < 1) return;
    // Operators as methods: judged once per descriptor, which lives as long as the class.
    static auto* operators = new AddressSet();
    if (is_tensor(args[0]) && operators->count(callable)) return call_torch("Tensor", args, count);
    if (is_tensor(args[0]) && !kTensorEscapes.count(text_of(descriptor->d_name)) &&
        text_of(descriptor->d_name).rfind("__", 0) != 0 &&
        descriptor->d_type->tp_name == std::string("torch._C.TensorBase"))
      operators->insert(callable);
    return call_method(descriptor->d_type, text_of(descriptor->d_name), args[0], args + 1, count - 1);
  }
  if (Py_IS_TYPE(callable, &_PyMethodWrapper_Type)) {
    py::object bound = py::reinterpret_steal<py::object>(PyObject_GetAttrString(callable, "__self__"));
    py::object name = py::reinterpret_steal<py::object>(PyObject_GetAttrString(callable, "__name__"));
    if (!bound || !name) return PyErr_Clear();
    if (int node = owner(callable); node >= 0) {
      read_child(node, Access::Attribute, py::str("__self__").ptr(), -1, bound.ptr());
      read_child(node, Access::Attribute, py::str("__name__").ptr(), -1, name.ptr());
    }
    return call_method(c_base(Py_TYPE(bound.ptr())), text_of(name.ptr()), bound.ptr(), args, count);
  }
  if (PyWeakref_CheckRef(callable)) {
    int node = owner(callable);
    PyObject* object = PyWeakref_GET_OBJECT(callable);
    return node >= 0 ? read_child(node, Access::Deref, nullptr, -1, object)
                     : fail("calls a weak reference that cannot be reached again");
  }
  std::string name = type->tp_name;
  if (name == "functools.partial") {
    int node = owner(callable);
    for (const char* part : {"func", "args", "keywords"}) {
      py::object value = py::reinterpret_steal<py::object>(PyObject_GetAttrString(callable, part));
      if (!value) return PyErr_Clear();
      if (node >= 0) read_child(node, Access::Attribute, py::str(part).ptr(), -1, value.ptr());
      if (std::string(part) == "func") {
        std::vector<PyObject*> all(args, args + count);
        py::object fixed = py::reinterpret_steal<py::object>(PyObject_GetAttrString(callable, "args"));
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(fixed.ptr()); ++i)
          all.push_back(PyTuple_GET_ITEM(fixed.ptr(), i));
        call(value.ptr(), nullptr, all.data(), static_cast<Py_ssize_t>(all.size()));
      } else {
        read_deep(value.ptr());
      }
    }
    return;
  }
  if (starts_with(name, "operator.")) return call_operator_object(callable, args, count);
  if (is_lru_cache(type)) {
    PyObject* wrapped = PyObject_GetAttrString(callable, "__wrapped__");
    std::string file =
        wrapped && PyFunction_Check(wrapped)
            ? text_of(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(wrapped))->co_filename)
            : "";
    Py_XDECREF(wrapped);
    PyErr_Clear();
    // The caches of libraries are of pure functions; a user's may hide state.
    if (file.find("site-packages") == std::string::npos && file.find("/lib/python") == std::string::npos)
      return fail("calls a function with a functools cache");
    return hand_over(args, count);
  }
  static PyObject* key = PyUnicode_InternFromString("__call__");
  PyObject* target = _PyType_Lookup(type, key);
  if (target && PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && PyFunction_Check(target)) {
    read_class(type, key, target);
    // A traced function that is called by another one: its own wrapper is not watched, what it wraps is.
    static PyObject* wrapped = PyUnicode_InternFromString("__wrapped__");
    PyObject* slot = _PyType_Lookup(type, wrapped);
    if (slot && !PyFunction_Check(slot) && Py_TYPE(slot)->tp_descr_get) {
      int node = owner(callable);
      py::object inner = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(callable, wrapped));
      if (inner && node >= 0) read_child(node, Access::Attribute, wrapped, -1, inner.ptr());
      PyErr_Clear();
    }
    return;
  }
  if (target && PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && !Py_TYPE(target)->tp_descr_set &&
      !Py_IS_TYPE(target, &PyWrapperDescr_Type) && PyCallable_Check(target)) {
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
  if (kwargs && PyDict_Check(kwargs) && !PyFunction_Check(callable)) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(kwargs, &position, &key, &value)) read_deep(value);
  }
  call(callable, nullptr, all.data(), positional);
}

void Observer::call_function(PyObject* function, PyObject* self, PyObject* const* args, Py_ssize_t count) {
  owner(function);
  // Trusted code is not watched, so what it is handed counts as read.
  if (!(code_flags(PyFunction_GET_CODE(function)) & kSkipped)) return;
  if (self && self != (count ? args[0] : nullptr)) read_deep(self);
  hand_over(args, count);
}

void Observer::call_type(PyTypeObject* type, PyObject* const* args, Py_ssize_t count) {
  if (type == &PyType_Type) {
    if (count != 1) return hand_over(args, count);
    int node = known(args[0]);
    if (node >= 0 && !is_tensor(args[0])) {
      bool made;
      int child = tree_->child(node, Access::Type, nullptr, -1, &made);
      learn(child, made, reinterpret_cast<PyObject*>(Py_TYPE(args[0])));
    }
    return;
  }
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
    // A Python class shows its __new__ and __init__. What its C base takes of the arguments counts as read.
    static PyObject *make = PyUnicode_InternFromString("__new__"),
                    *initialize = PyUnicode_InternFromString("__init__");
    for (PyObject* name : {make, initialize}) {
      PyObject* value = _PyType_Lookup(type, name);
      if (value) read_class(type, name, value);
    }
    PyTypeObject* meta = Py_TYPE(reinterpret_cast<PyObject*>(type));
    if (PyType_HasFeature(meta, Py_TPFLAGS_HEAPTYPE))
      read_special(reinterpret_cast<PyObject*>(type), "__call__");
    if (c_base(type) != &PyBaseObject_Type) hand_over(args, count);
    return;
  }
  static const Names kTypes = {"functools.partial",
                               "collections.OrderedDict",
                               "collections.defaultdict",
                               "collections.deque",
                               "operator.itemgetter",
                               "operator.attrgetter",
                               "operator.methodcaller",
                               "types.GenericAlias",
                               "types.SimpleNamespace",
                               "types.MethodType",
                               "method",
                               "torch.Size",
                               "torch.device",
                               "torch.finfo",
                               "torch.iinfo",
                               "torch.dtype",
                               "Exception"};
  std::string name = type->tp_name;
  bool builtin = name.find('.') == std::string::npos;
  if (!builtin && !kTypes.count(name) && !starts_with(name, "itertools."))
    return fail("makes a " + name + ", which lazytrace cannot see into");
  static const Names kRefused = {"memoryview", "bytearray", "frame", "module"};
  if (kRefused.count(name)) return fail("makes a " + name);
  for (Py_ssize_t i = 0; i < count; ++i) {
    read_conversions(args[i]);
  }
  hand_over(args, count);
}

// What the builtin functions and classes ask of an instance of a Python class.
void Observer::read_conversions(PyObject* object) {
  if (!is_python_class(Py_TYPE(object))) return;
  for (const char* name :
       {"__iter__",  "__len__",   "__bool__",  "__int__",      "__float__",    "__complex__",
        "__index__", "__trunc__", "__str__",   "__repr__",     "__format__",   "__bytes__",
        "__abs__",   "__round__", "__floor__", "__ceil__",     "__hash__",     "__eq__",
        "__lt__",    "__gt__",    "__next__",  "__reversed__", "__contains__", "__getitem__"})
    read_special(object, name);
}

// The classes that a class has for bases, which can be assigned to.
void Observer::read_bases(PyObject* type) {
  int node = is_python_class(reinterpret_cast<PyTypeObject*>(type)) ? owner(type) : -1;
  if (node < 0) return;
  PyObject* order = reinterpret_cast<PyTypeObject*>(type)->tp_mro;
  read_child(node, Access::Attribute, py::str("__mro__").ptr(), -1, order);
  read_whole(order);
}

void Observer::call_builtin(PyObject* function, PyObject* const* args, Py_ssize_t count) {
  auto* f = reinterpret_cast<PyCFunctionObject*>(function);
  if (runs_operators(f)) return call_torch(f->m_ml->ml_name, args, count);
  std::string name = f->m_ml->ml_name, module = module_of(function);
  PyObject* self = f->m_self;
  if (module == "builtins" && self && PyModule_Check(self)) return call_builtins_function(name, args, count);
  bool of_torch = self && PyType_Check(self) &&
                  starts_with(c_base(reinterpret_cast<PyTypeObject*>(self))->tp_name, "torch.");
  if (of_torch && kTensorEscapes.count(name)) return fail("calls torch.Tensor." + name + "()");
  if (kTorchEscapes.count(name))
    return fail("calls torch." + name + "(), whose memory lazytrace does not know");
  if (module == "torch._C" || starts_with(module, "torch._C.")) {
    if (kTorchState.count(name)) return;
    return fail("calls " + module + "." + name);
  }
  if (self && !PyModule_Check(self)) {
    if (is_tensor(self)) {
      std::vector<PyObject*> all = {self};
      all.insert(all.end(), args, args + count);
      return call_tensor_method(name, all.data(), static_cast<Py_ssize_t>(all.size()));
    }
    PyTypeObject* type = PyType_Check(self) ? reinterpret_cast<PyTypeObject*>(self) : Py_TYPE(self);
    return call_method(c_base(type), name, self, args, count);
  }
  if (module == "sys" && name == "intern") return;
  if (module == "sys" && name == "getrecursionlimit")
    return read_child(-1, Access::RecursionLimit, nullptr, -1, py::int_(Py_GetRecursionLimit()).ptr());
  if (module == "torch" && kTorchState.count(name)) return;
  if (!kPureModules.count(module))
    return fail("calls " + (module.empty() ? "" : module + ".") + name +
                "(), which lazytrace cannot see into");
  if (module == "_warnings") read_warning_filters();
  if (module == "_abc") {
    py::object token = py::module_::import("abc").attr("get_cache_token")();
    read_child(-1, Access::AbcToken, nullptr, -1, token.ptr());
  }
  if (module == "_operator") return call_operator_function(name, args, count);
  if (module == "_bisect" && name.rfind("insort", 0) == 0) return fail("calls bisect." + name + "()");
  if (module == "_functools" && name != "reduce" && name != "cmp_to_key")
    return fail("calls " + module + "." + name);
  hand_over(args, count);
}

void Observer::call_builtins_function(const std::string& name, PyObject* const* args, Py_ssize_t count) {
  if ((name == "getattr" || name == "hasattr") && count >= 2) return read_attribute(args[0], args[1]);
  if (name == "setattr" && count == 3) return write_attribute(args[0], args[1], args[2]);
  if (name == "delattr" && count == 2) return write_attribute(args[0], args[1], nullptr);
  if (name == "vars" && count == 1) return read_attribute(args[0], py::str("__dict__").ptr());
  if (name == "next" && count >= 1) return advance(args[0]);
  if (name == "id" && count == 1) {
    int node = known(args[0]) >= 0 || is_tensor(args[0]) ? known(args[0]) : owner(args[0]);
    if (node < 0 || is_tensor(args[0]) || !PyType_SUPPORTS_WEAKREFS(Py_TYPE(args[0])))
      return fail("calls id()");
    if ((*tree_)[node].access != Access::Weak) read_self(node, args[0]);
    return;
  }
  if (name == "hash" && count == 1 && is_immutable(args[0])) return;
  if (name == "iter" && count == 1) return read_iteration(args[0]);
  if (name == "len" && count == 1) return read_length(args[0]);
  if (name == "isinstance" || name == "issubclass") {
    if (count != 2) return;
    read_deep(args[1]);
    return read_bases(PyType_Check(args[0]) && name[2] == 's' && name[3] == 'u'
                          ? args[0]
                          : reinterpret_cast<PyObject*>(Py_TYPE(args[0])));
  }
  if (name == "callable") return;
  if (name == "print" && ignore_print_ && calling_ && !ignored_) return begin_ignored(calling_);
  if (!kPureBuiltins.count(name)) return fail("calls " + name + "()");
  for (Py_ssize_t i = 0; i < count; ++i) {
    read_conversions(args[i]);
  }
  hand_over(args, count);
}

void Observer::call_torch(const char* name, PyObject* const* args, Py_ssize_t count) {
  hand_over(args, count);
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
  if (kTensorEscapes.count(name)) return fail("calls ." + name + "() of a tensor");
  if (name == "__setattr__" || name == "__delattr__") return fail("sets an attribute of a tensor");
  if ((name == "__getattribute__" || name == "__getattr__") && count == 2)
    return read_tensor_attribute(args[0], args[1]);
  call_torch(name.c_str(), args, count);
}

void Observer::call_method(PyTypeObject* type, const std::string& name, PyObject* self, PyObject* const* args,
                           Py_ssize_t count) {
  if (name == "__instancecheck__" || name == "__subclasscheck__" || name == "__prepare__" || name == "mro")
    return hand_over(args, count);
  std::string type_text = type->tp_name;
  if (is_tensor(self)) {
    std::vector<PyObject*> all = {self};
    all.insert(all.end(), args, args + count);
    return call_tensor_method(name, all.data(), static_cast<Py_ssize_t>(all.size()));
  }
  if (type == &PyBaseObject_Type || type == &PyType_Type || type == &PySuper_Type)
    return call_object_method(name, self, args, count);
  if (PyContextVar_CheckExact(self)) return call_context_variable(name, self);
  bool container = PyList_Check(self) || PyDict_Check(self) || PyAnySet_Check(self) || PyTuple_Check(self);
  if (container) return call_container_method(name, self, args, count);
  if (name == "__new__" || is_immutable(self)) return hand_over(args, count);
  static const Names kViews = {"dict_keys",
                               "dict_values",
                               "dict_items",
                               "odict_keys",
                               "odict_values",
                               "odict_items",
                               "mappingproxy",
                               "range",
                               "slice",
                               "types.GenericAlias",
                               "staticmethod",
                               "classmethod",
                               "property",
                               "function",
                               "method",
                               "builtin_function_or_method",
                               "types.SimpleNamespace",
                               "BaseException",
                               "Exception",
                               "torch.Size",
                               "torch.dtype",
                               "torch.device",
                               "cell",
                               "code",
                               "module"};
  if (kViews.count(type_text)) return hand_over(args, count);
  if (PyIter_Check(self)) {
    advance(self);
    return hand_over(args, count);
  }
  // Some builtins are classes of their own: str, int, float and the rest that cannot change.
  static const Names kImmutable = {"str",   "bytes",     "int",  "float", "complex", "bool",
                                   "tuple", "frozenset", "dict", "list",  "set"};
  if (kImmutable.count(type_text)) return hand_over(args, count);
  fail("calls ." + name + "() of a " + type_name(self));
}

// Setting a context variable and resetting it before the end leaves nothing behind.
void Observer::call_context_variable(const std::string& name, PyObject* variable) {
  if (name == "set") {
    context_sets_[variable]++;
  } else if (name == "reset") {
    context_sets_[variable]--;
  } else if (name == "get" && !(context_sets_.count(variable) && context_sets_[variable] > 0)) {
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
  if (name == "__setattr__" && count == 2) {
    auto sets = [&] { return "sets ." + text_of(args[0]) + " of a " + type_name(self); };
    PyObject* descriptor = PyUnicode_Check(args[0]) ? _PyType_Lookup(Py_TYPE(self), args[0]) : nullptr;
    PyObject** dict = PyType_Check(self) ? nullptr : _PyObject_GetDictPtr(self);
    bool plain =
        dict && *dict && PyUnicode_Check(args[0]) && !(descriptor && Py_TYPE(descriptor)->tp_descr_set);
    if (PyUnicode_Check(args[0]) && PyType_HasFeature(Py_TYPE(self), Py_TPFLAGS_HEAPTYPE))
      read_class(Py_TYPE(self), args[0], descriptor);
    if (plain) return write_entry(self, args[0], args[1], sets);
    return write(self, sets);
  }
  if (name == "__delattr__" && count == 1)
    return write(self, [&] { return "deletes ." + text_of(args[0]) + " of a " + type_name(self); });
  if (name == "__getattribute__" && count == 1) {
    PyObject* descriptor = _PyType_Lookup(Py_TYPE(self), args[0]);
    if (PyType_HasFeature(Py_TYPE(self), Py_TPFLAGS_HEAPTYPE)) read_class(Py_TYPE(self), args[0], descriptor);
    if (descriptor && Py_TYPE(descriptor)->tp_descr_set)
      return read_data_descriptor(self, args[0], descriptor);
    return read_instance(self, args[0], descriptor);
  }
  static const Names kRefused = {"__subclasses__", "__reduce__", "__reduce_ex__",
                                 "__dir__",        "__sizeof__", "__hash__"};
  if (kRefused.count(name)) return fail("calls ." + name + "()");
  if (name == "__new__" || name == "__init__" || name == "__call__") return hand_over(args, count);
}

void Observer::call_container_method(const std::string& name, PyObject* self, PyObject* const* args,
                                     Py_ssize_t count) {
  const Names& writers = PyDict_Check(self)     ? kDictWriters
                         : PyAnySet_Check(self) ? kSetWriters
                                                : kListWriters;
  auto what = [&] { return "calls ." + name + "() of a " + type_name(self); };
  if (PyList_CheckExact(self) && name == "append" && count == 1)
    return write_again(Effect::Kind::Append, self, self, nullptr, -1, args[0], what);
  if (PyDict_CheckExact(self) && name == "__setitem__" && count == 2)
    return write_item(self, args[0], args[1]);
  if (!PyTuple_Check(self) && writers.count(name)) {
    hand_over(args, count);
    return write(self, what);
  }
  if (PyDict_Check(self) && count >= 1 && (name == "get" || name == "__getitem__" || name == "__contains__"))
    return read_dict_item(self, args[0]);
  if (PyDict_Check(self) && count >= 1 && name == "setdefault") {
    int present = PyDict_Contains(self, args[0]);
    return present == 1 ? read_dict_item(self, args[0]) : write(self, what);
  }
  if (name == "__len__") return read_length(self);
  if (PyDict_Check(self)) return read_whole(self);
  read_deep(self);
  hand_over(args, count);
}

}  // namespace lazytrace
