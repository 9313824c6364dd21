#include "record/operators/lent.h"

#include <torch/csrc/autograd/python_variable.h>

#include "torch/storage.h"

namespace lazytrace {

namespace {
PyObject* swap_function = nullptr;

// A factory that was asked for gradients requires them of the copy too, of which nothing was computed yet.
bool may_be_copy(const at::Tensor& tensor, const at::Tensor& lent) {
  return !tensor.requires_grad() || (lent.requires_grad() && lent.is_leaf() && tensor.is_leaf());
}
}  // namespace

void configure_swap(py::object swap) { swap_function = swap.release().ptr(); }

int Lent::find(const at::Tensor& tensor) {
  for (auto& [lent, reg] : lent_) {
    if (!same_place(lent, tensor) || !may_be_copy(tensor, lent)) continue;
    py::gil_scoped_acquire gil;
    PyObject* copy = tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
    const Origins::Known* known = origins_->known(lent);
    if (!copy || !known) return reg;
    // Tensors with weak references cannot be exchanged, and the origins keep one.
    bool requires_grad = known->requires_grad;
    origins_->forget(lent);
    py::object held = py::reinterpret_borrow<py::object>(copy);
    py::object mine = py::reinterpret_steal<py::object>(THPVariable_Wrap(lent));
    py::object done = py::reinterpret_steal<py::object>(
        PyObject_CallFunctionObjArgs(swap_function, copy, mine.ptr(), nullptr));
    origins_->add_again(lent, reg, requires_grad);
    if (!done) throw py::error_already_set();
    return reg;
  }
  return -1;
}

at::Tensor Lent::restored(const at::Tensor& tensor) {
  if (!tensor.defined() || origins_->knows(tensor) || !origins_->sources_of(tensor).empty() ||
      find(tensor) < 0)
    return tensor;
  for (auto& [lent, reg] : lent_)
    if (same_place(lent, tensor)) return lent;
  return tensor;
}

void Lent::restore(torch::jit::Stack* stack, size_t count) {
  for (size_t i = stack->size() - count; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (value.isTensor()) {
      value = restored(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(restored(tensor));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& one : value.toListRef())
        list.push_back(one.isTensor() ? std::optional<at::Tensor>(restored(one.toTensor())) : std::nullopt);
      value = list;
    }
  }
}

}  // namespace lazytrace
