#include "recording.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <sstream>

#include "opaque_call.h"
#include "pytypes.h"

namespace lazytrace {

namespace {
thread_local Recording* current_recording = nullptr;
}

py::tuple place_tuple(const Place& place) {
  if (!place.code) return py::make_tuple("", 0, "");
  auto* code = reinterpret_cast<PyCodeObject*>(place.code);
  return py::make_tuple(text_of(code->co_filename), PyCode_Addr2Line(code, place.lasti),
                        text_of(code->co_name));
}

// ---------------------------------------------------------------- recording
Recording* Recording::active() { return current_recording; }

Recording::Recording(const Call& call) : observer_(&recorder_, &tree_) {
  for (size_t i = 0; i < call.roots.size(); ++i)
    observer_.add_root(call.roots[i], static_cast<Py_ssize_t>(i), call.structural[i]);
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    observer_.add_input(call.tensor_objects[i], static_cast<int>(i));
    recorder_.add_input(call.tensors[i]);
  }
}

Recording::~Recording() = default;

py::object Recording::run(py::object function, py::tuple args, py::dict kwargs) {
  struct Active {
    Recording* before = current_recording;
    explicit Active(Recording* now) { current_recording = now; }
    ~Active() { current_recording = before; }
  } active(this);
  RecordingScope scope(&recorder_);
  struct Watching {
    Recording* recording;
    explicit Watching(Recording* r) : recording(r) { r->observer_.start(); }
    ~Watching() { recording->replaced_ = !recording->observer_.stop(); }
  } watching(this);
  Modes before = Modes::current();
  PyObject* result = PyObject_Call(function.ptr(), args.ptr(), kwargs.ptr());
  if (!result) throw py::error_already_set();
  if (Modes::current() != before) recorder_.fail("leaves grad mode, inference mode or autocast switched");
  return py::reinterpret_steal<py::object>(result);
}

std::vector<py::object>& fed_results() {
  static thread_local std::vector<py::object> results;
  return results;
}

py::object fed_or_called(const py::object& function, const py::tuple& args, const py::dict& kwargs) {
  auto& fed = fed_results();
  if (fed.empty()) return function(*args, **kwargs);
  py::object result = fed.front();
  fed.erase(fed.begin());
  return result;
}

py::object Recording::opaque(py::object wrapper, const std::string& attribute, py::object function,
                             py::tuple args, py::dict kwargs, bool python) {
  if (recorder_.paused()) return function(*args, **kwargs);
  if (recorder_.failed()) return fed_or_called(function, args, kwargs);
  OpaqueCall call(&recorder_, &observer_, wrapper.ptr(), attribute, args.ptr(), kwargs.ptr(), python, true);
  py::object result = fed_or_called(function, args, kwargs);
  call.finish(result.ptr());
  return result;
}

py::object Recording::aside(py::object function) {
  struct Paused {
    Recording* recording;
    explicit Paused(Recording* r) : recording(r) { r->recorder_.pause(), r->observer_.pause(); }
    ~Paused() { recording->recorder_.resume(), recording->observer_.resume(); }
  } paused(this);
  return function();
}

Tree Recording::take_apart(PyObject* result, std::vector<std::pair<int, at::Tensor>>* tensors) {
  auto tensor = [&](PyObject* v) {
    const at::Tensor& t = THPVariable_Unpack(v);
    int reg = recorder_.output_register(t);
    bool plain = reinterpret_cast<PyObject*>(Py_TYPE(v)) == THPVariableClass;
    if (!plain && !recorder_.was_there(reg))
      throw std::runtime_error("returns a " + type_name(v) + " that it made");
    if (reg >= 0) tensors->emplace_back(reg, t);
    return reg;
  };
  auto state = [&](PyObject* v) {
    bool named = PyType_Check(v) || PyFunction_Check(v) || PyModule_Check(v) || PyCFunction_Check(v) ||
                 is_enum_member(v);
    int node = named && !observer_.made_here(v) ? observer_.reach(v) : observer_.known(v);
    if (node < 0 || observer_.by_path(node) || named) return node;
    throw std::runtime_error("returns a " + type_name(v) + " of unknown origin");
  };
  return Tree::of(result, {tensor, state});
}

// Guards on objects that were made during the call and are gone go; the numbers of the rest change.
bool Recording::renumber(Trace* trace) {
  std::vector<int> renamed = tree_.prune();
  bool complete = true;
  auto rename = [&](int& node) {
    node = renamed[node];
    complete &= node >= 0;
  };
  trace->output_.each_state(rename);
  for (Step& step : trace->program_->steps)
    if (step.opaque) {
      step.opaque->call.each_state(rename);
      step.opaque->function.each_state(rename);
    }
  const std::vector<int>& captures = recorder_.capture_nodes();
  for (size_t slot = 0; slot < captures.size(); ++slot) {
    int node = renamed[captures[slot]];
    if (node < 0) return false;
    tree_[node].capture = static_cast<int>(slot);
  }
  return complete;
}

std::shared_ptr<Trace> Recording::finish(py::object result) {
  if (replaced_) recorder_.fail("the trace function of the thread was replaced during the call");
  observer_.finish(result.ptr());
  auto trace = std::make_shared<Trace>();
  if (recorder_.failed()) return nullptr;
  try {
    trace->output_ = take_apart(result.ptr(), &trace->first_);
  } catch (const std::runtime_error& error) {
    recorder_.fail(error.what());
  }
  if (recorder_.failed()) return nullptr;
  std::vector<int> outputs;
  trace->output_.each_register([&](int reg) { outputs.push_back(reg); });
  trace->program_ = recorder_.finish(outputs);
  trace->program_->keep = observer_.take_codes();
  if (!renumber(trace.get())) recorder_.fail("uses a tensor or an object that was gone after the call");
  if (recorder_.failed()) return nullptr;
  trace->tree_ = std::move(tree_);
  return trace;
}

py::tuple Recording::where() const { return place_tuple(recorder_.failed_at()); }

// ---------------------------------------------------------------- replaying
Outcome Trace::run(const Call& call, std::vector<at::Tensor>* registers, GuardTree::Values* values,
                   int* failed) const {
  *failed = tree_.check(call.roots.data(), call.roots.size(), call.tensors, values);
  if (*failed >= 0) return {};
  registers->resize(program_->registers);
  std::copy(call.tensors.begin(), call.tensors.end(), registers->begin());
  for (size_t slot = 0; slot < program_->captures.size(); ++slot)
    (*registers)[program_->captures[slot]] = std::move(values->captures[slot]);
  return Runner(*program_, *registers, values->nodes).run();
}

py::object Trace::replay(const Call& call) const {
  std::vector<at::Tensor> registers;
  GuardTree::Values values;
  int failed = -1;
  Outcome outcome = run(call, &registers, &values, &failed);
  if (failed >= 0) return py::cast(Miss{failed, -1, false, "", {}});
  if (!outcome.ok())
    return py::cast(Miss{-1, outcome.step, outcome.effects, outcome.found, std::move(outcome.fed)});
  return output_.build({registers, values.nodes});
}

int Trace::check(const Call& call) const {
  GuardTree::Values values;
  return tree_.check(call.roots.data(), call.roots.size(), call.tensors, &values);
}

py::tuple Trace::explain(int node, const Call& call, const std::vector<std::string>& names) const {
  return tree_.explain(node, call.roots.data(), call.roots.size(), names);
}

namespace {

bool close(const at::Tensor& a, const at::Tensor& b);

// A few dtypes have no kernel to be compared with; their operators ran all the same.
bool comparable_and_close(const at::Tensor& a, const at::Tensor& b) {
  try {
    return close(a, b);
  } catch (const c10::Error&) {
    return true;
  }
}

bool close(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b)) return true;
  at::NoGradGuard no_grad;
  if (a.layout() != at::kStrided) return a.layout() == b.layout() && close(a.to_dense(), b.to_dense());
  if (a.device().is_meta() || a.is_quantized()) return true;
  if (!a.is_floating_point() && !a.is_complex()) return at::equal(a.resolve_neg(), b.resolve_neg());
  if (a.numel() == 0) return true;
  auto wide = a.is_complex() ? at::kComplexDouble : at::kDouble;
  double tolerance =
      a.element_size() < 4 ? 1e-2 : 1e-4;  // kernels may add in another order from call to call
  return at::allclose(a.to(wide), b.to(wide), tolerance, tolerance, true);
}

}  // namespace

std::string Trace::prove(const Call& call) {
  auto first = std::move(first_);
  first_.clear();
  if (program_->effects || program_->random) return "";
  for (const Step& step : program_->steps)
    if (step.opaque && step.opaque->python) return "";  // Python code runs once per call
  std::vector<at::Tensor> registers;
  GuardTree::Values values;
  int failed = -1;
  Outcome outcome = run(call, &registers, &values, &failed);
  if (failed >= 0) return "";  // a guard that does not hold is a retrace, not a wrong result
  if (!outcome.ok()) return "step " + std::to_string(outcome.step) + " gave " + outcome.found;
  for (auto& [reg, tensor] : first) {
    const at::Tensor& again = registers[reg];
    if (!TensorMeta::of(tensor).matches(again))
      return "output differs: " + TensorMeta::of(tensor).difference(again);
    if (!comparable_and_close(tensor, again)) return "output differs in value";
  }
  return "";
}

// ---------------------------------------------------------------- showing
namespace {

py::object constant(const c10::IValue& value) {
  if (value.isTensor() && !value.toTensor().defined()) return py::none();
  try {
    return torch::jit::toPyObject(value);
  } catch (const std::exception&) {
    return py::str("<constant>");
  }
}

py::object argument_row(const Argument& argument) {
  if (argument.kind == Argument::Kind::Register) return py::make_tuple("r", argument.reg);
  if (argument.kind == Argument::Kind::List) return py::make_tuple("l", argument.list);
  return py::make_tuple("c", constant(argument.constant));
}

py::object result_row(const Result& result) {
  if (result.kind == Result::Kind::Register) return py::make_tuple("r", result.reg, result.meta.text());
  if (result.kind == Result::Kind::Read) return py::make_tuple("read", constant(result.read), "");
  if (result.kind == Result::Kind::Ignored) return py::make_tuple("none", py::none(), "");
  py::list list;
  for (auto& one : result.list) list.append(result_row(one));
  return py::make_tuple("l", list, "");
}

const char* kind_name(Step::Kind kind) {
  switch (kind) {
    case Step::Kind::Operator:
      return "operator";
    case Step::Kind::Literal:
      return "literal";
    case Step::Kind::Data:
      return "data";
    case Step::Kind::RequireGrad:
      return "requires_grad";
    case Step::Kind::Opaque:
      return "opaque";
  }
  return "";
}

}  // namespace

py::list Trace::rows() const {
  py::list rows;
  for (const Step& step : program_->steps) {
    py::list arguments, names, results;
    for (auto& argument : step.arguments) arguments.append(argument_row(argument));
    for (auto& argument : step.op.schema().arguments())
      names.append(py::make_tuple(argument.name(), argument.kwarg_only()));
    for (auto& result : step.results) results.append(result_row(result));
    py::dict row;
    row["kind"] = kind_name(step.kind);
    row["operator"] = step.kind == Step::Kind::Opaque ? step.opaque->name : step.op.schema().name();
    row["overload"] = step.op.schema().overload_name();
    row["arguments"] = arguments;
    row["names"] = names;
    row["results"] = results;
    row["modes"] = step.modes >= 0 ? py::object(py::str(program_->modes[step.modes].text())) : py::none();
    row["place"] = place_tuple(step.place);
    row["frees"] = step.frees;
    row["literal"] = step.literal.defined() ? py::cast(step.literal) : py::none();
    rows.append(row);
  }
  return rows;
}

py::list Trace::guard_rows(const std::vector<std::string>& names) const {
  py::list rows;
  for (size_t i = 0; i < tree_.size(); ++i)
    if (tree_[i].expect != Expect::Anything || tree_[i].length >= 0)
      rows.append(
          py::make_tuple(tree_.path(static_cast<int>(i), names), tree_.expected(tree_[i]), tree_[i].capture));
  return rows;
}

py::list Trace::output_registers() const {
  py::list list;
  output_.each_register([&](int reg) { list.append(reg); });
  return list;
}

}  // namespace lazytrace
