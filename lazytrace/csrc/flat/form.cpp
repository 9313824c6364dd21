#include "flat/form.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "flat/spent.h"

namespace lazytrace {

bool FlatForm::fits(const std::vector<at::Tensor>& registers) const {
  return std::all_of(leaves.begin(), leaves.end(), [&](int reg) { return registers[reg].is_leaf(); });
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
