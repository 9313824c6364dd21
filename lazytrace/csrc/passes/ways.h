// The shorter ways of single operators. Each maker gives null where the recorded step cannot go it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "passes/lowered.h"

namespace lazytrace {

// The name of an operator with that of its overload.
std::string full_name(const c10::FunctionSchema& schema);

// What makes the ways of operators, by their names; and the way of a step whose operator is one of them.
using Makers = std::unordered_map<std::string, std::function<Way(const Step&)>>;
Way made(const Makers& makers, const Step& step);

// Of a step that gives one tensor of the CPU, with memory of its own.
Way way(const Step& step);
// Of a step that does nothing but write to its first argument, whose look it leaves alone.
Way way_in_place(const Step& step);
// The same of one that writes to each tensor of a list.
Way way_in_place_of_each(const Step& step);
// Of a step that gives several tensors of the CPU, each with memory of its own.
Way way_of_several(const Step& step);
// Of _foreach_norm.
Way norm_of_each(const Step& step);

// Of a step that gives its argument back, of one whose result shows the memory of its argument, of item().
std::shared_ptr<const Lowered> nothing();
std::shared_ptr<const Lowered> alias();
std::shared_ptr<const Lowered> item();
// The way, where all tensors that the step takes look as in the recording, and these numbers are what they
// were.
std::shared_ptr<const Lowered> where_same(const Step& step, std::shared_ptr<const Lowered> way,
                                          std::vector<std::pair<int, NumberValue>> numbers);

// What the above are made of, by what it is about. Layers:
Way linear(const Step& step);
Way addmm(const Step& step);
Way matmul(const Step& step);
// Losses of scores by class, of rows and of images:
Way nll_loss(const Step& step);
Way nll_loss2d(const Step& step);
Way nll_loss_backward(const Step& step);
Way nll_loss2d_backward(const Step& step);
// Lists:
Way stack(const Step& step);

}  // namespace lazytrace
