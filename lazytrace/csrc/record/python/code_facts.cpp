#include "record/python/code_facts.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <unordered_set>

#include "cpython/imports.h"
#include "cpython/inline_cache.h"
#include "cpython/objects.h"

namespace lazytrace {

namespace {

std::string torch_folder, own_folder, library_folder;
std::unordered_set<PyObject*> opaque_codes;  // kept alive by the modules that define them
Py_ssize_t code_slot = -1;

struct TrustedCode {
  const char* file;
  const char* name;
};
const TrustedCode kTrusted[] = {
#define TRUSTED(file, name, why) {file, name},
#include "torch/trusted_code.def"
};
const TrustedCode kWatched[] = {
#define WATCHED(file, name, why) {file, name},
#include "torch/trusted_code.def"
};
const TrustedCode kRestoring[] = {
#define RESTORES(file, name, why) {file, name},
#include "torch/trusted_code.def"
};
const TrustedCode kRunningHooks[] = {
#define RUNS_HOOKS(file, name, why) {file, name},
#include "torch/trusted_code.def"
};
const TrustedCode kDispatching[] = {
#define DISPATCHES(file, name, why) {file, name},
#include "torch/trusted_code.def"
};
const TrustedCode kBookkeepers[] = {
#define BOOKKEEPING(file, name, why) {file, name},
#include "torch/trusted_code.def"
};

// What stands for code in C is watched, though nobody has written it.
bool stands_in(const std::string& file) {
  std::string start = own_folder + "stand_ins";
  return !own_folder.empty() && file.compare(0, start.size(), start) == 0;
}

// With what it has inside that has no name.
bool watched_nevertheless(const std::string& inside, const std::string& name) {
  return std::any_of(std::begin(kWatched), std::end(kWatched), [&](const TrustedCode& row) {
    std::string own = row.name;
    return inside == row.file && (name == own || name.rfind(own + ".<locals>.<", 0) == 0);
  });
}

bool trusted(const std::string& file, const std::string& name) {
  if (stands_in(file)) return false;
  if (!own_folder.empty() && file.compare(0, own_folder.size(), own_folder) == 0) return true;
  if (file.compare(0, torch_folder.size(), torch_folder) != 0) return false;
  std::string inside = file.substr(torch_folder.size());
  if (watched_nevertheless(inside, name)) return false;
  for (const TrustedCode& row : kTrusted) {
    size_t n = std::strlen(row.file);
    bool here = inside.compare(0, n, row.file) == 0 && (inside.size() == n || inside[n] == '/');
    if (here && (!*row.name || name == row.name)) return true;
  }
  return false;
}

}  // namespace

void configure_observer(const std::string& torch, const std::string& own, const std::string& library,
                        const std::vector<py::object>& codes) {
  torch_folder = torch;
  own_folder = own;
  library_folder = library;
  for (auto& code : codes) opaque_codes.insert(code.ptr());
  for (auto& code : codes) Py_INCREF(code.ptr());
  if (code_slot < 0)
    code_slot = _PyEval_RequestCodeExtraIndex([](void* facts) { delete static_cast<CodeFacts*>(facts); });
}

namespace {

// What opt_einsum tells people of the way in which it multiplies, in decimal numbers. torch.einsum, which
// calls it for three tensors and more, drops that. Found by object.
bool notes_for_people(PyObject* code, const std::string& name) {
  if (name != "PathInfo.__init__") return false;
  PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), "opt_einsum.contract");
  if (!module || !PyModule_Check(module)) return PyErr_Clear(), false;
  PyObject* cls = PyDict_GetItemString(PyModule_GetDict(module), "PathInfo");
  if (!cls || !PyType_Check(cls)) return false;
  PyObject* init = PyDict_GetItemString(reinterpret_cast<PyTypeObject*>(cls)->tp_dict, "__init__");
  return init && PyFunction_Check(init) && PyFunction_GET_CODE(init) == code;
}

uintptr_t flags_of(PyObject* code) {
  std::string file = text_of(reinterpret_cast<PyCodeObject*>(code)->co_filename);
  std::string name = text_of(reinterpret_cast<PyCodeObject*>(code)->co_qualname);
  uintptr_t flags = 0;
  if (trusted(file, name)) flags |= kSkipped;
  if (!own_folder.empty() && !stands_in(file) && file.compare(0, own_folder.size(), own_folder) == 0)
    flags |= kOwn;
  // Lines of torch and of the standard library are watched, but a person looks for the line of theirs that
  // led there.
  bool library = file.compare(0, library_folder.size(), library_folder) == 0 &&
                 file.find("site-packages") == std::string::npos;
  bool nobodys = file == "<lazytrace>" || stands_in(file) || file.compare(0, 8, "<frozen ") == 0;
  if (file.compare(0, torch_folder.size(), torch_folder) != 0 && !(flags & kSkipped) && !library && !nobodys)
    flags |= kUser;
  // What torch.compile returns is entered here; naming the file does not import dynamo, which costs a second.
  bool compiled = text_of(reinterpret_cast<PyCodeObject*>(code)->co_name) == "compile_wrapper" &&
                  file == torch_folder + "_dynamo/eval_frame.py";
  if (file.compare(0, torch_folder.size(), torch_folder) == 0) flags |= kTorchs;
  for (const TrustedCode& row : kBookkeepers)
    if (file == torch_folder + row.file && name == row.name) flags |= kBookkeeping;
  if (notes_for_people(code, name)) flags |= kBookkeeping;
  for (const TrustedCode& row : kRestoring)
    if (file == torch_folder + row.file && name == row.name) flags |= kRestores;
  for (const TrustedCode& row : kRunningHooks)
    if (file == torch_folder + row.file && name == row.name) flags |= kRunsHooks;
  for (const TrustedCode& row : kDispatching)
    if (file == torch_folder + row.file && (!*row.name || name == row.name)) flags |= kDispatches;
  if (file == "<lazytrace>") flags |= kThrough;
  if (stands_in(file)) flags |= kStandsIn;
  if (file == "<frozen importlib._bootstrap>" && name == "_handle_fromlist") flags |= kImports;
  if (file == "<frozen importlib._bootstrap_external>" && name == "FileFinder.find_spec") flags |= kFinds;
  if (file.find("site-packages") != std::string::npos) flags |= kInstalled;
  if (file == library_folder + "logging/__init__.py") flags |= kLogging;
  if (file == torch_folder + "fx/traceback.py" && name == "format_stack") flags |= kStacks;
  if (opaque_codes.count(code) || compiled) flags |= kOpaque;
  return flags;
}

}  // namespace

Frame frame_above(Frame f, long steps) {
  for (; f && steps > 0; --steps) f = stands_for_code(f.code()) ? Frame() : f.previous();
  return f && !stands_for_code(f.code()) ? f : Frame();
}

CodeFacts* facts_of(PyObject* code) {
  void* extra = nullptr;
  _PyCode_GetExtra(code, code_slot, &extra);
  if (extra) return static_cast<CodeFacts*>(extra);
  auto* facts = new CodeFacts;
  facts->flags = flags_of(code);
  _PyCode_SetExtra(code, code_slot, facts);
  return facts;
}

CodeFacts* decoded_facts_of(PyObject* code) {
  CodeFacts* facts = facts_of(code);
  if (!facts->operations.empty()) return facts;
  facts->operations = operations_of(reinterpret_cast<PyCodeObject*>(code));
  facts->memos.resize(1);
  for (Operation& operation : facts->operations) {
    if (operation.action != Action::ReadsGlobal || facts->memos.size() > UINT16_MAX) continue;
    operation.memo = static_cast<uint16_t>(facts->memos.size());
    facts->memos.emplace_back();
  }
  return facts;
}

bool is_gone_through(Frame f) {
  const std::vector<Operation>& operations = decoded_facts_of(f.code())->operations;
  auto at = static_cast<size_t>(f.instruction()) + 1;
  while (at < operations.size() && (is_inline_cache(operations[at]) || prepares_call(operations[at]))) ++at;
  return at < operations.size() && operations[at].action == Action::Iterates;
}

uintptr_t code_flags(PyObject* code) { return facts_of(code)->flags; }

bool is_trusted_callable(PyObject* object) {
  static PyObject* name = PyUnicode_InternFromString("__call__");
  PyTypeObject* type = Py_TYPE(object);
  PyObject* target = PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) ? _PyType_Lookup(type, name) : nullptr;
  return target && PyFunction_Check(target) && is_trusted_code(PyFunction_GET_CODE(target));
}

bool is_copying(PyObject* globals) {
  static PyObject* names = PyModule_GetDict(module_of_name("copy").release().ptr());
  return globals == names;
}

bool is_caching(PyObject* globals) {
  static PyObject* names = PyModule_GetDict(module_of_name("functools").release().ptr());
  return globals == names;
}

const Operation* next_operation(Frame f) {
  const std::vector<Operation>& operations = decoded_facts_of(f.code())->operations;
  auto at = static_cast<size_t>(f.instruction()) + 1;
  while (at < operations.size() && is_inline_cache(operations[at])) ++at;
  return at < operations.size() ? &operations[at] : nullptr;
}

}  // namespace lazytrace
