#include "torch/compiled.h"

#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/python/pybind_utils.h>

namespace lazytrace {

void run_as_written(const py::object& function) {
  if (!py::isinstance<torch::jit::StrongFunctionPtr>(function)) return;
  auto* compiled = torch::jit::tryToGraphFunction(*function.cast<torch::jit::StrongFunctionPtr>().function_);
  if (!compiled) return;
  compiled->_set_ignore_amp(true);
  compiled->_set_initial_executor_execution_mode(torch::jit::ExecutorExecutionMode::SIMPLE);
}

}  // namespace lazytrace
