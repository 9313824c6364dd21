// Tensors of the memory of an array that a function of numpy has made, which give that very array back.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace lazytrace {

namespace py = pybind11;

// As torch.from_numpy, which does not tell whose memory it is. Throws what that throws.
at::Tensor tensor_of_new_array(PyObject* array);

// Whether it is an array of no class of its own that may be written to.
bool is_writable_array(PyObject* v);

// The same of any array whose memory a tensor can show, and that may be written to: an ordinary tensor,
// whatever modes torch's functions are in. Null of anything else, and no error is set.
py::object memory_of_array(PyObject* array);

// Whether the tensor is one of those that were made of this array, and no view of one.
bool is_memory_of(const at::Tensor& tensor, PyObject* array);

// The array that such a tensor was made of; a view of it for a tensor of the same memory; any other tensor's
// as its method gives it. A new reference. Null: an error is set.
PyObject* array_of_tensor(const at::Tensor& tensor);

}  // namespace lazytrace
