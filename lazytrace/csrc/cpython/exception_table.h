// Where an exception would go: CPython 3.11's tables of exception handlers.
#pragma once

#include <Python.h>
#include <opcode.h>

#include <cstdint>
#include <vector>

#include "cpython/bytecode.h"

namespace lazytrace {

class ExceptionTable {
 public:
  explicit ExceptionTable(PyCodeObject* code) : code_(code) {
    start_ = reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(code->co_exceptiontable));
    end_ = start_ + PyBytes_GET_SIZE(code->co_exceptiontable);
  }

  // What stands around an instruction.
  struct Around {
    bool handler = false;    // an `except` or a `finally`
    int at = -1;             // where its code begins
    std::vector<int> exits;  // of `with` blocks that are nearer: where in the stack their `__exit__` lie
  };

  // Needs the GIL.
  Around around(int instruction) const {
    Around found;
    if (start_ == end_) return found;
    std::vector<uint8_t> bytes = bytecode_of(code_);
    auto runs = [&](int at, int first, int second) {
      auto place = static_cast<size_t>(at) * 2;
      return bytes[place] == first && bytes[place + 2] == second;
    };
    Entry entry = find(instruction);
    while (entry.handler >= 0) {
      if (runs(entry.handler, PUSH_EXC_INFO, WITH_EXCEPT_START)) {
        found.exits.push_back(entry.depth - 1);
        entry = find(entry.handler + 1);
      } else if (runs(entry.handler, COPY, POP_EXCEPT)) {  // and raises it again: the end of a handler
        entry = find(entry.handler);
      } else {
        break;
      }
    }
    found.handler = entry.handler >= 0;
    found.at = entry.handler;
    return found;
  }

 private:
  struct Entry {
    int handler = -1;
    int depth = 0;  // of the stack that the handler finds
  };

  // As CPython's get_exception_handler() reads it: (start, size, handler, depth and whether the place of the
  // instruction is pushed), each a varint of 6 bits a byte; the first byte of an entry has its highest bit
  // set.
  Entry find(int instruction) const {
    for (const unsigned char* at = start_; at < end_;) {
      int start = varint(&at), size = varint(&at), handler = varint(&at), depth = varint(&at) >> 1;
      if (start > instruction) return {};
      if (start + size > instruction) return {handler, depth};
    }
    return {};
  }

  static int varint(const unsigned char** at) {
    int value = **at & 63;
    while (**at & 64) value = value << 6 | (*++*at & 63);
    ++*at;
    return value;
  }

  PyCodeObject* code_;
  const unsigned char *start_, *end_;
};

}  // namespace lazytrace
