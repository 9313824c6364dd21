#include "cpython/stack_moves.h"

#include <opcode.h>

namespace lazytrace {

namespace {

using Kind = StackMove::Kind;

StackMove looking(int takes) { return {Kind::Takes, 0, takes}; }

StackMove move_of(int opcode, int argument) {
  switch (opcode) {
    case LOAD_CONST:
    case LOAD_GLOBAL:
    case LOAD_NAME:
    case LOAD_DEREF:
    case LOAD_CLOSURE:
    case PUSH_NULL:
    case NOP:
    case RESUME:
    case PRECALL:
    case KW_NAMES:
    case CACHE:
    case COPY_FREE_VARS:
    case JUMP_FORWARD:
    case JUMP_BACKWARD:
    case JUMP_BACKWARD_NO_INTERRUPT:
      return {Kind::Nothing, 0, 0};
    case LOAD_FAST:
      return {Kind::Loads, argument, 0};
    case STORE_FAST:
      return {Kind::Stores, argument, 1};
    case DELETE_FAST:
      return {Kind::Deletes, argument, 0};
    case MAKE_CELL:
      return {Kind::BindsToCell, argument, 0};
    case POP_TOP:
    case POP_JUMP_FORWARD_IF_NONE:
    case POP_JUMP_FORWARD_IF_NOT_NONE:
    case POP_JUMP_BACKWARD_IF_NONE:
    case POP_JUMP_BACKWARD_IF_NOT_NONE:
      return {Kind::Drops, 0, 1};
    case COPY:
      return {Kind::Copies, argument, 0};
    case SWAP:
      return {Kind::Swaps, argument, 0};
    case POP_JUMP_FORWARD_IF_TRUE:
      return {Kind::Jumps, argument, 1};
    case POP_JUMP_FORWARD_IF_FALSE:
      return {Kind::JumpsUnless, argument, 1};
    case UNARY_NOT:
      return {Kind::Inverts, 0, 1};
    case BINARY_OP:
      return {Kind::Operates, argument, 2};
    case IS_OP:
      return {Kind::ComparesIdentities, argument, 2};
    case CALL:
      return {Kind::Calls, argument, argument + 2};
    case BUILD_LIST:
    case BUILD_TUPLE:
      return {Kind::Builds, argument, argument};
    case LIST_APPEND:
      return {Kind::Appends, argument, 1};
    case RETURN_VALUE:
    case YIELD_VALUE:
      return {Kind::Gives, 0, 1};
    case LOAD_ATTR:
    case LOAD_METHOD:
    case GET_ITER:
    case FOR_ITER:
    case UNPACK_SEQUENCE:
    case STORE_DEREF:
    case STORE_GLOBAL:
    case POP_JUMP_BACKWARD_IF_FALSE:
    case POP_JUMP_BACKWARD_IF_TRUE:
      return looking(1);
    case BINARY_SUBSCR:
    case STORE_ATTR:
    case COMPARE_OP:
    case CONTAINS_OP:
      return looking(2);
    case STORE_SUBSCR:
      return looking(3);
    default:
      return looking(-1);
  }
}

}  // namespace

StackMove stack_move(const std::vector<uint8_t>& bytes, size_t at) {
  int argument = 0;
  for (; bytes[at] == EXTENDED_ARG; at += 2) argument = (argument | bytes[at + 1]) << 8;
  return move_of(bytes[at], argument | bytes[at + 1]);
}

// One that is thrown an exception, or closed, goes on where it has yielded.
bool goes_on_at(const std::vector<uint8_t>& bytes, size_t at) {
  return bytes[at] == YIELD_VALUE || (bytes[at] == RESUME && bytes[at + 1]);
}

bool find_two_constants(const std::vector<uint8_t>& bytes, int jump, TwoConstants* found) {
  size_t size = bytes.size() / 2, at = static_cast<size_t>(jump), next = at + 1;
  auto opcode = [&](size_t i) { return i < size ? bytes[2 * i] : -1; };
  auto argument = [&](size_t i) { return bytes[2 * i + 1]; };
  size_t target = next + argument(at);
  if (opcode(at) == EXTENDED_ARG || opcode(next) != LOAD_CONST) return false;
  found->falls = argument(next);
  bool stores = opcode(next + 1) == STORE_FAST;
  if (stores) found->local = argument(++next);
  found->end = static_cast<int>(target);
  if (stores && next + 1 == target) return true;
  if (opcode(target) != LOAD_CONST) return false;
  found->jumps = argument(target);
  if (stores && (opcode(++target) != STORE_FAST || argument(target) != found->local)) return false;
  if (opcode(next + 1) != JUMP_FORWARD || next + 2 + argument(next + 1) != target + 1) return false;
  found->end = static_cast<int>(target + 1);
  return true;
}

}  // namespace lazytrace
