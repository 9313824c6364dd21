#include "cpython/bytecode.h"

#include <algorithm>
#include <iterator>

namespace lazytrace {

namespace {
bool is_store(int opcode) { return opcode == STORE_DEREF || opcode == DELETE_DEREF; }

bool goes_back(int opcode) {
  switch (opcode) {
    case JUMP_BACKWARD:
    case JUMP_BACKWARD_NO_INTERRUPT:
    case POP_JUMP_BACKWARD_IF_NONE:
    case POP_JUMP_BACKWARD_IF_NOT_NONE:
    case POP_JUMP_BACKWARD_IF_FALSE:
    case POP_JUMP_BACKWARD_IF_TRUE:
      return true;
  }
  return false;
}

// The same of the functions inside, all of which know the variable by its name.
bool functions_store(PyCodeObject* code, PyObject* name) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_consts); ++i) {
    PyObject* constant = PyTuple_GET_ITEM(code->co_consts, i);
    if (!PyCode_Check(constant)) continue;
    auto* inside = reinterpret_cast<PyCodeObject*>(constant);
    for (int slot = inside->co_nlocalsplus - inside->co_nfreevars; slot < inside->co_nlocalsplus; ++slot)
      if (PyUnicode_Compare(PyTuple_GET_ITEM(inside->co_localsplusnames, slot), name) == 0 &&
          may_store(inside, slot, -1))
        return true;
  }
  return false;
}
}  // namespace

namespace {
// Whether the instruction puts something on the stack and does nothing to what lies there, but for a call
// and for what asks for an attribute.
bool only_loads(int opcode) {
  static const int all[] = {LOAD_FAST,   LOAD_GLOBAL, LOAD_DEREF, LOAD_CONST, LOAD_NAME, LOAD_ATTR,
                            LOAD_METHOD, PUSH_NULL,   PRECALL,    CALL,       KW_NAMES,  CACHE};
  return std::find(std::begin(all), std::end(all), opcode) != std::end(all);
}
}  // namespace

bool is_argument_alone(PyCodeObject* code, int instruction) {
  std::vector<uint8_t> bytes = bytecode_of(code);
  size_t at = static_cast<size_t>(instruction) * 2;
  while (at < bytes.size() && bytes[at] != CALL) at += 2;
  // What lies above it by then.
  int above = 0;
  for (at += 2; at < bytes.size() && only_loads(bytes[at]); at += 2) {
    int opcode = bytes[at], argument = bytes[at + 1];
    if (!above && (opcode == LOAD_ATTR || opcode == LOAD_METHOD)) return false;
    if (opcode == PRECALL && argument > above) return true;
    above += PyCompile_OpcodeStackEffect(opcode, opcode == CACHE ? 0 : argument);
    if (above < 0) return false;
  }
  return false;
}

namespace {
bool takes_key(int opcode) { return opcode == BINARY_SUBSCR || opcode == STORE_SUBSCR; }

// How many of the topmost values the instruction takes, if it is one that code for a part of a key has; -1 of
// any other.
int taken_for_part(int opcode, int argument) {
  if (opcode == BINARY_SUBSCR || opcode == BINARY_OP) return 2;
  if (opcode == LOAD_ATTR || opcode == LOAD_METHOD) return 1;
  if (opcode == BUILD_TUPLE || opcode == BUILD_LIST || opcode == BUILD_SLICE) return argument;
  return only_loads(opcode) ? 0 : -1;
}
}  // namespace

int items_before_in_key(PyCodeObject* code, int instruction) {
  std::vector<uint8_t> bytes = bytecode_of(code);
  size_t at = static_cast<size_t>(instruction) * 2;
  while (at < bytes.size() && bytes[at] != CALL) at += 2;
  auto behind = [&](size_t from) {
    do from += 2;
    while (from < bytes.size() && bytes[from] == CACHE);
    return from;
  };
  at = behind(at);
  if (at < bytes.size() && takes_key(bytes[at])) return 0;
  // What lies above it by then.
  for (int above = 0; at < bytes.size(); at = behind(at)) {
    int opcode = bytes[at], argument = bytes[at + 1];
    if (opcode == BUILD_TUPLE && argument > above) {
      size_t next = behind(at);
      return next < bytes.size() && takes_key(bytes[next]) ? argument - 1 - above : -1;
    }
    int taken = taken_for_part(opcode, argument);
    if (taken < 0 || taken > above) return -1;
    above += PyCompile_OpcodeStackEffect(opcode, opcode < HAVE_ARGUMENT ? 0 : argument);
    if (above < 0) return -1;
  }
  return -1;
}

bool is_asked_for_none(PyCodeObject* code, int instruction) {
  std::vector<uint8_t> bytes = bytecode_of(code);
  size_t next = (static_cast<size_t>(instruction) + 1) * 2;
  while (next < bytes.size() && bytes[next] == CACHE) next += 2;
  if (next + 2 >= bytes.size()) return false;
  switch (bytes[next]) {
    case POP_JUMP_FORWARD_IF_NONE:
    case POP_JUMP_FORWARD_IF_NOT_NONE:
    case POP_JUMP_BACKWARD_IF_NONE:
    case POP_JUMP_BACKWARD_IF_NOT_NONE:
      return true;
    case LOAD_CONST:
      return PyTuple_GET_ITEM(code->co_consts, bytes[next + 1]) == Py_None && bytes[next + 2] == IS_OP;
  }
  return false;
}

bool may_store(PyCodeObject* code, int slot, int from) {
  std::vector<uint8_t> bytes = bytecode_of(code);
  int count = static_cast<int>(bytes.size() / 2), back = count, last = -1;
  for (int i = 0, argument = 0; i < count; ++i) {
    int opcode = bytes[static_cast<size_t>(i) * 2];
    argument = argument << 8 | bytes[static_cast<size_t>(i) * 2 + 1];
    if (opcode == EXTENDED_ARG) continue;
    if (is_store(opcode) && argument == slot) {
      if (i > from) return true;
      last = i;
    }
    if (i > from && goes_back(opcode)) back = std::min(back, i + 1 - argument);
    argument = 0;
  }
  return last >= back || functions_store(code, PyTuple_GET_ITEM(code->co_localsplusnames, slot));
}

}  // namespace lazytrace
