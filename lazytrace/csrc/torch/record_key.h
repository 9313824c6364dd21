// Where in the dispatcher the recorder sits.
#pragma once

#include <c10/core/DispatchKey.h>

namespace lazytrace {

// The dispatch key that the recorder sits on: above autograd, autocast and functorch, and used by nobody
// else.
constexpr c10::DispatchKey kRecordKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

}  // namespace lazytrace
