#include "torch/gpu.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lazytrace {

namespace {
// Its allocator is made when torch is imported, and set up together with everything else of CUDA.
c10::DeviceAllocator* allocator() {
  static auto* const known = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(c10::DeviceType::CUDA));
  return known;
}

const c10::impl::VirtualGuardImpl& guard() {
  static const c10::impl::VirtualGuardImpl known(c10::DeviceType::CUDA);
  return known;
}
}  // namespace

bool gpu_built() { return allocator() != nullptr; }

bool gpu_in_use() {
  c10::DeviceAllocator* known = allocator();
  return known && known->initialized();
}

uint8_t current_gpu() { return gpu_in_use() ? static_cast<uint8_t>(guard().getDevice().index()) : 0; }

bool is_capturing() {
  return gpu_in_use() && guard().isStreamCapturing(guard().getStream(guard().getDevice()));
}

std::vector<at::Generator> default_generators() {
  std::vector<at::Generator> found = {at::globalContext().defaultGenerator(at::kCPU)};
  if (!gpu_in_use()) return found;
  for (c10::DeviceIndex i = 0; i < guard().deviceCount(); ++i)
    found.push_back(at::globalContext().defaultGenerator(at::Device(at::kCUDA, i)));
  return found;
}

}  // namespace lazytrace
