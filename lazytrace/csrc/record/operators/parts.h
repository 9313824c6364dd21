// Operators that are recorded as those that they are made of.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace lazytrace {

// Whether this call of an operator is: its code is C++ that calls other operators, by what its arguments look
// like and by nothing that a key or a guard does not hold, and a replay of these is shorter than one of the
// whole. Of a recording whose sizes stay what they are, without gradients (the flat form takes the others
// apart). Does not need the GIL.
bool comes_apart(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

}  // namespace lazytrace
