#include "torch/kernel_counts.h"

#include <set>

namespace lazytrace {

namespace {

// The count is a private part of the handle. A member that is named in an explicit instantiation may be
// private, and this is the one way there is to it that costs no text (OperatorHandle::dumpState() writes
// all registrations out, at some microseconds for each operator).
auto definition_of(const c10::OperatorHandle& op);

template <auto member>
struct Opened {
  friend auto definition_of(const c10::OperatorHandle& op) { return op.*member; }
};
template struct Opened<&c10::OperatorHandle::operatorDef_>;

size_t count_of(const c10::OperatorHandle& op) { return definition_of(op)->def_and_impl_count; }

bool is_followed(const std::string& kernel) {
  std::string space = kernel.substr(0, kernel.find('/'));
  if (space == "aten") return may_run_on_cpu(kernel);
  // torch's own, all of them operators for its compilers.
  static const std::set<std::string> kOwn = {"prims", "rngprims", "debugprims"};
  return kOwn.count(space) == 0 && kernel.substr(kernel.rfind('/') + 1) != "Meta";
}

}  // namespace

std::optional<c10::OperatorHandle> find_operator(const std::string& kernel) {
  size_t space = kernel.find('/');
  size_t key = kernel.rfind('/');
  std::string name = kernel.substr(space + 1, key - space - 1);
  size_t dot = name.find('.');
  std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  return c10::Dispatcher::singleton().findOp(
      {kernel.substr(0, space) + "::" + name.substr(0, dot), overload == "default" ? "" : overload});
}

// torch itself registers kernels from Python for meta tensors, other devices and its transforms, which no
// operator on ordinary tensors of the CPU reaches.
bool may_run_on_cpu(const std::string& kernel) {
  static const std::set<std::string> kElsewhere = {"Meta", "CUDA", "MPS",    "XPU",         "HPU",
                                                   "XLA",  "MTIA", "Python", "PrivateUse1", "Functionalize"};
  std::string key = kernel.substr(kernel.rfind('/') + 1);
  return kElsewhere.count(key) == 0 && key.rfind("FuncTorch", 0) != 0;
}

void KernelCounts::follow(PyObject* names) {
  for (auto& [name, op] : operators_) op.reset();
  for (py::handle name : py::reinterpret_borrow<py::set>(names)) {
    std::string text = py::str(name);
    if (is_followed(text)) operators_[text] = find_operator(text);
  }
}

size_t KernelCounts::total() const {
  size_t total = 0;
  for (const auto& [name, op] : operators_) {
    auto found = op ? op : find_operator(name);
    if (found) total += count_of(*found);
  }
  return total;
}

}  // namespace lazytrace
