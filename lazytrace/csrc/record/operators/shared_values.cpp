#include "record/operators/shared_values.h"

#include <cstring>

#include "torch/wrapped_numbers.h"

namespace lazytrace {

namespace {
constexpr size_t kAsked = 16;  // of the newest, as there may be one for each turn of a long loop
}  // namespace

std::shared_ptr<const TensorMeta> SharedValues::meta_of(const at::Tensor& tensor) {
  for (size_t i = metas_.size(); i-- > 0 && metas_.size() - i <= kAsked;)
    if (metas_[i]->matches(tensor)) return metas_[i];
  metas_.push_back(std::make_shared<const TensorMeta>(TensorMeta::of(tensor)));
  return metas_.back();
}

at::Tensor SharedValues::number_of(const at::Tensor& tensor) {
  if (!tensor.has_storage() || !tensor.device().is_cpu()) return tensor;
  for (size_t i = numbers_.size(); i-- > 0 && numbers_.size() - i <= kAsked;) {
    const at::Tensor& known = numbers_[i];
    bool same =
        known.scalar_type() == tensor.scalar_type() && known.key_set() == tensor.key_set() &&
        known.unsafeGetTensorImpl()->is_wrapped_number() == tensor.unsafeGetTensorImpl()->is_wrapped_number();
    if (same && std::memcmp(known.const_data_ptr(), tensor.const_data_ptr(), known.element_size()) == 0)
      return known;
  }
  numbers_.push_back(is_wrapped_number(tensor) ? copy_of_number(tensor) : tensor);
  return numbers_.back();
}

void SharedValues::clear() {
  metas_.clear();
  numbers_.clear();
}

}  // namespace lazytrace
