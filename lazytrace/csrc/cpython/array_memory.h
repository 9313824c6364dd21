// Tensors of the memory of an array that a function of numpy has made, which give that very array back.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace lazytrace {

// As torch.from_numpy, which does not tell whose memory it is. Throws what that throws.
at::Tensor tensor_of_new_array(PyObject* array);

// The array that such a tensor was made of; a view of it for a tensor of the same memory; any other tensor's
// as its method gives it. A new reference. Null: an error is set.
PyObject* array_of_tensor(const at::Tensor& tensor);

}  // namespace lazytrace
