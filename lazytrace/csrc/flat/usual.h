// Which tensors a flat form and its proof know how to deal with.
#pragma once

#include <ATen/ATen.h>

namespace lazytrace {

// Whether it shows its memory conjugated (1), or negated (2).
inline int bits_of(const at::Tensor& tensor) { return tensor.is_conj() | tensor.is_neg() << 1; }

// Memory of its own or of others, nothing special but these bits.
bool shows_plain_memory(const at::Tensor& tensor);

}  // namespace lazytrace
