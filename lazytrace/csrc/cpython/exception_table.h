// Where an exception would go: CPython 3.11's tables of exception handlers.
#pragma once

#include <Python.h>
#include <opcode.h>

namespace lazytrace {

class ExceptionTable {
 public:
  explicit ExceptionTable(PyCodeObject* code) : code_(code) {
    start_ = reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(code->co_exceptiontable));
    end_ = start_ + PyBytes_GET_SIZE(code->co_exceptiontable);
  }

  // Whether an `except` or a `finally` stands around the instruction; the ends of `with` blocks only pass
  // exceptions on. Needs the GIL.
  bool catches(int instruction) const {
    if (start_ == end_) return false;
    PyObject* bytes = PyCode_GetCode(code_);
    const auto* codes = reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(bytes));
    auto runs = [&](int at, int first, int second) {
      return codes[2 * at] == first && codes[2 * at + 2] == second;
    };
    int handler = find(instruction);
    while (handler >= 0) {
      if (runs(handler, PUSH_EXC_INFO, WITH_EXCEPT_START))
        handler = find(handler + 1);
      else if (runs(handler, COPY, POP_EXCEPT))  // and raises it again: the end of a handler
        handler = find(handler);
      else
        break;
    }
    Py_DECREF(bytes);
    return handler >= 0;
  }

 private:
  // As CPython's get_exception_handler() reads it: (start, size, handler, depth), each a varint of 6 bits a
  // byte; the first byte of an entry has its highest bit set.
  int find(int instruction) const {
    for (const unsigned char* at = start_; at < end_;) {
      int start = varint(&at), size = varint(&at), handler = varint(&at);
      if (start > instruction) return -1;
      if (start + size > instruction) return handler;
      while (at < end_ && !(*at & 128)) ++at;
    }
    return -1;
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
