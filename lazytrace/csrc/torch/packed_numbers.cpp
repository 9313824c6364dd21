#include "torch/packed_numbers.h"

#include <ATen/Functions.h>
#include <torch/library.h>

namespace lazytrace {

namespace {
using Pack = at::Tensor(at::ArrayRef<at::Scalar>, at::IntArrayRef, bool);

template <typename T>
void fill(const at::ArrayRef<at::Scalar>& values, at::Tensor* made) {
  T* place = made->mutable_data_ptr<T>();
  for (const at::Scalar& value : values) *place++ = value.to<T>();
}

at::Tensor packed(at::ArrayRef<at::Scalar> values, at::IntArrayRef sizes, bool real) {
  auto options = at::TensorOptions().dtype(real ? at::kDouble : at::kLong).device(at::kCPU);
  at::Tensor made = at::empty(sizes, options);
  TORCH_CHECK_VALUE(made.numel() == static_cast<int64_t>(values.size()), "as many numbers as the sizes say");
  real ? fill<double>(values, &made) : fill<int64_t>(values, &made);
  return made;
}
}  // namespace

TORCH_LIBRARY_FRAGMENT(lazytrace, library) {
  library.def("numbers(Scalar[] values, int[] size, bool real) -> Tensor");
  library.impl("numbers", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(packed)));
}

at::Tensor pack_numbers(const std::vector<at::Scalar>& values, at::IntArrayRef sizes, bool real) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("lazytrace::numbers", "").typed<Pack>();
  return op.call(values, sizes, real);
}

}  // namespace lazytrace
