#include "flat/roots.h"

#include <algorithm>

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
}

}  // namespace lazytrace
