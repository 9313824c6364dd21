#include "cpython/inline_cache.h"

#include <opcode.h>

namespace lazytrace {

bool is_inline_cache(const Operation& operation) { return operation.opcode == CACHE; }

}  // namespace lazytrace
