// What single instructions of a code object do, by their opcodes.
#pragma once

#include <Python.h>
#include <opcode.h>

#include <cstdint>
#include <vector>

namespace lazytrace {

// Two bytes an instruction, as the compiler has written them. Needs the GIL.
inline std::vector<uint8_t> bytecode_of(PyCodeObject* code) {
  PyObject* bytes = PyCode_GetCode(code);
  const char* first = PyBytes_AS_STRING(bytes);
  std::vector<uint8_t> all(first, first + PyBytes_GET_SIZE(bytes));
  Py_DECREF(bytes);
  return all;
}

// Code that gives None, whatever it is handed.
inline bool does_nothing(PyCodeObject* code) {
  std::vector<uint8_t> bytes = bytecode_of(code);
  return bytes.size() == 6 && bytes[0] == RESUME && bytes[2] == LOAD_CONST && bytes[4] == RETURN_VALUE &&
         PyTuple_GET_ITEM(code->co_consts, bytes[3]) == Py_None;
}

inline bool yields(PyCodeObject* code, int instruction) {
  return bytecode_of(code)[static_cast<size_t>(instruction) * 2] == YIELD_VALUE;
}

// Of an instruction that yields: whether it does so for another generator, as in a `yield from`.
inline bool yields_for_another(PyCodeObject* code, int instruction) {
  std::vector<uint8_t> bytes = bytecode_of(code);
  auto next = static_cast<size_t>(instruction) * 2 + 2;
  return bytes[next] != RESUME || (bytes[next + 1] & 3) != 1;  // 1: of a plain `yield`
}

// Whether what an instruction gives is compared with None by the next one, and seen by nothing else.
bool is_asked_for_none(PyCodeObject* code, int instruction);

// Whether what a call gives, at this instruction or the next ones, is an argument of a call that follows, and
// nothing else is done with it.
bool is_argument_alone(PyCodeObject* code, int instruction);

// Of a call, at this instruction or the next ones: where what it gives is an item of a key, by itself or in a
// tuple, and nothing else is done with it, how many items of the key lie before it. -1 of any other.
int items_before_in_key(PyCodeObject* code, int instruction);

// Whether the code may give a variable that a cell holds another value from that instruction on, or a
// function that it makes may. `slot`: where a frame has the cell.
bool may_store(PyCodeObject* code, int slot, int from);

}  // namespace lazytrace
