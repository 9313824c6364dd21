#include "record/python/exchange.h"

#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "cpython/bytecode.h"
#include "cpython/callee.h"
#include "cpython/carrier.h"
#include "cpython/ends.h"
#include "cpython/holder.h"
#include "cpython/imports.h"
#include "cpython/lru_cache.h"
#include "cpython/objects.h"
#include "cpython/slots.h"
#include "cpython/text_carrier.h"
#include "cpython/values.h"
#include "record/python/asked.h"
#include "record/python/code_facts.h"
#include "record/python/originals.h"
#include "support/reasons.h"

namespace lazytrace {

namespace {

struct Configuration {
  AddressMap<PyObject*> callables, askers;
  AddressSet keepers, items, of_lists;
  py::object indexed, among, numbered, plainly;
  std::vector<py::object> held;
};

// Filled once, before the first recording, and never changed.
Configuration& configuration() {
  static auto* made = new Configuration();
  return *made;
}

using Names = std::unordered_set<std::string>;

// Attributes of C that do not depend on sizes. By the text itself: names in code are interned.
bool is_sizeless_attribute(PyObject* name) {
  static const auto* names = [] {
    auto* all = new AddressSet();
    for (const char* one : {"dtype",
                            "device",
                            "requires_grad",
                            "ndim",
                            "is_cuda",
                            "is_cpu",
                            "is_leaf",
                            "layout",
                            "T",
                            "mT",
                            "H",
                            "mH",
                            "real",
                            "imag",
                            "grad",
                            "grad_fn",
                            "data",
                            "is_sparse",
                            "is_mps",
                            "is_quantized",
                            "is_nested",
                            "is_meta",
                            "is_xpu",
                            "is_xla",
                            "is_mtia",
                            "is_hpu",
                            "is_ipu",
                            "is_maia",
                            "is_vulkan",
                            "is_mkldnn",
                            "itemsize",
                            "output_nr",
                            "retains_grad",
                            "is_sparse_csr",
                            "_version",
                            "_grad",
                            "_backward_hooks",
                            "_base",
                            "name",
                            "names",
                            "_post_accumulate_grad_hooks",
                            "_has_symbolic_sizes_strides"})
      all->insert(PyUnicode_InternFromString(one));
    return all;
  }();
  if (PyUnicode_CHECK_INTERNED(name)) return names->count(name);
  py::object held = py::reinterpret_borrow<py::object>(name);
  PyObject* interned = held.release().ptr();
  PyUnicode_InternInPlace(&interned);
  bool found = names->count(interned);
  Py_DECREF(interned);
  return found;
}

// Functions of torch that call no operator, and answer the same for all sizes.
bool is_sizeless_function(const std::string& name) {
  static const auto* names = new Names{"dim",
                                       "ndimension",
                                       "element_size",
                                       "is_floating_point",
                                       "is_complex",
                                       "is_conj",
                                       "is_neg",
                                       "is_signed",
                                       "get_device",
                                       "type",
                                       "to",
                                       "is_inference",
                                       "result_type",
                                       "has_names",
                                       "requires_grad_",
                                       "_is_view",
                                       "__hash__",
                                       "is_distributed",
                                       "conj",
                                       "resolve_conj",
                                       "resolve_neg",
                                       "detach"};
  return names->count(name);
}

// Those whose operator has another name.
const char* operator_of(const std::string& name) {
  static const auto* to =
      new Names{"float", "double", "half", "bfloat16", "int",    "long",    "short", "bool",
                "byte",  "char",   "cpu",  "cuda",     "cfloat", "cdouble", "type",  "to"};
  if (to->count(name)) return "aten::to";
  if (name == "spmm") return "aten::mm";
  if (name == "conj") return "aten::_conj";
  if (name == "nonzero") return "aten::nonzero_numpy";  // in a tuple
  return name == "new" ? "aten::empty" : nullptr;       // of sparse tensors it is another
}

// The name of an operator of torch as a function or a method, or "".
std::string torch_name(PyObject* callable) {
  auto is_torchs = [](const char* name) { return std::strncmp(name, "torch.", 6) == 0; };
  if (Py_IS_TYPE(callable, &PyMethodDescr_Type) || Py_IS_TYPE(callable, &PyWrapperDescr_Type)) {
    auto* descriptor = reinterpret_cast<PyDescrObject*>(callable);
    return is_torchs(descriptor->d_type->tp_name) ? text_of(descriptor->d_name) : "";
  }
  if (!PyCFunction_Check(callable)) return "";
  PyObject* self = PyCFunction_GET_SELF(callable);
  std::string name = reinterpret_cast<PyCFunctionObject*>(callable)->m_ml->ml_name;
  // Most functions of torch are static ones of a class that they do not know.
  PyObject* module_name = reinterpret_cast<PyCFunctionObject*>(callable)->m_module;
  if (!self) return !module_name || text_of(module_name).rfind("torch", 0) == 0 ? name : "";
  if (is_tensor(self)) return name;
  if (PyType_Check(self)) return is_torchs(c_name(reinterpret_cast<PyTypeObject*>(self))) ? name : "";
  const char* module = PyModule_Check(self) ? PyModule_GetName(self) : nullptr;
  PyErr_Clear();
  return module && is_torchs(module) ? name : "";
}

// Whether Python code runs, which is watched.
bool is_python(PyObject* callable) {
  // It hands on what it is given, as it is.
  if (PyObject* function = function_of_partial(callable))
    return !PyType_Check(function) && is_python(function);
  if (PyFunction_Check(callable)) return true;
  if (PyMethod_Check(callable)) return is_python(PyMethod_GET_FUNCTION(callable));
  if (PyType_Check(callable)) return is_python_class(reinterpret_cast<PyTypeObject*>(callable));
  return is_python_class(Py_TYPE(callable));
}

// What a function of C is called, borrowed: interned once for each, as it is asked for at every call.
PyObject* name_of(PyObject* callable) {
  static auto* names = new AddressMap<PyObject*>();
  const PyMethodDef* definition = reinterpret_cast<PyCFunctionObject*>(callable)->m_ml;
  PyObject*& name = (*names)[definition];
  // Where a definition has gone, another one may have come to its place.
  if (!name || PyUnicode_CompareWithASCIIString(name, definition->ml_name) != 0)
    Py_XSETREF(name, PyUnicode_InternFromString(definition->ml_name));
  return name;
}

// The descriptor behind a method that is bound to an object, as the class has it; anything else as it is.
py::object unbound(PyObject* callable) {
  py::object as_it_is = py::reinterpret_borrow<py::object>(callable);
  PyObject* self = PyCFunction_Check(callable) ? PyCFunction_GET_SELF(callable) : nullptr;
  // Of a class, which may have one of its own: `super().__instancecheck__`.
  static PyObject* const check = _PyType_Lookup(
      &PyType_Type, py::str("__instancecheck__").ptr());  // PyType_Type is never freed, nor what it has
  if (self && PyType_Check(self) && Py_IS_TYPE(check, &PyMethodDescr_Type) &&
      reinterpret_cast<PyCFunctionObject*>(callable)->m_ml ==
          reinterpret_cast<PyMethodDescrObject*>(check)->d_method)
    return py::reinterpret_borrow<py::object>(check);
  const MethodWrapper* wrapper = MethodWrapper::of(callable);
  bool of_class = !wrapper && self && PyType_Check(self);
  if (!wrapper && (!self || PyModule_Check(self))) return as_it_is;
  PyObject* name = wrapper ? wrapper->name() : name_of(callable);
  PyTypeObject* type = wrapper    ? PyDescr_TYPE(wrapper->descriptor)
                       : of_class ? reinterpret_cast<PyTypeObject*>(self)
                                  : Py_TYPE(self);
  PyObject* found = name ? _PyType_Lookup(type, name) : nullptr;
  // A class method is another object each time that it is looked up.
  if (of_class && found && !Py_IS_TYPE(found, &PyClassMethodDescr_Type)) return as_it_is;
  return found ? py::reinterpret_borrow<py::object>(found) : as_it_is;
}

// A class of Python whose C base keeps what it is made of as it is.
bool only_stores(PyObject* callable) {
  if (!PyType_Check(callable)) return false;
  PyTypeObject* base = c_base(reinterpret_cast<PyTypeObject*>(callable));
  return base == &PyBaseObject_Type || base == &PyDict_Type || base == &PyODict_Type ||
         base == &PyTuple_Type || base == &PyList_Type;
}

}  // namespace

void configure_exchange(const py::dict& callables, const std::vector<py::object>& items, py::object indexed,
                        py::object among, const std::vector<py::object>& keepers,
                        const std::vector<py::object>& of_lists, const py::dict& askers, py::object numbered,
                        py::object plainly) {
  Configuration& all = configuration();
  auto keep = [&](const py::dict& exchanged, AddressMap<PyObject*>* into) {
    for (auto [from, to] : exchanged) {
      (*into)[from.ptr()] = to.ptr();
      all.held.push_back(py::reinterpret_borrow<py::object>(from));
      all.held.push_back(py::reinterpret_borrow<py::object>(to));
    }
  };
  keep(callables, &all.callables);
  keep(askers, &all.askers);
  for (auto& keeper : keepers) {
    all.keepers.insert(keeper.ptr());
    all.held.push_back(keeper);
  }
  for (auto& item : items) all.items.insert(item.ptr());
  for (auto& one : of_lists) all.of_lists.insert(one.ptr());
  all.indexed = std::move(indexed);
  all.among = std::move(among);
  all.numbered = std::move(numbered);
  all.plainly = std::move(plainly);
}

int number_like(NumberRecorder* numbers, int number, PyObject* like) {
  if (!is_followable_scalar(like)) return number;
  auto kind = is_int64(like)     ? Number::Kind::Long
              : is_float32(like) ? Number::Kind::Single
                                 : Number::Kind::Scalar;
  return numbers->apply(kind, number, -1);
}

bool is_exchanged(PyObject* callable) { return configuration().callables.find(callable); }

bool is_index(PyObject* object) {
  if (!THPVariable_CheckExact(object)) return false;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  at::ScalarType type = tensor.scalar_type();
  return tensor.dim() == 0 &&
         (type == at::kLong || type == at::kInt || type == at::kShort || type == at::kChar);
}

bool has_index_bound(PyObject* slice) {
  auto* bounds = reinterpret_cast<PySliceObject*>(slice);
  return is_index(bounds->start) || is_index(bounds->stop) || is_index(bounds->step);
}

py::object shape_of(Recorder* recorder, const at::Tensor& tensor) {
  bool follows = recorder && recorder->numbers();
  py::list sizes(tensor.dim());
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    int id = follows ? recorder->size_number(Number::Kind::Size, tensor, i) : -1;
    sizes[static_cast<size_t>(i)] = id < 0
                                        ? py::object(py::int_(tensor.size(i)))
                                        : py::reinterpret_steal<py::object>(recorder->numbers()->carrier(id));
  }
  PyObject* shape = PyObject_CallOneArg(reinterpret_cast<PyObject*>(&THPSizeType), sizes.ptr());
  if (!shape) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(shape);
}

// ---------------------------------------------------------------- what is handed over
bool Exchange::is_loose(PyObject* object) {
  return object && is_tensor(object) && live() && recorder_->is_loose(THPVariable_Unpack(object));
}

bool Exchange::holds_loose(PyObject* object) {
  if (!object || !(PyTuple_CheckExact(object) || PyList_CheckExact(object))) return false;
  PyObject** items = PySequence_Fast_ITEMS(object);
  return std::any_of(items, items + PySequence_Fast_GET_SIZE(object),
                     [this](PyObject* v) { return is_loose(v); });
}

py::object Exchange::exchanged(PyObject* function) {
  return py::reinterpret_borrow<py::object>(*configuration().callables.find(function));
}

void Exchange::settle(PyObject* object) {
  if (object && is_followed(object) && live()) recorder_->numbers()->settle(object);
}

void Exchange::settle_inside(PyObject* object) {
  if (object && live()) recorder_->numbers()->settle_inside(object);
}

void Exchange::hand_over_tensor(PyObject* tensor) {
  if (handing_ == Handing::Ignored || !is_loose(tensor)) return;
  if (handing_ == Handing::Checked && !called_.empty())
    called_.back().tensors.push_back(py::reinterpret_borrow<py::object>(tensor));
  else
    recorder_->pin(THPVariable_Unpack(tensor));
}

void Exchange::hand_over(PyObject* object, int depth) {
  constexpr int kDeepest = 16;
  if (!live() || !object) return;
  if (is_tensor(object)) return hand_over_tensor(object);
  if (is_followed(object)) return handing_ == Handing::Pins ? settle(object) : void();
  if (depth > kDeepest) return recorder_->fail(say(reason::SizesTooDeep));
  if (PyTuple_Check(object) || PyList_Check(object)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i)
      hand_over(PySequence_Fast_GET_ITEM(object, i), depth + 1);
  } else if (PyDict_Check(object)) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(object, &at, &key, &value)) hand_over(value, depth + 1);
  }
}

void Exchange::expect_nothing(Frame f) {
  handing_ = Handing::Ignored;
  called_.push_back({f, "", recorder_->operators(), {}, true});
}

void Exchange::expect_operator(Frame f, std::string name) {
  handing_ = Handing::Checked;
  called_.push_back({f, std::move(name), recorder_->operators(), {}, false});
}

void Exchange::open_binding(PyObject* const* args, Py_ssize_t count) {
  if (handing_ != Handing::Checked || called_.empty() || !takes_plain_ints(called_.back().name)) return;
  auto* numbers = recorder_->numbers();
  std::vector<int> in_lists;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!args[i] || !(PyTuple_Check(args[i]) || PyList_Check(args[i]))) continue;
    for (Py_ssize_t at = 0; at < PySequence_Fast_GET_SIZE(args[i]); ++at)
      if (PyObject* item = PySequence_Fast_GET_ITEM(args[i], at); is_carrier(item))
        in_lists.push_back(numbers->number_of(item));
  }
  numbers->open_binding(called_.back().name, std::move(in_lists));
}

void Exchange::leave(PyObject* value) {
  if (live()) recorder_->numbers()->settle_odd(value);
}

// A binding that calls one operator under its own name leaves all sizes to it. Any other may have looked.
void Exchange::check_call() {
  CallIntoC called = std::move(called_.back());
  called_.pop_back();
  if (live()) recorder_->numbers()->close_binding();
  if (!live() || called.tensors.empty()) return;
  size_t operators = recorder_->operators() - called.operators;
  const char* other = operator_of(called.name);
  // That of sparse tensors converts what it was given before.
  size_t most = called.name == "sparse_coo_tensor" ? 3 : 1;
  bool same = operators >= 1 && operators <= most &&
              (recorder_->last_operator() == "aten::" + called.name ||
               (other && recorder_->last_operator() == other));
  if (same || (operators == 0 && is_sizeless_function(called.name))) return;
  for (auto& tensor : called.tensors) recorder_->pin(THPVariable_Unpack(tensor.ptr()));
}

// ---------------------------------------------------------------- instructions
void Exchange::expect(PyObject* plain, c10::ArrayRef<int> numbers) {
  if (!recorder_->numbers()) return;
  if (reading_)
    return expected_.push_back({reading_, py::reinterpret_borrow<py::object>(plain), numbers.vec()});
  for (int number : numbers)
    if (auto* all = recorder_->numbers()) all->read(number);
}

void Exchange::deliver_now(Frame f) {
  auto expected = std::exchange(expected_, {});
  auto* numbers = recorder_->numbers();
  if (!numbers) return;
  // Of several it would not be known which one is on the stack.
  PyObject** top = expected.size() == 1 && expected[0].frame == f ? f.place(1) : nullptr;
  if (top && *top == expected[0].plain.ptr()) {
    Py_SETREF(*top, carried(*top, expected[0].numbers).release().ptr());
    return;
  }
  for (Expected& one : expected)
    for (int number : one.numbers) numbers->read(number);
}

py::object Exchange::carried(PyObject* plain, c10::ArrayRef<int> numbers) {
  auto one = [&](int number, PyObject* value) {
    if (PyBool_Check(value))
      return py::reinterpret_steal<py::object>(recorder_->numbers()->flag(number, value == Py_True));
    return py::reinterpret_steal<py::object>(recorder_->numbers()->carrier_of(number, value));
  };
  if (!PyTuple_CheckExact(plain)) return one(numbers[0], plain);
  py::tuple items(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i)
    items[i] = one(numbers[i], PyTuple_GET_ITEM(plain, static_cast<Py_ssize_t>(i)));
  tuples_.emplace_back(items, py::reinterpret_borrow<py::object>(plain));
  return std::move(items);
}

namespace {
// What gives an entry as it is: dict.get, dict.setdefault, getattr, pop() of a list or a deque.
bool looks_up(PyObject* callable) {
  static PyObject* const getter = builtin("getattr");
  static PyObject* const deque = from_module("collections", "deque").release().ptr();
  static PyObject* const methods[] = {
      PyDict_GetItemString(PyDict_Type.tp_dict, "get"),
      PyDict_GetItemString(PyDict_Type.tp_dict, "setdefault"),
      PyDict_GetItemString(PyList_Type.tp_dict, "pop"),
      PyDict_GetItemString(reinterpret_cast<PyTypeObject*>(deque)->tp_dict, "pop"),
      PyDict_GetItemString(reinterpret_cast<PyTypeObject*>(deque)->tp_dict, "popleft")};
  if (callable == getter) return true;
  bool bound = PyCFunction_Check(callable);
  return std::any_of(std::begin(methods), std::end(methods), [&](PyObject* method) {
    auto* descriptor = reinterpret_cast<PyMethodDescrObject*>(method);
    return callable == method ||
           (bound && reinterpret_cast<PyCFunctionObject*>(callable)->m_ml == descriptor->d_method);
  });
}

// Whether the instruction puts on the stack what it reads. A name of a class body may be one of its own.
bool puts_what_it_reads(Frame f, const Operation& operation) {
  switch (operation.action) {
    case Action::ReadsAttribute:
    case Action::GetsItem:
      return true;
    case Action::ReadsGlobal:
    case Action::ReadsVariable:
      return !f.locals();
    case Action::Calls: {
      PyObject* callee = *callee_of(f, operation);
      return callee && looks_up(callee);
    }
    default:
      return false;
  }
}

// Whether a whole number is looked for among a few others, as a counter among milestones, or -1 in a shape:
// which of them it is, is all that the function learns.
bool is_looked_for(PyObject* value, PyObject* container) {
  constexpr Py_ssize_t kMost = 16;
  auto is_followed = [](PyObject* v) { return is_carrier(v) && !is_real_carrier(v); };
  auto is_plain = [](PyObject* v) { return PyLong_CheckExact(v) != 0; };
  if (!is_followed(value) && !is_plain(value)) return false;
  if (PyList_CheckExact(container) || PyTuple_CheckExact(container) || THPSize_Check(container)) {
    PyObject** first = PySequence_Fast_ITEMS(container);
    PyObject** end = first + PySequence_Fast_GET_SIZE(container);
    return end - first <= kMost &&
           std::all_of(first, end, [&](PyObject* v) { return is_plain(v) || is_followed(v); }) &&
           (is_followed(value) || std::any_of(first, end, is_followed));
  }
  if (!is_followed(value)) return false;
  static PyObject* const contains = PyUnicode_InternFromString("__contains__");
  // As collections.Counter, which asks and iterates as a dict does.
  bool dict = PyDict_Check(container) && Py_TYPE(container)->tp_iter == PyDict_Type.tp_iter &&
              _PyType_Lookup(Py_TYPE(container), contains) == _PyType_Lookup(&PyDict_Type, contains);
  if (!dict && !PyAnySet_CheckExact(container)) return false;
  if (PyObject_Size(container) > kMost) return false;
  py::object items = py::reinterpret_steal<py::object>(PySequence_Tuple(container));
  if (!items) throw py::error_already_set();
  PyObject** first = PySequence_Fast_ITEMS(items.ptr());
  return std::all_of(first, first + PyTuple_GET_SIZE(items.ptr()), is_plain);
}

// C code passes on what the method of a tensor gives, and some of these methods are written in Python.
bool is_operator_of_tensors(PyObject* left, PyObject* right) {
  auto is_operand = [](PyObject* v) {
    return THPVariable_CheckExact(v) || is_carrier(v) || PyLong_CheckExact(v) || PyFloat_CheckExact(v);
  };
  return (is_tensor(left) || is_tensor(right)) && is_operand(left) && is_operand(right);
}
}  // namespace

void Exchange::before(Frame f, const Operation& operation, bool told, PyObject* names) {
  swaps_.drop();
  handing_ = Handing::Pins;
  told_ = told;
  names_ = names;
  reading_ = puts_what_it_reads(f, operation) ? f : Frame();
  PyObject** container = operation.action == Action::Contains ? f.place(operation.first) : nullptr;
  looks_for_number_ = container && is_looked_for(*f.place(operation.second), *container);
  if (looks_for_number_) {
    handing_ = Handing::Ignored;
    return swap(container, configuration().among(py::handle(*container)));
  }
  if (takes_out(f, operation)) expect_nothing(f);
  if (!live()) return takes_items(operation.action) ? before_item_call(f, operation) : void();
  auto first = [&] { return f.place(operation.first); };
  auto second = [&] { return f.place(operation.second); };
  switch (operation.action) {
    case Action::ReadsAttribute:
      return before_attribute(first(), f.name(operation.name));
    case Action::Calls: {
      bool method = operation.first && *first();
      if (method) return before_call(f, first(), second(), second(), operation.third + 1);
      PyObject** args = operation.third ? f.place(operation.third) : nullptr;
      return before_call(f, second(), args, args, operation.third);
    }
    case Action::CallsWith:
      return before_call_extended(f, operation);
    case Action::GetsItem:
      return before_item(first(), *second(), nullptr);
    case Action::SetsItem:
      if (operation.third) return before_item(first(), *second(), f.peek(operation.third));
      // What is deleted is looked for by its value. A tensor refuses, whatever is asked for.
      texts_.settle(*first());
      hand_over(*second());
      return settle_inside(*second());
    case Action::SetsAttribute:
      if (operation.second && is_kept_as_number(*first(), f.name(operation.name))) settle(*second());
      return;
    case Action::ComparesIdentity:
      settle_identity(first(), *second());
      return settle_identity(second(), *first());
    case Action::Contains:
      settle_inside(*second());
      // The keys of a dict are no carriers, and its values are not asked.
      if (!PyDict_Check(*first())) return settle_inside(*first());
      handing_ = Handing::Ignored;
      return;
    case Action::Operates:
      if (texts_.operate(f, operation)) {
        handing_ = Handing::Ignored;
        return;
      }
      // A float has no such operator, and its error says whether it stood in place.
      if (!is_arithmetic(operation.name))
        for (PyObject* operand : {*first(), *second()})
          if (is_carrier(operand) && is_real_carrier(operand)) settle(operand);
      if (is_union(operation.name) && PyDict_CheckExact(*first()) && PyDict_CheckExact(*second())) {
        handing_ = Handing::Ignored;  // it holds their entries
        return;
      }
      before_operation(*first(), *second());
      follow_scalar(first(), *second());
      follow_scalar(second(), *first());
      leave_to_tensor(first(), *second(), operation.name);
      leave_to_float(second(), *first());
      if (is_operator_of_tensors(*first(), *second())) expect_nothing(f);
      return;
    case Action::Compares:
      before_operation(*first(), *second());
      return leave_to_float(second(), *first());
    case Action::OperatesAlone:
      handing_ = Handing::Ignored;
      return;
    case Action::Merges:
    case Action::Unpacks:
      settle(*first());  // a number cannot be gone through
      // Put into another container as they are; the members of a set are hashed.
      if (PyDict_Check(*first()) || PyList_Check(*first()) || PyTuple_Check(*first()))
        handing_ = Handing::Ignored;
      return;
    case Action::FormatsText:
      return format_text(f, operation);
    case Action::JoinsTexts:
      return texts_.join(f, operation);
    case Action::UsesKeys:
      for (int i = 0; i < operation.third; ++i) settle_inside(f.peek(operation.first + i * operation.name));
      return;
    default:
      return;
  }
}

namespace {
// Of those that make another text of it, new reference; null of any other.
PyObject* method_of_text(PyObject* text, PyObject* name) {
  PyObject* const* own = TextExchange::in_place_of(name);
  if (!own) return nullptr;
  PyObject* method = PyMethod_New(*own, text);
  if (!method) throw py::error_already_set();
  return method;
}
}  // namespace

namespace {
// Whether the class of a number of numpy's that is followed gives it without a look at the value.
bool follows_attribute(PyObject* name) {
  static PyObject* const all[] = {PyUnicode_InternFromString("item"), PyUnicode_InternFromString("dtype"),
                                  PyUnicode_InternFromString("astype"), PyUnicode_InternFromString("round"),
                                  PyUnicode_InternFromString("clip")};
  return std::find(std::begin(all), std::end(all), name) != std::end(all);
}
}  // namespace

void Exchange::before_attribute(PyObject** object, PyObject* name) {
  if (PyObject* method = is_text(*object) ? method_of_text(*object, name) : nullptr) {
    PyObject* holder = new_holder(*object, name, method);
    Py_DECREF(method);
    if (!holder) throw py::error_already_set();
    return swap(object, py::reinterpret_steal<py::object>(holder));
  }
  if (is_scalar_carrier(*object) && follows_attribute(name)) return;
  if (is_followed(*object)) return settle(*object);
  if (!is_tensor(*object)) return;
  PyObject* found = _PyType_Lookup(Py_TYPE(*object), name);
  // Methods show themselves when they are called, and properties of Python when they run.
  if (!found || !Py_IS_TYPE(found, &PyGetSetDescr_Type) || is_sizeless_attribute(name)) return;
  if (!is_loose(*object)) return;
  static PyObject* shape = PyUnicode_InternFromString("shape");
  if (told_ || name != shape) return recorder_->pin(THPVariable_Unpack(*object));
  py::object sizes = shape_of(recorder_, THPVariable_Unpack(*object));
  PyObject* holder = new_holder(*object, name, sizes.ptr());
  if (!holder) throw py::error_already_set();
  swap(object, py::reinterpret_steal<py::object>(holder));
}

namespace {
// The number that Python would have there: small ints are one object each.
void put_plain(PyObject** at) {
  PyObject* plain = plain_of_carrier(*at);
  if (!plain) throw py::error_already_set();
  Py_SETREF(*at, plain);
}

// The same where the recording has ended, and all carriers with it.
void put_small(PyObject** at) {
  constexpr long long kLeast = -5, kMost = 256;
  if (!PyLong_CheckExact(*at)) return;
  int overflow;
  long long value = PyLong_AsLongLongAndOverflow(*at, &overflow);
  if (!overflow && value >= kLeast && value <= kMost) Py_SETREF(*at, PyLong_FromLongLong(value));
}
}  // namespace

// Which object an int is follows from its value; that it is none of another type does not.
void Exchange::settle_identity(PyObject** at, PyObject* other) {
  if (*at == other) return;
  for (auto& [made, plain] : tuples_) {
    if (*at != made.ptr()) continue;
    Py_SETREF(*at, Py_NewRef(plain.ptr()));
    return;
  }
  if (!is_text(*at) && !is_carrier(other) && !PyLong_CheckExact(other) && !PyFloat_CheckExact(other) &&
      !is_followable_scalar(other))
    return;
  settle(*at);  // which may end the recording
  // One that was worked out, and that max() gave back, stands for itself.
  const NumberRecorder* numbers = recorder_->ended_numbers();
  if (PyObject* original = numbers ? numbers->original_of(*at) : nullptr) Py_SETREF(*at, Py_NewRef(original));
  is_carrier(*at) ? put_plain(at) : put_small(at);
}

Originals Exchange::originals(IsMade made) const {
  Originals originals(std::move(made));
  for (auto& [made, plain] : tuples_) originals.add(made.ptr(), plain.ptr());
  if (const NumberRecorder* numbers = recorder_->ended_numbers())
    for (auto& one : numbers->standing()) originals.add(one.carrier, one.original);
  return originals;
}

namespace {
void put_back_written(Originals& all, std::vector<Writes::Write>& writes) {
  for (Writes::Write& write : writes) {
    PyObject* container = Py_NewRef(write.container.ptr());
    all.put_back(&container);  // what a list or a dict holds
    Py_DECREF(container);
    PyObject* value = Py_XNewRef(write.value.ptr());
    all.put_back(&value);
    auto original = py::reinterpret_steal<py::object>(value);
    bool names = write.effect.kind == Effect::Kind::Attribute || write.effect.kind == Effect::Kind::Cell;
    if (names && !original.is(write.value) && write.effect.held(write.container.ptr()).is(write.value))
      write.effect.put_back(write.container.ptr(), original.ptr());
  }
}
}  // namespace

void Exchange::put_originals_back(Frame top, Frame base, std::vector<Writes::Write>& writes,
                                  IsMade made) const {
  Originals all = originals(std::move(made));
  if (all.empty()) return;
  all.put_back(top, base);
  put_back_written(all, writes);
}

void Exchange::put_originals_back(py::object* result, std::vector<Writes::Write>& writes, IsMade made) const {
  Originals all = originals(std::move(made));
  if (all.empty()) return;
  PyObject* given = result->release().ptr();
  all.put_back(&given);
  *result = py::reinterpret_steal<py::object>(given);
  put_back_written(all, writes);
}

void Exchange::settle_identities(PyObject** objects, Py_ssize_t count) {
  static PyObject* const any_int = PyLong_FromLong(0);
  handing_ = Handing::Ignored;
  for (Py_ssize_t i = 0; i < count; ++i)
    if (objects[i]) settle_identity(objects + i, count == 2 && objects[1 - i] ? objects[1 - i] : any_int);
}

// `f(*args)`: what stands in a tuple or a list is no place of its own.
void Exchange::settle_identities_in(PyObject** arguments) {
  if (!PyTuple_Check(*arguments) && !PyList_Check(*arguments)) return;
  PyObject** items = PySequence_Fast_ITEMS(*arguments);
  std::vector<PyObject*> objects(items, items + PySequence_Fast_GET_SIZE(*arguments));
  for (PyObject* object : objects) Py_INCREF(object);
  settle_identities(objects.data(), static_cast<Py_ssize_t>(objects.size()));
  py::tuple settled(objects.size());
  for (size_t i = 0; i < objects.size(); ++i) settled[i] = py::reinterpret_steal<py::object>(objects[i]);
  Py_SETREF(*arguments, settled.release().ptr());
}

bool Exchange::exchange_callable(PyObject** callable, PyObject* first, bool numbers) {
  if (told_) return false;
  auto& callables = configuration().callables;
  PyObject** found = callables.find(*callable);
  bool list = found && configuration().of_lists.count(*callable) && holds_loose(first);
  if (found && (numbers || list || is_loose(first) || gives_item(*callable, first))) {
    swap(callable, py::reinterpret_borrow<py::object>(*found));
    return true;
  }
  if (PyObject* const* text = numbers ? TextExchange::in_place_of(*callable) : nullptr) {
    swap(callable, py::reinterpret_borrow<py::object>(*text));
    return true;
  }
  // One that is bound already: `f = x.size`, getattr(x, "size").
  PyObject* self = PyCFunction_Check(*callable) ? PyCFunction_GET_SELF(*callable) : nullptr;
  bool of_text = self && numbers && PyUnicode_CheckExact(self);  // "{loss}".format(**values)
  if (!self || !(of_text || is_tensor(self))) return false;
  py::object method = unbound(*callable);
  if (PyObject* const* text = of_text ? TextExchange::in_place_of(method.ptr()) : nullptr) {
    swap(callable, py::reinterpret_steal<py::object>(PyMethod_New(*text, self)));
    return true;
  }
  found = callables.find(method.ptr());
  if (!found || !(numbers || is_loose(self) || gives_item(method.ptr(), self))) return false;
  swap(callable, py::reinterpret_steal<py::object>(PyMethod_New(*found, self)));
  return true;
}

bool Exchange::gives_item(PyObject* callable, PyObject* first) const {
  // A tensor of a class of its own may answer as it likes.
  return first && THPVariable_CheckExact(first) && configuration().items.count(callable);
}

namespace {
bool has_index(PyObject* key) {
  auto one = [](PyObject* item) { return PySlice_Check(item) ? has_index_bound(item) : is_index(item); };
  if (!PyTuple_Check(key)) return one(key);
  PyObject** items = PySequence_Fast_ITEMS(key);
  return std::any_of(items, items + PyTuple_GET_SIZE(key), one);
}

// Torch slices no such tensor, unless it knows that a bound says nothing.
bool is_sparse(PyObject* tensor) { return THPVariable_Unpack(tensor).layout() != at::Layout::Strided; }
}  // namespace

namespace {
// Whether it is torch.tensor(), which asks tensors of one value in a list for these.
bool has_one_value(PyObject* v) { return THPVariable_CheckExact(v) && !THPVariable_Unpack(v).dim(); }

bool takes_items_of(PyObject* callable, PyObject* data) {
  static PyObject* const tensor = from_module("torch", "tensor").release().ptr();
  if (callable != tensor || !PyList_CheckExact(data)) return false;
  PyObject** items = PySequence_Fast_ITEMS(data);
  return std::any_of(items, items + PyList_GET_SIZE(data), has_one_value);
}
}  // namespace

namespace {
bool is_keeper(PyObject* iterator) {
  return configuration().keepers.count(reinterpret_cast<PyObject*>(Py_TYPE(iterator)));
}

// Of a list, a tuple, a range, a dict, or a generator.
bool goes_through_container(PyObject* iterator) {
  static PyTypeObject* const all[] = {
      &PyListIter_Type,      &PyTupleIter_Type,    &PyRangeIter_Type,   &PyDictIterKey_Type,
      &PyDictIterValue_Type, &PyDictIterItem_Type, &PyListRevIter_Type, &PyGen_Type};
  return std::find(std::begin(all), std::end(all), Py_TYPE(iterator)) != std::end(all);
}

// What map() gives is what Python code has returned, if nothing in C looks at what that is given.
bool maps_by_python(PyObject* iterator) {
  if (!Py_IS_TYPE(iterator, &PyMap_Type)) return false;
  auto looks_at_none = [](PyObject* one) { return is_keeper(one) || goes_through_container(one); };
  std::vector<PyObject*> parts = parts_of(iterator);
  return std::all_of(parts.begin(), parts.end(), [&](PyObject* part) {
    if (!PyTuple_CheckExact(part)) return is_python(part) && (!PyType_Check(part) || only_stores(part));
    PyObject** first = &PyTuple_GET_ITEM(part, 0);
    return std::all_of(first, first + PyTuple_GET_SIZE(part), looks_at_none);
  });
}
}  // namespace

// Whether it takes items, which may be the first numbers that are followed, out of an iterator of C that
// gives them as it gets them.
bool Exchange::takes_out(Frame f, const Operation& operation) const {
  bool takes = operation.action == Action::Advances || operation.action == Action::Unpacks ||
               operation.action == Action::Merges;
  if (!takes || !recorder_->numbers()) return false;
  PyObject* from = f.peek(operation.first);
  return PyIter_Check(from) && (is_keeper(from) || maps_by_python(from));
}

namespace {
bool is_for_number(PyObject* v) {
  if (!PyTuple_CheckExact(v) && !PyList_CheckExact(v)) return has_one_value(v);
  PyObject** first = PySequence_Fast_ITEMS(v);
  return std::any_of(first, first + PySequence_Fast_GET_SIZE(v), has_one_value);
}

// What is called in the place of one that will ask a tensor for its value, or null.
PyObject* asking(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  PyObject* const* found = callable ? configuration().askers.find(callable) : nullptr;
  bool asks = found && std::any_of(args, args + count, [](PyObject* v) { return v && is_for_number(v); });
  return asks ? *found : nullptr;
}
}  // namespace

// The value of a tensor is the first number that a recording follows, where it does not follow sizes.
void Exchange::before_item_call(Frame f, const Operation& operation) {
  if (!recorder_->numbers() || told_) return;
  if (operation.action == Action::FormatsText) return format_text(f, operation);
  if (operation.action == Action::Operates) return void(texts_.operate(f, operation));
  if (operation.action == Action::GetsItem || (operation.action == Action::SetsItem && operation.third)) {
    PyObject** container = f.place(operation.first);
    if (THPVariable_CheckExact(*container) &&
        (is_sparse(*container) || has_index(*f.place(operation.second))))
      swap(container, configuration().indexed(py::handle(*container)));
  }
  if (operation.action == Action::CallsWith)
    return exchange_handed_in(*f.place(operation.first), f.place(operation.second),
                              operation.third ? f.place(operation.third) : nullptr);
  if (operation.action != Action::Calls) return;
  PyObject **method = f.place(operation.first), **second = f.place(operation.second);
  bool is_method = operation.first && *method;
  PyObject** callable = is_method ? method : second;
  // What an iterator gives may be the first numbers.
  if (operation.third) exchange_handed(*callable, f.place(operation.third), operation.third);
  if (configuration().keepers.count(unbound(*callable).ptr())) expect_nothing(f);
  if (PyObject* own = operation.third ? asking(*callable, f.top(operation.third), operation.third) : nullptr)
    return swap(callable, py::reinterpret_borrow<py::object>(own));
  PyObject** first = is_method ? second : operation.third ? f.place(operation.third) : nullptr;
  PyObject* bound = PyCFunction_Check(*callable) ? PyCFunction_GET_SELF(*callable) : nullptr;
  PyObject* self = bound && is_tensor(bound) ? bound : first ? *first : nullptr;
  bool fills =
      operation.third && TextExchange::fills_with_value(*callable, f.top(operation.third), operation.third);
  fills |= operation.third && takes_items_of(*callable, *f.place(operation.third));
  if (fills)
    exchange_callable(callable, first ? *first : nullptr, true);
  else if (self && is_tensor(self))
    exchange_callable(callable, first ? *first : nullptr, false);
}

namespace {
// Indices and values of a sparse tensor that are tensors are left to the operator, as is the shape. Of lists
// a tensor is made first.
bool is_made_of_tensors(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  static PyObject* const sparse = from_module("torch", "sparse_coo_tensor").release().ptr();
  return callable == sparse && count > 1 && args[0] && is_tensor(args[0]) && args[1] && is_tensor(args[1]);
}
}  // namespace

// Whether what the callee does with sizes will be seen: it is one of ours now, keeps what it is given, runs
// frames that are watched, or is an operator of torch, which is checked once it has run.
bool Exchange::shows_its_sizes(Frame f, PyObject** callable, PyObject* first, bool numbers) {
  if (exchange_callable(callable, first, numbers)) {
    handing_ = Handing::Ignored;
    return true;
  }
  // What it takes out of a generator is kept, too.
  if (configuration().keepers.count(unbound(*callable).ptr())) return expect_nothing(f), true;
  if (is_python(*callable)) {
    if (!PyType_Check(*callable) || only_stores(*callable)) handing_ = Handing::Ignored;
    return true;
  }
  std::string name = torch_name(*callable);
  if (name.empty()) return false;
  expect_operator(f, std::move(name));
  return true;
}

namespace {
// Functions of C that ask which objects they are given.
bool asks_identity(PyObject* callable) {
  static PyObject* const functions[] = {builtin("id"), from_module("_operator", "is_").release().ptr(),
                                        from_module("_operator", "is_not").release().ptr()};
  return std::find(std::begin(functions), std::end(functions), callable) != std::end(functions);
}
}  // namespace

namespace {
// Methods of dicts whose arguments are entries.
bool takes_no_key(PyObject* method) {
  static PyObject* const all[] = {PyDict_GetItemString(PyDict_Type.tp_dict, "update"),
                                  PyDict_GetItemString(PyODict_Type.tp_dict, "update")};
  return method == all[0] || method == all[1];
}

// The class of dicts whose method it is, or that it is itself; null of anything else.
PyTypeObject* dict_class_of(PyObject* method) {
  bool descriptor = Py_IS_TYPE(method, &PyMethodDescr_Type) || Py_IS_TYPE(method, &PyWrapperDescr_Type);
  PyTypeObject* type = descriptor             ? PyDescr_TYPE(method)
                       : PyType_Check(method) ? reinterpret_cast<PyTypeObject*>(method)
                                              : nullptr;
  return type && PyType_IsSubtype(type, &PyDict_Type) ? type : nullptr;
}

bool is_pair(PyObject* v) { return PyTuple_Check(v) || PyList_Check(v); }
}  // namespace

// A dict hashes and compares its keys, and a tuple what it holds; the values are kept as they are. The core
// looks keys up, too: what that asks would be no part of the way through the function.
void Exchange::settle_keys(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  py::object method = unbound(callable);
  if (!configuration().keepers.count(method.ptr()) || !dict_class_of(method.ptr())) return;
  bool makes = PyType_Check(callable);
  Py_ssize_t key =
      makes || method.ptr() != callable ? 0 : 1;  // of a method that is not bound, behind the dict
  if (key >= count || !args[key]) return;
  if (!makes && !takes_no_key(method.ptr())) return settle_inside(args[key]);
  if (!is_pair(args[key])) return;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(args[key]); ++i) {
    PyObject* pair = PySequence_Fast_GET_ITEM(args[key], i);
    if (is_pair(pair) && PySequence_Fast_GET_SIZE(pair)) settle_inside(PySequence_Fast_GET_ITEM(pair, 0));
  }
}

namespace {
// By its name, which torch refuses a float32 of numpy's.
bool sets_item(PyObject* callable) {
  return Py_IS_TYPE(callable, &PyWrapperDescr_Type) &&
         std::strcmp(reinterpret_cast<PyWrapperDescrObject*>(callable)->d_base->name, "__setitem__") == 0;
}
}  // namespace

namespace {
// A range with a stride, for a loop: how often that turns is read, which fits many ends. Whoever has the
// range could ask where it ends.
bool keeps_range(Frame f, PyObject* callable) {
  if (callable != reinterpret_cast<PyObject*>(&PyRange_Type)) return false;
  const Operation* next = next_operation(f);
  return !next || next->action != Action::Iterates;
}
}  // namespace

namespace {
// Whether it makes a range of a number that is followed, for the key of a tensor alone: an operator makes the
// same numbers.
bool makes_numbers_of_key(Frame f, PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  bool ranges = callable == reinterpret_cast<PyObject*>(&PyRange_Type) && count == 1;
  if (!ranges || !is_carrier(args[0]) || is_real_carrier(args[0]) || is_long_carrier(args[0])) return false;
  int before = items_before_in_key(f.code_object(), f.instruction());
  constexpr int kCalled = 3;  // the function, what it is bound to, and its argument
  PyObject* container = before < 0 ? nullptr : f.peek(kCalled + before + 1);
  return container && THPVariable_CheckExact(container) && !is_sparse(container);
}

// A list or a tuple of a class that says itself what it holds. What stands for a function would ask it in
// another way.
bool says_what_it_holds(PyObject* v) {
  if (!v || PyList_CheckExact(v) || PyTuple_CheckExact(v) || !(PyList_Check(v) || PyTuple_Check(v)))
    return false;
  static PyObject* const names[] = {PyUnicode_InternFromString("__iter__"),
                                    PyUnicode_InternFromString("__getitem__"),
                                    PyUnicode_InternFromString("__len__")};
  auto is_own = [v](PyObject* name) {
    PyObject* method = _PyType_Lookup(Py_TYPE(v), name);
    return method && !Py_IS_TYPE(method, &PyWrapperDescr_Type) && !Py_IS_TYPE(method, &PyMethodDescr_Type);
  };
  return std::any_of(std::begin(names), std::end(names), is_own) && holds_followed(v);
}

bool is_method_of_sequences(PyObject* callable) {
  py::object method = unbound(callable);
  if (!Py_IS_TYPE(method.ptr(), &PyMethodDescr_Type)) return false;
  PyTypeObject* type = reinterpret_cast<PyDescrObject*>(method.ptr())->d_type;
  return type == &PyList_Type || type == &PyTuple_Type;
}

// C code is to be given such a one, with numbers that it may ask for their values.
bool gives_odd_sequence(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  return std::any_of(args, args + count, says_what_it_holds) && !is_python(callable) &&
         !is_method_of_sequences(callable);
}
}  // namespace

// `getattr(x, "shape")`
bool Exchange::gets_shape(PyObject* callable, PyObject** args, Py_ssize_t count) {
  static PyObject *get = builtin("getattr"), *shape = PyUnicode_InternFromString("shape");
  if (callable != get || count < 2 || args[1] != shape || !is_loose(args[0])) return false;
  before_attribute(args, shape);
  handing_ = Handing::Ignored;
  return true;
}

namespace {
// What calls a function that it is given for each item, and hands on what that gives, or compares it.
bool hands_on(PyObject* callable) {
  static const auto* all = [] {
    auto* found = new AddressSet();
    for (const char* name : {"map", "sorted", "min", "max"}) found->insert(builtin(name));
    return found;
  }();
  return all->count(callable);
}

// The same, whatever becomes of what that gives.
bool calls_for_each(PyObject* callable) {
  static const auto* all = [] {
    auto* found = new AddressSet();
    found->insert(builtin("filter"));
    found->insert(from_module("functools", "reduce").release().ptr());
    for (const char* name : {"accumulate", "starmap", "filterfalse", "takewhile", "dropwhile", "groupby"})
      found->insert(from_module("itertools", name).release().ptr());
    return found;
  }();
  return hands_on(callable) || all->count(callable);
}

// What stands for a function that says how large something is, or converts it; null of any other.
PyObject* handed(PyObject* function) {
  static const auto* all = [] {
    auto* found = new AddressSet();
    for (const char* name : {"len", "int", "float"}) found->insert(builtin(name));
    found->insert(from_module("torch", "numel").release().ptr());
    for (const char* name : {"size", "numel"})
      found->insert(py::object(from_module("torch", "Tensor").attr(name)).release().ptr());
    return found;
  }();
  PyObject** found = function && all->count(function) ? configuration().callables.find(function) : nullptr;
  return found ? *found : nullptr;
}
}  // namespace

namespace {
// Whether it is a function of C, or a class, that may take the digits of a number that it is given: methods
// of int and float do. Functions of these modules ask the number's own methods.
bool may_take_digits(PyObject* function) {
  static const auto* modules = [] {
    auto* found = new AddressSet();
    for (const char* name : {"builtins", "math", "_operator"}) found->insert(PyImport_AddModule(name));
    return found;
  }();
  static const auto* classes = [] {
    auto* found = new AddressSet();
    for (const char* name : {"str", "bool", "int", "float", "complex", "type", "list", "tuple", "range"})
      found->insert(builtin(name));
    return found;
  }();
  if (!function || !PyCallable_Check(function) || is_python(function) || classes->count(function))
    return false;
  PyObject* module = PyCFunction_Check(function) ? PyCFunction_GET_SELF(function) : nullptr;
  return !module || !modules->count(module);
}
}  // namespace

// What C code is to call in the place of this function for each item, which nobody would see; null: itself.
py::object Exchange::instead_of_handed(PyObject* callable, PyObject* function) {
  PyObject* own = hands_on(callable) ? handed(function) : nullptr;
  if (own) return py::reinterpret_borrow<py::object>(own);
  return may_take_digits(function) ? configuration().plainly(py::handle(function)) : py::object();
}

namespace {
// Whether the callable takes a function there, at this place or under this name.
bool takes_function_at(PyObject* callable, Py_ssize_t place) {
  static PyObject* const later[] = {from_module("itertools", "accumulate").release().ptr(),
                                    from_module("itertools", "groupby").release().ptr()};
  static PyObject* const named[] = {builtin("sorted"), builtin("min"), builtin("max")};
  auto is_it = [callable](PyObject* one) { return one == callable; };
  if (std::any_of(std::begin(named), std::end(named), is_it)) return false;
  return place == (std::any_of(std::begin(later), std::end(later), is_it) ? 1 : 0);
}

bool names_function(PyObject* name) {
  return PyUnicode_Check(name) && (PyUnicode_CompareWithASCIIString(name, "key") == 0 ||
                                   PyUnicode_CompareWithASCIIString(name, "func") == 0);
}
}  // namespace

// `map(len, x)`, `key=len`, `map(int.bit_length, x)`
void Exchange::exchange_handed(PyObject* callable, PyObject** args, Py_ssize_t count) {
  if (told_ || !calls_for_each(callable)) return;
  Py_ssize_t named = names_ && PyTuple_Check(names_) ? PyTuple_GET_SIZE(names_) : 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    Py_ssize_t name = i - (count - named);
    bool function =
        name < 0 ? takes_function_at(callable, i) : names_function(PyTuple_GET_ITEM(names_, name));
    py::object own = function && args[i] ? instead_of_handed(callable, args[i]) : py::object();
    if (own) swap(&args[i], std::move(own));
  }
}

// The same of `map(*args)` and `max(x, **how)`. CPython makes a tuple of a list only once it calls.
void Exchange::exchange_handed_in(PyObject* callable, PyObject** args, PyObject** kwargs) {
  if (told_ || !calls_for_each(callable)) return;
  bool any = false;
  auto own = [&](PyObject* given, bool function) {
    py::object instead = function ? instead_of_handed(callable, given) : py::object();
    any |= static_cast<bool>(instead);
    return instead ? instead : py::reinterpret_borrow<py::object>(given);
  };
  if (PyTuple_Check(*args) || PyList_Check(*args)) {
    py::tuple all(static_cast<size_t>(PySequence_Fast_GET_SIZE(*args)));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(*args); ++i)
      all[static_cast<size_t>(i)] = own(PySequence_Fast_GET_ITEM(*args, i), takes_function_at(callable, i));
    if (std::exchange(any, false)) swap(args, std::move(all));
  }
  if (!kwargs || !*kwargs || !PyDict_CheckExact(*kwargs)) return;
  py::dict named;
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(*kwargs, &at, &key, &value);)
    named[py::handle(key)] = own(value, names_function(key));
  if (any) swap(kwargs, std::move(named));
}

// Whether C code that calls it for each item comes to Python code, which is watched, or is one of ours.
bool Exchange::runs_python(PyObject* function) const {
  return is_python(function) || (!told_ && handed(function));
}

void Exchange::before_call(Frame f, PyObject** callable, PyObject** first, PyObject** args,
                           Py_ssize_t count) {
  static PyObject *isinstance = builtin("isinstance"), *type = builtin("type"), *has = builtin("hasattr");
  // These ask what kind of object it is, whatever its value. A carrier has more attributes than a number.
  bool asks_kind = *callable == isinstance || *callable == has || (*callable == type && count == 1);
  if (asks_kind && first && is_carrier(*first)) return put_plain(first);
  if (asks_identity(*callable)) return settle_identities(args, count);
  settle_texts(*callable, args, count);
  if (!live()) return;
  if (gives_odd_sequence(*callable, args, count)) {
    std::for_each(args, args + count, [this](PyObject* v) { hand_over(v); });
    return;
  }
  if (PyObject* own = told_ ? nullptr : asking(*callable, args, count)) {
    handing_ = Handing::Ignored;
    return swap(callable, py::reinterpret_borrow<py::object>(own));
  }
  if (gets_shape(*callable, args, count)) return;
  exchange_handed(*callable, args, count);
  bool numbers = TextExchange::fills_with_value(*callable, args, count);
  for (Py_ssize_t i = 0; i < count; ++i) numbers |= args[i] && holds_followed(args[i]);
  numbers |= count && args[0] && takes_items_of(*callable, args[0]);
  for (Py_ssize_t i = 0; numbers && sets_item(*callable) && i < count; ++i)
    if (args[i] && is_single_carrier(args[i])) settle(args[i]);
  // What a generator gives is not seen before it is asked, nor is what other objects give to join().
  if (recorder_->numbers()->has_carriers() && TextExchange::in_place_of(*callable)) {
    static PyObject* const join = PyDict_GetItemString(PyUnicode_Type.tp_dict, "join");
    bool joins = unbound(*callable).ptr() == join;
    auto is_seen = [](PyObject* v) {
      return PyList_CheckExact(v) || PyTuple_CheckExact(v) || PyUnicode_CheckExact(v);
    };
    for (Py_ssize_t i = 0; i < count; ++i)
      numbers |= args[i] && (PyGen_CheckExact(args[i]) || (joins && !is_seen(args[i])));
  }
  settle_keys(*callable, args, count);
  if (is_made_of_tensors(*callable, args, count)) {
    expect_operator(f, "sparse_coo_tensor");
    return open_binding(args, count);
  }
  if (!told_ && makes_numbers_of_key(f, *callable, args, count)) {
    handing_ = Handing::Ignored;
    return swap(callable, configuration().numbered);
  }
  if (!keeps_range(f, *callable) && shows_its_sizes(f, callable, first ? *first : nullptr, numbers))
    return numbers ? open_binding(args, count) : void();
  if (looks_at_none(*callable, args, count)) return expect_nothing(f);
  // A replay draws with the numbers that it has come to.
  const AskedFunction* asked = numbers ? asked_call(*callable, args, count).asked : nullptr;
  bool follows = asked && asked->draws && !asked->bits;
  for (Py_ssize_t i = 0; i < count; ++i)
    if (!(follows && args[i] && is_carrier(args[i]))) hand_over(args[i]);
  if (follows) handing_ = Handing::Ignored;
}

// Builtins that ask an object for something else than its size, or leave that to its methods.
bool Exchange::looks_at_none(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  static const auto* always = [] {
    auto* all = new AddressSet();
    for (const char* name : {"isinstance", "issubclass", "type", "id", "hash", "callable", "super", "len",
                             "sum", "all", "any", "min", "max", "sorted", "bool"})
      all->insert(builtin(name));
    // What isinstance() and issubclass() come to where a class is abstract: they ask for classes.
    for (const char* name : {"_abc_instancecheck", "_abc_subclasscheck"})
      all->insert(from_module("_abc", name).release().ptr());
    return all;
  }();
  if (always->count(callable)) {
    static PyObject *sorted = builtin("sorted"), *min = builtin("min"), *max = builtin("max");
    if (callable != sorted && callable != min && callable != max) return true;
    // A key function in C may look at what it is given.
    auto is_in_c = [this](PyObject* v) { return v && PyCallable_Check(v) && !runs_python(v); };
    return std::none_of(args, args + count, is_in_c);
  }
  static PyObject *map = builtin("map"), *filter = builtin("filter");
  static PyObject* const reduce = from_module("functools", "reduce").release().ptr();
  if (callable == map && count) return runs_python(args[0]);
  if (callable == filter && count) return is_python(args[0]);
  // What goes through a container hands on what is in it.
  if (callable == reduce && count > 1)
    return is_python(args[0]) && !PyType_Check(args[0]) &&
           (PyList_CheckExact(args[1]) || PyTuple_CheckExact(args[1]));
  static PyObject *get = builtin("getattr"), *has = builtin("hasattr");
  if ((callable != get && callable != has) || count < 2 || !PyUnicode_Check(args[1])) return false;
  if (!is_tensor(args[0])) return true;
  PyObject* found = _PyType_Lookup(Py_TYPE(args[0]), args[1]);
  // What torch computes is there, or not, whatever the sizes.
  if (callable == has && found && Py_IS_TYPE(found, &PyGetSetDescr_Type)) return true;
  return !found || !Py_IS_TYPE(found, &PyGetSetDescr_Type) || is_sizeless_attribute(args[1]);
}

namespace {
std::vector<PyObject*> arguments_of(PyObject* args, PyObject* kwargs) {
  std::vector<PyObject*> all(&PyTuple_GET_ITEM(args, 0), &PyTuple_GET_ITEM(args, 0) + PyTuple_GET_SIZE(args));
  PyObject *key, *value;
  for (Py_ssize_t at = 0; kwargs && PyDict_Check(kwargs) && PyDict_Next(kwargs, &at, &key, &value);)
    all.push_back(value);
  return all;
}
}  // namespace

void Exchange::before_call_extended(Frame f, const Operation& operation) {
  PyObject** callable = f.place(operation.first);
  PyObject *args = f.peek(operation.second), *kwargs = f.peek(operation.third);
  PyObject* first = PyTuple_Check(args) && PyTuple_GET_SIZE(args) ? PyTuple_GET_ITEM(args, 0) : nullptr;
  if (asks_identity(*callable)) return settle_identities_in(f.place(operation.second));
  exchange_handed_in(*callable, f.place(operation.second),
                     operation.third ? f.place(operation.third) : nullptr);
  PyObject* const all[] = {args, kwargs};
  // Other names C code may take, and Python code that is called in its place does not.
  bool named = !kwargs || !PyDict_Check(kwargs) || has_plain_keys(kwargs);
  settle_texts(named ? *callable : Py_None, all, kwargs ? 2 : 1);
  if (!live()) return;
  std::vector<PyObject*> passed = PyTuple_Check(args) ? arguments_of(args, kwargs) : std::vector<PyObject*>();
  named &= !gives_odd_sequence(*callable, passed.data(), static_cast<Py_ssize_t>(passed.size()));
  if (!named) return hand_over(args), hand_over(kwargs);
  bool numbers = holds_followed(args) || holds_followed(kwargs);
  if (numbers) settle_keys(*callable, passed.data(), static_cast<Py_ssize_t>(passed.size()));
  if (shows_its_sizes(f, callable, first, numbers)) {
    if (!numbers || !PyTuple_Check(args)) return;
    std::vector<PyObject*> given = arguments_of(args, kwargs);
    return open_binding(given.data(), static_cast<Py_ssize_t>(given.size()));
  }
  hand_over(args);
  hand_over(kwargs);
}

namespace {
bool is_whole_number(PyObject* v) { return is_carrier(v) && !is_real_carrier(v); }

bool are_texts(PyObject* const* items, Py_ssize_t count) {
  return std::all_of(items, items + count,
                     [](PyObject* v) { return PyUnicode_CheckExact(v) && PyUnicode_GET_LENGTH(v); });
}

// Names of classes, words of a vocabulary: the text under a number follows from the number.
bool is_table_of_texts(PyObject* v) {
  constexpr Py_ssize_t kMost = 2048;
  if (PyList_CheckExact(v) || PyTuple_CheckExact(v)) {
    Py_ssize_t count = PySequence_Fast_GET_SIZE(v);
    return count && count <= kMost && are_texts(PySequence_Fast_ITEMS(v), count);
  }
  if (!PyDict_CheckExact(v) || !PyDict_GET_SIZE(v) || PyDict_GET_SIZE(v) > kMost) return false;
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(v, &at, &key, &value);)
    if (!PyLong_CheckExact(key) || !are_texts(&value, 1)) return false;
  return true;
}
}  // namespace

namespace {
// Whether the class has a method of Python for an item, which is given the key as it is.
bool asks_python(PyObject* container, PyObject* value) {
  static PyObject* const get = PyUnicode_InternFromString("__getitem__");
  static PyObject* const set = PyUnicode_InternFromString("__setitem__");
  PyObject* method = _PyType_Lookup(Py_TYPE(container), value ? set : get);
  return method && PyFunction_Check(method);
}
}  // namespace

// torch's binding leaves out a slice that would change nothing, and asks sizes before it dispatches.
void Exchange::before_item(PyObject** container, PyObject* key, PyObject* value) {
  if (!value && is_whole_number(key) && is_table_of_texts(*container)) {
    handing_ = Handing::Ignored;
    return swap(container, configuration().indexed(py::handle(*container)));
  }
  if (!is_tensor(*container)) {
    texts_.settle(*container);
    if (asks_python(*container, value)) {
      handing_ = Handing::Ignored;
      return;
    }
    hand_over(key);  // of a tensor as an index of a list C code asks how many elements it has
    settle_inside(key);
    bool takes_items = PyList_CheckExact(*container) && PySlice_Check(key) && value;
    if (takes_items && (PyList_CheckExact(value) || PyTuple_CheckExact(value))) handing_ = Handing::Ignored;
    return;
  }
  bool number = value && is_carrier(value) && THPVariable_CheckExact(*container) && !told_;
  if (!number) settle_inside(value);
  handing_ = Handing::Ignored;
  if (told_) return;
  if (number || is_sparse(*container) || is_loose(*container) || holds_followed(key) || PySlice_Check(key) ||
      is_loose(value) || has_index(key))
    swap(container, configuration().indexed(py::handle(*container)));
}

// Numbers and tensors have operators of their own; anything else is told the value.
void Exchange::before_operation(PyObject* left, PyObject* right) {
  texts_.settle(left);
  texts_.settle(right);
  auto is_number = [](PyObject* v) {
    return is_carrier(v) || PyLong_Check(v) || PyFloat_Check(v) || is_followable_scalar(v);
  };
  // These ask a tensor how many elements it has.
  auto is_sequence = [](PyObject* v) {
    return PyUnicode_Check(v) || PyBytes_Check(v) || PyTuple_Check(v) || PyList_Check(v);
  };
  bool tensor = is_tensor(left) || is_tensor(right);
  if (tensor && (is_sequence(left) || is_sequence(right))) return hand_over(left), hand_over(right);
  if (tensor || (is_number(left) && is_number(right))) {
    handing_ = Handing::Ignored;
    return;
  }
  settle(left);
  settle(right);
  // Sequences are put together, or compared item by item.
  if (PyTuple_Check(left) || PyList_Check(left)) {
    handing_ = Handing::Ignored;
  } else {
    settle_inside(left);
    settle_inside(right);
  }
}

// A number of numpy's that is put together with a number that is followed would ask for its value.
void Exchange::follow_scalar(PyObject** place, PyObject* other) {
  auto* numbers = recorder_->numbers();
  if (!numbers || !is_carrier(other) || !is_followable_scalar(*place) || is_nan(*place)) return;
  int constant =
      is_int64(*place) ? numbers->constant(int64_value(*place)) : numbers->real_constant(float_value(*place));
  int made = number_like(numbers, constant, *place);
  if (made >= 0) swap(place, py::reinterpret_steal<py::object>(numbers->carrier(made)));
}

// A float64 of numpy's is a float to Python's floats. Those of a class of the user's, which is none of its
// bases, come first where they stand on the left.
void Exchange::leave_to_float(PyObject** place, PyObject* other) {
  bool odd = PyFloat_Check(other) && !PyFloat_CheckExact(other) && !is_followable_scalar(other);
  if (!odd || !is_scalar_carrier(*place)) return;
  settle(*place);
  if (is_carrier(*place)) put_plain(place);
}

// numpy leaves the arithmetic of its numbers with a tensor to the tensor, to which they are Python's.
void Exchange::leave_to_tensor(PyObject** place, PyObject* other, int operation) {
  bool tensor = THPVariable_CheckExact(other) || is_parameter(other);
  if (!is_scalar_carrier(*place) || !tensor || !is_arithmetic(operation)) return;
  auto* numbers = recorder_->numbers();
  auto kind = is_long_carrier(*place) ? Number::Kind::Trunc : Number::Kind::Float;
  int made = numbers->apply(kind, numbers->number_of(*place), -1);
  if (made >= 0) swap(place, py::reinterpret_steal<py::object>(numbers->carrier(made)));
}

// ---------------------------------------------------------------- texts
namespace {
// Functions of C that come to no more of an object than its hash and what `__eq__` says of one that has a
// hash, or that bind it, refer to it, or give its namespace.
bool comes_to_keys_alone(PyObject* callable) {
  static const auto* all = [] {
    auto* made = new AddressSet();
    auto add = [&](PyTypeObject* type, std::initializer_list<const char*> names) {
      for (const char* name : names) made->insert(PyDict_GetItemString(type->tp_dict, name));
    };
    add(&PySet_Type, {"add", "discard", "remove", "__contains__"});
    add(&PyFrozenSet_Type, {"__contains__"});
    add(&PyODict_Type, {"move_to_end"});
    add(&PyFunction_Type, {"__get__"});
    for (PyTypeObject* type : {&PyMethod_Type, &_PyWeakref_RefType})
      made->insert(reinterpret_cast<PyObject*>(type));
    made->insert(builtin("vars"));
    return made;
  }();
  return is_lru_cache(callable) || all->count(unbound(callable).ptr());
}
}  // namespace

// C code asks whether it is given a str, and a text is none to it.
void Exchange::settle_texts(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  static PyObject* const isinstance = builtin("isinstance");
  if (recorder_->numbers()->texts().empty() || callable == isinstance) return;
  bool watched = is_python(callable) && (!PyType_Check(callable) || only_stores(callable));
  if (watched || TextExchange::in_place_of(callable) ||
      configuration().keepers.count(unbound(callable).ptr()))
    return;
  TextRecorder& texts = recorder_->numbers()->texts();
  bool leaves_inside = looks_at_none(callable, args, count), in_key = comes_to_keys_alone(callable);
  // Reading may end the recording.
  for (Py_ssize_t i = 0; i < count && live(); ++i) {
    if (leaves_inside)
      texts_.settle(args[i]);
    else
      in_key ? texts.settle_in_key(args[i]) : texts.settle_inside(args[i]);
  }
}

// Where it is not followed, the numbers in the value are read.
void Exchange::format_text(Frame f, const Operation& operation) {
  if (texts_.format(f, operation, told_))
    handing_ = Handing::Ignored;
  else
    settle_inside(f.peek(operation.first));
}

}  // namespace lazytrace
