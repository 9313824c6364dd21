#include "signature/signature.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/tensor_numpy.h>

#include <algorithm>
#include <cmath>

#include "cpython/array_memory.h"
#include "cpython/carrier.h"
#include "cpython/objects.h"
#include "cpython/values.h"
#include "program/value_tree.h"
#include "signature/ambient.h"
#include "support/reasons.h"
#include "torch/autograd_graph.h"

namespace lazytrace {

namespace {

PyTypeObject* tensor_class() { return reinterpret_cast<PyTypeObject*>(THPVariableClass); }

// A tensor argument may be a Tensor or a Parameter; anything else has behavior of its own.
bool is_plain_tensor(PyObject* v) {
  return Py_IS_TYPE(v, tensor_class()) || Py_IS_TYPE(v, parameter_class());
}

// Asking a view for its grad_fn may make one, under a lock; most tensors are none.
bool is_leaf(const at::Tensor& t, c10::AutogradMetaInterface* interface) {
  if (!interface) return true;
  auto* meta = static_cast<torch::autograd::AutogradMeta*>(interface);
  return meta->is_view_ ? t.is_leaf() : !meta->grad_fn_;
}

}  // namespace

struct Signature::Flattener {
  Call* call;
  Key* key = &call->key;
  int changeable = 0;             // how many lists and dicts are open: what lies in them is held
  std::vector<PyObject*> open{};  // containers that are being walked

  explicit Flattener(Call* made) : call(made) {}

  void refuse(const std::string& why) { call->refuse(why); }

  void tensor(PyObject* v) {
    if (!is_plain_tensor(v)) return refuse(say(reason::TakesSubclass, type_name(v)));
    const at::Tensor& t = THPVariable_Unpack(v);
    c10::TensorImpl* impl = t.unsafeGetTensorImpl();
    c10::DispatchKeySet keys = impl->key_set();
    if (keys.has(c10::DispatchKey::NestedTensor)) return refuse(say(reason::TakesNested));
    c10::AutogradMetaInterface* meta = impl->autograd_meta();
    bool parameter = !Py_IS_TYPE(v, tensor_class()), requires_grad = meta && meta->requires_grad();
    auto sizes = t.sizes();
    // The keys do not say whether a sparse tensor lies by rows, columns or blocks.
    c10::Layout layout = t.layout();
    auto strides = layout == at::kStrided ? t.strides() : c10::IntArrayRef();
    c10::Device device = t.device();
    struct {
      char tag = 'T';
      c10::ScalarType dtype;
      uint8_t flags;
      c10::DeviceType device;
      c10::DeviceIndex device_index;
      c10::Layout layout;
      uint8_t none[2] = {};
      uint64_t dimensions;
      uint64_t keys;
    } look;
    static_assert(sizeof look == 24, "no byte of a key may be left unset");
    look.dtype = t.scalar_type();
    look.flags =
        static_cast<uint8_t>(requires_grad | is_leaf(t, meta) << 1 | parameter << 2 | has_hooks(t) << 3 |
                             has_attributes(v) << 4 | is_stale(t) << 5 | leads_nowhere(t) << 6);
    look.device = device.type();
    look.device_index = device.index();
    look.layout = layout;
    look.dimensions = sizes.size();
    look.keys = keys.raw_repr();
    // In one piece: this is what most of the time of matching goes to.
    std::memcpy(key->room(sizeof look), &look, sizeof look);
    call->measures.append(sizes.begin(), sizes.end());
    call->measures.append(strides.begin(), strides.end());
    sharing(t, impl);
    call->tensors.push_back(v);
    if (changeable) call->hold(v);
  }

  // Which tensors are the same, and which share memory at what distance.
  void sharing(const at::Tensor& t, c10::TensorImpl* impl) {
    int number = static_cast<int>(call->tensors.size());
    c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
    int holder = storage ? call->storages.first(storage, number) : -1;
    if (holder == number) return key->put_tag('1');
    // Only a tensor whose memory was met before can be one of those.
    int first = 0;
    while (first < number && call->tensor(first).unsafeGetTensorImpl() != impl) ++first;
    if (first < number) {
      key->put_tag('=');
      key->put(first);
    } else if (storage) {
      key->put_tag('+');
      key->put(holder);
      key->put(t.storage_offset() - call->tensor(holder).storage_offset());
    } else {
      key->put_tag('0');
    }
  }

  bool immutable(PyObject* v) { return !PyTuple_Check(v) && Call::put_constant(v, key); }

  // One that was passed by itself: calls may differ in its value.
  bool number(PyObject* v, Py_ssize_t place) {
    int64_t value;
    bool real = PyFloat_CheckExact(v);
    if (real) {
      double bits = PyFloat_AS_DOUBLE(v);
      if (std::isnan(bits)) return false;
      std::memcpy(&value, &bits, sizeof value);
    } else {
      if (!PyLong_CheckExact(v)) return false;
      int overflow = 0;
      value = PyLong_AsLongLongAndOverflow(v, &overflow);
      if (overflow) return false;
    }
    key->put_tag(real ? 'd' : 'i');
    call->numbers.push_back({value, place, real});
    return true;
  }

  // The same of numpy's: not of one in a container.
  bool scalar(PyObject* v, Py_ssize_t place) {
    if (!is_followable_scalar(v) || is_nan(v)) return false;
    bool real = !is_int64(v);
    double bits = real ? float_value(v) : 0;
    int64_t value = real ? 0 : int64_value(v);
    if (real) std::memcpy(&value, &bits, sizeof value);
    key->put_tag(is_int64(v) ? 'l' : is_float32(v) ? 'h' : 'e');
    call->numbers.push_back({value, place, real});
    return true;
  }

  // One that lies in a container.
  bool value(PyObject* v) {
    if (!PyUnicode_CheckExact(v) && !PyTuple_CheckExact(v)) return number(v, Call::kInside);
    size_t before = call->constants.size();
    if (!Call::put_constant(v, &call->constants)) return call->constants.cut(before), false;
    // A tuple is no root: the program may have the very same one for a constant of its own.
    key->put_tag('V');
    key->put(Py_TYPE(v));
    return true;
  }

  void passed(PyObject* v, Py_ssize_t place) {
    if (!number(v, place) && !scalar(v, place)) leaf(v);
  }

  void sequence(PyObject* v, char kind) {
    key->put_tag(kind);
    if (!PyTuple_CheckExact(v) && !PyList_CheckExact(v)) key->put(Py_TYPE(v));
    Py_ssize_t n = PySequence_Fast_GET_SIZE(v);
    key->put(static_cast<uint32_t>(n));
    // Of one that is immutable no entry is read by itself.
    bool whole = is_immutable(v);
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(v, i);
      whole ? leaf(item) : inside(item);
    }
  }

  void mapping(PyObject* v) {
    key->put_tag('{');
    key->put(Py_TYPE(v));
    key->put(static_cast<uint32_t>(PyDict_GET_SIZE(v)));
    py::object held;
    if (!PyDict_CheckExact(v)) held = py::reinterpret_steal<py::object>(ordered_items(v));
    PyObject *name, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(held ? held.ptr() : v, &position, &name, &item)) {
      if (!Call::put_constant(name, key)) return refuse(say(reason::TakesOddKey, type_name(name)));
      inside(item);
    }
  }

  // A tensor of the same memory stands for it. What Python sees of the array itself is guarded by its root.
  void array(PyObject* v) {
    if (!is_writable_array(v)) return refuse(say(reason::TakesArray));
    at::Tensor made;
    try {
      made = torch::utils::tensor_from_numpy(v, /*warn_if_not_writeable=*/false);
    } catch (const std::exception& error) {
      PyErr_Clear();
      return refuse(say(reason::TakesArray));
    }
    key->put_tag('A');
    root(v, Call::Root::Structure);
    auto held = py::reinterpret_steal<py::object>(THPVariable_Wrap(made));
    call->hold(held.ptr());
    call->arrays.emplace_back(v, static_cast<int>(call->tensors.size()));
    tensor(held.ptr());
  }

  // The key knows memory by its owner, and an array's is owned by a tensor of this call's.
  void refuse_shared_arrays() {
    auto range = [&](size_t i) -> std::pair<const char*, const char*> {
      const at::Tensor& t = call->tensor(i);
      if (!t.has_storage() || !t.storage()) return {};
      auto* begin = static_cast<const char*>(t.storage().data());
      return {begin, begin + t.storage().nbytes()};
    };
    for (auto& [array, number] : call->arrays) {
      auto [begin, end] = range(static_cast<size_t>(number));
      for (size_t i = 0; i < call->tensors.size(); ++i) {
        auto [other, other_end] = range(i);
        if (static_cast<int>(i) != number && begin < other_end && other < end)
          return refuse(say(reason::TakesSharedArray));
      }
    }
  }

  // Guards may start from it.
  void root(PyObject* v, Call::Root kind) {
    call->roots.push_back(v);
    call->kinds.push_back(kind);
    if (changeable) call->hold(v);
  }

  void container(PyObject* v) {
    for (PyObject* outer : open)
      if (outer == v) return refuse(say(reason::TakesCycle));
    if (open.size() > 64) return refuse(say(reason::TakesTooDeep));
    root(v, Call::Root::Structure);
    // The same list twice is not two lists.
    for (size_t i = 1; i + 1 < call->roots.size(); ++i)
      if (call->roots[i] == v) {
        key->put_tag('=');
        key->put(static_cast<uint32_t>(i));
        break;
      }
    open.push_back(v);
    bool changes = PyDict_Check(v) || PyList_Check(v);
    changeable += changes;
    if (PyDict_Check(v))
      mapping(v);
    else
      sequence(v, PyList_Check(v) ? '[' : PyTuple_CheckExact(v) ? '(' : 'C');
    changeable -= changes;
    open.pop_back();
  }

  void inside(PyObject* v) {
    if (!value(v)) leaf(v);
  }

  void leaf(PyObject* v) {
    if (Py_IS_TYPE(v, tensor_class()) || is_tensor(v)) return tensor(v);
    if (immutable(v)) return;
    if (PyTuple_CheckExact(v) || PyList_CheckExact(v) || PyDict_CheckExact(v) ||
        Py_IS_TYPE(v, &PyODict_Type) || is_named_tuple(v) || THPSize_Check(v))
      return container(v);
    if (is_numpy_array(v)) return array(v);
    object(v, Call::Root::Object);
  }

  // It is guarded by what the function reads of it.
  void object(PyObject* v, Call::Root kind) {
    key->put_tag(kind == Call::Root::Object ? 'O' : 'o');
    key->put(Py_TYPE(v));
    for (size_t i = 0; i < call->roots.size(); ++i)
      if (call->roots[i] == v) key->put(static_cast<uint32_t>(i));
    root(v, kind);
  }

  // `state`: a list or dict is, if it is one.
  void given(PyObject* v, Py_ssize_t place, bool state) {
    state && (PyList_CheckExact(v) || PyDict_CheckExact(v)) ? object(v, Call::Root::State) : passed(v, place);
  }
};

Signature::Signature(std::vector<std::string> names, int positional_only, int positional, bool star,
                     bool double_star, py::object code, const std::vector<std::string>& unread)
    : positional_only_(positional_only),
      positional_(positional),
      star_(star),
      double_star_(double_star),
      code_(code.is_none() ? py::object() : std::move(code)) {
  for (auto& name : names) {
    names_.push_back(py::reinterpret_steal<py::object>(PyUnicode_InternFromString(name.c_str())));
    unread_.push_back(std::find(unread.begin(), unread.end(), name) != unread.end());
  }
  states_.resize(names_.size(), 0);
}

void Signature::take_as_state(const std::string& name) {
  rest_is_state_ |= name == "*";
  for (size_t i = 0; i < names_.size(); ++i)
    if (text_of(names_[i].ptr()) == name) states_[i] = 1;
}

// Read from the function at each call: defaults can be assigned to.
PyObject* Signature::default_of(size_t parameter, PyObject* defaults) const {
  PyObject* name = names_[parameter].ptr();
  if (PyDict_Check(defaults)) return PyDict_GetItemWithError(defaults, name);
  if (static_cast<int>(parameter) >= positional_) {
    PyObject* named = PyFunction_GET_KW_DEFAULTS(defaults);
    return named ? PyDict_GetItemWithError(named, name) : nullptr;
  }
  PyObject* last = PyFunction_GET_DEFAULTS(defaults);
  Py_ssize_t count = last ? PyTuple_GET_SIZE(last) : 0;
  Py_ssize_t at = static_cast<Py_ssize_t>(parameter) - (positional_ - count);
  return at >= 0 && at < count ? PyTuple_GET_ITEM(last, at) : nullptr;
}

namespace {
bool same_parameters(PyObject* a, PyObject* b) {
  auto *x = reinterpret_cast<PyCodeObject*>(a), *y = reinterpret_cast<PyCodeObject*>(b);
  constexpr int kStars = CO_VARARGS | CO_VARKEYWORDS;
  if (x->co_argcount != y->co_argcount || x->co_posonlyargcount != y->co_posonlyargcount ||
      x->co_kwonlyargcount != y->co_kwonlyargcount || (x->co_flags & kStars) != (y->co_flags & kStars))
    return false;
  py::object names = py::reinterpret_steal<py::object>(PyCode_GetVarnames(x));
  py::object others = py::reinterpret_steal<py::object>(PyCode_GetVarnames(y));
  for (Py_ssize_t i = 0; i < x->co_argcount + x->co_kwonlyargcount; ++i)
    if (PyUnicode_Compare(PyTuple_GET_ITEM(names.ptr(), i), PyTuple_GET_ITEM(others.ptr(), i)) != 0)
      return false;
  return true;
}

// The place of a keyword among those that were passed, or -1. Most are interned, and so the same object.
Py_ssize_t place_of(PyObject* name, const Passed& passed) {
  Py_ssize_t count = passed.named();
  for (Py_ssize_t i = 0; i < count; ++i)
    if (PyTuple_GET_ITEM(passed.names, i) == name) return i;
  for (Py_ssize_t i = 0; i < count; ++i)
    if (PyUnicode_Compare(PyTuple_GET_ITEM(passed.names, i), name) == 0) return i;
  return -1;
}
}  // namespace

void Call::put_key(int loose, Key* into) const {
  into->clear();
  into->put(key.view().data(), structure_);
  put_values(loose, into);
}

bool Call::is_value(PyObject* v) {
  return PyLong_CheckExact(v) || PyFloat_CheckExact(v) || PyUnicode_CheckExact(v) ||
         (PyTuple_CheckExact(v) && is_immutable(v));
}

namespace {
// Which object a nan is shows in containers that hold it. It lives as long as the call, and so does one that
// the program knows, so that equal addresses are one object.
void put_nan(PyObject* v, double value, Key* key) {
  if (std::isnan(value)) key->put(v);
}
}  // namespace

bool Call::put_constant(PyObject* v, Key* key, int depth) {
  if (v == Py_None || PyBool_Check(v)) {
    key->put_tag(v == Py_None ? 'N' : v == Py_True ? 't' : 'f');
  } else if (PyLong_CheckExact(v)) {
    int overflow = 0;
    long long value = PyLong_AsLongLongAndOverflow(v, &overflow);
    key->put_tag(overflow ? 'I' : 'i');
    if (overflow)  // in hexadecimal: Python limits the length of a decimal text
      key->put_text(text_of(py::reinterpret_steal<py::object>(PyNumber_ToBase(v, 16)).ptr()));
    else
      key->put(value);
  } else if (PyFloat_CheckExact(v)) {
    key->put_tag('d');  // bit for bit: copysign() tells 0.0 from -0.0
    key->put(PyFloat_AS_DOUBLE(v));
    put_nan(v, PyFloat_AS_DOUBLE(v), key);
  } else if (PyUnicode_CheckExact(v)) {
    key->put_tag('s');
    put_text(v, key);
  } else if (PyBytes_CheckExact(v)) {
    key->put_tag('b');
    key->put_text({PyBytes_AS_STRING(v), static_cast<size_t>(PyBytes_GET_SIZE(v))});
  } else if (THPDtype_Check(v) || THPLayout_Check(v) || THPMemoryFormat_Check(v) || v == Py_Ellipsis ||
             v == Py_NotImplemented) {
    key->put_tag('p');  // one object each, for the whole process
    key->put(v);
  } else if (THPDevice_Check(v)) {
    key->put_tag('D');
    key->put(reinterpret_cast<THPDevice*>(v)->device);
  } else if (PyTuple_CheckExact(v) && depth > 0) {
    key->put_tag('(');
    key->put(static_cast<uint32_t>(PyTuple_GET_SIZE(v)));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(v); ++i)
      if (!put_constant(PyTuple_GET_ITEM(v, i), key, depth - 1)) return false;
  } else if (PyComplex_CheckExact(v)) {
    key->put_tag('c');
    Py_complex value = PyComplex_AsCComplex(v);
    key->put(value);
    put_nan(v, value.real + value.imag, key);
  } else {
    return false;
  }
  return true;
}

// A str has the narrowest of three widths, so that equal ones have equal bytes.
void Call::put_text(PyObject* text, Key* into) {
  into->put(static_cast<uint8_t>(PyUnicode_KIND(text)));
  into->put_text({static_cast<const char*>(PyUnicode_DATA(text)),
                  static_cast<size_t>(PyUnicode_GET_LENGTH(text)) * PyUnicode_KIND(text)});
}

bool Signature::bind(Call* call, PyObject* function, const Passed& passed, PyObject* defaults) const {
  if (code_ && PyFunction_Check(defaults) && PyFunction_GET_CODE(defaults) != code_.ptr() &&
      !same_parameters(PyFunction_GET_CODE(defaults), code_.ptr()))
    call->refuse(say(reason::OtherParameters));
  call->roots.push_back(function);
  call->kinds.push_back(Call::Root::Object);
  Flattener flat(call);
  bool own_code = code_ && PyFunction_Check(defaults) && PyFunction_GET_CODE(defaults) == code_.ptr();
  if (passed.count > positional_ && !star_) return false;
  Py_ssize_t used = 0;
  for (size_t i = 0; i < names_.size(); ++i) {
    PyObject* value;
    Py_ssize_t place = Call::kDefault;
    bool nameable = passed.names && static_cast<int>(i) >= positional_only_;
    Py_ssize_t keyword = nameable ? place_of(names_[i].ptr(), passed) : -1;
    if (static_cast<int>(i) < positional_ && static_cast<Py_ssize_t>(i) < passed.count) {
      if (keyword >= 0) return false;
      value = passed.positional[i];
      place = static_cast<Py_ssize_t>(i);
    } else if (keyword >= 0) {
      value = passed.values[keyword];
      place = -1 - keyword;
      ++used;
    } else {
      value = default_of(i, defaults);
      if (value) call->hold(value);
    }
    if (!value) return false;
    if (own_code && unread_[i])
      call->key.put_tag('u');
    else
      flat.given(value, place, states_[i]);
  }
  if (star_) {
    Py_ssize_t more = std::max<Py_ssize_t>(passed.count - positional_, 0);
    call->key.put_tag('*');
    call->key.put(static_cast<uint32_t>(more));
    for (Py_ssize_t i = positional_; i < positional_ + more; ++i)
      flat.given(passed.positional[i], i, rest_is_state_);
  }
  if (passed.named() > used && !bind_rest(&flat, passed)) return false;
  if (!call->arrays.empty()) flat.refuse_shared_arrays();
  append_ambient(call);
  call->end_key();
  return true;
}

bool Signature::bind_rest(Flattener* flat, const Passed& passed) const {
  if (!double_star_) return false;
  flat->key->put_tag('%');
  for (Py_ssize_t k = 0; k < passed.named(); ++k) {
    PyObject* name = PyTuple_GET_ITEM(passed.names, k);
    if (!PyUnicode_CheckExact(name)) flat->refuse(say(reason::TakesOddKeyword, type_name(name)));
    bool known = false;
    for (size_t i = positional_only_; i < names_.size(); ++i)
      known |= PyUnicode_Compare(names_[i].ptr(), name) == 0;
    if (known) continue;
    flat->key->put_tag('s');
    Call::put_text(name, flat->key);
    flat->given(passed.values[k], -1 - k, rest_is_state_);
  }
  return true;
}

std::unique_ptr<Call> Signature::bind(py::object function, py::tuple args, py::dict kwargs,
                                      py::object defaults) const {
  std::vector<PyObject*> values;
  py::tuple names(py::len(kwargs));
  for (auto item : kwargs) {
    names[values.size()] = item.first;
    values.push_back(item.second.ptr());
  }
  Passed passed{&PyTuple_GET_ITEM(args.ptr(), 0), PyTuple_GET_SIZE(args.ptr()), names.ptr(), values.data()};
  auto call = std::make_unique<Call>();
  if (!bind(call.get(), function.ptr(), passed, defaults.ptr())) return nullptr;
  return call;
}

}  // namespace lazytrace
