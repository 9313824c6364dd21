#include "record/python/whole_calls.h"

#include <cstring>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cpython/callee.h"
#include "cpython/imports.h"
#include "cpython/inline_cache.h"
#include "cpython/lru_cache.h"
#include "cpython/objects.h"
#include "cpython/text_carrier.h"
#include "record/python/asked.h"
#include "record/python/code_facts.h"
#include "record/python/log_call.h"
#include "support/address_map.h"

namespace lazytrace {

namespace {
// function -> what is called in its place; both are kept for the life of the process.
AddressMap<PyObject*>& steps() {
  static auto* known = new AddressMap<PyObject*>();
  return *known;
}
}  // namespace

void configure_whole_calls(const py::dict& by_function) {
  for (auto [function, step] : by_function) {
    Py_INCREF(function.ptr());
    steps()[function.ptr()] = Py_NewRef(step.ptr());
  }
}

namespace {
// Objects of a class whose calls are a step each, where `holds` is null or true of them, or `other` if need
// be.
struct CalledObjects {
  PyTypeObject* cls;
  PyObject *step, *holds, *other, *name;
};
// Kept for the life of the process, as all that is told.
std::vector<CalledObjects>& called_objects() {
  static auto* known = new std::vector<CalledObjects>();
  return *known;
}
PyObject *print_step = nullptr, *filling_step = nullptr;
PyObject *print_function = nullptr, *print_parts = nullptr, *is_printable = nullptr;
PyObject* text_of_object = nullptr;
PyObject *cached_step = nullptr, *given_step = nullptr;
PyObject *remove_handle = nullptr, *unhook_step = nullptr;
}  // namespace

void configure_missing_entries(const py::object& instead) { filling_step = Py_NewRef(instead.ptr()); }
PyObject* entry_filler() { return filling_step; }

void configure_cached_calls(const py::object& step, const py::object& given) {
  cached_step = Py_NewRef(step.ptr());
  given_step = Py_NewRef(given.ptr());
}

void configure_unhooking(const py::object& remove, const py::object& step) {
  remove_handle = Py_NewRef(remove.ptr());
  unhook_step = Py_NewRef(step.ptr());
}

PyObject* given_entry_step() { return given_step; }

void configure_called_objects(const py::tuple& classes, const py::object& step, const py::object& holds,
                              const py::object& other, const py::object& name) {
  auto given = [](const py::object& one) { return one.is_none() ? nullptr : Py_NewRef(one.ptr()); };
  for (py::handle cls : classes)
    called_objects().push_back({reinterpret_cast<PyTypeObject*>(Py_NewRef(cls.ptr())), Py_NewRef(step.ptr()),
                                given(holds), given(other), given(name)});
}

std::string name_of_called(PyObject* object) {
  for (const CalledObjects& row : called_objects())
    if (row.name && Py_IS_TYPE(object, row.cls))
      return text_of(py::handle(row.name)(py::handle(object)).ptr());
  return "";
}

void configure_print(const py::object& function, const py::object& step, const py::object& printable,
                     const py::object& parts) {
  print_function = Py_NewRef(function.ptr());
  print_step = Py_NewRef(step.ptr());
  is_printable = Py_NewRef(printable.ptr());
  print_parts = Py_NewRef(parts.ptr());
}

namespace {
// What stands for a function whose first argument is this very object, or of this very class.
struct ByFirst {
  PyObject *first, *own;
};

struct StandIns {
  AddressMap<PyObject*> by_function, dropped, by_code, of_generators;
  AddressMap<PyObject*> by_class;  // of what is called
  AddressMap<std::vector<ByFirst>> by_first;
  AddressSet all;
  AddressSet keys;  // of all that something may stand for
  // Of modules that not all programs load: the name of each, and what gives its rows.
  std::vector<std::pair<PyObject*, PyObject*>> later;
};

// Kept for the life of the process.
StandIns& stand_ins() {
  static auto* known = new StandIns();
  return *known;
}

// The function that is called, and what it is bound to, or null.
std::pair<PyObject*, PyObject*> taken_apart(PyObject* callee) {
  if (!PyMethod_Check(callee)) return {callee, nullptr};
  return {PyMethod_GET_FUNCTION(callee), PyMethod_GET_SELF(callee)};
}

// What is the same of a function of C and of the methods that are bound to objects.
const void* key_of(PyObject* callable) {
  if (PyCFunction_Check(callable)) return reinterpret_cast<PyCFunctionObject*>(callable)->m_ml;
  if (Py_IS_TYPE(callable, &PyMethodDescr_Type))
    return reinterpret_cast<PyMethodDescrObject*>(callable)->d_method;
  return callable;
}

// The names of the arguments that the call passes by name, or null. They stand right before the call.
PyObject* keywords_of(Frame f) {
  const std::vector<Operation>& operations = decoded_facts_of(f.code())->operations;
  int at = f.instruction() - 1;
  auto before = [&]() -> const Operation& { return operations[static_cast<size_t>(at)]; };
  while (at >= 0 && (is_inline_cache(before()) || before().harmless())) --at;
  return at >= 0 && before().action == Action::NamesKeywords ? f.constant(before().name) : nullptr;
}

// Whether Python code takes the arguments of the call. Of others the function itself says what is wrong with
// them, in its own words.
bool takes_arguments(PyObject* own, Frame f, const Operation& operation, bool bound) {
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(own));
  PyObject* names = keywords_of(f);
  int count = operation.third + (f.peek(operation.first) != nullptr) + bound;
  if (names) count -= static_cast<int>(PyTuple_GET_SIZE(names));
  bool fits = count == code->co_argcount || (count > code->co_argcount && (code->co_flags & CO_VARARGS));
  return fits && (!names || (code->co_flags & CO_VARKEYWORDS));
}

// What a callee is given first, or null: what it is bound to, which lies on the stack if it was bound by now.
PyObject* first_argument(Frame f, const Operation& operation, PyObject* self) {
  int count = operation.third + (f.peek(operation.first) != nullptr);
  return self ? self : count ? f.peek(count) : nullptr;
}

// Whether the frame drops what its call gives, or the call gives nothing.
bool drops_result(Frame f) {
  const Operation* next = next_operation(f);
  return next && drops_value(*next);
}
}  // namespace

namespace {
// What `key_of` is asked of for the callable of a row.
const void* key_of_row(PyObject* callable) {
  return key_of(PyTuple_Check(callable) ? PyTuple_GET_ITEM(callable, 0) : callable);
}

void fill(AddressMap<PyObject*>* known, const py::dict& rows) {
  for (auto [callable, own] : rows) {
    if (PyUnicode_Check(callable.ptr())) {
      PyObject* module = Py_NewRef(callable.ptr());
      PyUnicode_InternInPlace(&module);
      stand_ins().later.emplace_back(module, Py_NewRef(own.ptr()));
      continue;
    }
    stand_ins().all.insert(Py_NewRef(own.ptr()));
    stand_ins().keys.insert(key_of_row(callable.ptr()));
    if (PyTuple_Check(callable.ptr())) {
      PyObject* first = Py_NewRef(PyTuple_GET_ITEM(callable.ptr(), 1));
      const void* key = key_of(Py_NewRef(PyTuple_GET_ITEM(callable.ptr(), 0)));
      stand_ins().by_first[key].push_back({first, own.ptr()});
    } else if (PyType_Check(callable.ptr())) {
      stand_ins().by_class[Py_NewRef(callable.ptr())] = own.ptr();
    } else {
      (*known)[key_of(Py_NewRef(callable.ptr()))] = own.ptr();
    }
  }
}

void know_what_is_loaded() {
  auto& later = stand_ins().later;
  // CPython renews the version of a dict at each change.
  static uint64_t asked = 0;
  uint64_t version = reinterpret_cast<PyDictObject*>(PyImport_GetModuleDict())->ma_version_tag;
  if (std::exchange(asked, version) == version) return;
  for (size_t i = 0; i < later.size();) {
    if (!PyDict_GetItemWithError(PyImport_GetModuleDict(), later[i].first)) {
      ++i;
      continue;
    }
    PyObject* rows = later[i].second;
    later.erase(later.begin() + static_cast<std::ptrdiff_t>(i));
    auto both = py::cast<std::pair<py::dict, py::dict>>(py::handle(rows)());
    fill(&stand_ins().by_function, both.first);
    fill(&stand_ins().dropped, both.second);
  }
}
}  // namespace

void configure_stand_ins(const py::dict& by_function, const py::dict& dropped, const py::dict& by_code,
                         const py::object& text, const py::dict& of_generators) {
  text_of_object = Py_NewRef(text.ptr());
  stand_ins().all.insert(text_of_object);
  fill(&stand_ins().by_function, by_function);
  fill(&stand_ins().dropped, dropped);
  fill(&stand_ins().by_code, by_code);
  fill(&stand_ins().of_generators, of_generators);
}

bool is_step_of_ours(PyObject* function) {
  if (!function) return false;
  for (const CalledObjects& row : called_objects())
    if (function == row.step) return true;
  return function == cached_step || function == given_step || function == print_step ||
         function == print_parts || function == filling_step || stand_ins().all.count(function);
}

namespace {
// str(x) of an object whose class has a method of Python for it: C code would take what that gives for a str.
bool asks_for_text(Frame f, const Operation& operation, PyObject* callee, PyObject* self) {
  if (callee != reinterpret_cast<PyObject*>(&PyUnicode_Type) || !text_of_object ||
      !takes_arguments(text_of_object, f, operation, self))
    return false;
  PyObject* value = first_argument(f, operation, self);
  PyTypeObject* type = Py_TYPE(value);
  if (is_followed(value) || !is_python_class(type)) return false;
  static PyObject* const name = PyUnicode_InternFromString("__str__");
  static PyObject* const other = PyUnicode_InternFromString("__repr__");
  PyObject* method = _PyType_Lookup(type, name);
  if (method == PyDict_GetItemWithError(PyBaseObject_Type.tp_dict, name))
    method = _PyType_Lookup(type, other);
  return method && PyFunction_Check(method);
}

// Whether code asks, by these names, which frames are around it: Python code that stands for C code would be
// one.
bool asks_for_frames(PyCodeObject* code) {
  static const auto* asking = new std::unordered_set<std::string>{
      "warn",          "_getframe",    "currentframe", "stack",          "walk_stack",
      "extract_stack", "format_stack", "print_stack",  "getouterframes", "_current_frames"};
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_names); ++i)
    if (asking->count(text_of(PyTuple_GET_ITEM(code->co_names, i)))) return true;
  return false;
}

bool takes_generator(Frame f, const Operation& operation) {
  PyObject* items = operation.third ? *f.top(operation.third) : nullptr;
  return items && PyGen_CheckExact(items) && !asks_for_frames(reinterpret_cast<PyGenObject*>(items)->gi_code);
}
}  // namespace

namespace {
// What stands for an object of the operator module, or null. Only those that are known; others are judged.
PyObject* of_operator_object(PyObject* callee) {
  if (PyType_Check(callee) || std::strncmp(c_name(Py_TYPE(callee)), "operator.", 9) != 0) return nullptr;
  PyObject* const* own = stand_ins().by_class.find(Py_TYPE(callee));
  return own ? *own : nullptr;
}

// Whether what a function of C does hangs on the code that calls it: its variables, what it holds, or where
// it stands.
bool looks_at_caller(PyObject* function) {
  static const auto* looking = new std::unordered_set<std::string>{
      "__import__", "_current_frames", "_getframe", "breakpoint", "compile", "dir", "eval",
      "exec",       "getrefcount",     "globals",   "locals",     "vars",    "warn"};
  return PyCFunction_Check(function) &&
         looking->count(reinterpret_cast<PyCFunctionObject*>(function)->m_ml->ml_name);
}

// The same of a partial of a function of C: what it calls is seen, then, with all that it is given.
PyObject* of_partial(PyObject* callee) {
  PyObject* function = function_of_partial(callee);
  bool calls_c = function && (PyCFunction_Check(function) || Py_IS_TYPE(function, &PyMethodDescr_Type)) &&
                 !looks_at_caller(function);
  PyObject* const* own = calls_c ? stand_ins().by_class.find(Py_TYPE(callee)) : nullptr;
  return own ? *own : nullptr;
}

// C code that calls one argument with what it finds in others, and forgets it.
const AddressSet& callers_of_arguments() {
  static const auto* known = [] {
    auto* all = new AddressSet();
    for (const char* name : {"sorted", "min", "max", "map", "filter"}) all->insert(key_of(builtin(name)));
    all->insert(key_of(PyDict_GetItemString(PyList_Type.tp_dict, "sort")));
    all->insert(from_module("itertools", "groupby").release().ptr());
    return all;
  }();
  return *known;
}

bool calls_what_it_is_given(PyObject* callee) { return callers_of_arguments().count(key_of(callee)); }

// Whether Python code may stand for the function, or for what it is given.
bool may_be_stood_for(PyObject* function) {
  bool plain = PyFunction_Check(function) || PyCFunction_Check(function) || PyType_Check(function) ||
               Py_IS_TYPE(function, &PyMethodDescr_Type);
  if (!plain) return true;
  const void* key = key_of(function);
  return function == reinterpret_cast<PyObject*>(&PyUnicode_Type) || stand_ins().keys.count(key) ||
         callers_of_arguments().count(key);
}

// How far below the top of the stack the argument lies that such code calls, or 0 where it is given none.
// Others it gives back, or says in an error what they are.
int depth_of_called(PyObject* function, int count, PyObject* names) {
  int named = names ? static_cast<int>(PyTuple_GET_SIZE(names)) : 0;
  static PyObject *const map = builtin("map"), *const filter = builtin("filter");
  if (function == map || function == filter) return count > named ? count : 0;
  static PyObject* const key = PyUnicode_InternFromString("key");
  for (int i = 0; i < named; ++i)
    if (is_text(PyTuple_GET_ITEM(names, i), key)) return named - i;
  static PyObject* const groupby = from_module("itertools", "groupby").release().ptr();
  return function == groupby && count - named == 2 ? count - 1 : 0;
}

// Attributes and items that C code would ask for, unseen.
void exchange_key(Frame f, const Operation& operation, PyObject* callee) {
  PyObject* function = taken_apart(callee).first;
  if (!calls_what_it_is_given(function)) return;
  int depth = depth_of_called(function, operation.third, keywords_of(f));
  PyObject* own = depth ? of_operator_object(f.peek(depth)) : nullptr;
  if (!own) return;
  PyObject** place = f.place(depth);
  PyObject* instead = PyMethod_New(own, *place);
  if (!instead) throw py::error_already_set();
  Py_SETREF(*place, instead);
}

PyObject* stand_in_by_first(const void* key, PyObject* first) {
  const std::vector<ByFirst>* rows = first ? stand_ins().by_first.find(key) : nullptr;
  for (size_t i = 0; rows && i < rows->size(); ++i)
    if ((*rows)[i].first == first || Py_IS_TYPE(first, reinterpret_cast<PyTypeObject*>((*rows)[i].first)))
      return (*rows)[i].own;
  return nullptr;
}

// Whether what a call of `map` gives is taken at once and all.
bool maps_at_once(Frame f, const Operation& operation) {
  if (operation.third != 2 || f.peek(operation.first)) return false;
  PyObject* items = f.peek(1);
  bool ends = PyList_CheckExact(items) || PyTuple_CheckExact(items) || Py_IS_TYPE(items, &PyZip_Type);
  if (!ends) return false;
  const std::vector<Operation>& operations = decoded_facts_of(f.code())->operations;
  auto at = static_cast<size_t>(f.instruction()) + 1;
  while (at < operations.size() && (is_inline_cache(operations[at]) || prepares_call(operations[at]))) ++at;
  if (at == operations.size()) return false;
  const Operation* next = &operations[at];
  if (next->action == Action::Unpacks || next->action == Action::CallsWith) return true;
  const int below = operation.third + 2;  // what the call takes from the stack
  auto is = [&](PyTypeObject& type) { return f.peek(below + 1) == reinterpret_cast<PyObject*>(&type); };
  return next->action == Action::Calls && next->third == 1 && !f.peek(below + 2) &&
         (is(PyList_Type) || is(PyTuple_Type));
}

PyObject* stand_in_of(Frame f, const Operation& operation, const void* key, PyObject* self) {
  if (key == &PyMap_Type && !maps_at_once(f, operation)) return nullptr;
  if (PyObject* const* own = stand_ins().by_function.find(key)) return *own;
  // Of a class whose instances cannot be called it is the class that is called.
  auto* type = reinterpret_cast<PyTypeObject*>(const_cast<void*>(key));
  if (PyObject* const* own = stand_ins().by_class.find(key); own && !type->tp_call) return *own;
  PyObject* first = first_argument(f, operation, self);
  if (PyObject* own = stand_in_by_first(key, first)) return own;
  if (drops_result(f))
    if (PyObject* const* own = stand_ins().dropped.find(key)) return *own;
  if (takes_generator(f, operation))
    if (PyObject* const* own = stand_ins().of_generators.find(key)) return *own;
  return nullptr;
}
}  // namespace

bool WholeCalls::exchange_for_stand_in(Frame f, const Operation& operation, PyObject** callee) {
  // Python code that stands for a function calls it for real.
  if (operation.action != Action::Calls || (code_flags(f.code()) & kStandsIn)) return false;
  know_what_is_loaded();
  auto [function, self] = taken_apart(*callee);
  if (PyFunction_Check(function)) {
    // One that is bound by now has two objects before its arguments.
    PyObject* const* own = self ? nullptr : stand_ins().by_code.find(PyFunction_GET_CODE(function));
    if (own && takes_arguments(*own, f, operation, true)) return replace(callee, *own, function), true;
  }
  if (!may_be_stood_for(function)) return false;
  if (asks_for_text(f, operation, function, self)) return replace(callee, text_of_object, self), true;
  exchange_key(f, operation, *callee);
  PyObject* of_object = of_operator_object(function);
  if (PyObject* own = of_object ? of_object : of_partial(function)) {
    if (!takes_arguments(own, f, operation, true)) return false;
    return replace(callee, own, function), true;
  }
  const void* key = key_of(function);
  if (PyCFunction_Check(function) && !is_free_builtin(function)) self = PyCFunction_GET_SELF(function);
  PyObject* own = stand_in_of(f, operation, key, self);
  if (!own || !takes_arguments(own, f, operation, self)) return false;
  return replace(callee, own, self), true;
}

namespace {
// Whether code of the user's runs for what is printed. What stands for print() is given texts.
bool prints_objects(Frame f, const Operation& operation) {
  if (operation.action != Action::Calls || (code_flags(f.code()) & kStandsIn)) return false;
  py::tuple values(operation.third);
  PyObject* const* first = f.top(operation.third);
  for (int i = 0; i < operation.third; ++i) values[static_cast<size_t>(i)] = py::handle(first[i]);
  return !py::handle(is_printable)(values).cast<bool>();
}
}  // namespace

namespace {
// How many numbers that are followed lie there.
size_t count_followed(PyObject* value, int depth = 0) {
  constexpr int kDeepest = 16;
  if (is_followed(value)) return 1;
  bool sequence = PyTuple_Check(value) || PyList_CheckExact(value);
  size_t count = 0;
  for (Py_ssize_t i = 0; sequence && depth < kDeepest && i < PySequence_Fast_GET_SIZE(value); ++i)
    count += count_followed(PySequence_Fast_GET_ITEM(value, i), depth + 1);
  return count;
}

// Those that the arguments of a call hold are read before it.
size_t reads_of(Frame f, const Operation& operation) {
  size_t reads = 0;
  if (operation.action == Action::Calls)
    for (int i = 1; i <= operation.third + 1; ++i) reads += f.peek(i) ? count_followed(f.peek(i)) : 0;
  if (operation.action == Action::CallsWith) reads = count_followed(f.peek(operation.second));
  return reads;
}
}  // namespace

bool WholeCalls::is_step(PyObject* cache, Frame f, const Operation& operation) const {
  if (!recorder_->feeding()) return drops_entries(cache);
  py::object name = py::getattr(cache, "__qualname__", py::none());
  return PyUnicode_Check(name.ptr()) && recorder_->expects(text_of(name.ptr()), reads_of(f, operation));
}

PyObject* WholeCalls::step_of_object(PyObject* object, Frame f, const Operation& operation) const {
  auto is = [object](PyObject* such) { return such && py::handle(such)(py::handle(object)).cast<bool>(); };
  for (const CalledObjects& row : called_objects()) {
    if (!Py_IS_TYPE(object, row.cls)) continue;
    if (!row.holds || is(row.holds)) return row.step;
    // Where the function runs again after a side exit, what was a step before.
    bool whole = recorder_->feeding() ? recorder_->expects(name_of_called(object), reads_of(f, operation))
                                      : takes_operators_;
    return whole && is(row.other) ? row.step : nullptr;
  }
  return nullptr;
}

void WholeCalls::exchange_unseen(Frame f, const Operation& operation, bool prints) {
  PyObject** callee = callee_of(f, operation);
  if (!callee || !*callee || recorder_->stopped()) return;
  // What a replay has printed may be objects of the user's by now, which a list of before the call holds.
  if (*callee == print_function && prints) {
    bool whole = recorder_->expects_print(reads_of(f, operation)) || !prints_objects(f, operation);
    return replace(callee, whole ? print_step : print_parts, nullptr);
  }
  if (exchange_for_stand_in(f, operation, callee)) return;
  auto hand_over = [&](PyObject* step) {
    PyObject* instead = PyMethod_New(step, *callee);
    if (!instead) throw py::error_already_set();
    Py_SETREF(*callee, instead);
  };
  // What it gives is made at each call, and is no state that a guard could find.
  PyObject* function = taken_apart(*callee).first;
  if (is_lru_cache(function) && is_step(function, f, operation)) return hand_over(cached_step);
  if (PyObject* step = step_of_object(*callee, f, operation)) hand_over(step);
}

namespace {
// Of arguments that stand on the stack one by one.
AskedCall asked_by(Frame f, const Operation& operation) {
  if (operation.action != Action::Calls) return {};
  bool method = f.peek(operation.first);
  int count = operation.third + method;
  return asked_call(*callee_of(f, operation), f.top(count), count);
}
}  // namespace

bool WholeCalls::removes_hook(PyObject* function, PyObject* self, Frame f, const Operation& operation) const {
  if (handles_.empty() || function != remove_handle || operation.action != Action::Calls) return false;
  int count = operation.third + (f.peek(operation.first) != nullptr);
  PyObject* handle = self ? self : count > 0 ? *f.top(count) : nullptr;
  return handle && handles_.count(handle);
}

bool WholeCalls::exchanges(PyObject* function) { return steps().find(function) != nullptr; }

void WholeCalls::exchange(Frame f, const Operation& operation) {
  PyObject** callee = callee_of(f, operation);
  if (!callee || recorder_->stopped()) return;
  if (AskedCall call = asked_by(f, operation); call.asked && recorder_->numbers())
    return replace(callee, call.asked->step, call.self);
  auto [function, self] = taken_apart(*callee);
  if (removes_hook(function, self, f, operation)) return replace(callee, unhook_step, self);
  if (PyObject* const* step = steps().find(function)) replace(callee, *step, self);
}

void WholeCalls::exchange_logging(Frame f, const Operation& operation) {
  PyObject** callee = callee_of(f, operation);
  if (!callee || recorder_->stopped() || (code_flags(f.code()) & kStandsIn)) return;
  auto [function, self] = taken_apart(*callee);
  if (PyObject* step = LogCall::step_of(function)) replace(callee, step, self);
}

void WholeCalls::replace(PyObject** callee, PyObject* step, PyObject* self) {
  PyObject* instead = self ? PyMethod_New(step, self) : Py_NewRef(step);
  if (!instead) throw py::error_already_set();
  Py_SETREF(*callee, instead);
}

}  // namespace lazytrace
