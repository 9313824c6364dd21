#include "record/python/unseen.h"

#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <stdexcept>

#include "cpython/callee.h"
#include "cpython/holder.h"
#include "cpython/objects.h"
#include "record/python/exchange.h"
#include "support/address_map.h"
#include "support/reasons.h"

namespace lazytrace {

namespace {
struct OwnSteps {
  // Callable -> step; both are kept for the life of the process.
  AddressMap<PyObject*> lists, arrays, tensors;
  AddressSet steps;
};

OwnSteps& own_steps() {
  static auto* made = new OwnSteps();
  return *made;
}

// Of more values, steps of their own would take longer than the call.
bool holds_few_values(const at::Tensor& tensor) {
  constexpr int64_t kMost = 64;
  return !tensor.is_nested() && tensor.numel() <= kMost && !tensor.is_complex() && !tensor.is_quantized();
}

bool is_ordinary(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_nested() && tensor.layout() == at::kStrided && tensor.is_cpu();
}

// The descriptor of a method that is bound to a tensor; anything else as it is.
PyObject* descriptor_of(PyObject* callable) {
  PyObject* self = PyCFunction_Check(callable) ? PyCFunction_GET_SELF(callable) : nullptr;
  if (!self || !THPVariable_CheckExact(self)) return callable;
  auto name = py::reinterpret_steal<py::object>(
      PyUnicode_InternFromString(reinterpret_cast<PyCFunctionObject*>(callable)->m_ml->ml_name));
  PyObject* found = _PyType_Lookup(Py_TYPE(self), name.ptr());
  return found ? found : callable;
}
}  // namespace

void configure_unseen(const py::dict& lists, const py::dict& arrays, const py::dict& tensors) {
  auto fill = [](AddressMap<PyObject*>* known, const py::dict& by_callable) {
    for (auto [callable, own] : by_callable) {
      (*known)[Py_NewRef(callable.ptr())] = Py_NewRef(own.ptr());
      own_steps().steps.insert(own.ptr());
    }
  };
  fill(&own_steps().lists, lists);
  fill(&own_steps().arrays, arrays);
  fill(&own_steps().tensors, tensors);
}

bool is_unseen_step(PyObject* function) { return own_steps().steps.count(function); }

void Unseen::add_given(PyObject* array, PyObject* tensor) {
  if (is_given(array)) return;  // passed twice
  given_.push_back({py::reinterpret_borrow<py::object>(array), py::reinterpret_borrow<py::object>(tensor)});
}

const Unseen::Given* Unseen::given(PyObject* array) const {
  for (const Given& one : given_)
    if (one.array.ptr() == array) return &one;
  return nullptr;
}

void Unseen::add_made(py::object array, const at::Tensor& tensor) {
  made_.push_back({std::move(array), tensor, TensorMeta::of(tensor), tensor.const_data_ptr()});
}

bool Unseen::is_made(PyObject* array) const {
  return std::any_of(made_.begin(), made_.end(), [&](const Made& one) { return one.array.ptr() == array; });
}

at::Tensor Unseen::shown_by(PyObject* array) const {
  for (const Made& one : made_) {
    if (one.array.ptr() != array) continue;
    if (!one.look.matches(one.tensor) || one.data != one.tensor.const_data_ptr())
      throw std::runtime_error(say(reason::ArrayLeftBehind));
    return one.tensor;
  }
  return {};
}

py::object Unseen::take(PyObject* array, bool itself) {
  auto* found = const_cast<Given*>(given(array));
  if (!found) throw py::type_error("an array that the call was not given");
  const at::Tensor& tensor = THPVariable_Unpack(found->tensor.ptr());
  // Two would be two objects, and what changes one of them would not show in the other.
  bool other = itself && tensor.is_inference() != c10::InferenceMode::is_enabled();
  if (found->taken || other) return recorder_->fail(say(reason::TakesArrayTwice)), py::none();
  found->taken |= itself;
  return found->tensor;
}

py::object Unseen::shape_of_given(PyObject* array) const {
  const Given* found = given(array);
  if (!found) throw py::type_error("an array that the call was not given");
  // A torch.Size is a tuple to pybind, too.
  py::object size = shape_of(recorder_, THPVariable_Unpack(found->tensor.ptr()));
  PyObject* shape = PySequence_Tuple(size.ptr());
  if (!shape) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(shape);
}

void Unseen::exchange(Frame f, const Operation& operation) {
  if (operation.action != Action::Calls || recorder_->stopped()) return;
  PyObject** callee = callee_of(f, operation);
  if (!callee || !*callee) return;
  bool method = operation.first && *f.place(operation.first);
  PyObject* first = method            ? *f.place(operation.second)
                    : operation.third ? *f.place(operation.third)
                                      : nullptr;
  PyObject* self = PyCFunction_Check(*callee) ? PyCFunction_GET_SELF(*callee) : nullptr;
  bool bound = self && THPVariable_CheckExact(self);
  PyObject* object = bound ? self : first;
  if (!object) return;
  PyObject* const* own = nullptr;
  if (THPVariable_CheckExact(object)) {
    const at::Tensor& tensor = THPVariable_Unpack(object);
    if (!is_ordinary(tensor)) return;
    PyObject* asked = descriptor_of(*callee);
    if (recorder_->numbers() && holds_few_values(tensor)) own = own_steps().lists.find(asked);
    // Those of which an array shows the memory as it is.
    bool shows = !tensor.requires_grad() && !tensor.is_conj() && !tensor.is_neg();
    if (!own && shows) own = own_steps().arrays.find(asked);
  } else if (!given_.empty() && is_given(object)) {
    own = own_steps().tensors.find(*callee);
  }
  if (!own) return;
  PyObject* instead = bound ? PyMethod_New(*own, self) : Py_NewRef(*own);
  if (!instead) throw py::error_already_set();
  Py_SETREF(*callee, instead);
}

void Unseen::exchange_made(Frame f, const Operation& operation) {
  if (operation.action != Action::ReadsAttribute || made_.empty() || recorder_->stopped()) return;
  static PyObject* const list = PyUnicode_InternFromString("tolist");
  PyObject** array = f.place(operation.first);
  if (f.name(operation.name) != list || !is_made(*array) || !recorder_->numbers()) return;
  at::Tensor tensor;
  try {
    tensor = shown_by(*array);
  } catch (const std::runtime_error&) {
    return;  // it has other memory by now
  }
  if (!holds_few_values(tensor)) return;
  Py_SETREF(*array, THPVariable_Wrap(std::move(tensor)));
}

void Unseen::exchange_shape(Frame f, const Operation& operation) {
  if (operation.action != Action::ReadsAttribute || given_.empty() || recorder_->stopped()) return;
  PyObject **object = f.place(operation.first), *name = f.name(operation.name);
  const Given* found = given(*object);
  if (!found || !recorder_->numbers() || !recorder_->follows_sizes()) return;
  static PyObject* shape = PyUnicode_InternFromString("shape");
  if (name != shape) return recorder_->pin(THPVariable_Unpack(found->tensor.ptr()));
  py::object sizes = shape_of_given(*object);
  PyObject* holder = new_holder(*object, name, sizes.ptr());
  if (!holder) throw py::error_already_set();
  Py_SETREF(*object, holder);
}

}  // namespace lazytrace
