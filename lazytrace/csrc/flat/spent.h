// The ends of graphs of autograd that are gone.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <string>

namespace lazytrace {

// A result whose graph a backward pass has used up has a history all the same: a node of the name that torch
// gave it, which has nothing behind it and, asked again, says what torch says.
//
// The number of a kind of node with this name, the same for as long as the process lives; -1 where there are
// too many names. Needs the GIL.
int spent_kind(const std::string& name);
// A node of this kind. No GIL needed.
c10::intrusive_ptr<torch::autograd::Node> make_spent(int kind);

}  // namespace lazytrace
