// A program that was made of plain values, a file's for example: it runs without guards and without Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <vector>

#include "passes/plan.h"

namespace lazytrace {

// Built once, then immutable: any thread may run it. Destroy it with the GIL.
class StoredProgram {
 public:
  // `data` is what Trace::data() gives of a program without opaque steps and writes to Python state,
  // `outputs` the registers of its results. Throws std::runtime_error where it is no program that could run:
  // an unknown operator, arguments that do not fit its schema, a register that nothing has set. Runs nothing.
  StoredProgram(const py::dict& data, std::vector<int> outputs);

  // The output tensors, or (-1 - slot, how a captured tensor differs, false), or (step, what it gave instead,
  // whether something had been changed by then). Needs the GIL, and lets go of it while operators run.
  py::object run(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& captures) const;

 private:
  std::shared_ptr<const Plan> plan_;
  std::vector<int> outputs_;
  std::vector<std::shared_ptr<const TensorMeta>> looks_;  // of the captures
};

}  // namespace lazytrace
