// A trace as plain values: lists, dicts and tuples, from which graphs and files are made.
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/tensor_layouts.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <functional>

#include "torch/facts.h"
#include "trace/trace.h"

namespace lazytrace {

namespace {

py::object borrowed(PyObject* object) { return py::reinterpret_borrow<py::object>(object); }

py::object dtype_object(c10::ScalarType dtype) {
  return borrowed(reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype)));
}

// A dtype, layout or memory format travels as a number; its schema says what it is.
py::object constant(const c10::IValue& value, c10::TypePtr type) {
  if (value.isTensor() && !value.toTensor().defined()) return py::none();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (value.isInt()) {
    if (type->kind() == c10::TypeKind::ScalarTypeType)
      return dtype_object(static_cast<c10::ScalarType>(value.toInt()));
    if (type->kind() == c10::TypeKind::LayoutType)
      return borrowed(
          reinterpret_cast<PyObject*>(torch::getTHPLayout(static_cast<c10::Layout>(value.toInt()))));
    if (type->kind() == c10::TypeKind::MemoryFormatType)
      return borrowed(torch::utils::getTHPMemoryFormat(static_cast<c10::MemoryFormat>(value.toInt())));
  }
  return torch::jit::toPyObject(value);
}

py::tuple numbers_row(const std::vector<Number>& numbers, const Argument& argument) {
  if (argument.kind != Argument::Kind::Numbers)
    return py::make_tuple("number", text_of(numbers, argument.reg));
  py::list texts;
  auto constants = argument.constant.toListRef();
  for (size_t i = 0; i < argument.list.size(); ++i)
    if (argument.list[i] < 0)
      texts.append(py::str(torch::jit::toPyObject(constants[i])));
    else
      texts.append(text_of(numbers, argument.list[i]));
  return py::make_tuple("number", texts);
}

// What a person would write for a guard node.
using Path = std::function<std::string(int)>;

py::tuple argument_data(const Program& program, const Step& step, size_t i, const Path& path) {
  const Argument& argument = step.arguments[i];
  switch (argument.kind) {
    case Argument::Kind::Register:
      return py::make_tuple("register", argument.reg);
    case Argument::Kind::List:
      return py::make_tuple("registers", argument.list);
    case Argument::Kind::Constant: {
      auto& schema = step.op.schema().arguments();
      c10::TypePtr type = i < schema.size() ? schema[i].real_type() : c10::AnyType::get();
      return py::make_tuple("constant", constant(argument.constant, std::move(type)));
    }
    case Argument::Kind::Generator:
      return py::make_tuple("generator", path(argument.node));
    default:
      return numbers_row(program.numbers, argument);
  }
}

py::object meta_data(const TensorMeta& meta) {
  if (!meta.defined()) return py::none();
  py::dict row;
  row["dtype"] = dtype_object(meta.dtype());
  row["shape"] = py::tuple(py::cast(std::vector<int64_t>(meta.sizes().begin(), meta.sizes().end())));
  row["stride"] = meta.strided() ? py::object(py::tuple(py::cast(
                                       std::vector<int64_t>(meta.strides().begin(), meta.strides().end()))))
                                 : py::none();
  row["device"] = py::reinterpret_steal<py::object>(THPDevice_New(meta.device()));
  row["requires_grad"] = meta.requires_grad();
  row["plain"] = meta.plain_keys();
  row["keys"] = meta.keys();
  return std::move(row);
}

py::dict result_data(const Result& result) {
  static const char* const kKinds[] = {"register", "list", "read", "number", "ignored"};
  py::dict row;
  row["kind"] = kKinds[static_cast<size_t>(result.kind)];
  row["register"] = result.reg;
  row["known"] = result.known;
  row["loose"] = result.loose;
  row["base"] = result.base;
  row["distance"] = result.distance;
  row["meta"] = meta_data(*result.meta);
  row["value"] =
      result.kind == Result::Kind::Read ? constant(result.read, c10::AnyType::get()) : py::object(py::none());
  py::list list;
  for (auto& one : result.list) list.append(result_data(one));
  row["list"] = list;
  return row;
}

py::dict modes_data(const Modes& modes) {
  py::list autocast;
  for (size_t i = 0; i < kAutocastCount; ++i)
    if (modes.autocast[i])
      autocast.append(py::make_tuple(c10::DeviceTypeName(kAutocastDevices[i], true),
                                     dtype_object(modes.autocast_dtype[i])));
  py::dict row;
  row["grad"] = modes.grad;
  row["inference"] = modes.inference;
  row["autocast"] = py::tuple(autocast);
  row["autocast_cache"] = modes.autocast_cache;
  row["autocast_region"] = modes.autocast_region;
  py::dict switches;
  for (size_t one = 0; one < kSwitchCount; ++one)
    if (modes.switches.has(one)) switches[switch_name(one)] = modes.switches.value(one);
  row["switches"] = switches;
  return row;
}

const char* kind_of(Effect::Kind kind) {
  static const char* const kKinds[] = {"attribute", "item",  "at",   "append", "cell",
                                       "content",   "class", "drop", "entry"};
  return kKinds[static_cast<size_t>(kind)];
}

py::tuple tree_data(const Tree& tree) {
  static const char* const kKinds[] = {"register",  "parameter", "array",  "number",   "constant", "state",
                                       "tuple",     "list",      "dict",   "set",      "named",    "object",
                                       "partial",   "view",      "method", "function", "cell",     "text",
                                       "decorated", "reference", "same"};
  py::list items;
  for (auto& item : tree.items) items.append(tree_data(item));
  return py::make_tuple(kKinds[static_cast<size_t>(tree.kind)], tree.index,
                        tree.value ? tree.value : py::object(py::none()), py::tuple(items));
}

py::object opaque_data(const OpaqueStep& opaque) {
  py::dict row;
  row["name"] = opaque.name;
  row["function"] = tree_data(opaque.function);
  row["attribute"] = opaque.attribute;
  row["call"] = tree_data(opaque.call);
  row["shape"] = opaque.shape;
  row["values"] = opaque.values;
  row["python"] = opaque.python;
  row["writes"] = opaque.effects || opaque.touches;
  return std::move(row);
}

py::dict step_data(const Program& program, const Step& step, const Path& path) {
  py::list arguments, names, results;
  for (size_t i = 0; i < step.arguments.size(); ++i) arguments.append(argument_data(program, step, i, path));
  for (auto& argument : step.op.schema().arguments())
    names.append(py::make_tuple(argument.name(), argument.kwarg_only()));
  for (auto& result : step.results) results.append(result_data(result));
  py::dict row;
  row["kind"] = kind_name(step.kind);
  row["operator"] = step.op.schema().name();
  row["overload"] = step.op.schema().overload_name();
  row["arguments"] = arguments;
  row["names"] = names;
  row["results"] = results;
  row["modes"] = step.modes;
  row["place"] = place_tuple(step.place);
  row["scope"] = step.place.scope;
  row["literal"] = step.literal.defined() ? py::cast(step.literal) : py::none();
  row["effect"] = step.effect;
  row["random"] = step.random;
  row["exit"] = step.exit;
  bool sizes = facts_of(step.op).data_dependent_shape || facts_of(step.op).index;
  row["sizes"] = step.exit && step.kind == Step::Kind::Operator && sizes;
  row["filled"] = step.filled;
  row["below"] = step.below;
  row["python"] = step.python;
  row["opaque"] = step.opaque ? opaque_data(*step.opaque) : py::object(py::none());
  return row;
}

}  // namespace

py::dict Trace::data(const std::vector<std::string>& names) const {
  Path path = [&](int node) { return node < 0 ? std::string() : tree_.path(node, names); };
  auto root = [&](int node) {
    int top = tree_.root_of(node);
    return tree_[top].access == Access::Root ? static_cast<int>(tree_[top].index) : -1;
  };
  py::list modes, captures, scopes, steps, writes;
  for (auto& one : program().modes) modes.append(modes_data(one));
  for (int i = 0; i < static_cast<int>(tree_.size()); ++i)
    if (int slot = tree_[i].capture; slot >= 0)
      captures.append(py::make_tuple(slot, program().captures[slot], path(i), root(i),
                                     meta_data(tree_[i].tensor ? *tree_[i].tensor : TensorMeta())));
  for (const Scope& scope : program().scopes)
    scopes.append(py::make_tuple(scope.parent, path(scope.module), scope.module));
  for (const Step& step : program().steps) steps.append(step_data(program(), step, path));
  for (const Effect& effect : effects_)
    writes.append(py::make_tuple(kind_of(effect.kind), effect.owner, path(effect.owner),
                                 effect.key ? effect.key : py::object(py::none()), effect.index));
  py::dict data;
  data["modes"] = modes;
  data["registers"] = program().registers;
  data["captures"] = captures;
  data["scopes"] = scopes;
  data["steps"] = steps;
  data["writes"] = writes;
  data["result"] = tree_data(output_);
  return data;
}

py::object Trace::found(const Call& call) const {
  GuardTree::Values values;
  int failed = tree_.check(call.roots.data(), call.roots.size(), call.tensors, &values);
  if (failed < 0) failed = aliased(values);
  if (failed < 0) failed = merged(call, values);
  if (failed >= 0) return py::none();
  py::list captures;
  for (PyObject* tensor : values.captures) captures.append(borrowed(tensor));
  py::dict state;
  for (int node : needed_) state[py::int_(node)] = borrowed(values.nodes[node]);
  for (const Scope& scope : program().scopes)
    if (scope.module >= 0 && values.nodes[scope.module])
      state[py::int_(scope.module)] = borrowed(values.nodes[scope.module]);
  return py::make_tuple(captures, state);
}

}  // namespace lazytrace
