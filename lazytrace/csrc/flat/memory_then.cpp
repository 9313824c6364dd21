#include "flat/memory_then.h"

#include "flat/replayed_backward.h"

namespace lazytrace {

void MemoryThen::add(const at::Tensor& tensor, const TensorMeta& look) {
  if (tensor.defined()) all_.push_back({Held::of(tensor, at::Tensor()), look});
}

void MemoryThen::check() const {
  for (const One& one : all_) check(*form_, one.held, one.look);
}

void MemoryThen::check(const BackwardForm& form, const Held& held, const TensorMeta& look) {
  if (held.shows_the_same(look)) return;
  form.surprised = true;
  TORCH_CHECK(
      false, "a tensor of ", look.text(),
      ", which a replay of a traced function was given or gave, was given other memory (.data, set_()) "
      "before the backward pass",
      kBuildsFromNowOn);
}

}  // namespace lazytrace
