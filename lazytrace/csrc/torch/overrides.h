// Kernels of torch's operators that somebody has replaced from Python, who watches operators, and hooks of
// autograd in Python.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/utils/pybind.h>

namespace lazytrace {

namespace py = pybind11;

// torch.library's set of what was registered from Python, as "aten/tanh/CPU". Told by Python once.
void configure_overrides(py::object registered);

// Changes whenever a kernel of an aten operator is replaced from Python, or put back: what was worked out of
// torch's own kernels holds as long as this number stays. Needs the GIL; a few loads where nothing has
// changed.
uint64_t aten_overrides();
// Whether a kernel of any aten operator is replaced now. Needs the GIL.
bool aten_is_overridden();

// Changes whenever Python registers or drops a kernel of any operator, or another one under the same name.
// Needs the GIL; a load for each operator that is none of torch's and has such a kernel.
uint64_t kernel_registrations();

// Whether a kernel that the operator may run on a CPU is written in Python; worked out once for as long as
// `registrations`, kernel_registrations() of not long ago, stays. No GIL needed.
bool runs_python(const c10::OperatorHandle& op, uint64_t registrations);

// Whether somebody sees each operator that runs, or what it does beside its result: a profiler, forward-mode
// differentiation.
bool operators_are_watched();

// The hooks that autograd calls with each tensor that an operator of this thread saves.
enum class SavedHooks : uint8_t {
  None,
  Torchs,  // those of activation checkpointing and save_on_cpu, which read and write nothing of the user's
  Others
};
// What says whether a pack hook is torch's own. Told by Python once.
void configure_saved_hooks(py::object is_own);
// Needs the GIL.
SavedHooks saved_hooks();

}  // namespace lazytrace
