#include "record/python/callables.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/runtime/operator.h>
#include <torch/csrc/utils/pybind.h>

#include <cstring>
#include <unordered_map>
#include <vector>

#include "cpython/objects.h"
#include "record/python/escapes.h"
#include "support/address_map.h"

namespace lazytrace {

namespace {

struct Row {
  const char* holder;  // the module, or the class of a method
  const char* name;
  Does does;
};

const Row kFunctions[] = {
#define FUNCTION(module, name, does) {module, name, Does::does},
#include "record/python/callables.def"
#define SWITCH(name, kind, getter, setter, read, write) \
  {"torch", getter, Does::AsksSwitch}, {"torch", setter, Does::SetsSwitch},
#define PRECISION(name, backend, operation, of, on)          \
  {"torch", "_get_fp32_precision_getter", Does::AsksSwitch}, \
      {"torch", "_set_fp32_precision_setter", Does::SetsSwitch},
#include "torch/switches.def"
};
const Row kTypes[] = {
#define TYPE(module, name, does) {module, name, Does::does},
#include "record/python/callables.def"
};
const Row kMethods[] = {
#define METHOD(type, name, does) {type, name, Does::does},
#include "record/python/callables.def"
};
const Row kTensorMethods[] = {
#define TENSOR_METHOD(name, does) {"torch.Tensor", name, Does::does},
#include "record/python/callables.def"
};

// What stands under a dotted name of a module that is imported by now; borrowed, or null.
PyObject* find_object(const char* module, const char* name) {
  PyObject* found = PyDict_GetItemString(PyImport_GetModuleDict(), module);
  if (!found || !PyModule_Check(found)) return nullptr;
  found = PyDict_GetItemString(PyModule_GetDict(found), name);
  PyErr_Clear();
  return found;
}

// Rows that have found their object, by what of it never changes: a table that grows as modules are imported.
class Found {
 public:
  // `key_of(object, row)` is null for an object that is not what the row speaks of, as one that somebody has
  // put into the module for the time of a test: the row goes on looking. `name`: what the rows in question
  // are called, if that is known; then the answer that there is none is not kept either.
  template <size_t N, typename KeyOf>
  Does find(const Row (&rows)[N], const void* key, KeyOf key_of, const char* name = nullptr) {
    if (const Does* known = known_.find(key)) return *known;
    open_.resize(N, true);
    for (size_t i = 0; i < N; ++i) {
      if (!open_[i] || (name && std::strcmp(name, rows[i].name) != 0)) continue;
      PyObject* object = find_object(rows[i].holder, rows[i].name);
      const void* of = object ? key_of(object, rows[i]) : nullptr;
      if (!of) continue;
      open_[i] = false;
      known_[of] = rows[i].does;
      Py_INCREF(object);  // for good: another object at its address would be taken for it
    }
    if (!name) return known_[key];  // Unknown of what no row has found
    const Does* known = known_.find(key);
    return known ? *known : Does::Unknown;
  }

 private:
  AddressMap<Does> known_;
  std::vector<bool> open_;
};

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

std::string module_of(PyCFunctionObject* f) {
  if (f->m_module && PyUnicode_Check(f->m_module)) return text_of(f->m_module);
  if (!f->m_self || !PyModule_Check(f->m_self)) return "";
  const char* name = PyModule_GetName(f->m_self);
  if (!name) PyErr_Clear();
  return name ? name : "";
}

// torch's bindings: of operators, or of its state.
Does torch_function_does(PyCFunctionObject* f, const std::string& module) {
  std::string name = f->m_ml->ml_name;
  if (escapes_from_torch(name)) return Does::Unknown;
  PyObject* self = f->m_self;
  bool of_class =
      self && PyType_Check(self) && starts_with(c_name(reinterpret_cast<PyTypeObject*>(self)), "torch.");
  static const char* const kModules[] = {"torch._C._nn",      "torch._C._linalg", "torch._C._fft",
                                         "torch._C._special", "torch._C._sparse", "torch._C._nested"};
  bool of_operators = of_class;
  for (const char* known : kModules) of_operators |= module == known;
  if (of_class && escapes_from_tensor(name)) return Does::Unknown;
  for (const Row& row : kFunctions)
    if (std::strcmp(row.holder, "torch") == 0 && name == row.name) return row.does;
  return of_operators && is_operator_name(name) ? Does::Reads : Does::Unknown;
}

PyTypeObject* type_named(const char* name) {
  static const std::unordered_map<std::string, PyTypeObject*> kUnnamed = {
      {"dict_keys", &PyDictKeys_Type},
      {"dict_values", &PyDictValues_Type},
      {"dict_items", &PyDictItems_Type},
      {"odict_keys", &PyODictKeys_Type},
      {"odict_values", &PyODictValues_Type},
      {"odict_items", &PyODictItems_Type},
      {"mappingproxy", &PyDictProxy_Type},
      {"function", &PyFunction_Type},
      {"method", &PyMethod_Type},
      {"builtin_function_or_method", &PyCFunction_Type}};
  auto unnamed = kUnnamed.find(name);
  if (unnamed != kUnnamed.end()) return unnamed->second;
  const char* dot = std::strrchr(name, '.');
  PyObject* found = dot ? find_object(std::string(name, static_cast<size_t>(dot - name)).c_str(), dot + 1)
                        : find_object("builtins", name);
  return found && PyType_Check(found) ? reinterpret_cast<PyTypeObject*>(found) : nullptr;
}

}  // namespace

bool is_operator_name(const std::string& name) {
  static auto* known = new std::unordered_map<std::string, bool>();
  auto [at, missing] = known->try_emplace(name, false);
  if (missing)
    at->second = !torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString("aten::" + name)).empty();
  return at->second;
}

bool computes_alone(Does does) {
  switch (does) {
    case Does::Nothing:
    case Does::Reads:
    case Does::Compares:
    case Does::Computes:
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

Does function_does(PyCFunctionObject* f) {
  static auto* torchs = new AddressMap<Does>();
  if (const Does* known = torchs->find(f->m_ml)) return *known;
  std::string module = module_of(f);
  PyObject* self = f->m_self;
  bool of_torch_class =
      self && PyType_Check(self) && starts_with(c_name(reinterpret_cast<PyTypeObject*>(self)), "torch.");
  if (of_torch_class || module == "torch" || module == "torch._C" || starts_with(module, "torch._C."))
    return *torchs->emplace(f->m_ml, torch_function_does(f, module)).first;
  static auto* found = new Found();
  auto key_of = [](PyObject* object, const Row& row) -> const void* {
    if (!PyCFunction_Check(object)) return nullptr;
    auto* function = reinterpret_cast<PyCFunctionObject*>(object);
    bool own = std::strcmp(function->m_ml->ml_name, row.name) == 0 && module_of(function) == row.holder;
    return own ? function->m_ml : nullptr;
  };
  return found->find(kFunctions, f->m_ml, key_of, f->m_ml->ml_name);
}

Does object_does(PyObject* callable) {
  static auto* found = new Found();
  return found->find(kFunctions, callable, [](PyObject* object, const Row&) -> const void* {
    return PyCFunction_Check(object) || PyFunction_Check(object) ? nullptr : object;
  });
}

Does type_does(PyTypeObject* type) {
  if (PyType_FastSubclass(type, Py_TPFLAGS_BASE_EXC_SUBCLASS) &&
      !PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE))
    return Does::Reads;
  static auto* found = new Found();
  return found->find(kTypes, type, [](PyObject* object, const Row&) -> const void* { return object; });
}

Does method_does(PyTypeObject* type, const std::string& name) {
  static auto* known = new std::unordered_map<std::string, Does>();
  std::string key = std::to_string(reinterpret_cast<uintptr_t>(type)) + name;
  auto [at, missing] = known->try_emplace(key, Does::Unknown);
  if (!missing) return at->second;
  Does all = Does::Unknown;
  // How much memory a container has hangs on what it held before.
  if (name == "__sizeof__") return Does::Unknown;
  for (const Row& row : kMethods) {
    bool star = std::strcmp(row.name, "*") == 0;
    if ((!star && name != row.name) || type_named(row.holder) != type) continue;
    if (!star) return at->second = row.does;
    all = row.does;
  }
  return at->second = all;
}

Does tensor_method_does(const std::string& name) {
  if (escapes_from_tensor(name)) return Does::Unknown;
  for (const Row& row : kTensorMethods)
    if (name == row.name) return row.does;
  return is_operator_name(name) ? Does::Reads : Does::Unknown;
}

}  // namespace lazytrace
