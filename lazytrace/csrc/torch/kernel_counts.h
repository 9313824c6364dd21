// How many kernels the operators have that Python has given any, which torch keeps to itself.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <optional>
#include <string>

namespace lazytrace {

// torch.library's set of what is registered does not change where Python registers another kernel under a
// name that is there already, as it may: the older one stays behind the newer. What each operator counts
// does.
//
// Needs the GIL. Leaves out kernels of torch's operators that no ordinary tensor reaches, and meta kernels.
class KernelCounts {
 public:
  // `names`: torch.library's set, after a change.
  void follow(PyObject* names);
  // Of all that were followed at any time, and are there.
  size_t total() const;

 private:
  // Those whose name has left the set may have a kernel of another library still, and none later: they are
  // looked up each time.
  std::map<std::string, std::optional<c10::OperatorHandle>> operators_;
};

// What torch.library calls "aten/tanh/CPU", or nothing.
std::optional<c10::OperatorHandle> find_operator(const std::string& kernel);
// Whether ordinary tensors reach a kernel of torch's own operators, "aten/tanh/CPU".
bool may_run_on_cpu(const std::string& kernel);

}  // namespace lazytrace
