#include "record/python/opaque_call.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "cpython/array_memory.h"
#include "cpython/bytecode.h"
#include "cpython/contents.h"
#include "cpython/ends.h"
#include "cpython/frame.h"
#include "cpython/imports.h"
#include "cpython/objects.h"
#include "cpython/text_carrier.h"
#include "program/flatten.h"
#include "record/python/asked.h"
#include "record/python/log_call.h"
#include "record/python/unseen.h"
#include "record/python/whole_calls.h"
#include "support/reasons.h"
#include "torch/traits.h"

namespace lazytrace {

namespace {
// What a list, a tuple or a dict of the call's own holds, and is of no other such thing.
void take_out(PyObject* value, const Provenance& provenance, std::vector<PyObject*>* all, int depth = 0) {
  constexpr int kDeepest = 16;
  bool sequence = PyTuple_CheckExact(value) || PyList_CheckExact(value);
  if (depth > kDeepest || (!sequence && !PyDict_CheckExact(value)) || provenance.known(value) >= 0)
    return all->push_back(value);
  PyObject *key, *item;
  for (Py_ssize_t i = 0; sequence && i < PySequence_Fast_GET_SIZE(value); ++i)
    take_out(PySequence_Fast_GET_ITEM(value, i), provenance, all, depth + 1);
  for (Py_ssize_t at = 0; !sequence && PyDict_Next(value, &at, &key, &item);) {
    all->push_back(key);
    take_out(item, provenance, all, depth + 1);
  }
}

// `inside`: those that are in containers, too. `looks`: the function may look at what containers hold.
std::unordered_set<PyObject*> followed_arguments(NumberRecorder* numbers, const Provenance& provenance,
                                                 bool inside, bool looks, PyObject* args, PyObject* kwargs) {
  std::vector<PyObject*> all;
  if (inside) take_out(args, provenance, &all);
  for (Py_ssize_t i = 0; !inside && i < PyTuple_GET_SIZE(args); ++i) all.push_back(PyTuple_GET_ITEM(args, i));
  PyObject *key, *value;
  for (Py_ssize_t at = 0; kwargs && PyDict_Next(kwargs, &at, &key, &value);) all.push_back(value);
  std::unordered_set<PyObject*> followed;
  if (!numbers) return followed;
  for (PyObject* v : all)
    if (looks && !is_followed(v)) numbers->settle_inside(v);
  for (PyObject* v : all)
    if (is_followed(v)) followed.insert(v);
  return followed;
}

// In a list or a deque: the last of those entries that are this very object. False where there is none.
bool exchange_entry(PyObject* container, PyObject* entry, PyObject* by) {
  for (Py_ssize_t i = PySequence_Size(container); i-- > 0;) {
    py::object held = py::reinterpret_steal<py::object>(PySequence_GetItem(container, i));
    if (!held) throw py::error_already_set();
    if (!held.is(py::handle(entry))) continue;
    if (PySequence_SetItem(container, i, by) < 0) throw py::error_already_set();
    return true;
  }
  return false;
}

// Whether what was appended is what each container ends with, as a replay asks (EarlyWrites::stand).
bool end_with(const std::vector<Writes::Write>& writes, const std::vector<py::object>& shown) {
  std::unordered_map<PyObject*, Py_ssize_t> later;
  for (size_t i = shown.size(); i-- > 0;) {
    if (writes[i].effect.kind != Effect::Kind::Append || !shown[i]) continue;
    PyObject* container = writes[i].container.ptr();
    Py_ssize_t place = PySequence_Size(container) - ++later[container];
    if (place < 0) return false;
    auto held = py::reinterpret_steal<py::object>(PySequence_GetItem(container, place));
    if (!held) throw py::error_already_set();
    if (!held.is(shown[i])) return false;
  }
  return true;
}

// A tree of no kind that is plain where some part cannot be made again.
Tree takes_apart(const py::object& value, const Tree::Source& source) {
  try {
    return Tree::of(value.ptr(), source);
  } catch (const std::runtime_error& error) {
    Tree none;
    none.kind = Tree::Kind::Tuple;
    return none;
  }
}

// The functions of autograd that torch's layers and distributions are made of look at no state of the user's.
bool minds_its_own(PyObject* function) {
  static const char* const kFolders[] = {"torch/nn/", "torch/distributions/", "torch/autograd/_functions/"};
  static PyObject* const kMethods[] = {PyUnicode_InternFromString("forward"),
                                       PyUnicode_InternFromString("backward")};
  if (!PyType_Check(function)) return false;
  // By the code: a class may say that it is of any module. torch decorates some of the methods.
  auto is_torchs = [&](PyObject* name) {
    PyObject* method = _PyType_Lookup(reinterpret_cast<PyTypeObject*>(function), name);
    bool fixed = method && Py_IS_TYPE(method, &PyStaticMethod_Type);
    auto body = fixed ? py::reinterpret_steal<py::object>(PyObject_GetAttrString(method, "__func__"))
                      : py::object(py::none());
    while (PyFunction_Check(body.ptr())) {
      PyObject* code = PyFunction_GET_CODE(body.ptr());
      if (!(code_flags(code) & kTorchs)) return false;
      std::string file = text_of(reinterpret_cast<PyCodeObject*>(code)->co_filename);
      auto holds = [&](const char* folder) { return file.find(folder) != std::string::npos; };
      if (std::any_of(std::begin(kFolders), std::end(kFolders), holds)) return true;
      PyObject* attributes = reinterpret_cast<PyFunctionObject*>(body.ptr())->func_dict;
      PyObject* inner = attributes ? PyDict_GetItemString(attributes, "__wrapped__") : nullptr;
      body = py::reinterpret_borrow<py::object>(inner ? inner : Py_None);
    }
    return false;
  };
  return std::all_of(std::begin(kMethods), std::end(kMethods), is_torchs);
}

bool is_of_steps(PyObject* function) {
  return PyCFunction_Check(function) && PyCFunction_GET_SELF(function) == self_of_steps();
}

bool is_print(PyObject* function) {
  static PyObject* const print = builtin("print");
  return function == print;
}

// Of print(): where it writes to was looked at, too.
bool prints_to_file(const Tree& keywords, const std::function<bool(const Tree&)>& is_value) {
  if (keywords.kind != Tree::Kind::Dict) return is_value(keywords);
  for (size_t i = 0; i + 1 < keywords.items.size(); i += 2) {
    PyObject* name = keywords.items[i].value.ptr();
    bool file = name && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "file") == 0;
    if (!(file && keywords.items[i + 1].kind == Tree::Kind::State) && !is_value(keywords.items[i + 1]))
      return false;
  }
  return true;
}

// What is printed or logged was looked at before (printing.py, logs.py), and is none of the state that a
// function writes to.
bool prints_values(PyObject* function, const Tree& call) {
  std::function<bool(const Tree&)> is_value = [&](const Tree& tree) {
    return tree.kind != Tree::Kind::State && std::all_of(tree.items.begin(), tree.items.end(), is_value);
  };
  if (!LogCall::looks_at_nothing(function))
    return is_print(function) && is_value(call.items[0]) && prints_to_file(call.items[1], is_value);
  const std::vector<Tree>& args = call.items[0].items;
  auto is_logger = [&](const Tree& tree) { return &tree == &args[LogCall::kLogger]; };
  return std::all_of(args.begin(), args.end(),
                     [&](const Tree& tree) { return is_logger(tree) || is_value(tree); });
}

// What is printed was looked at, too, by how its class writes it: somebody may replace that.
void read_text_methods(PyObject* value, Provenance* provenance, int depth = 0) {
  static PyObject* const kNames[] = {PyUnicode_InternFromString("__repr__"),
                                     PyUnicode_InternFromString("__str__"),
                                     PyUnicode_InternFromString("__format__")};
  constexpr int kDeepest = 16;  // as printing.py has it
  PyTypeObject* type = Py_TYPE(value);
  int node = is_python_class(type) ? provenance->class_node(type) : -1;
  for (PyObject* name : kNames)
    if (node >= 0) provenance->read_child(node, Access::Class, name, -1, _PyType_Lookup(type, name));
  if (depth > kDeepest) return;
  bool sequence = PyTuple_Check(value) || PyList_Check(value);
  for (Py_ssize_t i = 0; sequence && i < PySequence_Fast_GET_SIZE(value); ++i)
    read_text_methods(PySequence_Fast_GET_ITEM(value, i), provenance, depth + 1);
  PyObject *key, *item;
  for (Py_ssize_t at = 0; PyDict_Check(value) && PyDict_Next(value, &at, &key, &item);) {
    read_text_methods(key, provenance, depth + 1);
    read_text_methods(item, provenance, depth + 1);
  }
}

// Whether what prints or logs may ask it, or what it leads to, where and how to write: streams of `sys`,
// loggers and what they hold, options of how arrays are shown.
bool says_how_to_print(PyObject* object) {
  static const char* const kModules[] = {"sys",
                                         "logging",
                                         "torch._tensor_str",
                                         "numpy.core.arrayprint",
                                         "numpy._core.arrayprint",
                                         "numpy._core.printoptions"};
  auto is_one = [](PyObject* dict, const char* under) {
    PyObject* name = dict ? PyDict_GetItemString(dict, under) : nullptr;
    std::string text = name && PyUnicode_Check(name) ? text_of(name) : "";
    return text.rfind("logging.", 0) == 0 ||
           std::find(std::begin(kModules), std::end(kModules), text) != std::end(kModules);
  };
  if (PyModule_Check(object)) return is_one(PyModule_GetDict(object), "__name__");
  PyTypeObject* type = PyType_Check(object) ? reinterpret_cast<PyTypeObject*>(object) : Py_TYPE(object);
  for (Py_ssize_t i = 0; type->tp_mro && i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i));
    if (is_one(base->tp_dict, "__module__")) return true;
  }
  return false;
}

// What runs meanwhile is no part of the call.
struct Aside {
  Pause* pause;
  explicit Aside(Pause* p) : pause(p) { pause->begin(); }
  ~Aside() { pause->end(); }
};

// What an operator that is a step is called, or "".
std::string called_name(PyObject* function, Pause* pause) {
  Aside aside(pause);
  return name_of_called(function);
}

// Asking for it may run Python code, as that of a class with a __getattr__.
std::string name_of(PyObject* function, Pause* pause) {
  Aside aside(pause);
  return text_of(py::str(py::getattr(function, "__qualname__", py::str(type_name(function)))).ptr());
}
}  // namespace

PyObject* self_of_steps() {
  static PyObject* const self = PyModule_New("steps");  // which leaves their names alone
  return self;
}

namespace {
// Whether nobody can give the variable that a function of the call's shares another value, as far as the code
// says.
bool is_final(PyObject* cell, PyObject* function) {
  bool made_here = false;
  for (Frame f = Frame::current(); f; f = f.previous()) {
    PyCodeObject* code = f.code_object();
    for (int slot = 0; slot < code->co_nlocalsplus; ++slot) {
      if (f.slot(slot) != cell) continue;
      if (may_store(code, slot, f.instruction())) return false;
      made_here |= slot < f.first_free();
    }
  }
  if (made_here) return true;
  // Who has made it has ended, and which functions share it is not known.
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function));
  PyObject* closure = PyFunction_GET_CLOSURE(function);
  int first = code->co_nlocalsplus - code->co_nfreevars;
  for (int i = 0; i < code->co_nfreevars; ++i)
    if (PyTuple_GET_ITEM(closure, i) == cell && may_store(code, first + i, -1)) return false;
  return Py_REFCNT(cell) == 1;
}
}  // namespace

std::string Surroundings::words_for(PyObject* object, PyObject* name) const {
  return " " + provenance->path_of(object) + "." + text_of(name);
}

OpaqueCall::OpaqueCall(const Surroundings& around, PyObject* function, const std::string& attribute,
                       PyObject* args, PyObject* kwargs, bool python, bool feedable, bool watched)
    : around_(around), step_(std::make_shared<OpaqueStep>()) {
  Recorder* recorder = around_.recorder;
  Provenance* provenance = around_.provenance;
  step_->name = called_name(function, around_.pause);
  step_->of_operator = !step_->name.empty();
  if (!step_->of_operator)
    step_->name = LogCall::logs(function) ? "logging" : name_of(function, around_.pause);
  step_->attribute = attribute;
  step_->python = python;
  if (python) provenance->begin_step();
  step_->feedable = feedable;
  prints_ = is_print(function) || LogCall::logs(function);
  if (const AskedFunction* asked = asked_function(function)) {
    step_->asks = true;
    varies_ = asked->varies;
    step_->told = !varies_;
    step_->name = asked->name;
    draws_ = asked->draws;
  }
  reach(function);
  auto tensor = [&](PyObject* v) {
    const at::Tensor& t = THPVariable_Unpack(v);
    if (has_attributes(v) && recorder->made(t)) throw std::runtime_error("hands on a tensor with attributes");
    int reg = recorder->output_register(t);
    bool plain = THPVariable_CheckExact(v);  // or a parameter
    if (!plain && reg >= 0 && !recorder->was_there(reg))
      throw std::runtime_error("hands on a " + type_name(v) + " that it made");
    if (reg >= 0) {
      uses_.push_back(reg);
      looks_.emplace_back(t, TensorMeta::of(t));
      traits_.push_back(traits_of(t));
      if (!t.is_inference()) versions_.emplace_back(t, t._version());
    }
    return reg;
  };
  auto state = [&](PyObject* v) {
    if (provenance->was_drawn(v)) throw std::runtime_error("hands on an entry that was drawn");
    if (provenance->others_have(v)) recorder->fail(say(reason::HandsOnGiven, step_->name, type_name(v)));
    bool bound = PyCFunction_Check(v) && !is_free_builtin(v);
    int node = bound || PyTuple_CheckExact(v) || PyDict_CheckExact(v) || PyList_CheckExact(v)
                   ? provenance->known(v)
                   : provenance->reach(v);
    return node;
  };
  try {
    py::object kw = kwargs ? py::reinterpret_borrow<py::object>(kwargs) : py::dict();
    call_ = py::make_tuple(py::reinterpret_borrow<py::object>(args), kw);
    NumberRecorder* numbers = recorder->numbers();
    // A replay works out those that are arguments themselves. What else holds a number fixes it.
    auto followed = followed_arguments(numbers, *provenance, LogCall::logs(function), !is_of_steps(function),
                                       args, kwargs);
    auto constant = [&](PyObject* v) { numbers ? numbers->settle_inside(v) : void(); };
    auto number = [&](PyObject* v) { return followed.count(v) ? numbers->number_of(v) : -1; };
    auto module = [&](PyObject* globals) { return provenance->module_of(globals); };
    auto cell = [&](PyObject* one, PyObject* of) {
      if (provenance->touched(one)) recorder->fail(say(reason::VariableTouched));
      const auto* place = provenance->cell(one);
      if (!place && !is_final(one, of)) parts_.add(one);
      provenance->keep_cell(one, step_->name);
      if (place) return *place;
      return std::make_pair(-1, Py_ssize_t{0});
    };
    Tree::Source source{tensor, state, constant, number, module, cell};
    source.made = [&](int reg) { return !recorder->was_there(reg); };
    source.text = [&](PyObject* v) { return followed.count(v) ? numbers->texts().find(v) : nullptr; };
    source.part = [&](PyObject* v) {
      if (provenance->touched(v)) recorder->fail(say(reason::ReadsTouched, type_name(v)));
      if (runs_code_at_its_end(v)) throw std::runtime_error("hands on an object that tells of its end");
      if (v != PyTuple_GET_ITEM(call_.ptr(), 1)) parts_.add(v);  // which nobody but the code has
    };
    step_->call = Tree::of(call_.ptr(), source);
    source.part = [](PyObject*) {};
    // For other numbers it may raise: numpy has no random int below 0.
    if (step_->asks && draws_ && !PyFunction_Check(function)) step_->told &= !step_->call.takes_numbers();
    source.number = [&](PyObject* v) { return is_carrier(v) ? numbers->number_of(v) : -1; };
    source.text = [&](PyObject* v) { return is_text(v) ? numbers->texts().find(v) : nullptr; };
    step_->cannot_raise = is_of_steps(function);
    step_->tells =
        python && (is_of_steps(function) || (prints_values(function, step_->call) && !wrote_how_to_print()));
    step_->told |= step_->tells;
    if (prints_) read_text_methods(call_.ptr(), provenance);
    step_->free = python && !minds_its_own(function) && !step_->tells;
    // What runs again may find no hooks any more where the step that has run had some.
    if (step_->free || recorder->feeding()) recorder->settle_read_data();
    if (step_->free) around_.unseen->settle_made();
    // It may ask what is handled (`sys.exc_info()`, `raise`), which a replay has no object for.
    if (step_->free && !watched && !recorder->feeding() && provenance->handles_its_own())
      recorder->fail(say(reason::OpaqueInHandler, step_->name));
    if (step_->free) show_writes(source, watched);
    if (step_->free && !recorder->stopped()) {
      Aside aside(around_.pause);
      provenance->read_structures([this](PyObject* container) { return around_.writes->before(container); });
      read_before_ = provenance->look();
      for (at::Tensor& tensor : recorder->outer()) outer_.emplace_back(tensor, TensorMeta::of(tensor));
    }
  } catch (const std::runtime_error& error) {
    recorder->fail("calls " + step_->name + " with an argument that cannot be made again");
  }
  if (python) provenance->judge_handed_on();
  count_holders();
  if (step_->free && !recorder->stopped()) made_.emplace(step_->call, call_.ptr());
  touched_ = provenance->touched_so_far();
  around_.recorder->pause();
  // What is written to a stream or a file is nothing that a function reads.
  around_.pause->begin(python && function != LogCall::functions[LogCall::kAtOnce]);
}

// One of C that is asked for numbers is there for as long as the process.
void OpaqueCall::reach(PyObject* function) {
  Tree& tree = step_->function;
  if (step_->asks || is_array_step(function) || is_of_steps(function)) {
    tree.value = py::reinterpret_borrow<py::object>(function);
    return;
  }
  tree.kind = Tree::Kind::State;
  tree.index = around_.provenance->reach(function);
  if (tree.index < 0)
    around_.recorder->fail("calls " + step_->name + ", which cannot be reached again");
  else if (step_->of_operator)
    around_.provenance->read_self(tree.index, function);  // no code of its own shows which one it is
}

OpaqueCall::~OpaqueCall() {
  if (!hidden_.empty()) around_.provenance->hide({}, "");
  if (!paused_) return;
  paused_ = false;
  around_.recorder->resume();
  around_.pause->end();
}

// What Python code is to find where this was written, which goes to `value` too; none where a replay cannot
// put that there before the step.
std::optional<Tree> OpaqueCall::shown_by(const Writes::Write& write, const Tree::Source& source,
                                         py::object* value) {
  bool content = write.effect.kind == Effect::Kind::Content;
  // What such a deque lets go of is not put back.
  int live = around_.provenance->live(write.container.ptr());
  bool drops = write.effect.kind == Effect::Kind::Drop || write.effect.kind == Effect::Kind::Entry ||
               (is_deque(write.container.ptr()) && live >= 0);
  if (drops) {
    // The next recording does not follow the list.
    if (live >= 0) around_.provenance->note_stiff(live);
    return std::nullopt;
  }
  *value = content ? content_of(write.container.ptr()) : write.value;
  Tree tree = takes_apart(*value, source);
  bool whole = tree.kind == Tree::Kind::List || tree.kind == Tree::Kind::Dict;
  auto is_plain = [](const Tree& item) { return item.is_plain(); };
  bool plain =
      content ? whole && std::all_of(tree.items.begin(), tree.items.end(), is_plain) : tree.is_plain();
  return plain ? std::optional<Tree>(std::move(tree)) : std::nullopt;
}

// Whether the function has written how, or where, it prints: that must be there when a replay does.
bool OpaqueCall::wrote_how_to_print() const {
  std::vector<int> owners;
  for (const Writes::Write& write : around_.writes->all())
    if (!write.is_taken_back() || write.effect.moves) owners.push_back(write.effect.owner);
  return around_.provenance->any_lies_in(owners, says_how_to_print);
}

// What the function has written so far, as Python code is to find it: plain numbers where it has written some
// that are followed. Where something cannot be shown, nothing of its container is, and code that is watched
// must not ask for that.
void OpaqueCall::show_writes(const Tree::Source& source, bool watched) {
  std::vector<Writes::Write>& writes = around_.writes->all();
  std::vector<std::pair<py::object, std::optional<Tree>>> all;
  for (const Writes::Write& write : writes) {
    auto& [value, tree] = all.emplace_back();
    // In which order the keys lie, the code would find as well.
    bool moves = write.effect.moves;
    if (!moves && (write.is_taken_back() || (tree = shown_by(write, source, &value)))) continue;
    if (!watched) return around_.recorder->fail(say(reason::OpaqueAfterWrite, step_->name));
    hidden_.insert(write.container.ptr());
  }
  if (!hidden_.empty()) around_.provenance->hide({hidden_.begin(), hidden_.end()}, step_->name);
  for (size_t i = 0; i < all.size(); ++i) {
    auto& [value, tree] = all[i];
    Writes::Write& write = writes[i];
    if (!tree || hidden_.count(write.container.ptr())) {
      shown_.emplace_back();
      continue;
    }
    write.shown = true;
    step_->written.push_back({write.effect, std::move(*tree)});
    shown_.push_back(py::reinterpret_steal<py::object>(plain_of_followed(value.ptr())));
    if (!is_followed(value.ptr())) continue;
    PyObject* container = write.container.ptr();
    if (write.effect.kind == Effect::Kind::Append)
      exchange_entry(container, value.ptr(), shown_.back().ptr());
    else
      write.effect.put_back(container, shown_.back().ptr());
  }
}

void OpaqueCall::counts(PyObject* followed) {
  for (Writes::Write& write : around_.writes->all()) {
    if (write.value.ptr() != followed) continue;
    if (write.effect.moves) return around_.recorder->fail(say(reason::OpaqueAfterWrite, step_->name));
    Tree number;
    number.kind = Tree::Kind::Number;
    number.index = around_.recorder->numbers()->number_of(followed);
    write.shown = step_->counts = true;
    step_->written.push_back({write.effect, std::move(number)});
  }
}

// False where a place has something else by now.
bool OpaqueCall::hide_writes() {
  const auto& writes = around_.writes->all();
  if (!end_with(writes, shown_)) return false;
  for (size_t i = 0; i < shown_.size(); ++i) {
    PyObject* container = writes[i].container.ptr();
    if (hidden_.count(container)) continue;
    bool followed = !shown_[i].is(writes[i].value);
    if (writes[i].effect.kind == Effect::Kind::Append) {
      if (followed && !exchange_entry(container, shown_[i].ptr(), writes[i].value.ptr())) return false;
      continue;
    }
    // A replay finds it so, too (EarlyWrites::stand).
    if (writes[i].effect.kind == Effect::Kind::Content) {
      if (!same_content(content_of(container).ptr(), shown_[i].ptr())) return false;
      continue;
    }
    if (!writes[i].effect.held(container).is(shown_[i])) return false;
    if (followed) writes[i].effect.put_back(container, writes[i].value.ptr());
  }
  return true;
}

py::object OpaqueCall::finish(PyObject* result) {
  Recorder* recorder = around_.recorder;
  if (!recorder->stopped()) add(result);
  if (step_->python && !recorder->stopped()) around_.provenance->give(result, call_.ptr(), step_->others);
  auto given = py::reinterpret_borrow<py::object>(result);
  bool follows = step_->asks && std::any_of(numbers_.begin(), numbers_.end(), [](int id) { return id >= 0; });
  if (!follows || recorder->stopped()) return given;
  auto carrier = [&](int id) { return py::reinterpret_steal<py::object>(recorder->numbers()->carrier(id)); };
  if (!PyTuple_CheckExact(result)) return carrier(numbers_[0]);
  py::tuple all(numbers_.size());
  for (size_t i = 0; i < numbers_.size(); ++i) all[i] = carrier(numbers_[i]);
  return std::move(all);
}

// What torch does around that code is nothing that a function reads.
void OpaqueCall::watch() {
  step_->watched = true;
  around_.recorder->take_answers();
  around_.pause->end();
  around_.pause->begin();
}

void OpaqueCall::meet_function(const void* function) { step_->functions.insert(function); }

void OpaqueCall::uses(const std::vector<int>& registers) {
  for (int reg : registers)
    if (std::find(uses_.begin(), uses_.end(), reg) == uses_.end()) uses_.push_back(reg);
}

// A replay asks whether it has changed more of what it was given then (MadeParts).
void OpaqueCall::touch_parts() {
  if (!made_) return;
  for (int place : made_->changed()) around_.provenance->touch(made_->at(place));
  for (int place = 0; place < made_->size(); ++place)
    if (around_.provenance->touched(made_->at(place))) step_->fills.push_back(place);
}

// What earlier steps keep it may change, at other calls only, too. No replay knows what is read there.
void OpaqueCall::touch_kept(const std::vector<py::object>& kept) {
  for (const py::object& one : kept) around_.provenance->touch(one.ptr());
}

void OpaqueCall::fill_parts() {
  const MadeParts* filled = around_.recorder->fed_parts();
  if (!filled) return;
  if (around_.recorder->feeds_kept_parts()) return take_over_parts(*filled);
  if (!made_ || !filled->change(*made_))
    around_.recorder->diverge(step_->name + ", which has changed what it was given");
}

void OpaqueCall::take_over_parts(const MadeParts& theirs) {
  if (!made_ || made_->all().size() != theirs.all().size())
    return around_.recorder->diverge(step_->name + ", which keeps it");
  call_ = made_->exchanged(theirs, call_);
  std::unordered_map<PyObject*, PyObject*> by;
  for (size_t i = 0; i < theirs.all().size(); ++i) by[made_->all()[i].ptr()] = theirs.all()[i].ptr();
  // A variable that nobody sets any more is as good as another that leads to the same.
  auto is_final = [&](PyObject* own) {
    return PyCell_Check(own) && std::none_of(parts_.all().begin(), parts_.all().end(),
                                             [&](const auto& part) { return part.first.ptr() == own; });
  };
  for (auto [own, other] : by) {
    if (!is_final(own))
      around_.provenance->replace(own, other);
    else if (by.count(PyCell_GET(own)))
      PyCell_Set(own, by[PyCell_GET(own)]);
  }
  parts_.exchange([&](PyObject* own) {
    auto found = by.find(own);
    return found == by.end() ? own : found->second;
  });
  made_.emplace(theirs);
}

py::object OpaqueCall::fed_value() {
  py::object value = around_.recorder->fed_value();
  const MadeParts* theirs = around_.recorder->fed_parts();
  return theirs && made_ ? theirs->exchanged(*made_, value) : value;
}

// Whether the step keeps, or has changed, what it was given and a replay makes.
void OpaqueCall::judge_parts(PyObject* result) {
  Recorder* recorder = around_.recorder;
  Provenance* provenance = around_.provenance;
  const Flattened given(result, call_.ptr());
  bool kept = provenance->keeps(parts_, given.held) || (recorder->feeding() && recorder->feeds_kept_parts());
  // A block is kept by what stands in its place, where it is kept.
  bool keeps = kept || step_->watched;
  if (step_->python) provenance->renew_handed_on(parts_, step_->name);
  touch_parts();
  // What it has changed is another object in code that runs again, too.
  std::vector<PyObject*> all;
  for (const auto& [part, holders] : parts_.all()) all.push_back(part.ptr());
  bool has_changed =
      std::any_of(all.begin(), all.end(), [&](PyObject* part) { return provenance->touched(part); });
  bool handed = keeps || (step_->python && recorder->feeding());
  if (handed || has_changed) step_->keeps = provenance->hand_on(parts_, step_->name, kept);
  if (step_->free && !handed)
    step_->may_not_keep = !given.given_back.empty() || step_->keeps || provenance->reaches_any(all);
  step_->leads_back = step_->free && step_->keeps && !keeps;
}

namespace {
// An array of its own memory that a tensor of the result shows, which holds the array.
bool is_memory_of_result(PyObject* array, PyObject* result) {
  py::object memory = memory_of_array(array);
  if (!memory || !py::getattr(array, "base").is_none()) return false;
  const void* data = THPVariable_Unpack(memory.ptr()).data_ptr();
  const Flattened flattened(result, nullptr);
  return std::any_of(flattened.leaves.begin(), flattened.leaves.end(), [data](PyObject* leaf) {
    return is_tensor(leaf) && THPVariable_Unpack(leaf).has_storage() &&
           THPVariable_Unpack(leaf).storage().data() == data;
  });
}
}  // namespace

void OpaqueCall::add(PyObject* result) {
  Recorder* recorder = around_.recorder;
  // A form cannot go without code that fills a list.
  const size_t touched_before = touched_.objects + touched_.others;
  step_->watched &= touched_before == around_.provenance->touched_count();
  bool changes = step_->free && !step_->watched && !step_->pure;
  std::vector<py::object> kept = changes ? around_.provenance->handed_on() : std::vector<py::object>();
  judge_parts(result);
  if (step_->python) around_.provenance->doubt_placed();
  if (step_->free)
    step_->turn =
        around_.provenance->note_behind(around_.provenance->touch_changed(std::exchange(read_before_, {})));
  auto written = [this](PyObject* object) { return around_.writes->wrote_to(object); };
  if (step_->engine && !recorder->feeding() && around_.provenance->leaves_adopted(written))
    return recorder->fail(say(reason::OpaqueAfterWrite, step_->name));
  if (!hide_writes()) {
    recorder->fail(say(reason::OpaqueRewrites, step_->name));
    // What a replay has run is fed, whatever it has left there.
    if (!recorder->feeding()) return;
  }
  if (recorder->feeding()) {
    numbers_ = recorder->add_opaque(step_, uses_, unseen_, result, call_.ptr(), made_.has_value());
    // Code that is watched has changed nothing: what the function writes counts as it did in the recording.
    if (step_->touches && !step_->watched) around_.provenance->touch_unseen();
    return touch_kept(kept);
  }
  if (step_->pure) step_->told = !recorder->hidden_varies();
  // What it has made and left to nobody is nothing that code behind it could come to. What C code has changed
  // without an instruction that shows it has been noted by now.
  const bool touched = touched_before != around_.provenance->touched_count();
  step_->touches = touched && !shows_touched_ &&
                   around_.provenance->left_touched(
                       touched_, [result](PyObject* object) { return is_memory_of_result(object, result); });
  step_->confuses = touched && around_.provenance->touched_what_was_read();
  if (step_->watched) step_->answers = recorder->take_answers();
  step_->touches |= step_->watched;  // a function that runs again has no guards for what is read there
  step_->confuses |= Modes::current() != modes_;  // a function that is fed its result would not switch them
  compare_looks();
  if (prints_) recorder->forget_hidden();
  step_->random = draws_ || random_mark_ != RandomMark::now();
  for (auto& [tensor, version] : versions_) {
    bool written = tensor._version() != version;
    step_->effects |= written;
    if (written && recorder->is_drawn(tensor)) recorder->fail(say(reason::WritesDrawn));
  }
  // An array is as large as the numbers say.
  bool sized = draws_ && !step_->asks && step_->call.takes_numbers();
  if (varies_ || sized) recorder->note_hidden();
  add_as_before(result);
  touch_kept(kept);
}

// It is called in the modes that it is to find, whatever it leaves.
void OpaqueCall::add_as_before(PyObject* result) {
  bool switched = Modes::current() != modes_;
  {
    ModeSwitch before;
    if (switched) before.to(modes_);
    numbers_ = around_.recorder->add_opaque(step_, uses_, unseen_, result, call_.ptr(), made_.has_value());
  }
  if (switched) around_.recorder->note_switched();
}

// A replay compares how arguments look behind it with what they do here. What it changes of other tensors the
// function has read may differ.
void OpaqueCall::compare_looks() {
  Recorder* recorder = around_.recorder;
  auto given = [&](const at::Tensor& tensor) {
    auto is_it = [&](const auto& look) { return look.first.is_same(tensor); };
    return std::any_of(looks_.begin(), looks_.end(), is_it);
  };
  for (size_t i = 0; i < looks_.size(); ++i) {
    const auto& [tensor, before] = looks_[i];
    std::string traits = traits_of(tensor);
    if (!traits.empty() && recorder->made(tensor)) recorder->note_decorated(recorder->register_of(tensor));
    if (before.matches(tensor) && traits == traits_[i]) continue;
    step_->confuses = true;
    TensorMeta behind = TensorMeta::of(tensor);
    step_->looks.push_back({i, behind, traits});
    bool sized = before.sizes() != behind.sizes() || before.strides() != behind.strides();
    if (sized && recorder->follows_sizes()) recorder->fail(say(reason::OpaqueTurns, step_->name));
  }
  for (auto& [tensor, before] : outer_)
    if (!before.matches(tensor) && !given(tensor)) recorder->fail(say(reason::OpaqueTurns, step_->name));
}

}  // namespace lazytrace
