// What torch knows of GPUs for a thread, asked without their headers. Needs no GIL.
#pragma once

#include <ATen/core/Generator.h>

#include <vector>

namespace lazytrace {

// Whether this torch is one for GPUs of CUDA.
bool gpu_built();

// Whether torch has set up CUDA in this process: before, there is no tensor and no stream of it, and to ask
// for more would set it up.
bool gpu_in_use();

// The index of the current device; 0 as long as none is in use.
uint8_t current_gpu();

// Whether this thread's current stream is being captured into a CUDA graph.
bool is_capturing();

// The generators of random numbers that operators draw from where they are given none: that of the CPU, then
// those of the GPUs in use.
std::vector<at::Generator> default_generators();

}  // namespace lazytrace
