#include "trace/stored.h"

#include <ATen/ScalarOps.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <stdexcept>

#include "replay/workspace.h"
#include "torch/facts.h"

namespace lazytrace {

namespace {

[[noreturn]] void refuse(const std::string& why) { throw std::runtime_error(why); }

class Reading {
 public:
  explicit Reading(const py::dict& data) : data_(data) {}

  std::vector<std::shared_ptr<const TensorMeta>> looks;  // of the captures

  std::shared_ptr<const Program> program(const std::vector<int>& outputs) {
    program_ = std::make_shared<Program>();
    program_->registers = data_["registers"].cast<int>();
    program_->inputs = data_["inputs"].cast<int>();
    if (program_->inputs < 0 || program_->registers < program_->inputs || program_->registers > 10000000)
      refuse("its registers are out of range");
    set_.assign(static_cast<size_t>(program_->registers), 0);
    for (int i = 0; i < program_->inputs; ++i) set_[i] = 1;
    for (py::handle row : data_["captures"]) {
      program_->captures.push_back(define(row[py::int_(0)].cast<int>(), false));
      looks.push_back(meta(row[py::int_(1)]));
    }
    for (py::handle row : data_["modes"]) program_->modes.push_back(modes(row));
    if (program_->modes.empty()) refuse("it has no modes");
    for (py::handle row : data_["steps"]) program_->steps.push_back(step(row));
    for (int reg : outputs) use(reg);
    finish();
    return program_;
  }

 private:
  int define(int reg, bool known) {
    if (reg < 0 || reg >= program_->registers) refuse("a register is out of range");
    if (known && !set_[reg]) refuse("a register is used before it is set");
    set_[reg] = 1;
    return reg;
  }

  int use(int reg) const {
    if (reg < 0 || reg >= program_->registers || !set_[reg]) refuse("a register is used before it is set");
    return reg;
  }

  static Modes modes(py::handle row) {
    Modes modes = Modes::current();
    modes.grad = row["grad"].cast<bool>();
    modes.inference = row["inference"].cast<bool>();
    modes.autocast_cache = row["autocast_cache"].cast<bool>();
    modes.leave_autocast();
    modes.autocast_region = row["autocast_region"].cast<int>();
    if (modes.autocast_region < 0) refuse("it is in a region of autocast that cannot be");
    for (py::handle one : row["autocast"]) {
      auto device = c10::Device(one[py::int_(0)].cast<std::string>()).type();
      bool found = false;
      for (size_t i = 0; i < kAutocastCount; ++i) {
        if (kAutocastDevices[i] != device) continue;
        modes.autocast[i] = found = true;
        modes.autocast_dtype[i] = dtype(one[py::int_(1)]);
      }
      if (!found) refuse("it has autocast for a device that torch does not know");
    }
    for (auto& [name, value] : row["switches"].cast<py::dict>()) {
      int one = switch_called(name.cast<std::string>());
      if (one < 0 || value.cast<int32_t>() < 0) refuse("it sets a switch that torch does not know");
      modes.switches.put(static_cast<size_t>(one), value.cast<int32_t>());
    }
    return modes;
  }

  static c10::ScalarType dtype(py::handle object) {
    if (!THPDtype_Check(object.ptr())) refuse("a dtype is none");
    return reinterpret_cast<THPDtype*>(object.ptr())->scalar_type;
  }

  Step step(py::handle row) {
    auto kind = row["kind"].cast<std::string>();
    auto name = row["operator"].cast<std::string>(), overload = row["overload"].cast<std::string>();
    auto found = c10::Dispatcher::singleton().findSchema({name, overload});
    if (!found) refuse("torch does not know the operator " + name + (overload.empty() ? "" : "." + overload));
    Step step(kind_of(kind), *found);
    arguments(row, &step);
    step.gives_either = step.kind == Step::Kind::Operator && facts_of(step.op).gives_either;
    for (py::handle one : row["results"]) step.results.push_back(result(one));
    if (step.kind == Step::Kind::Operator && step.results.size() != found->schema().returns().size())
      refuse(name + " gives another number of results");
    step.modes = row["modes"].cast<int>();
    if (step.modes >= static_cast<int>(program_->modes.size())) refuse("its modes are out of range");
    if (!row["literal"].is_none()) step.literal = row["literal"].cast<at::Tensor>();
    bool literal = step.kind == Step::Kind::Literal || step.kind == Step::Kind::Fill;
    if (literal != step.literal.defined()) refuse("a literal has no tensor");
    step.random = row["random"].cast<bool>();
    step.effect = row["effect"].cast<bool>();
    step.exit = row["exit"].cast<bool>();
    step.below = row["below"].cast<bool>();
    step.filled = row["filled"].cast<bool>();
    step.python = row["python"].cast<bool>();
    check_shape_of(step);
    return step;
  }

  static Step::Kind kind_of(const std::string& kind) {
    if (kind == "operator") return Step::Kind::Operator;
    if (kind == "literal") return Step::Kind::Literal;
    if (kind == "fill") return Step::Kind::Fill;
    if (kind == "data") return Step::Kind::Data;
    refuse("a step of kind " + kind + " cannot be loaded");
  }

  // What the interpreter takes for granted of the steps that are no operators.
  static void check_shape_of(const Step& step) {
    if (step.kind == Step::Kind::Operator) return;
    bool takes = step.kind == Step::Kind::Fill || step.kind == Step::Kind::Data;
    bool fits = step.arguments.size() == (takes ? 1 : 0) && step.results.size() <= 1;
    fits &= !takes || step.arguments[0].kind == Argument::Kind::Register;
    fits &= step.kind == Step::Kind::Fill || step.results.size() == 1;
    for (auto& result : step.results) fits &= result.kind == Result::Kind::Register && result.reg >= 0;
    if (!fits) refuse("a step has another form than it needs");
  }

  void arguments(py::handle row, Step* step) {
    auto& schema = step->op.schema().arguments();
    size_t at = 0;
    for (py::handle encoded : row["arguments"]) {
      if (step->kind == Step::Kind::Operator && at >= schema.size())
        refuse(step->op.schema().name() + " takes fewer arguments");
      auto kind = encoded[py::int_(0)].cast<std::string>();
      py::object value = encoded[py::int_(1)];
      step->arguments.push_back(argument(kind, value, at < schema.size() ? schema[at].type() : nullptr));
      ++at;
    }
    if (step->kind == Step::Kind::Operator && at != schema.size())
      refuse(step->op.schema().name() + " takes more arguments");
  }

  Argument argument(const std::string& kind, const py::object& value, const c10::TypePtr& type) {
    Argument argument;
    c10::TypePtr inner = type;
    if (inner)
      if (auto optional = inner->cast<c10::OptionalType>()) inner = optional->getElementType();
    if (kind == "register") {
      if (inner && inner->kind() != c10::TypeKind::TensorType) refuse("a tensor stands where none can");
      argument.kind = Argument::Kind::Register;
      argument.reg = use(value.cast<int>());
    } else if (kind == "registers") {
      if (!inner || inner->kind() != c10::TypeKind::ListType) refuse("a list stands where none can");
      auto element = inner->cast<c10::ListType>()->getElementType();
      argument.optional_list = element->kind() == c10::TypeKind::OptionalType;
      if (argument.optional_list) element = element->cast<c10::OptionalType>()->getElementType();
      if (element->kind() != c10::TypeKind::TensorType) refuse("a list of tensors stands where none can");
      argument.kind = Argument::Kind::List;
      for (py::handle reg : value) {
        if (reg.is_none() && !argument.optional_list) refuse("None stands in a list of tensors");
        argument.list.push_back(reg.is_none() ? -1 : use(reg.cast<int>()));
      }
    } else if (kind == "number") {  // the tensor that torch makes of a Python number
      if (!inner || inner->kind() != c10::TypeKind::TensorType) refuse("a number stands where none can");
      argument.constant = number(value);
    } else if (kind == "constant") {
      argument.constant = constant(value, type, inner);
    } else {
      refuse("an argument of kind " + kind + " cannot be loaded");
    }
    return argument;
  }

  static at::Tensor number(const py::object& value) {
    PyObject* v = value.ptr();
    if (!PyBool_Check(v) && !PyLong_Check(v) && !PyFloat_Check(v) && !PyComplex_Check(v))
      refuse("a value stands where a tensor must");
    at::Tensor tensor = c10::scalar_to_tensor(torch::jit::toIValue(value, c10::NumberType::get()).toScalar());
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    return tensor;
  }

  static c10::IValue constant(const py::object& value, const c10::TypePtr& type, const c10::TypePtr& inner) {
    if (!type) refuse("an argument has no type");
    bool tensor = inner->kind() == c10::TypeKind::TensorType;
    if (tensor && !value.is_none()) return number(value);
    // What operators are given for an optional tensor that is None is one that is not defined.
    if (tensor)
      return type->kind() == c10::TypeKind::OptionalType ? c10::IValue() : c10::IValue(at::Tensor());
    try {
      return torch::jit::toIValue(value, type);
    } catch (const py::cast_error&) {
      refuse("an argument does not fit the type " + type->str());
    }
  }

  Result result(py::handle row) {
    auto kind = row["kind"].cast<std::string>();
    Result result;
    if (kind == "register") {
      result.known = row["known"].cast<bool>();
      int reg = row["register"].cast<int>();
      result.reg = reg < 0 ? -1 : define(reg, result.known);
      if (int base = row["base"].cast<int>(); base >= 0) result.base = use(base);
      result.distance = row["distance"].cast<int64_t>();
      result.meta = meta(row["meta"]);
    } else if (kind == "list") {
      result.kind = Result::Kind::List;
      for (py::handle one : row["list"]) result.list.push_back(this->result(one));
      for (auto& one : result.list)
        if (one.kind == Result::Kind::List) refuse("a result is nested too deeply");
    } else if (kind == "read") {
      result.kind = Result::Kind::Read;
      result.read = plain(row["value"].ptr());
    } else if (kind == "ignored") {
      result.kind = Result::Kind::Ignored;
    } else {
      refuse("a result of kind " + kind + " cannot be loaded");
    }
    return result;
  }

  // What Python can have seen of a tensor's values.
  static c10::IValue plain(PyObject* value) {
    if (PyBool_Check(value)) return value == Py_True;
    if (PyLong_Check(value)) return py::handle(value).cast<int64_t>();
    if (PyFloat_Check(value)) return PyFloat_AS_DOUBLE(value);
    if (PyComplex_Check(value)) return py::handle(value).cast<c10::complex<double>>();
    refuse("a value that was read is no number");
  }

  static std::shared_ptr<const TensorMeta> meta(const py::object& row) {
    if (row.is_none()) return TensorMeta::undefined();
    auto sizes = row["shape"].cast<std::vector<int64_t>>();
    std::optional<c10::IntArrayRef> strides;
    std::vector<int64_t> given;
    if (!row["stride"].is_none()) {
      given = row["stride"].cast<std::vector<int64_t>>();
      if (given.size() != sizes.size()) refuse("a tensor has other numbers of sizes and strides");
      strides = given;
    }
    if (!THPDevice_Check(row["device"].ptr())) refuse("a device is none");
    c10::Device device = reinterpret_cast<THPDevice*>(row["device"].ptr())->device;
    return std::make_shared<const TensorMeta>(TensorMeta::made(dtype(row["dtype"]), device,
                                                               row["requires_grad"].cast<bool>(),
                                                               row["keys"].cast<uint64_t>(), sizes, strides));
  }

  void finish() {
    for (const Step& step : program_->steps) {
      program_->effects |= step.effect;
      program_->random |= step.random;
    }
    // Nothing can be resumed, as there is no function.
    program_->unresumable = -1;
  }

  const py::dict& data_;
  std::shared_ptr<Program> program_;
  std::vector<char> set_;
};

}  // namespace

StoredProgram::StoredProgram(const py::dict& data, std::vector<int> outputs) : outputs_(std::move(outputs)) {
  Reading reading(data);
  plan_ = make_plan(reading.program(outputs_), outputs_);
  looks_ = std::move(reading.looks);
}

py::object StoredProgram::run(const std::vector<at::Tensor>& inputs,
                              const std::vector<at::Tensor>& captures) const {
  const Program& program = plan_->program();
  if (inputs.size() != static_cast<size_t>(program.inputs) || captures.size() != program.captures.size())
    throw std::invalid_argument("another number of tensors than the program takes");
  for (size_t i = 0; i < captures.size(); ++i)
    if (!looks_[i]->matches(captures[i]))
      return py::make_tuple(-1 - static_cast<int>(i), looks_[i]->difference(captures[i]), false);
  WorkspaceLease space;
  std::vector<at::Tensor>& registers = space->registers;
  registers.resize(static_cast<size_t>(program.registers));
  for (int reg : plan_->used) registers[reg] = inputs[reg];
  for (size_t i = 0; i < captures.size(); ++i) registers[program.captures[i]] = captures[i];
  std::vector<PyObject*> state;
  Outcome outcome = Interpreter(*plan_, registers, state, space->opaque, space->early, space->memory).run();
  if (!outcome.ok()) {
    bool changed = plan_->changed_before(static_cast<size_t>(outcome.step));
    return py::make_tuple(outcome.step, outcome.found, changed);
  }
  py::list tensors;
  for (int reg : outputs_)
    tensors.append(py::reinterpret_steal<py::object>(THPVariable_Wrap(registers[reg])));
  return std::move(tensors);
}

}  // namespace lazytrace
