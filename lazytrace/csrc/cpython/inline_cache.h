// What comes behind the instruction of a call.
#pragma once

#include "cpython/operations.h"

namespace lazytrace {

// Whether it stands behind the instruction that called, among the memory that belongs to that.
bool is_inline_cache(const Operation& operation);
// Whether it is what prepares a call.
bool prepares_call(const Operation& operation);
// Whether it reads an attribute that is called next.
bool loads_method(const Operation& operation);
// Whether it may leave what it has tested on the stack, as `a or b` does.
bool keeps_tested(const Operation& operation);
// Whether the instruction drops what lies on the stack.
bool drops_value(const Operation& operation);

}  // namespace lazytrace
