#include "record/python/reads/functions.h"

#include "cpython/objects.h"

namespace lazytrace {

void FunctionReads::read_function(PyObject* function) {
  if (provenance_->is_fresh(function)) return;
  int node = provenance_->owner(function);
  if (node < 0) return;
  // Read once, as long as nothing was written to that its defaults may hold.
  auto at = static_cast<size_t>(node);
  if (read_functions_.size() <= at) read_functions_.resize(at + 256, 0);
  if (read_functions_[at] && log_->empty() && provenance_->untouched()) return;
  read_functions_[at] = 1;
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
    if (value) consumption_->consume(value, Consumer::Reads);
  }
  PyObject* closure = PyFunction_GET_CLOSURE(function);
  for (Py_ssize_t i = 0; closure && i < PyTuple_GET_SIZE(closure); ++i)
    provenance_->add_cell(PyTuple_GET_ITEM(closure, i), node, i);
}

void FunctionReads::find_in_module(PyObject* function) {
  PyObject* globals = PyFunction_GET_GLOBALS(function);
  PyObject* name = reinterpret_cast<PyFunctionObject*>(function)->func_name;
  PyObject* of = PyDict_GetItemString(globals, "__name__");
  PyObject* module = of ? PyDict_GetItemWithError(PyImport_GetModuleDict(), of) : nullptr;
  if (!of || (text_of(of).rfind("torch.", 0) != 0 && text_of(of) != "importlib._bootstrap")) return;
  if (!module || !PyModule_CheckExact(module) || PyModule_GetDict(module) != globals ||
      PyDict_GetItemWithError(globals, name) != function)
    return;
  provenance_->read_child(provenance_->weak_node(module), Access::Instance, name, -1, function);
}

void FunctionReads::consume_function(PyObject* function) {
  read_function(function);
  PyObject* closure = PyFunction_GET_CLOSURE(function);
  int node = provenance_->owner(function);
  for (Py_ssize_t i = 0; closure && i < PyTuple_GET_SIZE(closure); ++i) {
    PyObject* value = PyCell_GET(PyTuple_GET_ITEM(closure, i));
    if (node >= 0) provenance_->read_child(node, Access::Cell, nullptr, i, value);
    consumption_->consume(value, Consumer::Trusted);
  }
}

}  // namespace lazytrace
