#include "flat/roots.h"

#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <numeric>

namespace lazytrace {

at::Tensor Roots::root_of(const at::Tensor& result) {
  if (!result.is_view()) return result;
  const at::Tensor base(result._base());
  return base;
}

Roots::Roots(const std::vector<int>& outputs, const std::vector<at::Tensor>& registers) {
  for (int reg : outputs) {
    const at::Tensor& result = registers[reg];
    if (!result.defined() || !result.requires_grad() || result.is_leaf()) continue;
    bool known_view = std::find(views.begin(), views.end(), reg) != views.end();
    if (result.is_view() && !known_view) views.push_back(reg);
    at::Tensor root = root_of(result);
    auto is_it = [&](const at::Tensor& one) { return one.is_same(root); };
    if (std::any_of(tensors.begin(), tensors.end(), is_it)) continue;
    of.push_back(reg);
    tensors.push_back(std::move(root));
  }
  sort();
}

// The engine comes to the newest node first, and calls the hooks of its results. Those of one node it calls
// in the order in which they were set, mostly that of the results.
void Roots::sort() {
  std::vector<size_t> order(tensors.size());
  std::iota(order.rbegin(), order.rend(), 0);
  std::vector<uint64_t> made;
  for (const at::Tensor& tensor : tensors)
    made.push_back(tensor.grad_fn() ? tensor.grad_fn()->sequence_nr() : 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return made[a] < made[b]; });
  Roots unsorted = std::move(*this);
  *this = Roots();
  for (size_t i : order) {
    of.push_back(unsorted.of[i]);
    tensors.push_back(unsorted.tensors[i]);
  }
  views = std::move(unsorted.views);
}

}  // namespace lazytrace
