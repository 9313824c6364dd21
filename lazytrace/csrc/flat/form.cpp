#include "flat/form.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "flat/spent.h"
#include "replay/interpreter.h"

namespace lazytrace {

// A leaf that accumulates its gradient as it comes.
bool is_plain_leaf(const at::Tensor& tensor) {
  auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  return tensor.is_leaf() && (!meta || (!meta->grad_dtype_ && !meta->allow_grad_dtype_mismatch_));
}

void work_out_all(const Numbers& numbers, NumberValues* values) {
  values->resize(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i].is_given() || numbers[i].asks_tensor()) continue;
    std::optional<NumberValue> result = constant_value(numbers[i]);
    if (!numbers[i].is_leaf()) result = apply(numbers, numbers[i], values->data());
    try {
      if (!result) result = apply_in_python(numbers, numbers[i], values->data());
    } catch (pybind11::error_already_set&) {
      continue;  // of what was not read yet
    }
    if (result) (*values)[i] = *result;
  }
}

bool FlatForm::fits(const std::vector<at::Tensor>& registers, const NumberValues& given) const {
  if (!std::all_of(leaves.begin(), leaves.end(), [&](int reg) { return is_plain_leaf(registers[reg]); }))
    return false;
  if (reads.empty()) return true;
  NumberValues values = given;
  work_out_all(program.numbers, &values);
  return std::all_of(reads.begin(), reads.end(), [&](size_t at) {
    const Step& step = program.steps[at];
    auto id = static_cast<size_t>(step.arguments[0].reg);
    return same_value(step.results[0].read, to_ivalue(program.numbers[id], values[id]));
  });
}

void FlatForm::put_history(const std::vector<at::Tensor>& registers) const {
  for (const Spent& one : spent) {
    auto node = make_spent(one.kind);
    torch::autograd::edge_list edges;
    for (int leaf : one.leaves) edges.push_back(torch::autograd::impl::gradient_edge(registers[leaf]));
    node->set_next_edges(std::move(edges));
    torch::autograd::set_history(registers[one.reg], node);
  }
}

}  // namespace lazytrace
