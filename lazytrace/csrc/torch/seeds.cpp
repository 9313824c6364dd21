#include "torch/seeds.h"

#include <torch/library.h>

#include <mutex>

#include "torch/gpu.h"

namespace lazytrace {

namespace {
using Seed = void(const std::optional<at::Generator>&, const at::Scalar&);

void set_seed(const std::optional<at::Generator>& generator, const at::Scalar& number) {
  auto seed = static_cast<uint64_t>(number.to<int64_t>());
  std::vector<at::Generator> all = generator ? std::vector{*generator} : default_generators();
  for (at::Generator& one : all) {
    std::lock_guard<std::mutex> lock(one.mutex());
    one.set_current_seed(seed);
  }
}
}  // namespace

TORCH_LIBRARY(lazytrace, library) {
  library.def("seed(Generator? generator, Scalar seed) -> ()", {at::Tag::nondeterministic_seeded});
  library.impl("seed", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(set_seed)));
}

void seed(const std::optional<at::Generator>& generator, const at::Scalar& number) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("lazytrace::seed", "").typed<Seed>();
  op.call(generator, number);
}

}  // namespace lazytrace
