// Seeding generators of random numbers, and asking and setting where they are, as operators: a program has
// them among its steps, and a flat form, too.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/Generator.h>
#include <c10/core/Scalar.h>

#include <optional>

namespace lazytrace {

// What `Generator.manual_seed` does; without a generator to the default ones of the CPU and of the GPUs in
// use. A Scalar, as no size hangs on it. Needs no GIL, if the number is a plain one.
void seed(const std::optional<at::Generator>& generator, const at::Scalar& number);

// `Generator.get_state` and `Generator.set_state`; without a generator of the CPU's default one.
at::Tensor random_state(const std::optional<at::Generator>& generator);
void set_random_state(const std::optional<at::Generator>& generator, const at::Tensor& state);

}  // namespace lazytrace
