#include "cpython/inline_cache.h"

#include <opcode.h>

namespace lazytrace {

bool is_inline_cache(const Operation& operation) { return operation.opcode == CACHE; }

bool prepares_call(const Operation& operation) { return operation.opcode == PRECALL; }

bool loads_method(const Operation& operation) { return operation.opcode == LOAD_METHOD; }

bool keeps_tested(const Operation& operation) {
  return operation.opcode == JUMP_IF_FALSE_OR_POP || operation.opcode == JUMP_IF_TRUE_OR_POP;
}

bool drops_value(const Operation& operation) { return operation.opcode == POP_TOP; }

}  // namespace lazytrace
