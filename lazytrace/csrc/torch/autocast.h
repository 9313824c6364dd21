// Autocast of this thread: the devices that have it, for which of them it is on, and to which dtypes it
// casts.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/DispatchKeySet.h>

#include <array>

namespace lazytrace {

// Those that have an autocast key of their own (at::autocast::_AUTOCAST_SUPPORTED_DEVICES, which is no
// constant).
constexpr c10::DeviceType kAutocastDevices[] = {c10::kCPU,         c10::kCUDA, c10::kMTIA, c10::kMAIA,
                                                c10::kXPU,         c10::kIPU,  c10::kHPU,  c10::kXLA,
                                                c10::kPrivateUse1, c10::kMPS};
constexpr size_t kAutocastCount = sizeof(kAutocastDevices) / sizeof(kAutocastDevices[0]);

// Per device, in the order above: its dispatch key, which is excluded while autocast is off.
const std::array<c10::DispatchKey, kAutocastCount>& autocast_keys();

// Per device: the c10::ScalarType.
using AutocastDtypes = std::array<uint8_t, kAutocastCount>;

// Every call asks, and torch's own function for one device takes longer than all that this does: torch keeps
// the dtypes of a thread in one array, which is read at the place where an experiment has found it. Where
// the experiment finds nothing, torch is asked for each device.
AutocastDtypes autocast_dtypes();
// The same by torch's functions.
AutocastDtypes ask_autocast_dtypes();
// Whether the experiment found the array. For tests.
bool found_autocast_dtypes();

}  // namespace lazytrace
