// What the recorder must know of an operator beyond its schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace lazytrace {

// None of these needs the GIL.
bool is_view(const c10::OperatorHandle& op);          // a result shares memory with an argument that it does not write
bool is_lift(const c10::OperatorHandle& op);          // makes a literal that Python code wrote visible
bool is_blank_factory(const c10::OperatorHandle& op); // returns memory that nothing has written to
bool overwrites(const c10::OperatorHandle& op, size_t argument);  // writes to the argument without reading it
bool has_data_dependent_shape(const c10::OperatorHandle& op);
// Writes to an argument that the schema does not declare as written (running statistics).
bool hidden_write(const c10::OperatorHandle& op, size_t argument, const torch::jit::Stack& arguments);

}  // namespace lazytrace
