#include "torch/overrides.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/record_function.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <set>
#include <string>
#include <unordered_map>

#include "torch/kernel_counts.h"

namespace lazytrace {

namespace {

PySetObject* registered_kernels = nullptr;
PyObject* is_own_hook = nullptr;

// A set has no version. Adding takes a slot that no removal gives back before the table is made anew, so
// these four together tell two states apart.
struct Mark {
  Py_ssize_t fill = -1, used = -1, mask = -1;
  setentry* table = nullptr;
  bool operator==(const Mark& other) const {
    return fill == other.fill && used == other.used && mask == other.mask && table == other.table;
  }
};

bool has_python_kernel(const c10::OperatorHandle& op) {
  for (auto key : {c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU}) {
    if (!op.hasComputedKernelForDispatchKey(key)) continue;
    // The place of the registration: a Python file, what an interactive session calls itself, or /dev/null of
    // what torch.library.custom_op makes. torch's own are places in C++ files.
    std::string kernel = op.getComputedKernelForDispatchKey(key).debug();
    bool cpp = kernel.find(".cpp:") != std::string::npos || kernel.find(".cu:") != std::string::npos ||
               kernel.find(".cc:") != std::string::npos || kernel.find(".h:") != std::string::npos;
    if (!cpp || kernel.find(".py:") != std::string::npos) return true;
  }
  return false;
}

struct Overrides {
  Mark mark;
  std::set<std::string> kernels;  // of aten, as torch.library names them
  uint64_t changes = 0;           // of these
  uint64_t registrations = 0;     // changes of any kernel
  KernelCounts counts;
  size_t count = 0;  // of these, at the last look
};

// What is registered of aten operators, brought up to date. Guarded by the GIL.
Overrides& overrides() {
  static auto* known = new Overrides();
  const PySetObject* set = registered_kernels;
  if (!set) return *known;
  Mark now{set->fill, set->used, set->mask, set->table};
  if (now == known->mark) return *known;
  known->mark = now;
  ++known->registrations;
  std::set<std::string> kernels;
  for (py::handle name : py::reinterpret_borrow<py::set>(reinterpret_cast<PyObject*>(registered_kernels))) {
    std::string text = py::str(name);
    if (text.rfind("aten/", 0) == 0 && may_run_on_cpu(text)) kernels.insert(std::move(text));
  }
  // The name leaves the set with the first of two libraries that gave it.
  for (const std::string& name : known->kernels)
    if (auto op = kernels.count(name) ? std::nullopt : find_operator(name); op && has_python_kernel(*op))
      kernels.insert(name);
  // One may be replaced by another of the same name, between two looks: whatever was or is there counts as
  // changed.
  if (!kernels.empty() || !known->kernels.empty()) ++known->changes;
  known->kernels = std::move(kernels);
  known->counts.follow(reinterpret_cast<PyObject*>(registered_kernels));
  return *known;
}

}  // namespace

void configure_overrides(py::object registered) {
  if (!PySet_CheckExact(registered.ptr())) throw py::type_error("torch.library keeps no set of kernels");
  registered_kernels = reinterpret_cast<PySetObject*>(registered.release().ptr());
}

uint64_t aten_overrides() { return overrides().changes; }

bool aten_is_overridden() { return !overrides().kernels.empty(); }

uint64_t kernel_registrations() {
  Overrides& known = overrides();
  size_t count = known.counts.total();
  if (count != known.count) ++known.registrations;
  known.count = count;
  return known.registrations;
}

bool runs_python(const c10::OperatorHandle& op, uint64_t registrations) {
  // torch keeps a note of each time that it is asked for the text of a kernel, for ever.
  static thread_local std::unordered_map<const c10::FunctionSchema*, std::pair<uint64_t, bool>> known;
  auto [at, missing] = known.try_emplace(&op.schema(), registrations, false);
  if (missing || at->second.first != registrations) at->second = {registrations, has_python_kernel(op)};
  return at->second.second;
}

bool operators_are_watched() {
  return at::hasCallbacks() || torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr;
}

void configure_saved_hooks(py::object is_own) { is_own_hook = is_own.release().ptr(); }

SavedHooks saved_hooks() {
  const auto& stack = at::SavedTensorDefaultHooks::get_tls_state().stack;
  if (stack.empty()) return SavedHooks::None;
  // Only the newest pair is called.
  PyObject* pack = stack.top().first.ptr(getPyInterpreter());
  py::object own = py::reinterpret_steal<py::object>(is_own_hook ? PyObject_CallOneArg(is_own_hook, pack)
                                                                 : Py_NewRef(Py_False));
  if (!own) PyErr_Clear();
  return own.ptr() == Py_True ? SavedHooks::Torchs : SavedHooks::Others;
}

}  // namespace lazytrace
