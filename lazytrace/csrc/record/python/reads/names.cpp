#include "record/python/reads/names.h"

#include "cpython/objects.h"
#include "support/reasons.h"

namespace lazytrace {

NameReads::GlobalsNode NameReads::globals_of(Frame f) { return globals_node(f.globals(), f.function()); }

// `function`: one that has these globals, or null.
NameReads::GlobalsNode NameReads::globals_node(PyObject* globals, PyObject* function) {
  if (const GlobalsNode* found = globals_.find(globals)) return *found;
  GlobalsNode result{-1, Access::Item};
  PyObject* name = PyDict_GetItemString(globals, "__name__");
  PyObject* module = name && PyUnicode_Check(name) ? PyDict_GetItem(PyImport_GetModuleDict(), name) : nullptr;
  if (module && PyModule_Check(module) && PyModule_GetDict(module) == globals) {
    result = {provenance_->weak_node(module), Access::Instance};
  } else if (function) {
    int node = provenance_->owner(function);
    if (node >= 0) {
      bool made;
      result.node = tree_->child(node, Access::Globals, nullptr, -1, &made);
    }
  }
  if (result.node < 0) recorder_->fail("reads global names of a function that cannot be reached again");
  provenance_->hold(globals);
  provenance_->know_first(globals, result.node);
  if (result.access == Access::Instance && result.node >= 0) {
    bool made;
    provenance_->know(globals, tree_->child(result.node, Access::Namespace, nullptr, -1, &made));
  }
  return globals_[globals] = result;
}

void NameReads::read_globals_of(int node, PyObject* function) {
  if (!provenance_->by_path(node)) return;
  PyObject* globals = PyFunction_GET_GLOBALS(function);
  globals_node(globals, function);
  provenance_->read_child(node, Access::Globals, nullptr, -1, globals);
}

// `seen` asks the same of the whole recording; this of one instruction, and without a search.
void NameReads::read_global_again(Frame f, PyObject* name, GlobalMemo* memo) {
  if (memo->recording == provenance_->number() && memo->globals == f.globals() && provenance_->untouched())
    return;
  if (provenance_->untouched()) *memo = {provenance_->number(), f.globals()};
  read_global(f, name);
}

void NameReads::read_global(Frame f, PyObject* name) {
  if (provenance_->untouched() && provenance_->seen(f.globals(), name)) return;
  // What the call has put there is as it made it.
  if (provenance_->is_fresh(f.globals()) && PyDict_GetItemWithError(f.globals(), name)) return;
  GlobalsNode globals = globals_of(f);
  if (globals.node < 0) return;
  if (log_->wrote(f.globals(), name)) return (void)provenance_->meets_hidden(f.globals());
  if (provenance_->touched(f.globals()))
    recorder_->fail("reads the global " + text_of(name) + " after an opaque function has set globals");
  PyObject* value = PyDict_GetItemWithError(f.globals(), name);
  provenance_->read_operand(globals.node, globals.access, name, -1, value);
  if (value) return;
  PyObject* builtins = PyImport_AddModule("builtins");  // borrowed
  if (PyModule_GetDict(builtins) != f.builtins()) return recorder_->fail("runs with builtins of its own");
  provenance_->read_child(provenance_->weak_node(builtins), Access::Instance, name, -1,
                          PyDict_GetItemWithError(f.builtins(), name));
}

bool NameReads::read_global_of(PyObject* function, PyObject* name) {
  PyObject* globals = PyFunction_GET_GLOBALS(function);
  if (log_->wrote(globals, name) || provenance_->touched(globals)) return false;
  PyObject* builtins = PyImport_AddModule("builtins");  // borrowed
  if (PyModule_GetDict(builtins) != reinterpret_cast<PyFunctionObject*>(function)->func_builtins)
    return false;
  GlobalsNode found = globals_node(globals, function);
  // A number that is known to differ from call to call is left to the function to find.
  if (found.node < 0 || provenance_->follows(found.node, found.access, name, -1)) return false;
  PyObject* value = PyDict_GetItemWithError(globals, name);
  provenance_->read_child(found.node, found.access, name, -1, value);
  if (!value)
    provenance_->read_child(provenance_->weak_node(builtins), Access::Instance, name, -1,
                            PyDict_GetItemWithError(PyModule_GetDict(builtins), name));
  return true;
}

void NameReads::read_name(Frame f, PyObject* name) {
  if (f.locals() && f.locals() != f.globals() && PyDict_Check(f.locals()) &&
      PyDict_GetItemWithError(f.locals(), name))
    return;
  read_global(f, name);
}

void NameReads::read_cell(Frame f, int index) {
  PyObject* cell = f.slot(index);
  if (!cell || !PyCell_Check(cell)) return;
  provenance_->meets_hidden(cell);
  if (provenance_->touched(cell)) recorder_->fail("reads a variable that an opaque function has changed");
  if (log_->wrote_to(cell)) return;
  const std::pair<int, Py_ssize_t>* found = provenance_->cell(cell);
  if (!found && !provenance_->has_shared_cells()) return;  // one of this call
  // Two functions share it now; each may have one of its own at the next call.
  if (provenance_->is_shared_cell(cell) && f.function() && !provenance_->is_fresh(f.function())) {
    int first = f.first_free();
    int function = provenance_->owner(f.function());
    if (index >= first && function >= 0)
      provenance_->read_child(function, Access::Cell, nullptr, index - first, PyCell_GET(cell));
  }
  if (!found) return;
  if (provenance_->is_shared_cell(cell))
    provenance_->read_child(found->first, Access::Cell, nullptr, found->second, PyCell_GET(cell));
  else
    provenance_->read_operand(found->first, Access::Cell, nullptr, found->second, PyCell_GET(cell));
}

// What super() without arguments looks at.
void NameReads::read_class_cell(Frame f) {
  static PyObject* const name = PyUnicode_InternFromString("__class__");
  PyCodeObject* code = f.code_object();
  for (int i = f.first_free(); i < code->co_nlocalsplus; ++i)
    if (PyTuple_GET_ITEM(code->co_localsplusnames, i) == name) read_cell(f, i);
}

// Of what an import is that leaves out its first names: of what the globals say, in the order in which Python
// asks them.
std::string NameReads::read_package(Frame f) {
  GlobalsNode globals = globals_of(f);
  auto read = [&](const char* name) {
    py::str key(name);
    PyObject* value = PyDict_GetItemWithError(f.globals(), key.ptr());
    if (globals.node >= 0) provenance_->read_child(globals.node, globals.access, key.ptr(), -1, value);
    if (log_->wrote(f.globals(), key.ptr()) || provenance_->touched(f.globals()))
      recorder_->fail(say(reason::OddPackage));
    return value;
  };
  PyObject* package = read("__package__");
  read("__spec__");
  if (package && PyUnicode_CheckExact(package)) return text_of(package);
  recorder_->fail(say(reason::OddPackage));
  return "";
}

// `import a.b`: what is imported, and what imports at all.
void NameReads::read_import(Frame f, PyObject* name, PyObject* level) {
  static PyObject* importer = PyUnicode_InternFromString("__import__");
  PyObject* builtins = PyImport_AddModule("builtins");  // borrowed
  if (PyModule_GetDict(builtins) != f.builtins()) return recorder_->fail("runs with builtins of its own");
  PyObject* found = PyDict_GetItemWithError(f.builtins(), importer);
  provenance_->read_child(provenance_->weak_node(builtins), Access::Instance, importer, -1, found);
  if (!found || !PyCFunction_Check(found)) return recorder_->fail(say(reason::ReplacedImport));
  std::string full = text_of(name);
  if (Py_ssize_t up = PyLong_AsSsize_t(level); up > 0) {
    std::string base = read_package(f);
    for (; up > 1; --up) base = base.substr(0, base.rfind('.') == std::string::npos ? 0 : base.rfind('.'));
    full = full.empty() ? base : base + "." + full;
  }
  provenance_->read_imported(full);
}

}  // namespace lazytrace
