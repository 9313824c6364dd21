#include "signature.h"

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>

#include "modes.h"
#include "pytypes.h"
#include "tree.h"

namespace lazytrace {

namespace {

template <typename T>
void put(std::string* key, const T& value) {
  key->append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string* key, const std::string& text) {
  put(key, static_cast<uint32_t>(text.size()));
  key->append(text);
}

// A tensor argument may be a Tensor or a Parameter; anything else has behavior of its own.
bool is_plain_tensor(PyObject* v) {
  if (Py_TYPE(v) == reinterpret_cast<PyTypeObject*>(THPVariableClass)) return true;
  static PyTypeObject* parameter = nullptr;
  if (!parameter)
    parameter = reinterpret_cast<PyTypeObject*>(
        py::object(py::module_::import("torch.nn").attr("Parameter")).release().ptr());
  return Py_TYPE(v) == parameter;
}

}  // namespace

struct Signature::Flattener {
  Call* call;
  std::unordered_map<c10::StorageImpl*, int> storages;
  std::unordered_map<c10::TensorImpl*, int> impls;
  std::vector<PyObject*> open;  // containers that are being walked

  void refuse(const std::string& why) {
    if (call->unsupported.empty()) call->unsupported = why;
  }

  void tensor(PyObject* v) {
    std::string* key = &call->key;
    const at::Tensor& t = THPVariable_Unpack(v);
    if (!is_plain_tensor(v)) return refuse("takes a " + type_name(v) + ", a subclass of Tensor");
    if (t.is_nested()) return refuse("takes a nested tensor");
    key->push_back('T');
    put(key, t.key_set().raw_repr());
    put(key, t.scalar_type());
    put(key, t.device());
    key->push_back(static_cast<char>(t.requires_grad() | t.is_leaf() << 1 |
                                     (Py_TYPE(v) != reinterpret_cast<PyTypeObject*>(THPVariableClass)) << 2));
    auto sizes = t.sizes();
    put(key, static_cast<uint32_t>(sizes.size()));
    key->append(reinterpret_cast<const char*>(sizes.data()), sizes.size() * sizeof(int64_t));
    if (t.layout() == at::kStrided) {
      auto strides = t.strides();
      key->append(reinterpret_cast<const char*>(strides.data()), strides.size() * sizeof(int64_t));
    }
    sharing(t);
    call->tensors.push_back(t);
    call->tensor_objects.push_back(v);
  }

  // Which tensors are the same, and which share memory at what distance.
  void sharing(const at::Tensor& t) {
    std::string* key = &call->key;
    int number = static_cast<int>(call->tensors.size());
    int first = impls.emplace(t.unsafeGetTensorImpl(), number).first->second;
    put(key, first);
    if (!t.has_storage() || first != number) return;
    int holder = storages.emplace(t.storage().unsafeGetStorageImpl(), number).first->second;
    put(key, holder);
    if (holder != number) put(key, t.storage_offset() - call->tensors[holder].storage_offset());
  }

  bool immutable(PyObject* v) {
    std::string* key = &call->key;
    if (v == Py_None || PyBool_Check(v)) {
      key->push_back(v == Py_None ? 'N' : v == Py_True ? 't' : 'f');
    } else if (PyLong_CheckExact(v)) {
      int overflow = 0;
      long long value = PyLong_AsLongLongAndOverflow(v, &overflow);
      key->push_back(overflow ? 'I' : 'i');
      if (overflow)
        put_text(key, text_of(py::str(py::handle(v)).ptr()));
      else
        put(key, value);
    } else if (PyFloat_CheckExact(v)) {
      double value = PyFloat_AS_DOUBLE(v);
      key->push_back(value != value ? 'n' : 'd');
      if (value == value) put(key, value);
    } else if (PyUnicode_CheckExact(v)) {
      key->push_back('s');
      py::object bytes =
          py::reinterpret_steal<py::object>(PyUnicode_AsEncodedString(v, "utf-8", "surrogatepass"));
      put_text(key, std::string(PyBytes_AS_STRING(bytes.ptr()), PyBytes_GET_SIZE(bytes.ptr())));
    } else if (PyBytes_CheckExact(v)) {
      key->push_back('b');
      put_text(key, std::string(PyBytes_AS_STRING(v), PyBytes_GET_SIZE(v)));
    } else if (THPDtype_Check(v) || THPLayout_Check(v) || THPMemoryFormat_Check(v) || v == Py_Ellipsis ||
               v == Py_NotImplemented) {
      key->push_back('p');  // one object each, for the whole process
      put(key, v);
    } else if (THPDevice_Check(v)) {
      key->push_back('D');
      put(key, reinterpret_cast<THPDevice*>(v)->device);
    } else if (PyComplex_CheckExact(v)) {
      Py_complex value = PyComplex_AsCComplex(v);
      key->push_back('c');
      put(key, value);
    } else {
      return false;
    }
    return true;
  }

  void sequence(PyObject* v, char kind) {
    std::string* key = &call->key;
    key->push_back(kind);
    if (!PyTuple_CheckExact(v) && !PyList_CheckExact(v)) put(key, Py_TYPE(v));
    Py_ssize_t n = PySequence_Fast_GET_SIZE(v);
    put(key, static_cast<uint32_t>(n));
    for (Py_ssize_t i = 0; i < n; ++i) leaf(PySequence_Fast_GET_ITEM(v, i));
  }

  void mapping(PyObject* v) {
    std::string* key = &call->key;
    key->push_back('{');
    put(key, Py_TYPE(v));
    put(key, static_cast<uint32_t>(PyDict_GET_SIZE(v)));
    py::object held;
    if (!PyDict_CheckExact(v)) held = py::reinterpret_steal<py::object>(ordered_items(v));
    PyObject *name, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(held ? held.ptr() : v, &position, &name, &item)) {
      if (!immutable(name)) return refuse("takes a dict with a " + type_name(name) + " as a key");
      leaf(item);
    }
  }

  void container(PyObject* v) {
    for (PyObject* outer : open)
      if (outer == v) return refuse("takes a container that holds itself");
    if (open.size() > 64) return refuse("takes a value that is nested too deeply");
    call->roots.push_back(v);
    call->structural.push_back(true);
    // The same list twice is not two lists.
    for (size_t i = 1; i + 1 < call->roots.size(); ++i)
      if (call->roots[i] == v) {
        call->key.push_back('=');
        put(&call->key, static_cast<uint32_t>(i));
        break;
      }
    open.push_back(v);
    if (PyDict_Check(v))
      mapping(v);
    else
      sequence(v, PyList_Check(v) ? '[' : PyTuple_CheckExact(v) ? '(' : 'C');
    open.pop_back();
  }

  void leaf(PyObject* v) {
    if (is_tensor(v)) return tensor(v);
    if (immutable(v)) return;
    if (PyTuple_CheckExact(v) || PyList_CheckExact(v) || PyDict_CheckExact(v) ||
        Py_IS_TYPE(v, &PyODict_Type) || is_named_tuple(v) || THPSize_Check(v))
      return container(v);
    if (is_numpy_array(v)) return refuse("takes a numpy array");
    if (PyIter_Check(v) && !PyType_HasFeature(Py_TYPE(v), Py_TPFLAGS_HEAPTYPE))
      return refuse("takes a " + type_name(v));
    // Anything else is guarded by what the function reads of it.
    call->key.push_back('O');
    put(&call->key, Py_TYPE(v));
    for (size_t i = 0; i < call->roots.size(); ++i)
      if (call->roots[i] == v) put(&call->key, static_cast<uint32_t>(i));
    call->roots.push_back(v);
    call->structural.push_back(false);
  }
};

Signature::Signature(std::vector<std::string> names, int positional_only, int positional, bool star,
                     bool double_star)
    : positional_only_(positional_only), positional_(positional), star_(star), double_star_(double_star) {
  for (auto& name : names)
    names_.push_back(py::reinterpret_steal<py::object>(PyUnicode_InternFromString(name.c_str())));
}

std::unique_ptr<Call> Signature::bind(py::object function, py::tuple args, py::dict kwargs,
                                      py::dict defaults) const {
  auto call = std::make_unique<Call>();
  call->key.reserve(256);
  call->roots.push_back(function.ptr());
  call->structural.push_back(false);
  Flattener flat{call.get(), {}, {}, {}};
  Py_ssize_t given = PyTuple_GET_SIZE(args.ptr()), used = 0;
  if (given > positional_ && !star_) return nullptr;
  for (size_t i = 0; i < names_.size(); ++i) {
    PyObject* name = names_[i].ptr();
    PyObject* value = nullptr;
    PyObject* keyword =
        static_cast<int>(i) >= positional_only_ ? PyDict_GetItemWithError(kwargs.ptr(), name) : nullptr;
    if (static_cast<int>(i) < positional_ && static_cast<Py_ssize_t>(i) < given) {
      if (keyword) return nullptr;
      value = PyTuple_GET_ITEM(args.ptr(), i);
    } else if (keyword) {
      value = keyword;
      ++used;
    } else {
      value = PyDict_GetItemWithError(defaults.ptr(), name);
    }
    if (!value) return nullptr;
    flat.leaf(value);
  }
  if (star_) {
    call->key.push_back('*');
    put(&call->key, static_cast<uint32_t>(given > positional_ ? given - positional_ : 0));
    for (Py_ssize_t i = positional_; i < given; ++i) flat.leaf(PyTuple_GET_ITEM(args.ptr(), i));
  }
  if (PyDict_GET_SIZE(kwargs.ptr()) > used) {
    if (!double_star_) return nullptr;
    call->key.push_back('%');
    PyObject *name, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(kwargs.ptr(), &position, &name, &value)) {
      bool named = false;
      for (size_t i = positional_only_; i < names_.size(); ++i)
        named |= PyUnicode_Compare(names_[i].ptr(), name) == 0;
      if (named) continue;
      put_text(&call->key, text_of(name));
      flat.leaf(value);
    }
  }
  std::string why = append_ambient(&call->key);
  if (call->unsupported.empty()) call->unsupported = why;
  return call;
}

// ---------------------------------------------------------------- ambient state
namespace {

// A plain device context is the one torch-function mode that a recording can live with: it only fills in
// device=.
std::string append_function_modes(std::string* key) {
  int64_t count = at::impl::PythonTorchFunctionTLS::stack_len();
  static py::handle device_context =
      py::object(py::module_::import("torch.utils._device").attr("DeviceContext")).release();
  for (int64_t i = 0; i < count; ++i) {
    PyObject* mode = at::impl::PythonTorchFunctionTLS::get_stack_at(i)->ptr(getPyInterpreter());
    if (reinterpret_cast<PyObject*>(Py_TYPE(mode)) != device_context.ptr())
      return "a torch function mode is active (" + type_name(mode) + ")";
    py::object device = py::reinterpret_borrow<py::object>(mode).attr("device");
    put_text(key, text_of(py::str(device).ptr()));
  }
  return "";
}

uint64_t flags() {
  auto& context = at::globalContext();
  uint64_t bits = 0;
  for (bool flag : {context.deterministicAlgorithms(), context.deterministicAlgorithmsWarnOnly(),
                    context.deterministicCuDNN(), context.benchmarkCuDNN(), context.userEnabledCuDNN(),
                    context.userEnabledMkldnn(), context.userEnabledFlashSDP(), context.userEnabledMathSDP(),
                    context.userEnabledMemEfficientSDP(), context.deterministicFillUninitializedMemory(),
                    torch::autograd::AnomalyMode::is_enabled()})
    bits = bits << 1 | flag;
  return bits << 4 | static_cast<uint64_t>(context.float32MatmulPrecision());
}

}  // namespace

std::string append_ambient(std::string* key) {
  Modes modes = Modes::current();
  key->push_back('|');
  key->push_back(static_cast<char>(modes.grad | modes.inference << 1 | modes.autocast_cache << 2));
  for (size_t i = 0; i < kAutocastCount; ++i) {
    key->push_back(static_cast<char>(modes.autocast[i]));
    put(key, modes.autocast_dtype[i]);
  }
  put(key, c10::get_default_dtype().toScalarType());
  put(key, flags());
  if (c10::impl::TorchDispatchModeTLS::stack_len() > 0) return "a torch dispatch mode is active";
  if (at::impl::torch_function_mode_enabled()) return append_function_modes(key);
  return "";
}

py::dict describe_ambient() {
  py::dict result;
  Modes modes = Modes::current();
  result["grad_mode"] = modes.grad;
  result["inference_mode"] = modes.inference;
  for (size_t i = 0; i < kAutocastCount; ++i) {
    std::string device = c10::DeviceTypeName(kAutocastDevices[i], true);
    result[py::str("autocast(" + device + ")")] =
        modes.autocast[i] ? c10::toString(modes.autocast_dtype[i]) : "off";
  }
  result["autocast_cache"] = modes.autocast_cache;
  result["anomaly_mode"] = torch::autograd::AnomalyMode::is_enabled();
  result["default_dtype"] = c10::toString(c10::get_default_dtype().toScalarType());
  auto& context = at::globalContext();
  result["deterministic_algorithms"] = context.deterministicAlgorithms();
  result["cudnn.benchmark"] = context.benchmarkCuDNN();
  result["mkldnn.enabled"] = context.userEnabledMkldnn();
  result["float32_matmul_precision"] = static_cast<int>(context.float32MatmulPrecision());
  return result;
}

}  // namespace lazytrace
