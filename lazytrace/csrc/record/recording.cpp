#include "record/recording.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "cpython/array_memory.h"
#include "cpython/callee.h"
#include "cpython/carrier.h"
#include "cpython/ends.h"
#include "cpython/frame.h"
#include "cpython/hide_frames.h"
#include "cpython/imports.h"
#include "cpython/lru_cache.h"
#include "cpython/objects.h"
#include "cpython/text_carrier.h"
#include "guard/earlier_state.h"
#include "record/handle_count.h"
#include "record/python/asked.h"
#include "record/python/variables_with.h"
#include "signature/ambient.h"
#include "support/reasons.h"
#include "torch/autograd_graph.h"
#include "torch/batched.h"
#include "torch/record_key.h"
#include "torch/transforms.h"

namespace lazytrace {

namespace {
thread_local Recording* current_recording = nullptr;
}

// Such a read has no place in the code of the function.
std::vector<std::pair<int, int64_t>> fixed_sizes(const Program& program) {
  std::vector<std::pair<int, int64_t>> found;
  for (const Step& step : program.steps) {
    if (step.kind != Step::Kind::Read || step.place.code) break;
    const Number& number = program.numbers[static_cast<size_t>(step.arguments[0].reg)];
    if (number.kind != Number::Kind::Size || number.reg >= program.inputs) break;
    found.emplace_back(number.reg, number.which);
  }
  return found;
}

namespace {
// Whether all places that were written to have by now the very object that they had before the call, as the
// parameters of a module behind functional_call(): nobody finds that they were written to.
bool hold_what_they_held(const std::vector<Writes::Write>& writes) {
  return std::all_of(writes.begin(), writes.end(), [](const Writes::Write& write) {
    Effect::Kind kind = write.effect.kind;
    bool entry = kind == Effect::Kind::Attribute || kind == Effect::Kind::Item || kind == Effect::Kind::At ||
                 kind == Effect::Kind::Cell;
    return entry && !write.effect.moves && write.value.is(write.original);
  });
}
}  // namespace

// ---------------------------------------------------------------- recording
Recording* Recording::active() { return current_recording; }

Recording::Recording(Call& call, std::shared_ptr<Resume> resume, bool dynamic, bool numbers,
                     bool loose_numbers)
    : observer_(&recorder_, &tree_) {
  know_asked_of_numpy();
  if (resume) {
    dynamic = resume->program->dynamic;
    numbers = resume->program->follows_numbers;
    loose_numbers = resume->program->loose_numbers;
  }
  if (dynamic || numbers || loose_numbers) {
    recorder_.follow_numbers(dynamic, loose_numbers);
    observer_.follow_numbers();
  }
  if (loose_numbers) {
    passed_ = call.numbers;
    passes_constants_ = call.constants.size() > 0;
    observer_.leave_values();
  }
  for (auto& [reg, dim] : resume ? fixed_sizes(*resume->program) : std::vector<std::pair<int, int64_t>>())
    fixed_.emplace_back(call.tensor(static_cast<size_t>(reg)), dim);
  family_ = resume ? resume->family : std::make_shared<Family>();
  if (resume) {
    std::vector<std::string> names = resume->program->root_names;
    recorder_.feed(std::move(resume));
    if (recorder_.follows_state()) follow_state({}, names);
  }
  recorder_.would_catch = [this] {
    if (observer_.writes().empty()) return observer_.would_catch();
    py::gil_scoped_acquire gil;
    if (hold_what_they_held(observer_.writes())) return observer_.would_catch();
    observer_.watch_writes();
    return true;
  };
  recorder_.catches = [this] { return observer_.would_catch(); };
  recorder_.look_away = [this](bool away) { away ? observer_.pause() : observer_.resume(); };
  recorder_.has_written = [this] { return !observer_.writes().empty(); };
  observer_.comes_from(&call);
  for (size_t i = 0; i < call.roots.size(); ++i)
    observer_.add_root(call.roots[i], static_cast<Py_ssize_t>(i), call.kinds[i]);
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    observer_.add_input(call.tensors[i], static_cast<int>(i));
    recorder_.add_input(call.tensor(i));
  }
  for (auto& [array, number] : call.arrays)
    observer_.unseen()->add_given(array, call.tensors[static_cast<size_t>(number)]);
}

Recording::~Recording() = default;

namespace {
// The name of the parameter that an argument at this place is for, as far as the code has one.
std::string name_of_argument(PyObject* function, Py_ssize_t place) {
  bool method = PyMethod_Check(function);
  PyObject* plain = method ? PyMethod_GET_FUNCTION(function) : function;
  auto* code =
      PyFunction_Check(plain) ? reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(plain)) : nullptr;
  Py_ssize_t index = place + method;
  if (!code || index >= code->co_argcount) return "argument " + std::to_string(place);
  return text_of(PyTuple_GET_ITEM(code->co_localsplusnames, index));
}
}  // namespace

// In place of ints and floats, of which C code that is called by nobody but us would see the values.
void Recording::put_carriers(PyObject* function, py::tuple* args, py::dict* kwargs) {
  if ((passed_.empty() && !passes_constants_) || !recorder_.numbers()) return;
  bool watched = PyFunction_Check(function) || PyMethod_Check(function) || is_python_class(Py_TYPE(function));
  if (!watched) return recorder_.fail(say(reason::SizesNotPassed));
  py::list positional(*args);
  py::dict named;
  std::vector<py::object> names;
  for (auto item : *kwargs) {
    names.push_back(py::reinterpret_borrow<py::object>(item.first));
    named[item.first] = item.second;
  }
  for (size_t i = 0; i < passed_.size(); ++i) {
    const Call::PassedNumber& passed = passed_[i];
    // A default that the function itself reads: nobody can give it another.
    if (passed.place == Call::kDefault) return recorder_.fail(say(reason::SizesNotPassed));
    if (passed.place == Call::kInside) continue;
    NumberValue value;
    std::memcpy(&value, &passed.value, sizeof value);
    py::object name = passed.place < 0 ? names[static_cast<size_t>(-1 - passed.place)] : py::object();
    std::string label = name ? text_of(name.ptr()) : name_of_argument(function, passed.place);
    NumberRecorder& numbers = *recorder_.numbers();
    int id = numbers.given(Number::Kind::Argument, static_cast<int64_t>(i), passed.real, value, label);
    py::object given =
        name ? py::object(named[name]) : py::object(positional[static_cast<size_t>(passed.place)]);
    id = number_like(&numbers, id, given.ptr());
    auto carrier = py::reinterpret_steal<py::object>(numbers.carrier_of(id, given.ptr()));
    if (name)
      named[name] = carrier;
    else
      positional[static_cast<size_t>(passed.place)] = carrier;
  }
  *args = py::tuple(positional);
  *kwargs = named;
}

PyObject* call_as_caller(const py::object& function, const py::tuple& args, const py::dict& kwargs) {
  HideFrames hidden(is_engine_code);
  return PyObject_Call(function.ptr(), args.ptr(), kwargs.ptr());
}

py::object Recording::call(py::object function, py::tuple args, py::dict kwargs) {
  struct Active {
    Recording* before = current_recording;
    explicit Active(Recording* now) { current_recording = now; }
    ~Active() { current_recording = before; }
  } active(this);
  // Up to the step that has changed it, the function finds the state of before the call.
  struct Earlier {
    EarlierState* state;
    explicit Earlier(EarlierState* s) : state(s) {
      if (state) state->show();
    }
    ~Earlier() {
      if (state) state->hide();
    }
  } earlier(recorder_.earlier());
  RecordingScope scope(&recorder_);
  put_carriers(function.ptr(), &args, &kwargs);
  read_fixed_sizes();
  struct Watching {
    Recording* recording;
    explicit Watching(Recording* r) : recording(r) { r->observer_.start(); }
    ~Watching() { recording->replaced_ = !recording->observer_.stop(); }
  } watching(this);
  Modes before = Modes::current();
  py::object result = py::reinterpret_steal<py::object>(call_as_caller(function, args, kwargs));
  // Whoever catches what was raised must find plain numbers.
  if (auto* numbers = result ? nullptr : recorder_.numbers()) numbers->end();
  if (result && Modes::current() != before) recorder_.fail(say(reason::LeavesModes));
  return result;
}

py::object Recording::run(py::object function, py::tuple args, py::dict kwargs) {
  struct Regions {
    Recorder& recorder;
    ~Regions() { recorder.leave_region(); }
  } regions{recorder_};
  py::object result;
  try {
    result = call(std::move(function), std::move(args), std::move(kwargs));
  } catch (py::error_already_set&) {
    recorder_.leave_out_last_reads();
    if (recorder_.divergence().empty()) throw;  // or before the function has run at all
  }
  // Python code may have caught what was raised, and C code may have swallowed it: the function has run to
  // its end then. What it wrote is asked for here, as what is settled leaves out what no replay would write
  // again.
  bool wrote = !observer_.writes().empty();
  if (result) read_sizes_at_end(result);
  recorder_.leave_out_last_reads();
  std::string diverged = recorder_.divergence();
  if (!diverged.empty()) {
    PyErr_Clear();  // the same, on its way through the function
    py::object divergence = py::handle(divergence_type())(diverged);
    divergence.attr("wrote") = wrote;
    PyErr_SetObject(divergence_type(), divergence.ptr());
    throw py::error_already_set();
  }
  if (!result) throw py::error_already_set();
  return result;
}

void Recording::read_fixed_sizes() {
  for (auto& [tensor, dim] : fixed_) {
    int id = recorder_.numbers() ? recorder_.size_number(Number::Kind::Size, tensor, dim) : -1;
    if (id >= 0) recorder_.numbers()->read(id);
  }
}

// Sizes in the result and in what was written are read once all is known. Where the function is fed, the step
// at which the replay left may be one of these.
void Recording::read_sizes_at_end(const py::object& result) {
  if (!recorder_.feeding() || !recorder_.numbers()) return;
  std::vector<std::pair<int, at::Tensor>> tensors;
  try {
    take_apart(all_that_is_left(result).ptr(), &tensors);
  } catch (const std::runtime_error&) {
    // finish() meets the same, and says it.
  }
}

// The result and what was written are one value: what is the same object in both stays so.
py::tuple Recording::all_that_is_left(const py::object& result) {
  if (!std::exchange(settled_, true)) observer_.settle_writes();
  py::list parts;
  parts.append(result);
  if (recorder_.failed()) return py::tuple(parts);
  for (auto& one : observer_.writes()) parts.append(one.value);
  return py::tuple(parts);
}

namespace {
py::object plain_of(py::handle value) {
  PyObject* plain = plain_of_followed(value.ptr());
  if (!plain) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(plain);
}

// Of lists, tuples and dicts of the call's own with such numbers in them: such with plain numbers. Each is
// gone through once, as it may lie in many places, and in itself.
class PlainInside {
 public:
  explicit PlainInside(const Provenance& provenance) : provenance_(provenance) {}

  // Whether one lies in itself, or too deep: it is left as it is.
  bool left_any() const { return left_any_; }

  py::object of(py::handle value, int depth = 0) {
    constexpr int kDeepest = 100;
    bool sequence = PyTuple_CheckExact(value.ptr()) || PyList_CheckExact(value.ptr());
    bool walked = sequence || PyDict_CheckExact(value.ptr());
    if (!walked || provenance_.known(value.ptr()) >= 0) return plain_of(value);
    auto [known, missing] = made_.try_emplace(value.ptr());
    if (!missing && known->second) return known->second;
    if (!missing || depth > kDeepest) {
      left_any_ = true;
      return py::reinterpret_borrow<py::object>(value);
    }
    py::object made = sequence ? of_sequence(value, depth + 1) : of_dict(value, depth + 1);
    return made_[value.ptr()] = std::move(made);
  }

 private:
  py::object of_sequence(py::handle value, int depth) {
    py::list items;
    bool changed = false;
    for (py::handle item : value) {
      py::object plain = of(item, depth);
      changed |= !plain.is(item);
      items.append(plain);
    }
    if (!changed) return py::reinterpret_borrow<py::object>(value);
    return PyTuple_CheckExact(value.ptr()) ? py::object(py::tuple(items)) : py::object(items);
  }

  py::object of_dict(py::handle value, int depth) {
    py::dict entries;
    bool changed = false;
    for (auto [key, item] : py::reinterpret_borrow<py::dict>(value)) {
      py::object plain = of(item, depth);
      changed |= !plain.is(item);
      entries[key] = plain;
    }
    return changed ? py::object(entries) : py::reinterpret_borrow<py::object>(value);
  }

  const Provenance& provenance_;
  std::unordered_map<PyObject*, py::object> made_;
  bool left_any_ = false;
};
}  // namespace

namespace {
// What an opaque function does with a number is not followed.
std::pair<py::tuple, py::dict> with_plain_numbers(const py::tuple& args, const py::dict& kwargs) {
  py::tuple plain(args.size());
  for (size_t i = 0; i < args.size(); ++i) plain[i] = plain_of(args[i]);
  py::dict named;
  for (auto [name, value] : kwargs) named[name] = plain_of(value);
  return {plain, named};
}
}  // namespace

py::object Recording::opaque(py::object wrapper, const std::string& attribute, py::object function,
                             py::tuple args, py::dict kwargs, bool python, bool told, bool draws) {
  if (recorder_.in_block() && python && is_pure(wrapper, args, kwargs)) {
    WatchedBlocks::Unwatched unwatched(*blocks_);
    blocks_->meet_function(wrapper.ptr());
    return function(*args, **kwargs);
  }
  if (!recorder_.takes_steps()) return function(*args, **kwargs);
  bool pure = python && is_pure(wrapper, args, kwargs);
  OpaqueCall call(observer_.surroundings(), wrapper.ptr(), attribute, args.ptr(), kwargs.ptr(),
                  python && !pure, true);
  static PyObject* const next = builtin("next");
  if (told) call.is_told();
  if (draws) call.draws();
  if (function.ptr() == next) call.varies();
  if (pure) call.is_pure(wrapper.ptr());
  auto [plain, named] = with_plain_numbers(args, kwargs);
  return make_opaque(&call, function, plain, named);
}

void Recording::begin_entry(const py::object& cache) {
  auto beginner = py::reinterpret_borrow<py::object>(entry_beginner());
  opaque(beginner, "", beginner, py::make_tuple(cache), {}, true, true, false);
}

py::object Recording::keep_entry(const py::object& cache, const py::tuple& args, const py::object& made) {
  CachedEntries* entries = observer_.cached_entries();
  py::object call = recorder_.takes_steps() ? entries->kept_by_step(cache, args, made) : py::object();
  if (!call) {
    recorder_.fail("calls a function with a functools cache, which has no entry for the call");
    // It may be, or hold, what stands for an entry of another cache.
    py::object own = as_it_would_be(made);
    if (!put_cached(cache.ptr(), args.ptr(), own.ptr())) throw py::error_already_set();
    return own;
  }
  auto keeper = py::reinterpret_borrow<py::object>(entry_keeper());
  opaque(keeper, "", keeper, call, {}, true, true, false);
  entries->stand_for_kept(cache, args, made);
  return made;
}

// Whether it is a custom function of autograd whose code comes to operators alone. Under a transform of
// torch.func its operators are those of the transform.
bool Recording::is_pure(const py::object& function, const py::tuple& args, const py::dict& kwargs) {
  if (!PyType_Check(function.ptr()) || !kwargs.empty()) return false;
  if (is_transforming()) return false;
  PureFunctions* functions = observer_.pure_functions();
  if (!functions->knows(function.ptr())) {
    Aside here(this);
    py::object reads = reads_of_function(function.ptr());
    functions->meet(function.ptr(), reads);
  }
  bool pure = functions->takes(function.ptr(), args);
  if (pure) recorder_.know_pure(function.ptr());
  return pure;
}

// A class method is asked of its class again.
py::object Recording::whole(py::object function, py::tuple args, py::dict kwargs) {
  if (!recorder_.in_block() && !recorder_.takes_steps()) return function(*args, **kwargs);
  PyObject* cls = args.empty() ? nullptr : args[0].ptr();
  PyObject* name = reinterpret_cast<PyFunctionObject*>(function.ptr())->func_name;
  PyObject* found =
      cls && PyType_Check(cls) ? _PyType_Lookup(reinterpret_cast<PyTypeObject*>(cls), name) : nullptr;
  bool of_class = found && Py_IS_TYPE(found, &PyClassMethod_Type) &&
                  py::object(py::handle(found).attr("__func__")).is(function);
  py::tuple rest = args[py::slice(1, static_cast<Py_ssize_t>(args.size()), 1)];
  if (is_transforming() && cls && kwargs.empty())
    if (py::object forward = forward_alone(args[0], rest)) return forward(*rest);
  if (!of_class) return opaque(function, "", function, args, kwargs, true);
  py::object method = py::reinterpret_steal<py::object>(PyMethod_New(function.ptr(), cls));
  return opaque(py::reinterpret_borrow<py::object>(cls), text_of(name), method, rest, kwargs, true);
}

namespace {
// Whether nothing but torch's own code is around the function that is checkpointed.
bool runs_alone(const py::tuple& args, const py::dict& kwargs) {
  return !args.empty() && kwargs.contains("use_reentrant") && !kwargs.contains("context_fn") &&
         !kwargs.contains("debug");
}

// The custom function of autograd by which torch runs it where a pass of its own runs it again.
const void* reentrant_function() {
  static PyObject* const function =
      from_module("torch.utils.checkpoint", "CheckpointFunction").release().ptr();
  return function;
}
}  // namespace

bool Recording::may_watch() const {
  return watches_blocks_ && !recorder_.feeding() && !recorder_.follows_sizes();
}

const std::shared_ptr<WatchedBlocks>& Recording::blocks() {
  if (!blocks_) blocks_ = std::make_shared<WatchedBlocks>(observer_.surroundings());
  return blocks_;
}

py::object Recording::checkpoint(py::object function, const py::object& switches, py::tuple args,
                                 py::dict kwargs) {
  bool inside = recorder_.in_block();
  bool fits = may_watch() && runs_alone(args, kwargs);
  PureFunctions* functions = observer_.pure_functions();
  if (fits && !inside && !functions->knows(function.ptr())) functions->meet(function.ptr(), switches);
  if (!fits || !functions->is(function.ptr()) || !(inside || recorder_.takes_steps()))
    return whole(function, args, kwargs);
  if (!inside) return watched(function, args, kwargs);
  WatchedBlocks::Unwatched unwatched(*blocks_);
  auto [given, named] = with_plain_numbers(args, kwargs);
  given[0] = blocks_->instead_of(given[0]);
  return function(*given, **named);
}

py::object Recording::watched(const py::object& function, const py::tuple& args, const py::dict& kwargs) {
  OpaqueCall call(observer_.surroundings(), function.ptr(), "", args.ptr(), kwargs.ptr(), true, true, true);
  WatchedBlocks::Running running(blocks(), &call);
  recorder_.know_pure(reentrant_function());
  call.meet_function(reentrant_function());
  auto [given, named] = with_plain_numbers(args, kwargs);
  given[0] = blocks_->instead_of(given[0]);
  return make_opaque(&call, function, given, named);
}

// Under a transform a custom function cannot stay whole: its arguments belong to the transform. Of one of
// torch's that keeps nothing, its forward method does all that there is to do.
py::object Recording::forward_alone(const py::object& cls, const py::tuple& args) {
  static PyObject* const ask = from_module("lazytrace.pure", "forward_alone").release().ptr();
  py::object found;
  {
    Aside here(this);
    found = py::handle(ask)(cls, args);
  }
  if (found.is_none()) return {};
  py::object forward = found.attr("forward");
  return observer_.pure_functions()->meet(forward.ptr(), found.attr("reads")) ? forward : py::object();
}

// Whether a hook that is set on it now can be a step.
bool Recording::can_hook(const py::object& tensor, bool leaves) {
  if (!recorder_.takes_steps()) return false;
  bool is = is_tensor(tensor.ptr());
  if (is && recorder_.made(THPVariable_Unpack(tensor.ptr()))) return true;
  if (is && leaves && can_hook_leaf(THPVariable_Unpack(tensor.ptr()))) return true;
  bool transformed = is && belongs_to_transform(THPVariable_Unpack(tensor.ptr()));
  recorder_.fail(say(transformed ? reason::PythonInTransform : reason::HookOutside));
  return false;
}

// One of before the call, which must be as it was when the call ends: what hangs on it outside would call the
// hook, too.
bool Recording::can_hook_leaf(const at::Tensor& tensor) {
  if (!tensor.is_leaf() || !tensor.requires_grad() || belongs_to_transform(tensor)) return false;
  int reg = recorder_.register_of(tensor);
  return reg >= 0 && recorder_.was_there(reg) && guards_hooks(tensor, reg, true);
}

// Those that the call has set itself come last.
py::tuple Recording::hooks_before(const at::Tensor& leaf, bool accumulated) const {
  auto hooks = py::reinterpret_steal<py::tuple>(hooks_of(leaf, accumulated));
  if (!hooks) throw py::error_already_set();
  if (accumulated) return hooks;
  for (const SetHook& one : set_hooks_)
    if (one.outside() && one.is_of(leaf)) return one.before;
  return hooks[py::slice(0, static_cast<Py_ssize_t>(hooks.size() - recorder_.hooks_fed(leaf)), 1)];
}

// The guard node of those; -1 where none leads to the leaf.
int Recording::read_hooks(const at::Tensor& leaf, bool accumulated) {
  Provenance* provenance = observer_.surroundings().provenance;
  auto shown = py::reinterpret_steal<py::object>(THPVariable_Wrap(leaf));
  int node = provenance->node_of_tensor(shown.ptr());
  if (node < 0) return node;
  return provenance
      ->read_node(node, Access::Hooks, nullptr, accumulated, hooks_before(leaf, accumulated).ptr())
      .first;
}

namespace {
// A default that a variable holds, too (`lambda g, found=found: ...`), is taken out of the tuple for so long.
// What stands in the variables then stands there as well.
class DefaultsWithout {
 public:
  DefaultsWithout(PyObject* defaults, PyObject* object) : defaults_(defaults), variables_(object, nullptr) {
    if (!PyTuple_CheckExact(defaults) || Py_REFCNT(defaults) != 1 || !variables_.count()) return;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(defaults); ++i)
      if (PyTuple_GET_ITEM(defaults, i) == object) put(i, Py_None), places_.push_back(i);
  }
  DefaultsWithout(const DefaultsWithout&) = delete;
  DefaultsWithout& operator=(const DefaultsWithout&) = delete;
  ~DefaultsWithout() {
    for (Py_ssize_t place : places_) put(place, variables_.held());
  }

 private:
  void put(Py_ssize_t place, PyObject* object) {
    PyObject* before = PyTuple_GET_ITEM(defaults_, place);
    PyTuple_SET_ITEM(defaults_, place, Py_NewRef(object));
    Py_DECREF(before);
  }

  PyObject* defaults_;
  VariablesWith variables_;
  std::vector<Py_ssize_t> places_;
};

// Of the lists and dicts that a hook may fill, those that the call has made are state from now on. Whether it
// has any.
bool adopt_what_it_fills(PyObject* hook, Observer* observer) {
  if (WatchedBlocks::may_watch(hook)) return false;
  bool adopts = false;
  std::vector<PyObject*> open{hook};
  std::unordered_set<PyObject*> met;
  constexpr size_t kMost = 64;
  while (!open.empty() && met.size() < kMost) {
    PyObject* one = open.back();
    open.pop_back();
    if (!met.insert(one).second || is_tensor(one) || is_immutable(one)) continue;
    bool adopted = observer->adopt(one);
    adopts |= adopted;
    bool leads_on = PyFunction_Check(one) || PyMethod_Check(one) || PyCell_Check(one) ||
                    PyTuple_CheckExact(one) || observer->made_here(one);
    if (adopted || !leads_on) continue;
    std::vector<PyObject*> parts = goes_with(one);
    if (PyObject* defaults = PyFunction_Check(one) ? PyFunction_GET_DEFAULTS(one) : nullptr) {
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(defaults); ++i) {
        PyObject* value = PyTuple_GET_ITEM(defaults, i);
        if (!PyList_CheckExact(value) && !PyDict_CheckExact(value)) continue;
        DefaultsWithout lent(defaults, value);
        adopts |= observer->adopt(value);
      }
      parts.push_back(defaults);
    }
    for (PyObject* part : parts)
      if (part) open.push_back(part);
  }
  return adopts;
}

// Whether it is worth watching. `fills`: only what is state from now on, if anything.
bool is_worth_watching(PyObject* hook, bool fills) {
  return WatchedBlocks::may_watch(hook) || (fills && WatchedBlocks::may_fill(hook));
}

// Torch refuses hooks of a tensor without gradients. Code that runs again would find one that has come to
// require them.
bool is_refused(const at::Tensor& tensor, Recorder* recorder) {
  if (tensor.requires_grad()) return false;
  recorder->saw_gradients(tensor);
  return true;
}
}  // namespace

py::object Recording::hook(const HookCalls& calls, py::object tensor, py::object hook) {
  if (!can_hook(tensor, true)) return calls.now(tensor, hook);
  const at::Tensor& hooked = THPVariable_Unpack(tensor.ptr());
  if (is_refused(hooked, &recorder_)) return calls.now(tensor, hook);
  bool outside = !recorder_.made(hooked);
  py::object before = outside ? py::object(hooks_before(hooked, false)) : py::object();
  Provenance* provenance = observer_.surroundings().provenance;
  provenance->weak_node(calls.again.ptr());
  bool fills = adopt_what_it_fills(hook.ptr(), &observer_);
  OpaqueCall call(observer_.surroundings(), calls.again.ptr(), "", py::make_tuple(tensor, hook).ptr(),
                  nullptr, false, true);
  HandleCount handles(&observer_, &call);
  bool fed = recorder_.feeding();
  if (fed) recorder_.expect_opaque();
  py::object handle = fed ? recorder_.fed_value() : calls.now(tensor, hook);
  bool known = may_watch() && is_worth_watching(hook.ptr(), fills), watched = known && !fills;
  if (known) blocks()->know(hook.ptr());
  if (watched) call.is_hook();
  call.hooks(1, outside);
  call.finish(Py_None);
  handles.count();
  know_handle(handle, {hooked, watched, std::move(before)});
  return handle;
}

// What it counts and where the hook lies is another thing in each replay, so nobody may ask it for that.
void Recording::know_handle(const py::object& handle, SetHook set) {
  Provenance* provenance = observer_.surroundings().provenance;
  hook_handles_.append(handle);
  set_hooks_.push_back(std::move(set));
  observer_.know_handle(handle.ptr());
  provenance->note_made(handle.ptr());
  for (const char* name : {"id", "hooks_dict_ref", "extra_dict_ref"}) {
    auto interned = py::reinterpret_steal<py::object>(PyUnicode_InternFromString(name));
    provenance->touch_attribute(handle.ptr(), interned.ptr());
  }
}

namespace {
// Which of the hooks of its tensor a step takes off.
Py_ssize_t place_of(const Step& unhooks) {
  return unhooks.opaque->call.items[0].items[1].value.cast<Py_ssize_t>();
}
}  // namespace

void Recording::unhook(const UnhookCalls& calls, const py::object& handle) {
  size_t at = 0;
  while (!py::object(hook_handles_[at]).is(handle)) ++at;
  auto held = set_hooks_[at].tensor.lock();
  py::object tensor;
  if (held) tensor = py::reinterpret_steal<py::object>(THPVariable_Wrap(at::Tensor(std::move(held))));
  Py_ssize_t place = -1;
  const Step* fed = tensor ? recorder_.fed_unhook(THPVariable_Unpack(tensor.ptr())) : nullptr;
  if (fed)
    place = place_of(*fed);
  else if (tensor && recorder_.takes_steps() && !recorder_.feeding())
    place = calls.find(tensor, handle).cast<Py_ssize_t>();
  if (place < -1) recorder_.fail(say(reason::HookElsewhere));
  if (place < 0) {
    Aside here(this);
    return (void)calls.now(handle);
  }
  observer_.surroundings().provenance->weak_node(calls.again.ptr());
  OpaqueCall call(observer_.surroundings(), calls.again.ptr(), "", py::make_tuple(tensor, place).ptr(),
                  nullptr, false, true);
  if (fed)
    recorder_.fed_value();
  else
    calls.now(handle);
  if (set_hooks_[at].watched) call.is_hook();
  call.hooks(-1, set_hooks_[at].outside());
  call.finish(Py_None);
}

void Recording::retain_gradient(const py::object& now, py::object tensor) {
  bool listens = !recorder_.paused() && function_mode_listens();
  if (listens) recorder_.fail(say(reason::FunctionMode, "which is told of retain_grad"));
  if (listens || !can_hook(tensor, false)) return (void)now(tensor);
  if (is_refused(THPVariable_Unpack(tensor.ptr()), &recorder_)) return (void)now(tensor);
  observer_.surroundings().provenance->weak_node(now.ptr());
  OpaqueCall call(observer_.surroundings(), now.ptr(), "", py::make_tuple(tensor).ptr(), nullptr, false,
                  true);
  if (recorder_.feeding()) {
    recorder_.expect_opaque();
    recorder_.fed_value();
  } else {
    now(tensor);
  }
  call.finish(Py_None);
}

py::object Recording::make_generator(const py::object& device) {
  if (!recorder_.takes_steps()) return py::none();
  Aside here(this);  // a class may have an `__init__` of Python code
  return observer_.surroundings().provenance->make_generator(device.ptr());
}

// A replay may have set it already, which only the outputs show. Then this one does nothing: it waits for
// what those of its own are given.
void Recording::module_inputs(const py::object& now, py::object hook, py::object made) {
  if (!recorder_.takes_steps()) return (void)now(hook, made);
  // Not the tuple itself: what is still there at the end needs an origin.
  module_inputs_.append(py::make_tuple(hook, py::list(made)));
  HandleCount handles(&observer_, nullptr);
  {
    Aside here(this);
    now(hook, made);
  }
  handles.count();
}

namespace {
std::vector<at::Tensor> tensors_of(const py::handle& sequence) {
  std::vector<at::Tensor> tensors;
  for (py::handle item : sequence)
    if (is_tensor(item.ptr())) tensors.push_back(THPVariable_Unpack(item.ptr()));
  return tensors;
}

// The hooks of the node that has made these, which torch has made for the call. False where there are others
// than Python's.
bool know_hooks_of(const py::handle& made, WatchedBlocks* blocks, Provenance* provenance) {
  for (const at::Tensor& tensor : tensors_of(made)) {
    if (!tensor.grad_fn()) continue;
    auto dicts = hook_dicts_of(*tensor.grad_fn());
    if (!dicts) return false;
    for (PyObject* dict : *dicts)
      for (auto [key, hook] : py::reinterpret_borrow<py::dict>(dict)) {
        blocks->know(hook.ptr());
        provenance->note_made(hook.ptr());
      }
  }
  return true;
}
}  // namespace

void Recording::module_outputs(const py::object& again, const py::object& now, py::object hook,
                               py::object made) {
  if (!recorder_.takes_steps()) return (void)now(hook, made);
  py::object inputs = py::tuple();
  for (py::handle pair : module_inputs_)
    if (py::object(pair[py::int_(0)]).is(hook)) inputs = py::tuple(pair[py::int_(1)]);
  py::tuple about = py::make_tuple(hook.attr("n_inputs"), hook.attr("input_tensors_index"),
                                   hook.attr("n_outputs"), hook.attr("output_tensors_index"));
  py::tuple args = py::make_tuple(hook.attr("module"), hook.attr("user_hooks"), hook.attr("user_pre_hooks"),
                                  inputs, made, about);
  Provenance* provenance = observer_.surroundings().provenance;
  provenance->weak_node(again.ptr());
  bool fills = false, watches = may_watch();
  for (const char* name : {"user_hooks", "user_pre_hooks"})
    for (py::handle one : hook.attr(name)) {
      bool adopts = adopt_what_it_fills(one.ptr(), &observer_);
      watches &= is_worth_watching(one.ptr(), adopts);
      fills |= adopts;
    }
  OpaqueCall call(observer_.surroundings(), again.ptr(), "", args.ptr(), nullptr, false, true);
  HandleCount handles(&observer_, &call);
  if (recorder_.feeding()) {
    recorder_.expect_opaque();
    recorder_.fed_value();
  } else {
    now(hook, made);
  }
  // Torch's code, which calls those of the module, is watched with them. Without inputs that require
  // gradients it warns.
  if (watches) {
    bool known = know_hooks_of(inputs, blocks().get(), provenance);
    if (known && know_hooks_of(made, blocks().get(), provenance) && !fills) call.is_hook();
  }
  call.finish(Py_None);
  handles.count();
}

namespace {
// Whether torch's function that calls the engine has made the gradients of the roots itself.
bool makes_gradients(Frame caller) {
  PyObject* names = caller.code_object()->co_localsplusnames;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
    std::string name = text_of(PyTuple_GET_ITEM(names, i));
    if (name == "grad_tensors" || name == "grad_outputs")
      return caller.variable(static_cast<int>(i)) == Py_None;
  }
  return false;
}
}  // namespace

namespace {
constexpr size_t kCreateGraph = 3;  // which argument of the engine says that it builds a graph
constexpr size_t kInputs = 4;  // which argument of the engine has the inputs whose gradients are asked for

// The one level that hides the first dimension of all these gradients.
std::optional<int64_t> level_of_all(const py::handle& gradients) {
  std::optional<int64_t> level;
  for (py::handle gradient : gradients) {
    auto found = is_tensor(gradient.ptr()) ? level_of(THPVariable_Unpack(gradient.ptr())) : std::nullopt;
    if (!found || (level && *level != *found)) return {};
    level = found;
  }
  return level;
}

bool accumulates_gradients(const py::dict& kwargs) {
  py::str name("accumulate_grad");
  return !kwargs.contains(name) || kwargs[name].cast<bool>();
}
}  // namespace

// Torch's function that runs the engine asks its logger for its level, which the step asks again: that must
// come to no code of the user's.
void Recording::read_level_of_loggers() {
  static PyObject* const name = PyUnicode_InternFromString("getEffectiveLevel");
  static auto* const logger =
      reinterpret_cast<PyTypeObject*>(from_module("logging", "Logger").release().ptr());
  PyObject* found = _PyType_Lookup(logger, name);
  if (found != level_of_loggers()) return recorder_.fail(say(reason::InBookkeeping, "getEffectiveLevel"));
  Provenance* provenance = observer_.surroundings().provenance;
  provenance->read_child(provenance->class_node(logger), Access::Class, name, -1, found);
}

py::object Recording::backward(py::object run, py::tuple args, py::dict kwargs) {
  if (recorder_.takes_steps()) read_level_of_loggers();
  if (!recorder_.takes_steps()) return run(*args, **kwargs);
  std::vector<at::Tensor> roots = tensors_of(args[0]);
  // What vjp() gives runs the engine when its transform has ended.
  bool inside = is_transforming();
  bool transformed = inside || std::any_of(roots.begin(), roots.end(), belongs_to_transform);
  bool follows = transformed && follows_backward(roots, args, kwargs);
  if (inside || follows) return transformed_backward(roots, run, args, kwargs, follows);
  if (auto level = level_of_all(args[1])) return batched_backward(roots, *level, args, kwargs);
  bool accumulates = accumulates_gradients(kwargs);
  std::vector<py::dict> hooks;
  Recorder::Backward facts = recorder_.look_ahead(
      roots, accumulates, [&](torch::autograd::Node& node) { return watches_hooks(node, &hooks); });
  // What its hooks read and write is seen in this thread alone.
  if (facts.python && facts.elsewhere) {
    recorder_.fail(say(reason::PassOnGpu));
    return run(*args, **kwargs);
  }
  // The program says nothing of hooks that are not watched.
  if (facts.python && !facts.watched)
    for (const auto& [leaf, reg] : facts.leaves) guards_hooks(leaf, reg, false);
  if (args.size() <= kCreateGraph || args[kCreateGraph].cast<bool>()) recorder_.grows();
  OpaqueCall call(observer_.surroundings(), run.ptr(), "", args.ptr(), kwargs.ptr(), facts.python, true,
                  facts.watched);
  call.is_backward(accumulates);
  std::optional<WatchedBlocks::Running> running;
  if (facts.watched) running.emplace(blocks(), &call);
  if (facts.effects) call.has_effects();
  if (makes_gradients(Frame::current()))
    for (py::handle gradient : args[1])
      if (is_tensor(gradient.ptr())) call.forgets(THPVariable_Unpack(gradient.ptr()));
  struct Pass {
    Recorder* recorder;
    explicit Pass(Recorder* r) : recorder(r) { recorder->enter_pass(true); }
    ~Pass() { recorder->enter_pass(false); }
  } pass(&recorder_);
  if (!facts.watched || hooks.empty()) return make_opaque(&call, run, args, kwargs);
  auto now = [&](const py::args& given, const py::kwargs& named) {
    WatchedBlocks::InPlace watching(blocks_, hooks);
    return py::object(run(*given, **named));
  };
  return make_opaque(&call, py::cpp_function(now), args, kwargs);
}

bool Recording::watches_hooks(torch::autograd::Node& node, std::vector<py::dict>* dicts) {
  auto found = may_watch() ? hook_dicts_of(node) : std::nullopt;
  if (!found) return false;
  auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(&node);
  int reg = leaf ? recorder_.register_of(leaf->variable) : -1;
  bool older = leaf && recorder_.was_there(reg);
  for (PyObject* one : *found) {
    auto dict = py::reinterpret_borrow<py::dict>(one);
    for (auto [key, hook] : dict)
      if (older ? !WatchedBlocks::may_watch(hook.ptr()) : !blocks()->knows(hook.ptr())) return false;
    dicts->push_back(dict);
  }
  return !older || guards_hooks(leaf->variable, reg, true);
}

bool Recording::guards_hooks(const at::Tensor& leaf, int reg, bool watched) {
  Provenance* provenance = observer_.surroundings().provenance;
  if (has_other_hooks(leaf)) return false;
  for (bool accumulated : {false, true}) {
    int all = read_hooks(leaf, accumulated);
    if (all < 0) return false;
    py::tuple hooks = hooks_before(leaf, accumulated);
    for (size_t i = 0; i < hooks.size(); ++i) {
      PyObject* hook = PyTuple_GET_ITEM(hooks.ptr(), i);
      // One that is set before each call is another object each time, and would be told by nothing else.
      // Where the hook is not watched, a replay has whichever there is called.
      if (!watched && function_of_partial(hook)) continue;
      provenance->read_child(all, Access::At, nullptr, static_cast<Py_ssize_t>(i), hook);
    }
  }
  recorder_.note_hooked(reg);
  return true;
}

// One step, which is given the gradients with the dimension that is hidden here.
py::object Recording::batched_backward(const std::vector<at::Tensor>& roots, int64_t level,
                                       const py::tuple& args, const py::dict& kwargs) {
  auto run = py::reinterpret_borrow<py::object>(batched_engine());
  py::list all(args), shown;
  for (py::handle gradient : args[1]) shown.append(show_dimension(THPVariable_Unpack(gradient.ptr()), level));
  all[1] = py::tuple(shown);
  Recorder::Backward facts = recorder_.look_ahead(roots, false, [](torch::autograd::Node&) { return false; });
  observer_.surroundings().provenance->weak_node(run.ptr());
  OpaqueCall call(observer_.surroundings(), run.ptr(), "", py::tuple(all).ptr(), kwargs.ptr(), facts.python,
                  true);
  py::tuple found = make_opaque(&call, run, py::tuple(all), kwargs);
  py::list hidden;
  py::tuple inputs(args[kInputs]);
  for (size_t i = 0; i < found.size(); ++i) {
    bool batched = is_tensor(found[i].ptr()) && is_tensor(inputs[i].ptr()) &&
                   THPVariable_Unpack(found[i].ptr()).dim() > THPVariable_Unpack(inputs[i].ptr()).dim();
    hidden.append(batched ? py::cast(hide_dimension(THPVariable_Unpack(found[i].ptr()), level))
                          : py::object(found[i]));
  }
  return py::tuple(hidden);
}

// Whether all that a backward pass does comes to operators that hang on this call alone. Gradients that it
// adds up come to none.
bool Recording::follows_backward(const std::vector<at::Tensor>& roots, const py::tuple& args,
                                 const py::dict& kwargs) {
  if (accumulates_gradients(kwargs) || args.size() <= kInputs) return false;
  std::vector<at::Tensor> inputs = tensors_of(args[kInputs]);
  // What is no tensor is an edge of the graph.
  if (roots.size() != py::len(args[0]) || inputs.size() != py::len(args[kInputs])) return false;
  return recorder_.follows_way(roots, inputs);
}

// Inside a transform the engine runs operators of the transform, which arrive as those that they are made of.
// Python code among them would not be seen.
py::object Recording::transformed_backward(const std::vector<at::Tensor>& roots, const py::object& run,
                                           const py::tuple& args, const py::dict& kwargs, bool follows) {
  AutogradGraph graph = AutogradGraph::of(roots);
  if (graph.runs_python()) recorder_.fail(say(reason::PythonInTransform));
  if (!follows) recorder_.fail(say(reason::GraphOfOthers));
  if (graph.elsewhere) recorder_.fail(say(reason::TransformOnGpu));
  struct Unwatched {
    Observer* observer;
    explicit Unwatched(Observer* o) : observer(o) { o->pause(); }
    ~Unwatched() { observer->resume(); }
  } unwatched(&observer_);
  return run(*args, **kwargs);
}

py::object Recording::make_opaque(OpaqueCall* call, py::object function, py::tuple args, py::dict kwargs) {
  // A replay sets none: what it is set to only reads that are watched show.
  if (call->runs_python() && !call->is_watched() && observer_.sets_context())
    recorder_.fail(say(reason::OpaqueAfterWrite, call->name()));
  bool fed = recorder_.feeding();
  if (fed) recorder_.expect_opaque();
  if (recorder_.feeds_exit() && recorder_.earlier()) {
    if (!recorder_.earlier()->hide())
      recorder_.diverge(call->name() + ", which has changed what the function has written");
    recorder_.fail(say(reason::ResumesAfterOpaque, call->name()));
  }
  py::object result;
  try {
    call->count_holders();
    if (fed) call->fill_parts();
    result = fed ? call->fed_value() : function(*args, **kwargs);
    // The tuple that the replay was given stays with it.
    if (fed && PyTuple_CheckExact(result.ptr())) result = py::tuple(py::list(result));
  } catch (...) {
    // Where Python catches it, the program would go on as if the step did not exist.
    recorder_.fail(say(reason::OpaqueRaised));
    throw;
  }
  return call->finish(result.ptr());
}

namespace {
// Whether others than the call can come to a list or the like, and change it once it was logged.
bool may_change(PyObject* value, const Provenance& provenance, Py_ssize_t holders) {
  if (is_immutable(value) || is_tensor(value) || is_followed(value) || provenance.known(value) >= 0)
    return false;
  if (!PyTuple_CheckExact(value)) return Py_REFCNT(value) > holders;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i)
    if (may_change(PyTuple_GET_ITEM(value, i), provenance, 1)) return true;
  return false;
}

// An argument is held by three tuples on its way here. Of `extra` a record takes what is in it.
bool logs_what_may_change(const py::tuple& call, const Provenance& provenance) {
  for (size_t i = LogCall::kLogger; i < call.size(); ++i)
    if (may_change(PyTuple_GET_ITEM(call.ptr(), i), provenance, 3)) return true;
  PyObject *key, *value, *extra = PyTuple_GET_ITEM(call.ptr(), LogCall::kExtra);
  for (Py_ssize_t at = 0; PyDict_CheckExact(extra) && PyDict_Next(extra, &at, &key, &value);)
    if (may_change(value, provenance, 1)) return true;
  return false;
}
}  // namespace

void Recording::log(const py::tuple& what, const py::object& exc_info, LogCall::Kind kind) {
  py::tuple args = py::tuple(py::make_tuple(observer_.frames()) + what);
  auto now = [&](const py::args& call) { return LogCall::now(call, exc_info); };
  if (!recorder_.takes_steps()) return (void)now(args);
  Provenance* provenance = observer_.surroundings().provenance;
  if (!exc_info.is_none() && exc_info.ptr() != Py_False) recorder_.fail(say(reason::LogsException));
  if (kind != LogCall::kAtOnce && logs_what_may_change(args, *provenance))
    recorder_.fail(say(reason::OpaqueArgument, "logging"));
  PyObject* again = LogCall::functions[kind];
  provenance->weak_node(again);
  OpaqueCall call(observer_.surroundings(), again, "", args.ptr(), nullptr, true, true);
  py::tuple given(args.size());
  PlainInside plain(*provenance);
  for (size_t i = 0; i < args.size(); ++i) given[i] = plain.of(args[i]);
  if (plain.left_any()) recorder_.fail(say(reason::SizesTooDeep));
  make_opaque(&call, py::cpp_function(now), given, py::dict());
}

void Recording::look_at_stdout() {
  static PyObject* const name = PyUnicode_InternFromString("stdout");
  PyObject* file = PySys_GetObject("stdout");
  if (!file || !recorder_.takes_steps()) return;
  Provenance* provenance = observer_.surroundings().provenance;
  int system = provenance->weak_node(PyImport_AddModule("sys"));
  provenance->read_child(system, Access::Instance, name, -1, file);
}

py::object Recording::aside(py::object function) {
  Aside here(this);
  return function();
}

namespace {
// The numbers of numpy's in a value. Its float64 and complex128 are Python's, of which nobody asks which
// objects they are.
void add_scalars(PyObject* v, std::vector<PyObject*>* scalars) {
  if (PyTuple_Check(v))
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(v); ++i) add_scalars(PyTuple_GET_ITEM(v, i), scalars);
  if (is_numpy_scalar(v) && !PyFloat_Check(v) && !PyComplex_Check(v)) scalars->push_back(v);
}

// The guard node of a number that is followed as it lies in state, or -1.
int node_of_scalar(const NumberRecorder& numbers, int id) {
  const Number& of = numbers[numbers[id].a];
  return of.kind == Number::Kind::State ? static_cast<int>(of.which) : -1;
}
}  // namespace

// Those that lie apart in state are apart in the result.
void Recording::fix_followed(const std::unordered_set<PyObject*>& carriers) {
  for (PyObject* carrier : carriers) {
    int node = node_of_scalar(*recorder_.numbers(), recorder_.numbers()->number_of(carrier));
    if (node >= 0) tree_.expect_distinct(node);
  }
}

// Numbers of numpy's are compared by their values. A result shows which of them are one object.
void Recording::fix_scalars(const std::vector<PyObject*>& scalars) {
  std::unordered_map<PyObject*, int> first;
  for (PyObject* scalar : scalars) {
    PyObject* original = recorder_.numbers() ? recorder_.numbers()->original_of(scalar) : nullptr;
    first.emplace(original ? original : scalar, -1);
  }
  for (int node = 0; !first.empty() && node < static_cast<int>(tree_.size()); ++node) {
    auto found = tree_[node].expect == Expect::Constant ? first.find(tree_[node].value.ptr()) : first.end();
    if (found == first.end()) continue;
    if (found->second < 0)
      found->second = node;
    else if (tree_[node].same < 0)
      tree_[node].same = found->second;
  }
  for (auto& [scalar, node] : first)
    if (node >= 0) tree_.expect_distinct(node);
}

Tree Recording::take_apart(PyObject* result, std::vector<std::pair<int, at::Tensor>>* tensors) {
  std::vector<PyObject*> scalars;
  std::unordered_set<PyObject*> carriers;
  auto tensor = [&](PyObject* v) {
    const at::Tensor& t = THPVariable_Unpack(v);
    if (has_attributes(v) && recorder_.is_decorated(t))
      throw std::runtime_error(say(reason::ReturnsDecorated));
    int reg = recorder_.output_register(t);
    bool plain = THPVariable_CheckExact(v);  // or a parameter
    if (!plain && !recorder_.was_there(reg))
      throw std::runtime_error(say(reason::ReturnsSubclass, type_name(v)));
    if (reg >= 0) tensors->emplace_back(reg, t);
    return reg;
  };
  auto state = [&](PyObject* v) {
    bool named = PyType_Check(v) || PyFunction_Check(v) || PyModule_Check(v) || is_free_builtin(v) ||
                 is_enum_member(v);
    if (observer_.was_drawn(v) && !is_plain_array(v))
      throw std::runtime_error(say(reason::ReturnsDrawn, type_name(v)));
    if (observer_.others_have(v)) throw std::runtime_error(say(reason::ReturnsGiven, type_name(v)));
    bool made_class = observer_.made_here(reinterpret_cast<PyObject*>(Py_TYPE(v)));
    if (made_class) throw std::runtime_error("returns a " + type_name(v) + ", whose class it made");
    int node = named && !observer_.made_here(v) ? observer_.reach(v) : observer_.known(v);
    if (node < 0 && named && !observer_.made_here(v))
      throw std::runtime_error("returns a " + type_name(v) + " of unknown origin");
    if (node < 0 || observer_.by_path(node) || named) return node;
    throw std::runtime_error(say(reason::ReturnsUnknown, type_name(v)));
  };
  auto constant = [&](PyObject* v) {
    if (auto* numbers = recorder_.numbers()) numbers->settle_inside(v);
    add_scalars(v, &scalars);
  };
  auto number = [&](PyObject* v) {
    auto* numbers = is_carrier(v) ? recorder_.numbers() : nullptr;
    int id = numbers ? numbers->number_of(v) : -1;
    Number::Kind kind = id >= 0 ? (*numbers)[id].kind : Number::Kind::Constant;
    bool shows = kind == Number::Kind::Single || kind == Number::Kind::Long;
    // A replay would make another object of one that was taken out of state.
    bool asked = shows && (*numbers)[(*numbers)[id].a].kind == Number::Kind::Asked;
    if (asked && numbers->original_of(v)) throw std::runtime_error(say(reason::ReturnsDrawn, type_name(v)));
    if (shows) carriers.insert(v);
    return id;
  };
  Tree::Source source{tensor, state, constant, number};
  source.made = [&](int reg) { return !recorder_.was_there(reg); };
  source.part = [&](PyObject* v) {
    std::string reason = observer_.against_leaving(v);
    if (!reason.empty()) throw std::runtime_error(reason);
  };
  source.text = [&](PyObject* v) { return is_text(v) ? recorder_.numbers()->texts().find(v) : nullptr; };
  source.array = [&](PyObject* v) {
    at::Tensor shown = observer_.unseen()->shown_by(v);
    if (!shown.defined() || !is_writable_array(v)) return -1;  // a replay would make one that is
    // Of one that was taken twice.
    if (observer_.was_drawn(v) && !is_memory_of(shown, v))
      throw std::runtime_error(say(reason::ReturnsDrawn, type_name(v)));
    auto held = py::reinterpret_steal<py::object>(THPVariable_Wrap(shown));
    return tensor(held.ptr());
  };
  Tree tree = Tree::of(result, source);
  fix_scalars(scalars);
  fix_followed(carriers);
  return tree;
}

// Numbers in state are found by their guards, and those of objects that the call has made are what they were:
// `found`, in order.
void Recording::place_numbers(Program* program, const std::vector<int>& renamed,
                              const std::vector<py::object>& found) {
  size_t next = 0;
  for (size_t i = 0; i < program->numbers.size(); ++i) {
    Number& number = program->numbers[i];
    if (number.kind == Number::Kind::State) {
      PyObject* value = found[next++].ptr();
      int node = renamed[static_cast<size_t>(number.which)];
      if (node >= 0) {
        number.which = node;
      } else {
        number.kind = Number::Kind::Constant;
        double real = number.real ? float_value(value) : 0;
        number.which = number.real ? 0 : whole_value(value);
        if (number.real) std::memcpy(&number.which, &real, sizeof real);
      }
    }
    if (number.kind == Number::Kind::State || number.kind == Number::Kind::Argument)
      program->given.push_back(static_cast<int>(i));
  }
}

// Guards on objects that were made during the call and are gone go; the numbers of the rest change.
bool Recording::renumber(Trace* trace, Program* program) {
  std::vector<py::object> found;
  for (const Number& number : program->numbers)
    if (number.kind == Number::Kind::State) found.push_back(tree_[static_cast<int>(number.which)].value);
  std::vector<int> renamed = tree_.prune();
  place_numbers(program, renamed, found);
  bool complete = true;
  auto rename = [&](int& node) {
    node = renamed[node];
    trace->needed_.push_back(node);
    complete &= node >= 0;
  };
  trace->output_.each_state(rename);
  for (Effect& effect : trace->effects_) rename(effect.owner);
  for (Effect& effect : trace->written_) rename(effect.owner);
  for (Step& step : program->steps)
    for (Argument& argument : step.arguments)
      if (argument.kind == Argument::Kind::Generator) rename(argument.node);
  for (Step& step : program->steps)
    if (step.opaque) {
      step.opaque->call.each_state(rename);
      step.opaque->function.each_state(rename);
      step.opaque->behind = observer_.surroundings().provenance->behind(step.opaque->turn, renamed);
      for (WrittenByThen& one : step.opaque->written) rename(one.effect.owner), one.value.each_state(rename);
    }
  for (Scope& scope : program->scopes)
    if (scope.module >= 0) scope.module = renamed[scope.module];
  for (int node = 0; node < static_cast<int>(tree_.size()); ++node) {
    if (tree_[node].access == Access::Cached) trace->cached_.push_back(node);
    if (tree_[node].access == Access::Deref) trace->weak_.push_back(node);
  }
  std::sort(trace->cached_.begin(), trace->cached_.end(),
            [&](int a, int b) { return tree_[a].turn < tree_[b].turn; });
  for (int node : trace->cached_) trace->needed_.push_back(tree_[node].parent);
  if (complete) trace->counters_.find(*program, tree_, trace->effects_, trace->output_);
  const std::vector<int>& captures = recorder_.capture_nodes();
  for (size_t slot = 0; slot < captures.size(); ++slot) {
    int node = renamed[captures[slot]];
    if (node < 0) return false;
    tree_[node].capture = static_cast<int>(slot);
  }
  for (Step& step : program->steps) {
    if (!step.opaque || step.opaque->turn == 0) continue;
    Behind& behind = step.opaque->behind;
    for (size_t slot = 0; slot < captures.size(); ++slot)
      if (renamed[captures[slot]] >= behind.first_late) behind.tensors.push_back(program->captures[slot]);
  }
  return complete;
}

// One that the call writes to would be another at each call.
void Recording::fix_state(const Trace& trace, const Program& program) {
  for (const Recorder::FixedState& fixed : recorder_.fixed_state()) {
    for (int id : fixed.numbers) {
      const Number& number = program.numbers[static_cast<size_t>(id)];
      if (number.kind != Number::Kind::State) continue;
      Guard& guard = tree_[static_cast<int>(number.which)];
      guard.loose = false;
      auto changes = [&](const Effect& effect) {
        return is_place(effect, guard) ||
               (effect.kind == Effect::Kind::Content && effect.owner == guard.parent);
      };
      if (std::none_of(trace.effects_.begin(), trace.effects_.end(), changes)) continue;
      recorder_.place = fixed.place;
      return recorder_.fail(fixed.otherwise);
    }
  }
}

namespace {
// Or a tuple, which may hold some.
bool is_number(const Guard& guard) {
  PyObject* value = guard.expect == Expect::Constant ? guard.value.ptr() : nullptr;
  return value &&
         (is_float_of_any_kind(value) || is_int64(value) || PyLong_Check(value) || PyTuple_CheckExact(value));
}

bool shows_which_it_is(const Guard& guard) {
  return is_float32(guard.value.ptr()) || is_int64(guard.value.ptr());
}

// The items of a tuple are followed one by one: of such a one, the tuple.
int place_of_number(const GuardTree& tree, int node) {
  int parent = tree[node].parent;
  const Guard& holder = tree[parent];
  bool item = holder.expect == Expect::Type && holder.raw == reinterpret_cast<PyObject*>(&PyTuple_Type);
  return item && holder.parent >= 0 ? parent : node;
}

// Whether both would be one number, were their owners one object.
bool may_be_one(const Guard& a, const Guard& b) {
  auto of_list = [](const Guard& guard) {
    return guard.access == Access::At || is_of_live_list(guard.access);
  };
  if (of_list(a) || of_list(b)) return of_list(a) && of_list(b);
  if (a.access == Access::ValueAt || b.access == Access::ValueAt) {
    auto of_dict = [](Access access) { return access == Access::ValueAt || access == Access::Item; };
    return of_dict(a.access) && of_dict(b.access);
  }
  if (a.access != b.access || a.index != b.index || !a.key != !b.key) return false;
  return a.key.is(b.key) || (a.key && same_immutable(a.key.ptr(), b.key.ptr()));
}
}  // namespace

// Two objects, of which the number of one is followed and that of the other is a constant. A function that
// runs again knows an object by the first name that it has met. Were both one by then, the constant would be
// followed.
void Recording::fix_owners(const Trace& trace, const Program& program) {
  bool stays = program.effects || program.random || program.python_between || !trace.effects_.empty();
  std::vector<int> followed, constant;
  for (int node = 0; stays && node < static_cast<int>(tree_.size()); ++node)
    if (is_number(tree_[node]) && tree_[node].parent >= 0)
      (tree_[node].loose ? followed : constant).push_back(node);
  std::unordered_set<int> apart;
  std::unordered_map<PyObject*, int> first;  // of one object in several places
  for (int node : constant) first.emplace(tree_[node].value.ptr(), node);
  auto keep_apart = [&](int one, int other) {
    if (one != other) apart.insert({one, other});
  };
  for (int one : followed) {
    int place = place_of_number(tree_, one);
    for (int other : constant) {
      if (may_be_one(tree_[place], tree_[other]))
        keep_apart(tree_.first_of(tree_[place].parent), tree_.first_of(tree_[other].parent));
      if (shows_which_it_is(tree_[one]) && shows_which_it_is(tree_[other]))
        keep_apart(tree_.first_of(one), tree_.first_of(first.at(tree_[other].value.ptr())));
    }
  }
  for (int node : apart) tree_.expect_distinct(node);
}

// Each write that a step finds is made at the end, too: by itself, or by that of its container, which was
// taken over later. Where a step finds that one, too, a replay could not tell which of the two a place is to
// show.
void Recording::judge_early_writes(Trace* trace, const Program& program) {
  auto shows_all_of = [&](int64_t owner) {
    auto does = [&](const WrittenByThen& one) {
      return one.effect.kind == Effect::Kind::Content && one.effect.owner == owner;
    };
    return std::any_of(program.steps.begin(), program.steps.end(), [&](const Step& step) {
      return step.opaque && std::any_of(step.opaque->written.begin(), step.opaque->written.end(), does);
    });
  };
  auto is_known = [&](const WrittenByThen& one) {
    auto is_it = [&](const Effect& effect) { return effect.serial == one.effect.serial; };
    auto is_whole = [&](const Effect& effect) {
      return effect.kind == Effect::Kind::Content && effect.owner == one.effect.owner;
    };
    if (std::any_of(trace->written_.begin(), trace->written_.end(), is_it)) return true;
    return std::any_of(trace->effects_.begin(), trace->effects_.end(), is_whole) &&
           !shows_all_of(one.effect.owner);
  };
  for (const Step& step : program.steps) {
    if (!step.opaque) continue;
    trace->asks_ |= step.opaque->free;
    const auto& written = step.opaque->written;
    if (std::all_of(written.begin(), written.end(), is_known)) continue;
    recorder_.place = step.place;
    return recorder_.fail(say(reason::OpaqueAfterWrite, step.opaque->name));
  }
}

namespace {
// What the recording held goes now, guards of torch's compiler among it, which put back the keys that they
// found.
class KeepKey {
 public:
  KeepKey() : included_(c10::impl::tls_is_dispatch_key_included(kRecordKey)) {}
  ~KeepKey() { c10::impl::tls_set_dispatch_key_included(kRecordKey, included_); }
  KeepKey(const KeepKey&) = delete;
  KeepKey& operator=(const KeepKey&) = delete;

 private:
  bool included_;
};
}  // namespace

// Whether a tensor of before the call has other hooks by now than it had.
bool Recording::leaves_hooks() const {
  return std::any_of(set_hooks_.begin(), set_hooks_.end(), [](const SetHook& one) {
    auto held = one.outside() ? one.tensor.lock() : nullptr;
    return held &&
           !same_content(
               py::list(py::reinterpret_steal<py::object>(hooks_of(at::Tensor(std::move(held)), false)))
                   .ptr(),
               py::list(one.before).ptr());
  });
}

std::shared_ptr<Trace> Recording::finish(py::object result, bool prove) {
  KeepKey keep;
  if (replaced_) recorder_.fail(say(reason::TracerReplaced));
  if (recorder_.failed()) return nullptr;
  if (leaves_hooks()) recorder_.fail(say(reason::HookOutside));
  if (recorder_.failed()) return nullptr;
  py::tuple whole = all_that_is_left(result);
  if (recorder_.failed()) return nullptr;
  observer_.finish(whole.ptr());
  auto trace = std::make_shared<Trace>();
  if (recorder_.failed()) return nullptr;
  try {
    trace->output_ = take_apart(whole.ptr(), &trace->first_);
    for (auto& one : observer_.writes()) {
      trace->effects_.push_back(one.effect);
      PyObject* original = one.original.ptr();
      trace->gone_.push_back(original && PyType_Check(original) ? weak_reference(original) : py::object());
    }
    trace->written_ = std::move(observer_.written());
  } catch (const std::runtime_error& error) {
    recorder_.fail(error.what());
  }
  if (recorder_.failed()) return nullptr;
  std::vector<int> outputs;
  trace->output_.each_register([&](int reg) { outputs.push_back(reg); });
  std::shared_ptr<Program> program = recorder_.finish(outputs);
  if (recorder_.failed()) return nullptr;
  program->keep = observer_.take_codes();
  program->scopes = observer_.take_scopes();
  if (!renumber(trace.get(), program.get())) recorder_.fail(say(reason::GoneAfterwards));
  fix_state(*trace, *program);
  fix_owners(*trace, *program);
  judge_early_writes(trace.get(), *program);
  if (recorder_.failed()) return nullptr;
  if (!prove) trace->first_.clear();
  if (program->dynamic) tree_.loosen();
  auto start = std::chrono::steady_clock::now();
  trace->take_plan(make_plan(std::move(program), outputs));
  seconds_lowering_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  trace->tree_ = std::move(tree_);
  trace->tree_.group();
  trace->note_loose();
  trace->note_sets();
  trace->family_ = family_;
  return trace;
}

// What Python goes on with behind a call that was recorded, or whose recording has failed at its end.
py::object Recording::as_it_would_be(py::object result) {
  observer_.put_originals_back(&result);
  return result;
}

py::tuple Recording::where() const { return place_tuple(recorder_.failed_at()); }

}  // namespace lazytrace
