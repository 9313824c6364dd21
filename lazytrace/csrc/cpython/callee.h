// The callable that an instruction is about to call.
#pragma once

#include "cpython/frame.h"
#include "cpython/operations.h"

namespace lazytrace {

// Its place on the stack of the frame; null of an instruction that is no call.
inline PyObject** callee_of(Frame f, const Operation& operation) {
  if (operation.action == Action::CallsWith) return f.place(operation.first);
  if (operation.action != Action::Calls) return nullptr;
  return f.place(f.peek(operation.first) ? operation.first : operation.second);
}

}  // namespace lazytrace
