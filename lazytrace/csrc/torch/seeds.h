// Seeding generators of random numbers, as an operator: a program has it among its steps, and a flat form,
// too.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Scalar.h>

#include <optional>

namespace lazytrace {

// What `Generator.manual_seed` does; without a generator to the default ones of the CPU and of the GPUs in
// use. A Scalar, as no size hangs on it. Needs no GIL, if the number is a plain one.
void seed(const std::optional<at::Generator>& generator, const at::Scalar& number);

}  // namespace lazytrace
