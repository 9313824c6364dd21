// Where in the dispatcher lazytrace sits.
#pragma once

#include <c10/core/DispatchKey.h>

namespace lazytrace {

// The dispatch key that the recorder sits on: above autograd, autocast and functorch, and used by nobody
// else.
constexpr c10::DispatchKey kRecordKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// That of what sees kernels: below autograd and what counts versions, above all backends, and used by nobody
// else.
constexpr c10::DispatchKey kKernelKey = c10::DispatchKey::Fake;

}  // namespace lazytrace
