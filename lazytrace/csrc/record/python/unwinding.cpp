#include "record/python/unwinding.h"

#include <optional>
#include <utility>

#include "cpython/bytecode.h"
#include "cpython/context_value.h"
#include "cpython/objects.h"
#include "record/python/code_facts.h"

namespace lazytrace {

namespace {
// What an instruction may find without a number being followed, which the next one would have to be given.
bool is_plain(PyObject* value) {
  return value == Py_None || PyBool_Check(value) ||
         !(PyLong_Check(value) || PyFloat_Check(value) || PyUnicode_Check(value) || PyTuple_Check(value));
}

// A function whose variables are its arguments, all of which are passed by place.
bool takes(PyObject* callee, size_t count) {
  if (!PyFunction_Check(callee)) return false;
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(callee));
  constexpr int kOther = CO_VARARGS | CO_VARKEYWORDS | CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;
  return !(code->co_flags & kOther) && code->co_kwonlyargcount == 0 &&
         static_cast<size_t>(code->co_argcount) == count && code->co_nlocalsplus == code->co_argcount;
}

// What torch's operators raise for the dtypes, devices and ranks of tensors, or never.
bool is_raised_for_looks(PyObject* cls) {
  return cls == PyExc_NotImplementedError || cls == PyExc_ImportError || cls == PyExc_ModuleNotFoundError;
}
}  // namespace

// The code of a handler, or of a function that it calls. Each step is one that CPython would take, or there
// is none.
class Unwinding::Run {
 public:
  Run(Unwinding* owner, Frame f, PyCodeObject* code, std::vector<PyObject*> arguments, int depth)
      : owner_(*owner), f_(f), code_(code), arguments_(std::move(arguments)), depth_(depth) {}

  // Where an exception is raised again, of a handler; the end, of a function; -1 where it may do more.
  int go(int at) {
    constexpr int kMost = 200;
    const std::vector<uint8_t>& bytes = owner_.bytes_of(code_);
    int extended = 0;
    for (int turn = 0; turn < kMost && static_cast<size_t>(at) * 2 < bytes.size(); ++turn) {
      int opcode = bytes[static_cast<size_t>(at) * 2];
      int argument = extended | bytes[static_cast<size_t>(at) * 2 + 1];
      extended = opcode == EXTENDED_ARG ? argument << 8 : 0;
      if (opcode == RERAISE) return !is_function() && argument == 0 && stack_.empty() ? at : -1;
      if (opcode == RETURN_VALUE) return is_function() && stack_.size() == 1 ? at : -1;
      std::optional<int> jump = step(opcode, argument);
      if (!jump) return -1;
      at += 1 + *jump;
    }
    return -1;
  }

 private:
  bool is_function() const { return depth_ > 0; }

  // How many instructions it skips; none where it is not known what it does.
  std::optional<int> step(int opcode, int argument) {
    switch (opcode) {
      case RESUME:
      case NOP:
      case CACHE:
      case PRECALL:
      case EXTENDED_ARG:
        return 0;
      case JUMP_FORWARD:
        return argument;
      case LOAD_CONST:
        return push(PyTuple_GET_ITEM(code_->co_consts, argument));
      case LOAD_FAST:
      case LOAD_DEREF:
        return push(variable(opcode, argument));
      case LOAD_GLOBAL:
        if (argument & 1) stack_.push_back(nullptr);
        return push(global(PyTuple_GET_ITEM(code_->co_names, argument >> 1)));
      case LOAD_ATTR:
        return attribute(PyTuple_GET_ITEM(code_->co_names, argument), false);
      case LOAD_METHOD:
        return attribute(PyTuple_GET_ITEM(code_->co_names, argument), true);
      case PUSH_EXC_INFO:
        return is_function() || !stack_.empty() ? std::nullopt : std::optional<int>(0);
      case CHECK_EXC_MATCH:
        return is_function() || !owner_.torchs_ || !is_raised_for_looks(pop()) ? std::nullopt
                                                                               : push(Py_False);
      case POP_TOP:
        return pop() ? std::optional<int>(0) : std::nullopt;
      case CALL:
        return call(static_cast<size_t>(argument));
      case POP_JUMP_FORWARD_IF_NONE:
        return jump(argument, pop(), Py_None, true);
      case POP_JUMP_FORWARD_IF_NOT_NONE:
        return jump(argument, pop(), Py_None, false);
      case POP_JUMP_FORWARD_IF_TRUE:
        return jump_if(argument, Py_True);
      case POP_JUMP_FORWARD_IF_FALSE:
        return jump_if(argument, Py_False);
      default:
        return std::nullopt;
    }
  }

  std::optional<int> push(PyObject* value) {
    if (!value) return std::nullopt;
    stack_.push_back(value);
    return 0;
  }

  PyObject* pop() {
    if (stack_.empty()) return nullptr;
    PyObject* top = stack_.back();
    stack_.pop_back();
    return top;
  }

  static std::optional<int> jump(int distance, PyObject* value, PyObject* than, bool if_same) {
    if (!value) return std::nullopt;
    return (value == than) == if_same ? distance : 0;
  }

  // The truth of anything else may be told by Python code.
  std::optional<int> jump_if(int distance, PyObject* truth) {
    PyObject* value = pop();
    if (value == Py_None) return truth == Py_False ? distance : 0;
    return value && PyBool_Check(value) ? jump(distance, value, truth, true) : std::nullopt;
  }

  PyObject* variable(int opcode, int index) {
    if (!is_function() && opcode == LOAD_DEREF && f_.variable(index)) owner_.names_->read_cell(f_, index);
    if (!is_function()) return opcode == LOAD_FAST ? f_.slot(index) : f_.variable(index);
    bool known = opcode == LOAD_FAST && static_cast<size_t>(index) < arguments_.size();
    return known ? arguments_[static_cast<size_t>(index)] : nullptr;
  }

  PyObject* global(PyObject* name) {
    if (is_function()) return nullptr;
    PyObject* value = PyDict_GetItemWithError(f_.globals(), name);
    if (!value && PyDict_CheckExact(f_.builtins())) value = PyDict_GetItemWithError(f_.builtins(), name);
    if (!value || !is_plain(value)) return nullptr;
    owner_.names_->read_global(f_, name);
    return value;
  }

  // Of an object that Python looks into by itself; a method that its class has is found with the object.
  std::optional<int> attribute(PyObject* name, bool to_call) {
    PyObject* object = pop();
    if (!object || PyType_Check(object) || PyModule_Check(object) || is_tensor(object)) return std::nullopt;
    if (Py_TYPE(object)->tp_getattro != PyObject_GenericGetAttr) return std::nullopt;
    PyObject* descriptor = _PyType_Lookup(Py_TYPE(object), name);
    bool is_method = descriptor && to_call &&
                     (PyFunction_Check(descriptor) || Py_IS_TYPE(descriptor, &PyMethodDescr_Type));
    if (descriptor && !is_method) return std::nullopt;
    auto found = py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(object, name));
    if (!found) return PyErr_Clear(), std::nullopt;
    // The object itself may have another one under the name.
    bool bound = PyMethod_Check(found.ptr()) && PyMethod_GET_FUNCTION(found.ptr()) == descriptor;
    if (is_method && !bound && !PyCFunction_Check(found.ptr())) return std::nullopt;
    if (!is_plain(found.ptr()) || owner_.attributes_->read_attribute_again(object, name)) return std::nullopt;
    if (!to_call) return hold(found), push(found.ptr());
    stack_.push_back(is_method ? descriptor : nullptr);
    if (!is_method) hold(found);
    return push(is_method ? object : found.ptr());
  }

  void hold(const py::object& value) { held_.push_back(value); }

  std::optional<int> call(size_t count) {
    if (stack_.size() < count + 2) return std::nullopt;
    bool method = stack_[stack_.size() - count - 2] != nullptr;
    size_t given = count + (method ? 1 : 0);
    std::vector<PyObject*> arguments(stack_.end() - static_cast<std::ptrdiff_t>(given), stack_.end());
    PyObject* callee = stack_[stack_.size() - given - 1];
    stack_.resize(stack_.size() - count - 2);
    if (!callee || !(puts_back(callee, arguments) || does_no_more(callee, std::move(arguments))))
      return std::nullopt;
    return push(Py_None);
  }

  // A function of Python; what it gives is thrown away, or the code has an instruction that is not known.
  bool does_no_more(PyObject* callee, std::vector<PyObject*> arguments) {
    constexpr int kDeepest = 3;
    if (depth_ == kDeepest || !takes(callee, arguments.size())) return false;
    auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(callee));
    Run inner(&owner_, f_, code, std::move(arguments), depth_ + 1);
    return inner.go(0) >= 0 && inner.stack_.back() == Py_None;
  }

  // variable.reset(token)
  bool puts_back(PyObject* callee, const std::vector<PyObject*>& arguments) {
    bool resets = Py_IS_TYPE(callee, &PyMethodDescr_Type) && arguments.size() == 2 &&
                  PyContextVar_CheckExact(arguments[0]) && PyContextToken_CheckExact(arguments[1]) &&
                  text_of(reinterpret_cast<PyMethodDescrObject*>(callee)->d_common.d_name) == "reset";
    if (!resets || !is_good_for(arguments[1], arguments[0])) return false;
    owner_.put_back_[arguments[0]] = value_before(arguments[1]);
    return true;
  }

  Unwinding& owner_;
  Frame f_;
  PyCodeObject* code_;
  std::vector<PyObject*> arguments_, stack_;  // borrowed; null for what PUSH_NULL puts there
  std::vector<py::object> held_;
  int depth_;  // of calls; 0: the handler
};

int Unwinding::passes(Frame f, int handler) {
  const std::vector<uint8_t>& bytes = bytes_of(f.code_object());
  if (bytes[static_cast<size_t>(handler) * 2] != PUSH_EXC_INFO) return -1;
  return Run(this, f, f.code_object(), {}, 0).go(handler);
}

bool Unwinding::puts_back_all() const {
  for (const auto& [variable, value] : put_back_)
    if (!context_variables_->was(variable, value.ptr())) return false;
  return true;
}

const std::vector<uint8_t>& Unwinding::bytes_of(PyCodeObject* code) {
  auto [known, missing] = bytes_.try_emplace(code);
  if (missing) known->second = bytecode_of(code);
  return known->second;
}

}  // namespace lazytrace
