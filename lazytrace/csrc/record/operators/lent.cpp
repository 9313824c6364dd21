#include "record/operators/lent.h"

#include <torch/csrc/autograd/python_variable.h>

#include "torch/storage.h"

namespace lazytrace {

namespace {
// Exchanges the tensors behind two Python objects. torch's own function refuses those to which there are weak
// references, as autograd has one to what keeps its gradient, and autocast to what it has cast: they go on
// to mean the same tensor, which only another object stands for from now on.
void exchange(PyObject* a, PyObject* b) {
  // Held, so that both hold their objects all the while.
  at::Tensor first = THPVariable_Unpack(a), second = THPVariable_Unpack(b);
  std::swap(reinterpret_cast<THPVariable*>(a)->cdata, reinterpret_cast<THPVariable*>(b)->cdata);
  first.unsafeGetTensorImpl()->pyobj_slot()->store_pyobj(b);
  second.unsafeGetTensorImpl()->pyobj_slot()->store_pyobj(a);
}

// A factory that was asked for gradients requires them of the copy too, of which nothing was computed yet.
bool may_be_copy(const at::Tensor& tensor, const at::Tensor& lent) {
  return !tensor.requires_grad() || (lent.requires_grad() && lent.is_leaf() && tensor.is_leaf());
}
}  // namespace

int Lent::find(const at::Tensor& tensor) {
  for (auto& [lent, reg] : lent_) {
    if (!same_place(lent, tensor) || !may_be_copy(tensor, lent)) continue;
    py::gil_scoped_acquire gil;
    PyObject* copy = tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
    if (!copy || !origins_->known(lent)) return reg;
    py::object held = py::reinterpret_borrow<py::object>(copy);
    py::object mine = py::reinterpret_steal<py::object>(THPVariable_Wrap(lent));
    exchange(copy, mine.ptr());
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
