#include "passes/slots.h"

#include <ATen/EmptyTensor.h>

namespace lazytrace {

at::Tensor blank(const TensorMeta& meta, Recycler& recycler) {
  at::Tensor found = recycler.take(meta);
  if (found.defined()) return found;
  found = at::detail::empty_strided_cpu(meta.sizes(), meta.strides(), meta.dtype());
  return found.key_set().raw_repr() == meta.keys() ? found : at::Tensor();
}

// Its set of keys says all of this at once; it is one of these two.
bool is_ordinary(const at::Tensor& tensor) {
  static const auto keys_of_empty = [](bool inference) {
    c10::InferenceMode mode(inference);
    return at::detail::empty_cpu({0}, at::kFloat, at::kStrided, at::kCPU, false, std::nullopt)
        .key_set()
        .raw_repr();
  };
  static const uint64_t usual = keys_of_empty(false), inference = keys_of_empty(true);
  uint64_t keys = tensor.key_set().raw_repr();
  return keys == usual || keys == inference;
}

namespace {
at::Tensor empty_single() {
  at::Tensor made = at::detail::empty_cpu({}, at::kFloat, at::kStrided, at::kCPU, false, std::nullopt);
  made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

void put(const at::Tensor& single, float value) {
  *static_cast<float*>(single.unsafeGetTensorImpl()->mutable_data()) = value;
}
}  // namespace

at::Tensor new_single(float value) {
  at::Tensor made = empty_single();
  put(made, value);
  return made;
}

const at::Tensor& single_of(int number, const Desk& desk) {
  if (!desk.scalar.defined()) desk.scalar = empty_single();
  auto id = static_cast<size_t>(number);
  NumberValue value = desk.values[id];
  put(desk.scalar, desk.numbers[id].real ? static_cast<float>(value.real) : static_cast<float>(value.whole));
  return desk.scalar;
}

}  // namespace lazytrace
