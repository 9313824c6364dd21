// What the recorder must know of an operator beyond its schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace lazytrace {

struct OperatorFacts {
  bool view = false;                  // a result shares memory with an argument that it does not write
  bool lift = false;                  // makes a literal that Python code wrote visible
  bool blank_factory = false;         // returns memory that nothing has written to
  bool overwrites_outputs = false;    // writes to its written arguments without reading them
  bool data_dependent_shape = false;  // the shape of the result follows from values
  bool reads = false;                 // gives Python a value
  bool gives_either = false;          // its argument or a new tensor: how that looks does not tell which
  bool index = false;  // aten::index: whether its shape follows from values hangs on the kind of index
  bool hidden_writes = false;     // writes to arguments that the schema does not declare as written
  bool asks_looks = false;        // tells of its arguments what their looks do, which are compared
  bool changes_metadata = false;  // changes the shape or the memory of an argument in place
  bool turns = false;             // does so to a view of the same elements in place: transpose_, unsqueeze_
  bool seeded = false;            // may draw random numbers
  int dropout = -1;               // of an operator that draws only where this argument is not 0
  int training = -1;              // of an operator that draws only where this argument is true
  bool forward_mode = false;      // belongs to a level of forward-mode differentiation, which is no argument
  bool leaves_unfilled = false;   // gives memory that nothing has written to, which the schema does not say
  bool makes_new = false;         // at all sizes its results have memory of their own
  bool always_view = false;       // at all sizes its results have the memory of its argument
  bool leaves_numbers = false;    // whole numbers of tensors are looked at by kernels alone
  bool in_parts = false;          // a replay of what it is made of is shorter: record/operators/parts.h
  bool profiling = false;         // a mark in a profile: torch.optim makes them, and no value depends on them
};

// Worked out once per operator and thread. Does not need the GIL.
const OperatorFacts& facts_of(const c10::OperatorHandle& op);

// Of an operator with hidden writes: whether it writes to this argument in this call (running statistics).
bool hidden_write(const c10::OperatorHandle& op, size_t argument, const torch::jit::Stack& arguments);

// Whether the shape of what an operator gives follows from values in this call: a mask selects as many
// entries as it has true ones.
bool shape_depends_on_values(const OperatorFacts& facts, const torch::jit::Stack& arguments);

// Whether an operator may draw random numbers in this call: dropout does so in training only.
bool may_draw(const OperatorFacts& facts, const torch::jit::Stack& arguments);

}  // namespace lazytrace
