#include "torch/traits.h"

#include <Python.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>

#include "cpython/objects.h"

namespace lazytrace {

std::string traits_of(const at::Tensor& tensor) {
  std::string traits;
  if (!tensor.defined()) return traits;
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  PyObject* object = impl->pyobj_slot()->load_pyobj();
  PyTypeObject* type = object ? Py_TYPE(object) : nullptr;
  if (object && type != reinterpret_cast<PyTypeObject*>(THPVariableClass))
    traits = type->tp_name + std::to_string(reinterpret_cast<uintptr_t>(type));
  if (object && has_attributes(object)) traits += "+";
  if (!tensor.requires_grad() && impl->grad().defined()) traits += "'";
  return traits;
}

}  // namespace lazytrace
