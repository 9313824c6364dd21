#include "record/python/watched_blocks.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>

#include "cpython/callee.h"
#include "cpython/objects.h"
#include "record/python/code_facts.h"
#include "record/python/whole_calls.h"
#include "support/reasons.h"

namespace lazytrace {

namespace {
// What runs meanwhile is watched as code of the function's own is, and the step is told what was seen.
class Watched {
 public:
  Watched(const Surroundings& around, OpaqueCall* step)
      : around_(around), step_(step), written_(around.writes->changes()), place_(around.recorder->place) {
    around_.recorder->begin_block();
  }
  ~Watched() {
    // A replay would make them once more than the step does.
    if (around_.writes->changes() != written_) around_.recorder->fail(say(reason::BlockWrites));
    step_->uses(around_.recorder->end_block());
    around_.recorder->place = place_;
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

 private:
  const Surroundings& around_;
  OpaqueCall* step_;
  size_t written_;
  Place place_;  // of the step
};

struct Looking {
  Pause* pause;
  explicit Looking(Pause* p) : pause(p) { pause->end(); }
  ~Looking() { pause->begin(); }
};
}  // namespace

WatchedBlocks::Running::Running(std::shared_ptr<WatchedBlocks> blocks, OpaqueCall* step)
    : blocks_(std::move(blocks)) {
  blocks_->step_ = step;
  step->watch();
}

namespace {
// The function that a method is one of, borrowed; anything else as it is.
PyObject* function_behind(PyObject* callable) {
  return PyMethod_Check(callable) ? PyMethod_GET_FUNCTION(callable) : callable;
}

// What torch's errors call a hook. No code of a class of the user's is asked for it.
std::string name_of(PyObject* hook) {
  static PyObject* const name = PyUnicode_InternFromString("__name__");
  auto found = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(function_behind(hook), name));
  if (!found) PyErr_Clear();
  return found && PyUnicode_Check(found.ptr()) ? text_of(found.ptr()) : "<unknown>";
}
}  // namespace

py::object WatchedBlocks::instead_of(const py::object& function) {
  std::string name = name_of(function.ptr());
  return py::cpp_function(
      [function, blocks = shared_from_this()](const py::args& args, const py::kwargs& named) {
        return blocks->call(function, args, named);
      },
      py::name(name.c_str()));
}

namespace {
// The code that a call comes to, borrowed: that of a function, or of the class of an object.
PyObject* function_of(PyObject* hook) {
  static PyObject* const call = PyUnicode_InternFromString("__call__");
  if (PyObject* inner = function_of_partial(hook)) hook = inner;
  hook = function_behind(hook);
  PyObject* found = is_python_class(Py_TYPE(hook)) ? _PyType_Lookup(Py_TYPE(hook), call) : nullptr;
  return found ? found : hook;
}

bool writes(const Operation& operation, PyCodeObject* code, bool fills) {
  switch (operation.action) {
    case Action::SetsItem:
      return !fills;
    case Action::SetsGlobal:
    case Action::SetsVariable:
      return true;
    case Action::SetsAttribute: {
      // A gradient is set behind what the pass has added to it.
      PyObject* name = PyTuple_GET_ITEM(code->co_names, operation.name);
      return PyUnicode_CompareWithASCIIString(name, "grad") != 0;
    }
    default:
      return false;
  }
}

// What it says decides about nothing but the time of a recording.
bool may_watch_code_of(PyObject* hook, bool fills) {
  PyObject* function = function_of(hook);
  if (!PyFunction_Check(function)) return false;
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function));
  static const std::unordered_set<std::string> kMore = {"item", "tolist", "print", "numpy"},
                                               kFills = {"append", "update",     "add",        "extend",
                                                         "insert", "setdefault", "appendleft", "__setitem__"};
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_names); ++i) {
    std::string name = text_of(PyTuple_GET_ITEM(code->co_names, i));
    if (kMore.count(name) || (!fills && kFills.count(name))) return false;
  }
  const std::vector<Operation>& operations = decoded_facts_of(reinterpret_cast<PyObject*>(code))->operations;
  return std::none_of(operations.begin(), operations.end(),
                      [&](const Operation& operation) { return writes(operation, code, fills); });
}
}  // namespace

bool WatchedBlocks::may_watch(PyObject* hook) { return may_watch_code_of(hook, false); }
bool WatchedBlocks::may_fill(PyObject* hook) { return may_watch_code_of(hook, true); }

bool WatchedBlocks::knows(PyObject* hook) const {
  return std::any_of(hooks_.begin(), hooks_.end(), [&](const py::object& one) { return one.ptr() == hook; });
}

WatchedBlocks::InPlace::InPlace(const std::shared_ptr<WatchedBlocks>& blocks,
                                const std::vector<py::dict>& dicts) {
  for (const py::dict& dict : dicts)
    for (auto [key, hook] : dict)
      all_.push_back({dict, py::reinterpret_borrow<py::object>(key), py::reinterpret_borrow<py::object>(hook),
                      blocks->instead_of(py::reinterpret_borrow<py::object>(hook))});
  for (const Hook& one : all_) one.dict[one.key] = one.instead;
}

// One that a hook has taken away stays away.
WatchedBlocks::InPlace::~InPlace() {
  for (const Hook& one : all_)
    if (PyDict_GetItemWithError(one.dict.ptr(), one.key.ptr()) == one.instead.ptr())
      PyDict_SetItem(one.dict.ptr(), one.key.ptr(), one.hook.ptr());
}

py::object WatchedBlocks::call(const py::object& function, const py::args& args, const py::kwargs& kwargs) {
  Recorder* recorder = around_.recorder;
  if (!step_ || Recorder::active() != recorder || recorder->stopped()) return function(*args, **kwargs);
  Looking looking(around_.pause);
  // A block of another one is part of it.
  if (recorder->in_block()) return function(*args, **kwargs);
  Watched watched(around_, step_);
  // Its frame shows what it reads, and warns of the code that is around it.
  PyObject* behind = function_behind(function.ptr());
  if (PyFunction_Check(behind) && !WholeCalls::exchanges(behind)) return function(*args, **kwargs);
  // What a call of an object reads, and that a call stays whole, is seen where code that is watched makes it.
  static PyObject* const caller = from_module("lazytrace.stand_ins", "call_watched").release().ptr();
  return py::handle(caller)(function, *args, **kwargs);
}

}  // namespace lazytrace
