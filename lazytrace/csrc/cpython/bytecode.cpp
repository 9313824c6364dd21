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
