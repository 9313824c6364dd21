#include "torch/seeds.h"

#include <ATen/CPUGeneratorImpl.h>
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

using State = at::Tensor(const std::optional<at::Generator>&);
using SetState = void(const std::optional<at::Generator>&, const at::Tensor&);

at::Generator this_or_default(const std::optional<at::Generator>& generator) {
  return generator ? *generator : at::detail::getDefaultCPUGenerator();
}

at::Tensor state_of(const std::optional<at::Generator>& generator) {
  return this_or_default(generator).get_state();
}

void set_state_of(const std::optional<at::Generator>& generator, const at::Tensor& state) {
  this_or_default(generator).set_state(state);
}

template <typename Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}
}  // namespace

TORCH_LIBRARY(lazytrace, library) {
  library.def("seed(Generator? generator, Scalar seed) -> ()", {at::Tag::nondeterministic_seeded});
  library.impl("seed", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(set_seed)));
  library.def("random_state(Generator? generator) -> Tensor", {at::Tag::nondeterministic_seeded});
  library.impl("random_state",
               torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(state_of)));
  library.def("set_random_state(Generator? generator, Tensor state) -> ()",
              {at::Tag::nondeterministic_seeded});
  library.impl("set_random_state",
               torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(set_state_of)));
}

void seed(const std::optional<at::Generator>& generator, const at::Scalar& number) {
  static const auto op = find<Seed>("lazytrace::seed");
  op.call(generator, number);
}

at::Tensor random_state(const std::optional<at::Generator>& generator) {
  static const auto op = find<State>("lazytrace::random_state");
  return op.call(generator);
}

void set_random_state(const std::optional<at::Generator>& generator, const at::Tensor& state) {
  static const auto op = find<SetState>("lazytrace::set_random_state");
  op.call(generator, state);
}

}  // namespace lazytrace
