// Where a frame stands whose callee the interpreter has entered by itself.
#pragma once

#include "cpython/operations.h"

namespace lazytrace {

// Whether it stands behind the instruction that called, among the memory that belongs to that.
bool is_inline_cache(const Operation& operation);

}  // namespace lazytrace
