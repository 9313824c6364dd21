#include "torch/accumulation.h"

#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>

namespace lazytrace {

namespace {

// A node's lock is for those that derive from it.
struct Locked : torch::autograd::Node {
  static std::mutex& lock_of(torch::autograd::Node& node) { return node.*(&Locked::mutex_); }
};

}  // namespace

AccumulationLock::AccumulationLock(const at::Tensor& leaf)
    : node_(torch::autograd::impl::grad_accumulator(leaf)), lock_(Locked::lock_of(*node_), std::try_to_lock) {
  if (lock_.owns_lock()) return;
  std::optional<pybind11::gil_scoped_release> released;
  if (PyGILState_Check()) released.emplace();
  lock_.lock();
}

bool is_only_thread() {
  PyThreadState* first = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  return PyThreadState_Next(first) == nullptr;
}

}  // namespace lazytrace
