#include "cpython/array_memory.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/tensor_numpy.h>

#include "cpython/objects.h"

namespace lazytrace {

namespace {
struct Owner {
  PyObject* array;
  // Of the tensor that was made of it: only compared, as that may be gone. Views are others.
  const c10::TensorImpl* first;
};

void let_go(void* context) {
  auto* owner = static_cast<Owner*>(context);
  // At exit memory may outlive the interpreter.
  if (Py_IsInitialized()) {
    py::gil_scoped_acquire gil;
    Py_DECREF(owner->array);
  }
  delete owner;
}

Owner* owner_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return nullptr;
  const c10::DataPtr& memory = tensor.unsafeGetTensorImpl()->unsafe_storage().data_ptr();
  return memory.get_deleter() == &let_go ? static_cast<Owner*>(memory.get_context()) : nullptr;
}

py::tuple in_bytes(const at::Tensor& tensor) {
  py::tuple strides(tensor.dim());
  for (int64_t i = 0; i < tensor.dim(); ++i)
    strides[static_cast<size_t>(i)] = tensor.stride(i) * static_cast<int64_t>(tensor.element_size());
  return strides;
}

// Null where numpy can make none.
PyObject* view_of(PyObject* array, const at::Tensor& tensor) {
  try {
    py::handle owner(array);
    int64_t offset = tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
    return py::handle(reinterpret_cast<PyObject*>(Py_TYPE(array)))(py::tuple(py::cast(tensor.sizes().vec())),
                                                                   owner.attr("dtype"), owner, offset,
                                                                   in_bytes(tensor))
        .release()
        .ptr();
  } catch (const py::error_already_set&) {
    return nullptr;
  }
}

// Of two kinds of int64 that C has, torch takes both and gives back one, so an array of the other one would
// come back as an array of another type. Of the unsigned ones it refuses the other.
bool is_of_torchs_kind(PyObject* array) {
  int kind = py::handle(array).attr("dtype").attr("num").cast<int>();
  try {
    return torch::utils::aten_to_numpy_dtype(torch::utils::numpy_dtype_to_aten(kind)) == kind;
  } catch (const std::exception&) {  // no tensor has such values
    PyErr_Clear();
    return false;
  }
}

bool shows(const at::Tensor& tensor, PyObject* array) {
  py::handle owner(array);
  return tensor.storage_offset() == 0 && in_bytes(tensor).equal(owner.attr("strides")) &&
         py::tuple(py::cast(tensor.sizes().vec())).equal(owner.attr("shape"));
}
}  // namespace

at::Tensor tensor_of_new_array(PyObject* array) {
  at::Tensor like = torch::utils::tensor_from_numpy(array, /*warn_if_not_writeable=*/false);
  auto* owner = new Owner{Py_NewRef(array), nullptr};
  // Of an empty one data_ptr() says nothing.
  at::Tensor made = at::for_blob(like.storage().mutable_data(), like.sizes())
                        .strides(like.strides())
                        .context(owner, &let_go)
                        .options(like.options())
                        .make_tensor();
  made = at::lift_fresh(made);
  owner->first = made.unsafeGetTensorImpl();
  return made;
}

bool is_writable_array(PyObject* v) {
  if (!is_plain_array(v) || !is_of_torchs_kind(v)) return false;
  Py_buffer view;
  bool writable = PyObject_GetBuffer(v, &view, PyBUF_WRITABLE | PyBUF_STRIDES) == 0;
  if (writable) PyBuffer_Release(&view);
  PyErr_Clear();
  return writable;
}

py::object memory_of_array(PyObject* array) {
  if (!is_writable_array(array)) return {};
  c10::InferenceMode ordinary(false);
  // Nobody sees how it is made: neither who records nor a transform.
  auto above = c10::DispatchKeySet(c10::DispatchKeySet::FULL) -
               c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::ADInplaceOrView);
  c10::impl::ForceDispatchKeyGuard below(c10::DispatchKeySet(),
                                         above | c10::DispatchKeySet(c10::DispatchKey::Fake));
  try {
    return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor_of_new_array(array)));
  } catch (const std::exception&) {  // no tensor has such values, or lies so
    PyErr_Clear();
    return {};
  }
}

bool is_memory_of(const at::Tensor& tensor, PyObject* array) {
  const Owner* owner = tensor.defined() ? owner_of(tensor) : nullptr;
  return owner && owner->array == array && owner->first == tensor.unsafeGetTensorImpl();
}

PyObject* array_of_tensor(const at::Tensor& tensor) {
  const Owner* owner = owner_of(tensor);
  bool plain = owner && !tensor.requires_grad() && !tensor.is_conj() && !tensor.is_neg();
  bool same_kind =
      plain && tensor.element_size() == py::handle(owner->array).attr("itemsize").cast<int64_t>();
  if (same_kind && tensor.unsafeGetTensorImpl() == owner->first && shows(tensor, owner->array))
    return Py_NewRef(owner->array);
  PyObject* view = same_kind ? view_of(owner->array, tensor) : nullptr;
  return view ? view : torch::utils::tensor_to_numpy(tensor);
}

}  // namespace lazytrace
