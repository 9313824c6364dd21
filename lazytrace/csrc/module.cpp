// lazytrace._core: what Python sees of the recorder, the interpreter, the observer and the signatures.
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/extension.h>

#include <cmath>
#include <utility>

#include "call/wrapper.h"
#include "cpython/array_memory.h"
#include "cpython/carrier.h"
#include "cpython/imports.h"
#include "cpython/lru_cache.h"
#include "cpython/numpy_arithmetic.h"
#include "cpython/text_carrier.h"
#include "record/python/asked.h"
#include "record/python/gradients.h"
#include "record/python/opaque_call.h"
#include "record/python/pure_functions.h"
#include "record/recording.h"
#include "signature/ambient.h"
#include "support/reasons.h"
#include "torch/autocast.h"
#include "torch/batched.h"
#include "torch/compiled.h"
#include "torch/overrides.h"
#include "torch/packed_numbers.h"
#include "torch/plain_node.h"
#include "torch/seeds.h"
#include "torch/transforms.h"
#include "trace/stored.h"

namespace lt = lazytrace;
namespace py = pybind11;

namespace {

void bind_signature(py::module_& m) {
  py::class_<lt::Call>(m, "Call")
      .def_property_readonly("key", [](const lt::Call& c) { return py::bytes(c.key.view()); })
      .def_property_readonly("structure", [](const lt::Call& c) { return py::bytes(c.structure()); })
      .def_property_readonly(
          "measures",
          [](const lt::Call& c) { return std::vector<int64_t>(c.measures.begin(), c.measures.end()); })
      .def_property_readonly("numbers",
                             [](const lt::Call& c) {
                               std::vector<int64_t> values;
                               for (auto& number : c.numbers) values.push_back(number.value);
                               return values;
                             })
      .def_property_readonly("constants", [](const lt::Call& c) { return py::bytes(c.constants.view()); })
      .def("loose_in", &lt::Call::loose_in)
      .def("let_go", &lt::Call::let_go)
      .def("key_of",
           [](const lt::Call& c, int loose) {
             lt::Key key;
             c.put_key(c.loose_in(loose), &key);
             return py::bytes(key.view());
           })
      .def_readonly("unsupported", &lt::Call::unsupported)
      .def_property_readonly("tensor_count", [](const lt::Call& c) { return c.tensors.size(); })
      .def_property_readonly("tensors", [](const lt::Call& c) {
        py::list tensors;
        for (PyObject* tensor : c.tensors) tensors.append(py::reinterpret_borrow<py::object>(tensor));
        return tensors;
      });
  py::class_<lt::Signature, std::shared_ptr<lt::Signature>>(m, "Signature")
      .def(py::init<std::vector<std::string>, int, int, bool, bool, py::object, std::vector<std::string>>(),
           py::arg("names"), py::arg("positional_only"), py::arg("positional"), py::arg("star"),
           py::arg("double_star"), py::arg("code"), py::arg("unread") = std::vector<std::string>())
      .def("bind",
           py::overload_cast<py::object, py::tuple, py::dict, py::object>(&lt::Signature::bind, py::const_))
      .def("take_as_state", &lt::Signature::take_as_state, py::arg("name"));
  m.def("describe_ambient", &lt::describe_ambient);
  m.def("run_as_written", &lt::run_as_written);
  m.def("usual_ambient", &lt::usual_ambient);
  m.def("reads_ambient", &lt::reads_ambient);
  m.def("found_autocast_dtypes", &lt::found_autocast_dtypes);
  m.def("autocast_dtypes",
        [](bool asked) { return asked ? lt::ask_autocast_dtypes() : lt::autocast_dtypes(); });
}

void bind_trace(py::module_& m) {
  py::class_<lt::Miss>(m, "Miss")
      .def_readonly("node", &lt::Miss::node)
      .def_readonly("step", &lt::Miss::step)
      .def_readonly("effects", &lt::Miss::effects)
      .def_readonly("found", &lt::Miss::found)
      .def_readonly("trace", &lt::Miss::trace)
      .def_readonly("resume", &lt::Miss::resume);
  py::class_<lt::Branched>(m, "Branched")
      .def_readonly("trace", &lt::Branched::trace)
      .def_readonly("result", &lt::Branched::result);
  py::class_<lt::Resume, std::shared_ptr<lt::Resume>>(m, "Resume")
      .def("leave_region", [](lt::Resume& r) { r.region.end(); })
      .def_property_readonly("loose", [](const lt::Resume& r) { return r.program->loose(); })
      .def_property_readonly(
          "branches",
          [](const lt::Resume& r) { return r.family->branches(r.step, r.program->steps[r.step].node); })
      .def_property_readonly("measured", [](const lt::Resume& r) { return r.family->measured(); });
  py::class_<lt::Trace, std::shared_ptr<lt::Trace>>(m, "Trace")
      .def_readwrite("number", &lt::Trace::number)
      .def_readonly("used", &lt::Trace::used)
      .def_readonly("hits", &lt::Trace::hits)
      .def("join", [](const std::shared_ptr<lt::Trace>& trace) { lt::Trace::join(trace); })
      .def("replay", py::overload_cast<const lt::Call&>(&lt::Trace::replay, py::const_))
      .def("prove", &lt::Trace::prove)
      .def("check", &lt::Trace::check)
      .def("gives_sizes", &lt::Trace::gives_sizes)
      .def("measures", &lt::Trace::measures)
      .def("carries", &lt::Trace::carries)
      .def("differs_in_size", &lt::Trace::differs_in_size)
      .def("differing_numbers", &lt::Trace::differing_numbers)
      .def("sizing_numbers", &lt::Trace::sizing_numbers)
      .def("numbers_behind", &lt::Trace::numbers_behind)
      .def("explain", &lt::Trace::explain)
      .def("explain_all", &lt::Trace::explain_all)
      .def("rows", &lt::Trace::rows)
      .def("row", &lt::Trace::row, py::arg("step"))
      .def("guard_rows", &lt::Trace::guard_rows)
      .def("output_registers", &lt::Trace::output_registers)
      .def("data", &lt::Trace::data)
      .def("found", &lt::Trace::found)
      .def_property_readonly("guards", &lt::Trace::guards)
      .def_property_readonly("unguarded", &lt::Trace::unguarded)
      .def("promise", &lt::Trace::promise)
      .def("doubt", &lt::Trace::doubt)
      .def_property_readonly("size", [](const lt::Trace& t) { return t.program().size(); })
      .def_property_readonly("inputs", [](const lt::Trace& t) { return t.program().inputs; })
      .def_property_readonly("captures", [](const lt::Trace& t) { return t.program().captures; })
      .def("flat_rows", &lt::Trace::flat_rows)
      .def_property_readonly("flat", [](const lt::Trace& t) { return t.flat().describe(); })
      .def_property_readonly("flat_forms", &lt::Trace::flat_forms)
      .def_property_readonly("plans_at_sizes", &lt::Trace::plans_at_sizes)
      .def_property_readonly("effects", [](const lt::Trace& t) { return t.program().effects; })
      .def_property_readonly("changes_state", &lt::Trace::changes_state)
      .def_property_readonly("dynamic", [](const lt::Trace& t) { return t.program().dynamic; })
      .def_property_readonly("loose", [](const lt::Trace& t) { return t.program().loose(); })
      .def_property_readonly("fixed", [](const lt::Trace& t) { return lt::fixed_sizes(t.program()).size(); })
      .def_property_readonly("sized", [](const lt::Trace& t) { return t.program().sized; })
      .def_property_readonly(
          "follows_numbers",
          [](const lt::Trace& t) { return t.program().dynamic || t.program().numbers.size(); })
      .def_property_readonly("random", [](const lt::Trace& t) { return t.program().random; });
  py::class_<lt::StoredProgram, std::shared_ptr<lt::StoredProgram>>(m, "StoredProgram")
      .def(py::init<const py::dict&, std::vector<int>>())
      .def("run", &lt::StoredProgram::run);
}

void bind_calls(py::module_& m) {
  py::class_<lt::HitCount, std::shared_ptr<lt::HitCount>>(m, "HitCount")
      .def(py::init<>())
      .def("add", &lt::HitCount::add)
      .def_readonly("value", &lt::HitCount::value);
  py::class_<lt::TraceTable, std::shared_ptr<lt::TraceTable>>(m, "TraceTable")
      .def(py::init<>())
      .def("set",
           [](lt::TraceTable& table, std::string_view key,
              const std::vector<std::shared_ptr<lt::Trace>>& traces) {
             table.set(key, {traces.begin(), traces.end()});
           })
      .def("clear", &lt::TraceTable::clear)
      .def("mark", &lt::TraceTable::mark)
      .def("settle", [](lt::TraceTable& table, std::string_view key,
                        std::shared_ptr<lt::EagerCount> count) { table.settle(key, {std::move(count), 0}); })
      .def("unsettle", &lt::TraceTable::unsettle)
      .def("retreat", [](lt::TraceTable& table, std::shared_ptr<lt::EagerCount> count, uint64_t left,
                         int64_t number) { table.retreat({std::move(count), left}, number); })
      .def("end_retreat", &lt::TraceTable::end_retreat)
      .def("set_aside", &lt::TraceTable::set_aside)
      .def("uses", &lt::TraceTable::uses);
  py::class_<lt::EagerCount, std::shared_ptr<lt::EagerCount>>(m, "EagerCount")
      .def(py::init<>())
      .def_readonly("calls", &lt::EagerCount::calls)
      .def_readonly("seconds", &lt::EagerCount::seconds);
  m.def("tell_eager_calls", &lt::tell_eager_calls);
  // Not kept: its traceback comes to hold the frame that holds this.
  py::class_<lt::Raised>(m, "Raised").def("rethrow", [](lt::Raised& r) {
    std::rethrow_exception(std::exchange(r.error, nullptr));
  });
  py::class_<lt::Matcher, std::shared_ptr<lt::Matcher>>(m, "Matcher")
      .def(py::init<std::shared_ptr<lt::Signature>, std::shared_ptr<lt::TraceTable>,
                    std::shared_ptr<lt::HitCount>>())
      .def("enter", &lt::Matcher::enter)
      .def("leave", &lt::Matcher::leave)
      .def_readwrite("enabled", &lt::Matcher::enabled);
  m.def("make_wrapper_classes", &lt::make_wrapper_classes);
  m.def("configure_replaying", &lt::configure_replaying);
  m.def("call_natively", &lt::call_natively);
  m.def("arm", &lt::arm);
  m.def("configure_disabled", &lt::configure_disabled);
}

lt::NumberRecorder* numbers_now() {
  auto* recorder = lt::Recorder::active();
  return recorder ? recorder->numbers() : nullptr;
}

// Which of its two arguments max() or min() gives back, as Python asks them: where one of them has the place
// of an object, that one. Null of what is worked out anew, and of a nan. Borrowed.
PyObject* given_back(const lt::NumberRecorder& numbers, const std::string& kind,
                     std::pair<PyObject*, int> first, std::pair<PyObject*, int> second) {
  if (kind != "Max" && kind != "Min") return nullptr;
  bool real = numbers[first.second].real;  // both are
  lt::NumberValue low = numbers.value(first.second), high = numbers.value(second.second);
  if (real && (std::isnan(low.real) || std::isnan(high.real))) return nullptr;
  if (kind == "Min") std::swap(low, high);
  bool other = real ? low.real < high.real : low.whole < high.whole;
  PyObject* chosen = other ? second.first : first.first;
  PyObject* original = numbers.original_of(chosen);
  return original ? original : chosen;
}

// None where the result cannot be followed, or nobody follows numbers.
py::object apply_to_carriers(const std::string& kind, py::object a, py::object b) {
  auto* numbers = numbers_now();
  if (!numbers) return py::none();
  auto operand = [&](PyObject* v) {
    if (lt::is_int64(v)) return numbers->constant(lt::int64_value(v));
    return lt::is_float_of_any_kind(v) ? numbers->real_constant(lt::float_value(v)) : numbers->number_of(v);
  };
  int x = operand(a.ptr()), y = b.is_none() ? -1 : operand(b.ptr());
  if (x < 0 || (y < 0 && !b.is_none())) return py::none();
  int made = numbers->apply(lt::number_kind(kind), x, y);
  if (made < 0 || !numbers_now()) return py::none();
  PyObject* given = given_back(*numbers, kind, {a.ptr(), x}, {b.ptr(), y});
  return py::reinterpret_steal<py::object>(given ? numbers->carrier_of(made, given) : numbers->carrier(made));
}

py::object read_carrier(py::object carrier) {
  auto* numbers = numbers_now();
  if (lt::is_flag(carrier.ptr())) return py::bool_(PyObject_IsTrue(carrier.ptr()) == 1);  // which reads it
  if (numbers && lt::is_text(carrier.ptr()))
    numbers->settle(carrier.ptr());
  else if (int id = numbers ? numbers->number_of(carrier.ptr()) : -1; id >= 0)
    numbers->read(id);
  return py::reinterpret_steal<py::object>(lt::plain_of_followed(carrier.ptr()));
}

// The number of Python's. Anything but one of numpy's that is followed is given back as it is.
py::object number_of_scalar(py::object value) {
  if (!lt::is_scalar_carrier(value.ptr())) return value;
  const char* kind = lt::is_long_carrier(value.ptr()) ? "Trunc" : "Float";
  py::object made = apply_to_carriers(kind, value, py::none());
  return made.is_none() ? value : made;
}

py::object tensor_number(const std::string& name, const at::Tensor& tensor, int64_t which) {
  lt::Number number;
  number.kind = lt::number_kind(name);
  number.which = which;
  auto* recorder = lt::Recorder::active();
  int id = recorder && recorder->numbers() ? recorder->size_number(number.kind, tensor, which) : -1;
  if (id < 0) return py::int_(lt::ask(number, tensor));
  return py::reinterpret_steal<py::object>(recorder->numbers()->carrier(id));
}

// What `ask(tensor)`, which calls item(), gives: followed, where that can be.
py::object item_number(const at::Tensor& tensor, py::object ask, py::object object) {
  auto* recorder = lt::Recorder::active();
  py::object value;
  int id = -1;
  if (recorder)
    id = recorder->item_number(tensor, [&] { value = ask(object); });
  else
    value = ask(object);
  return id < 0 ? value : py::reinterpret_steal<py::object>(recorder->numbers()->carrier(id));
}

// What the function gives. Where it raises, the sizes of the tensors that it was given are fixed. What it
// does not take, so that none of its code has run, `plain` refuses.
py::object minding(py::object function, py::object plain, py::args args, py::kwargs kwargs) {
  auto pin = [](py::handle value) {
    auto* recorder = lt::Recorder::active();
    if (recorder && recorder->numbers() && THPVariable_Check(value.ptr()))
      recorder->pin(THPVariable_Unpack(value.ptr()));
  };
  try {
    return function(*args, **kwargs);
  } catch (py::error_already_set& error) {
    for (py::handle value : args) pin(value);
    for (auto& [name, value] : kwargs) pin(value);
    if (plain.is_none() || error.trace() || !error.matches(PyExc_TypeError)) throw;
  }
  return plain(args, kwargs);
}

py::object constant_carrier(py::object value) {
  auto* numbers = numbers_now();
  int id = numbers ? numbers->number_of(value.ptr()) : -1;
  return id < 0 ? value : py::reinterpret_steal<py::object>(numbers->carrier(id));
}

PyObject* followed_slice(PyObject* key) {
  auto* slice = reinterpret_cast<PySliceObject*>(key);
  auto followed = [](PyObject* bound) {
    auto value = py::reinterpret_borrow<py::object>(bound);
    return PyLong_CheckExact(bound) ? constant_carrier(value) : value;
  };
  // A slice that begins at the first element is the same at all sizes.
  bool first = PyLong_CheckExact(slice->start) && Py_SIZE(slice->start) == 0;
  py::object start = first ? py::reinterpret_borrow<py::object>(slice->start) : followed(slice->start);
  py::object stop = followed(slice->stop), step = py::reinterpret_borrow<py::object>(slice->step);
  if (lt::is_carrier(slice->step)) step = read_carrier(step);
  // Torch raises, and must ask no carrier behind that.
  if (PyLong_Check(step.ptr()) && Py_SIZE(step.ptr()) <= 0) {
    start = read_carrier(start);
    stop = read_carrier(stop);
  }
  return PySlice_New(start.ptr(), stop.ptr(), step.ptr());
}

// An index whose slices have bounds that torch compares with no size before it calls the operator.
// NotImplemented where a size is among the indices, and of an index of a class of its own.
py::object followed_index(py::object key, bool outermost) {
  auto other = py::reinterpret_borrow<py::object>(Py_NotImplemented);
  if (PySlice_Check(key.ptr()))
    return lt::has_index_bound(key.ptr()) ? other
                                          : py::reinterpret_steal<py::object>(followed_slice(key.ptr()));
  auto is_number = [](py::handle one) { return lt::is_carrier(one.ptr()) || lt::is_index(one.ptr()); };
  if (outermost && is_number(key)) return other;
  if (!PyTuple_Check(key.ptr())) return key;
  if (!PyTuple_CheckExact(key.ptr())) return other;
  auto items = py::reinterpret_borrow<py::tuple>(key);
  for (py::handle item : items)
    if (outermost && is_number(item)) return other;
  py::tuple made(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    py::object item = followed_index(items[i], false);
    if (item.is(other) && !py::object(items[i]).is(other)) return other;
    made[i] = item;
  }
  return made;
}

// That of the recording of this thread. Another thread's recording has numbers in state until it ends, which
// are -1 here: plain ones.
int number_here(PyObject* carrier) {
  auto* numbers = numbers_now();
  return numbers ? numbers->number_of(carrier) : -1;
}

// What torch asks numbers for that are given in place of tensors: else it takes one of any value, which the
// recorder knows and nobody else.
py::object torch_function_of(py::object carrier) {
  static PyObject* const none = lt::from_module("torch._C", "_disabled_torch_function_impl").release().ptr();
  static PyObject* const plainly =
      lt::from_module("lazytrace.carriers.classes", "call_torch_plainly").release().ptr();
  return py::reinterpret_borrow<py::object>(number_here(carrier.ptr()) >= 0 ? none : plainly);
}

py::object symbolic_node(py::object carrier) {
  int id = number_here(carrier.ptr());
  if (id >= 0) return lt::symbolic_node(numbers_now()->shared_from_this(), id);
  auto plain = py::reinterpret_steal<py::object>(lt::plain_of_carrier(carrier.ptr()));
  if (lt::is_float_of_any_kind(plain.ptr()))
    return py::cast(c10::SymNode(c10::make_intrusive<lt::PlainNode>(lt::float_value(plain.ptr()))));
  return py::cast(c10::SymNode(c10::make_intrusive<lt::PlainNode>(lt::whole_value(plain.ptr()))));
}

// Of a float that is followed, or of a size.
bool takes_number(const c10::Argument& argument, bool real) {
  c10::TypePtr type = argument.real_type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == (real ? c10::TypeKind::FloatType : c10::TypeKind::SymIntType);
}

// Whether a binding would take the value for a parameter of this type, and as it is. What makes an argument
// of a schema is more generous than a binding, and raises other errors.
bool binding_takes(const c10::TypePtr& type, py::handle value) {
  if (auto optional = type->cast<c10::OptionalType>())
    return value.is_none() || binding_takes(optional->getElementType(), value);
  PyObject* object = value.ptr();
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return THPVariable_Check(object);
    case c10::TypeKind::BoolType:
      return PyBool_Check(object);
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return PyLong_CheckExact(object) || (lt::is_carrier(object) && !lt::is_real_carrier(object));
    case c10::TypeKind::FloatType:
      return PyFloat_CheckExact(object) || PyLong_CheckExact(object);
    case c10::TypeKind::GeneratorType:
      return THPGenerator_Check(object);
    case c10::TypeKind::ListType: {
      if (!PyList_CheckExact(object) && !PyTuple_Check(object)) return false;
      auto element = type->castRaw<c10::ListType>()->getElementType();
      return std::all_of(value.begin(), value.end(),
                         [&](py::handle item) { return binding_takes(element, item); });
    }
    default:
      return false;
  }
}

py::object called_as_caller(const py::object& function, const py::tuple& args, const py::dict& kwargs) {
  PyObject* result = lt::call_as_caller(function, args, kwargs);
  if (!result) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

// A binding of the operator of this name, whose parser takes ints out of numbers that are followed.
py::object call_taking_ints(const std::string& name, const py::object& function, const py::tuple& args,
                            const py::dict& kwargs) {
  struct Binding {
    lt::NumberRecorder* numbers;
    ~Binding() {
      if (numbers) numbers->close_binding();
    }
  } binding{numbers_now()};
  if (binding.numbers) binding.numbers->open_binding(name, {});
  return called_as_caller(function, args, kwargs);
}

// What `function`, a binding of the operator, would do. A binding takes the value of a number for a parameter
// that is a float; here the recorder finds the number itself among the arguments.
py::object call_with_numbers(py::object function, const std::string& name, const std::string& overload,
                             py::tuple args, py::dict kwargs) {
  auto* numbers = numbers_now();
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  const auto& parameters = op.schema().arguments();
  struct Followed {
    size_t argument;
    int id;
    bool real;
  };
  std::vector<Followed> followed;
  bool plain = numbers && args.size() <= parameters.size();
  py::list positional(args);
  py::dict named;
  for (size_t i = 0; i < parameters.size() && plain; ++i) {
    py::str key(parameters[i].name());
    bool by_name = kwargs.contains(key);
    if (!by_name && i >= args.size()) {
      plain = parameters[i].default_value().has_value();  // the binding says in its own words what is missing
      continue;
    }
    plain = !by_name || i >= args.size();
    py::object value = by_name ? py::object(kwargs[key]) : py::object(args[i]);
    if (lt::is_carrier(value.ptr())) {
      int id = numbers->number_of(value.ptr());
      bool real = lt::is_real_carrier(value.ptr());
      plain &= id >= 0 && takes_number(parameters[i], real);
      followed.push_back({i, id, real});
      value = py::reinterpret_steal<py::object>(lt::plain_of_carrier(value.ptr()));
    }
    plain &= binding_takes(parameters[i].real_type(), value);
    if (by_name)
      named[key] = value;
    else
      positional[i] = value;
  }
  if (!plain || followed.empty() || named.size() != kwargs.size()) return function(*args, **kwargs);
  torch::jit::Stack stack = torch::jit::createStackForSchema(
      op.schema(), torch::jit::tuple_slice(py::tuple(positional)), py::kwargs(named), std::nullopt);
  for (const Followed& one : followed) {
    auto node = py::cast<c10::SymNode>(lt::symbolic_node(numbers->shared_from_this(), one.id));
    stack[one.argument] = one.real ? c10::IValue(c10::SymFloat(node)) : c10::IValue(c10::SymInt(node));
  }
  {
    py::gil_scoped_release released;
    op.callBoxed(stack);
  }
  return torch::jit::createPyObjectForStack(std::move(stack));
}

std::optional<at::Generator> generator_of(const py::object& generator) {
  if (generator.is_none()) return std::nullopt;
  return reinterpret_cast<THPGenerator*>(generator.ptr())->cdata;
}

void bind_numbers(py::module_& m) {
  m.def("make_carrier_class", [](bool real, py::dict methods, py::object symbolic) {
    PyObject* made = lt::make_carrier_class(real, methods.ptr(), symbolic.ptr());
    if (!made) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(made);
  });
  // `kind`: 0 of float64, 1 of float32, 2 of int64.
  m.def("make_scalar_class", [](py::type scalar, int kind, py::dict methods, py::object symbolic) {
    auto* type = reinterpret_cast<PyTypeObject*>(scalar.ptr());
    auto which = static_cast<lt::ScalarKind>(kind);
    PyObject* made = lt::make_scalar_class(type, which, methods.ptr(), symbolic.ptr());
    if (!made) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(made);
  });
  m.def("make_text_class", [](py::dict methods) {
    PyObject* made = lt::make_text_class(methods.ptr());
    if (!made) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(made);
  });
  m.def("configure_exchange", &lt::configure_exchange);
  m.def("configure_texts", [](const py::dict& callables, py::object number, py::object formatted,
                              py::object joined, py::object added, py::object filled) {
    lt::configure_texts(callables, {number, formatted, joined, added, filled});
  });
  m.def("is_real_carrier", [](py::handle object) { return lt::is_real_carrier(object.ptr()); });
  m.def("settle_texts", [](py::handle inside) {
    if (auto* numbers = numbers_now()) numbers->texts().settle_inside(inside.ptr());
  });
  m.def("follow_text", [](py::object function, py::args args) {
    auto* numbers = numbers_now();
    return numbers ? numbers->texts().follow(function, args) : py::object(py::none());
  });
  m.def("configure_numbers", &lt::configure_numbers);
  m.def("item_number", [](py::object tensor, py::object ask) {
    return item_number(THPVariable_Unpack(tensor.ptr()), std::move(ask), tensor);
  });
  m.def("call_with_numbers", &call_with_numbers);
  m.def("apply_to_carriers", &apply_to_carriers);
  m.def("read_carrier", &read_carrier);
  m.attr("Flag") = py::reinterpret_borrow<py::object>(lt::flag_class());
  m.def("tensor_number", &tensor_number);
  m.def("constant_carrier", &constant_carrier);
  m.def("followed_index", [](py::object key) { return followed_index(std::move(key), true); });
  m.def("shape_of", [](const at::Tensor& tensor) { return lt::shape_of(lt::Recorder::active(), tensor); });
  m.def("symbolic_node", &symbolic_node);
  m.def("torch_function_of", &torch_function_of);
  m.def("minding", &minding);
  // Whether torch would take the int as an index, asked without a read: it raises otherwise.
  m.def("is_within", [](const at::Tensor& tensor, int64_t dim, py::object index) {
    bool carried = lt::is_carrier(index.ptr());
    int overflow = 0;
    int64_t at =
        carried ? lt::carrier_value(index.ptr()) : PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    return !overflow && dim < tensor.dim() && at >= -tensor.size(dim) && at < tensor.size(dim);
  });
  m.def("note_index", [](int place) {
    if (auto* recorder = lt::Recorder::active()) recorder->note_index(place);
  });
  m.def("is_index", [](py::handle object) { return lt::is_index(object.ptr()); });
  m.def("requires_gradients", [](const at::Tensor& tensor) {
    auto* recorder = lt::Recorder::active();
    return recorder ? recorder->requires_gradients(tensor) : tensor.requires_grad();
  });
  m.def("pin_sizes", [](const at::Tensor& tensor) {
    auto* recorder = lt::Recorder::active();
    if (recorder && recorder->numbers()) recorder->pin(tensor);
  });
  // False where that is left to torch's functions: transforms and modes would be told of the operators.
  m.def("has_random_steps",
        [] { return !lt::is_transforming() && !c10::impl::TorchDispatchModeTLS::any_modes_set(); });
  m.def("make_generator", [](py::object device) {
    auto* active = lt::Recording::active();
    return active ? active->make_generator(device) : py::object(py::none());
  });
  m.def("seed", [](py::object generator, py::object number) {
    int overflow = 0;
    if (PyLong_CheckExact(number.ptr())) PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
    if (!overflow) lt::seed(generator_of(generator), at::Scalar(number.cast<c10::SymInt>()));
    return !overflow;
  });
  m.def("random_state", [](py::object generator) { return lt::random_state(generator_of(generator)); });
  m.def("set_random_state", [](py::object generator, const at::Tensor& state) {
    lt::set_random_state(generator_of(generator), state);
  });
  // None where torch's own function must be called, as transforms and modes would be told of the operator.
  m.def("pack_numbers",
        [](const std::vector<py::object>& items, const std::vector<int64_t>& sizes, bool real) -> py::object {
          if (lt::is_transforming() || c10::impl::TorchDispatchModeTLS::any_modes_set()) return py::none();
          std::vector<at::Scalar> values;
          for (const py::object& item : items)
            if (PyFloat_CheckExact(item.ptr()) || lt::is_real_carrier(item.ptr()))
              values.emplace_back(py::cast<c10::SymFloat>(item));
            else
              values.emplace_back(py::cast<c10::SymInt>(item));
          return py::cast(lt::pack_numbers(values, sizes, real));
        });
  m.def("call_contiguous", [](const at::Tensor& tensor, at::MemoryFormat format) {
    return at::_ops::contiguous::call(tensor, format);
  });
}

py::object backward_call(py::object run, py::args args, py::kwargs kwargs) {
  if (auto* recording = lt::Recording::active()) return recording->backward(run, args, kwargs);
  return run(*args, **kwargs);
}

// The engine for many gradients at once: those of each input, with their dimension first.
py::object batched_backward_call(py::object run, py::object roots, py::tuple gradients, py::args rest,
                                 py::kwargs kwargs) {
  lt::VmapLevel vmap;
  py::list hidden, shown;
  for (py::handle gradient : gradients)
    hidden.append(lt::hide_dimension(THPVariable_Unpack(gradient.ptr()), vmap.level()));
  py::tuple found = run(roots, py::tuple(hidden), *rest, **kwargs);
  for (py::handle gradient : found)
    shown.append(THPVariable_Check(gradient.ptr())
                     ? py::cast(lt::show_dimension(THPVariable_Unpack(gradient.ptr()), vmap.level()))
                     : py::reinterpret_borrow<py::object>(gradient));
  return py::tuple(shown);
}

py::object checkpoint_call(py::object function, py::object switches, py::args args, py::kwargs kwargs) {
  if (auto* recording = lt::Recording::active())
    return recording->checkpoint(function, switches, args, kwargs);
  return function(*args, **kwargs);
}

py::object whole_call(py::object function, py::args args, py::kwargs kwargs) {
  if (auto* recording = lt::Recording::active()) return recording->whole(function, args, kwargs);
  return function(*args, **kwargs);
}

py::object opaque_call(py::object wrapper, const std::string& attribute, py::object function, py::tuple args,
                       py::dict kwargs, bool python, bool told, bool draws) {
  if (auto* recording = lt::Recording::active())
    return recording->opaque(wrapper, attribute, function, args, kwargs, python, told, draws);
  return function(*args, **kwargs);
}

bool is_fed() {
  auto* recording = lt::Recording::active();
  return recording && recording->feeding();
}

// A clock, or a generator of random numbers: see record/python/asked.h.
py::object ask_number(py::object function, py::args args, py::kwargs kwargs) {
  return opaque_call(function, "", function, args, kwargs, false, true, false);
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "The C++ core of lazytrace.";
  m.attr("torch_version") = LAZYTRACE_TORCH_VERSION;
  bind_signature(m);
  bind_trace(m);
  bind_numbers(m);
  py::class_<lt::Recording>(m, "Recording")
      .def(py::init<lt::Call&, std::shared_ptr<lt::Resume>, bool, bool, bool>(), py::arg("call"),
           py::arg("resume") = nullptr, py::arg("dynamic") = false, py::arg("numbers") = false,
           py::arg("loose_numbers") = false)
      .def("run", &lt::Recording::run)
      .def("as_it_would_be", &lt::Recording::as_it_would_be)
      .def("finish", &lt::Recording::finish, py::arg("result"), py::arg("prove") = true)
      .def("ignore", &lt::Recording::ignore)
      .def("watch_blocks", &lt::Recording::watch_blocks)
      .def_property_readonly("has_watched", &lt::Recording::has_watched)
      .def_property_readonly("failed_in_block", &lt::Recording::failed_in_block)
      .def("store_early", &lt::Recording::store_early)
      .def_property_readonly("may_store_early", &lt::Recording::may_store_early)
      .def("take_operators_whole", &lt::Recording::take_operators_whole)
      .def_property_readonly("failed_in_operator", &lt::Recording::failed_in_operator)
      .def_property_readonly("failed_behind_change", &lt::Recording::failed_behind_change)
      .def("follow_state", &lt::Recording::follow_state)
      .def("fix_sizes", &lt::Recording::fix_sizes)
      .def("varying", &lt::Recording::varying)
      .def("stiff", &lt::Recording::stiff)
      .def("keep_turns", &lt::Recording::keep_turns)
      .def_property_readonly("turned", &lt::Recording::turned)
      .def("fail", &lt::Recording::fail)
      .def_property_readonly("reason", &lt::Recording::reason)
      .def_property_readonly("seconds_lowering", &lt::Recording::seconds_lowering)
      .def_property_readonly("where", &lt::Recording::where);
  m.def("configure", &lt::configure_observer);
  m.def("configure_modules", &lt::configure_modules);
  m.def("configure_overrides", &lt::configure_overrides);
  m.def("configure_saved_hooks", &lt::configure_saved_hooks);
  m.def("kernels_are_replaced", &lt::aten_is_overridden);
  m.attr("Diverged") = py::reinterpret_borrow<py::object>(lt::divergence_type());
  m.def("ask_number", &ask_number);
  m.def("is_fed", &is_fed);
  m.def("configure_asked", &lt::configure_asked);
  m.def("opaque_call", &opaque_call, py::arg("wrapper"), py::arg("attribute"), py::arg("function"),
        py::arg("args"), py::arg("kwargs"), py::arg("python"), py::arg("told") = false,
        py::arg("draws") = false);
  m.def("backward_call", &backward_call);
  m.def("batched_backward_call", &batched_backward_call);
  m.def("hook_call", [](py::object again, py::object now, py::object tensor, py::object hook) {
    auto* active = lt::Recording::active();
    return active ? active->hook({again, now}, tensor, hook) : now(tensor, hook);
  });
  m.def("unhook_call",
        [](py::object again, const py::object& now, py::object find, const py::object& handle) {
          auto* active = lt::Recording::active();
          active ? active->unhook({std::move(again), now, std::move(find)}, handle) : (void)now(handle);
        });
  m.def("configure_unhooking", &lt::configure_unhooking);
  m.def("retain_gradient", [](const py::object& now, py::object tensor) {
    auto* active = lt::Recording::active();
    active ? active->retain_gradient(now, tensor) : (void)now(tensor);
  });
  m.def("module_inputs", [](py::object now, py::object hook, py::object made) {
    auto* active = lt::Recording::active();
    active ? active->module_inputs(now, hook, made) : (void)now(hook, made);
  });
  m.def("module_outputs", [](py::object again, py::object now, py::object hook, py::object made) {
    auto* active = lt::Recording::active();
    active ? active->module_outputs(again, now, hook, made) : (void)now(hook, made);
  });
  m.def("configure_pure_functions", &lt::configure_pure_functions);
  m.def("configure_gradients", &lt::configure_gradients);
  m.def("whole_call", &whole_call);
  m.def("checkpoint_call", &checkpoint_call);
  m.def("configure_whole_calls", &lt::configure_whole_calls);
  m.def("configure_default_dicts", &lt::configure_default_dicts);
  m.def("configure_stand_ins", &lt::configure_stand_ins);
  m.def("configure_print", &lt::configure_print);
  m.def("configure_logging", &lt::LogCall::configure);
  m.def("log", [](const py::tuple& what, const py::object& exc_info, int kind) {
    if (auto* active = lt::Recording::active())
      return active->log(what, exc_info, static_cast<lt::LogCall::Kind>(kind));
    lt::LogCall::now(py::args(py::make_tuple(py::tuple()) + what), exc_info);
  });
  m.def("configure_cached_calls", &lt::configure_cached_calls);
  m.def("configure_missing_entries", &lt::configure_missing_entries);
  m.def("begin_entry", [](const py::object& cache) {
    auto* active = lt::Recording::active();
    active ? active->begin_entry(cache) : lt::count_miss(cache.ptr());
  });
  m.def("keep_entry", [](const py::object& cache, const py::tuple& args, const py::object& made) {
    if (auto* active = lt::Recording::active()) return active->keep_entry(cache, args, made);
    if (!lt::put_cached(cache.ptr(), args.ptr(), made.ptr())) throw py::error_already_set();
    return made;
  });
  m.def("configure_called_objects", &lt::configure_called_objects);
  m.def("configure_unseen", &lt::configure_unseen);
  m.def("take_array", [](py::handle array, bool itself) {
    return lt::Recording::active()->unseen()->take(array.ptr(), itself);
  });
  m.def("shape_of_array",
        [](py::handle array) { return lt::Recording::active()->unseen()->shape_of_array(array.ptr()); });
  m.def("configure_arrays", [](py::object operand, py::object index, py::set methods, py::set values,
                               py::dict functions, py::dict makers, py::set lists) {
    lt::configure_arrays({operand, index, methods, values, functions, makers, lists});
  });
  m.def("keep_array_step", [](py::handle step) { lt::keep_array_step(step.ptr()); });
  m.def("tensor_of_array", [](py::handle array) {
    py::object found = lt::Recording::active()->unseen()->tensor_of(array.ptr());
    return found ? found : py::object(py::none());
  });
  m.def("is_own_array",
        [](py::handle array) { return lt::Recording::active()->unseen()->is_own(array.ptr()); });
  m.def("may_write_to_array",
        [](py::handle array) { return lt::Recording::active()->unseen()->may_write(array.ptr()); });
  m.def("was_reached", [](py::handle object) {
    auto* active = lt::Recording::active();
    return active && active->was_reached(object.ptr());
  });
  m.def("refuse_scalar", [] {
    if (auto* recorder = lt::Recorder::active())
      recorder->fail(lt::say(lt::reason::ComputesWithScalar, "float"));
  });
  m.def("number_of_scalar", &number_of_scalar);
  m.def("computes_quietly", [](int operation, py::handle left, py::handle right) {
    return lt::computes_quietly(operation, left.ptr(), right.ptr());
  });
  m.def("refuse_print", [] {
    constexpr size_t kReads = 64;  // of numbers among its arguments
    auto* recorder = lt::Recorder::active();
    if (recorder && recorder->expects("print", kReads)) return false;
    if (recorder) recorder->fail("calls print()");
    return true;
  });
  m.def("look_at_stdout", [] {
    if (auto* active = lt::Recording::active()) active->look_at_stdout();
  });
  m.def("refuse_array", [] { lt::Recorder::active()->fail(lt::say(lt::reason::HandsArrayToC)); });
  m.def(
      "made_array",
      [](py::object array, const at::Tensor& tensor, bool own) {
        if (auto* active = lt::Recording::active()) active->unseen()->add_made(std::move(array), tensor, own);
      },
      py::arg("array"), py::arg("tensor"), py::arg("own") = false);
  m.def("tensor_of_new_array", [](py::handle array) { return lt::tensor_of_new_array(array.ptr()); });
  m.def("array_of_tensor", [](const at::Tensor& tensor) {
    PyObject* array = lt::array_of_tensor(tensor);
    if (!array) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(array);
  });
  m.def("aside", [](py::object function) {
    return lt::Recording::active() ? lt::Recording::active()->aside(function) : function();
  });
  m.def("call_taking_ints", &call_taking_ints);
  m.def("call_as_caller", &called_as_caller);
  m.def("is_followed", [](py::handle value) { return lt::is_followed(value.ptr()); });
  m.def("is_recording", [] { return lt::Recording::active() != nullptr; });
  m.def("must_step_aside", &lt::must_step_aside);
  bind_calls(m);
  m.def("reasons", [] {
    py::list rows;
    for (auto& row : lt::reasons()) rows.append(py::make_tuple(row.code, row.text, row.advice));
    return rows;
  });
}
