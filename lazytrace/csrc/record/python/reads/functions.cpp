#include "record/python/reads/functions.h"

#include <algorithm>

#include "cpython/objects.h"

namespace lazytrace {

void FunctionReads::read_function(PyObject* function, bool watched) {
  if (provenance_->is_fresh(function)) return;
  int node = provenance_->owner(function);
  if (node < 0) return;
  // Read once, as long as nothing was written to that its defaults may hold.
  auto at = static_cast<size_t>(node);
  if (read_functions_.size() <= at) read_functions_.resize(at + 256, 0);
  char known = watched ? 1 : 2;
  if (read_functions_[at] >= known && log_->empty() && provenance_->untouched()) return;
  read_functions_[at] = std::max(read_functions_[at], known);
  auto* f = reinterpret_cast<PyFunctionObject*>(function);
  // The root alone has its defaults in the signature, and its globals by itself.
  bool root = (*tree_)[node].access == Access::Root && (*tree_)[node].index == 0;
  if (!root) names_->read_globals_of(node, function);
  static PyObject *positional = PyUnicode_InternFromString("__defaults__"),
                  *by_keyword = PyUnicode_InternFromString("__kwdefaults__");
  for (PyObject* name : {positional, by_keyword}) {
    PyObject* value = name == positional ? f->func_defaults : f->func_kwdefaults;
    if (root) continue;
    provenance_->read_child(node, Access::Attribute, name, -1, value ? value : Py_None);
    if (value)
      watched ? consumption_->consume_defaults(value) : consumption_->consume(value, Consumer::Reads);
  }
  PyObject* closure = PyFunction_GET_CLOSURE(function);
  for (Py_ssize_t i = 0; closure && i < PyTuple_GET_SIZE(closure); ++i)
    provenance_->add_cell(PyTuple_GET_ITEM(closure, i), node, i);
}

namespace {
// Whose functions code of torch finds among its globals.
bool is_of_torch_or_library(const std::string& module) {
  return module == "torch" || module.rfind("torch.", 0) == 0 || module == "importlib._bootstrap" ||
         module == "functools" || module == "typing";
}

// The module that a function says that it is of, or that whose globals it has.
PyObject* module_of(PyFunctionObject* function) {
  for (PyObject* of : {function->func_module, PyDict_GetItemString(function->func_globals, "__name__")}) {
    if (!of || !is_of_torch_or_library(text_of(of))) continue;
    PyObject* module = PyDict_GetItemWithError(PyImport_GetModuleDict(), of);
    if (module && PyModule_CheckExact(module)) return module;
  }
  return nullptr;
}
}  // namespace

void FunctionReads::find_in_module(PyObject* function) {
  auto* f = reinterpret_cast<PyFunctionObject*>(function);
  PyObject *module = module_of(f), *name = f->func_name;
  PyObject* found = module ? PyDict_GetItemWithError(PyModule_GetDict(module), name) : nullptr;
  if (!found || !PyFunction_Check(found)) return;
  // A decorator keeps the function that it was given.
  PyObject* attributes = reinterpret_cast<PyFunctionObject*>(found)->func_dict;
  static PyObject* wrapped = PyUnicode_InternFromString("__wrapped__");
  PyObject* inner = attributes ? PyDict_GetItemWithError(attributes, wrapped) : nullptr;
  if (found != function && inner != function) return;
  int node = provenance_->read_node(provenance_->weak_node(module), Access::Instance, name, -1, found).first;
  if (found != function) provenance_->read_child(node, Access::Attribute, wrapped, -1, function);
}

void FunctionReads::find_among_globals(PyObject* function, PyObject* globals) {
  PyObject *name, *value;
  for (Py_ssize_t at = 0; PyDict_Next(globals, &at, &name, &value);) {
    if (value != function) continue;
    int module = provenance_->module_of(globals);
    if (module >= 0) provenance_->read_child(module, Access::Instance, name, -1, function);
    return;
  }
}

void FunctionReads::consume_function(PyObject* function) {
  read_function(function, false);
  PyObject* closure = PyFunction_GET_CLOSURE(function);
  int node = provenance_->owner(function);
  for (Py_ssize_t i = 0; closure && i < PyTuple_GET_SIZE(closure); ++i) {
    PyObject* value = PyCell_GET(PyTuple_GET_ITEM(closure, i));
    if (node >= 0) provenance_->read_child(node, Access::Cell, nullptr, i, value);
    consumption_->consume(value, Consumer::Trusted);
  }
}

}  // namespace lazytrace
