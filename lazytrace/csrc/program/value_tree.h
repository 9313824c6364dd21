// A Python value with holes: how the result of a call, or the arguments of an opaque step, are rebuilt.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <utility>
#include <vector>

#include "cpython/values.h"
#include "program/numbers.h"

namespace lazytrace {

// Everything here needs the GIL. A Tree owns its constants, never a tensor and never a piece of user state.
class Tree {
 public:
  enum class Kind : uint8_t {
    Register,
    Parameter,  // the same, of this class: one that the call has made
    Array,      // of numpy: the memory of a register
    Number,
    Constant,
    State,
    Tuple,
    List,
    Dict,
    Set,
    Named,
    Object,
    Partial,   // functools.partial: function, arguments, keywords
    View,      // of a dict: its keys, values or items
    Method,    // function, object
    Function,  // of Python: the module of its globals, defaults, defaults by keyword, the cells of its
               // closure
    Cell,      // with what it holds, or that of a function that was there before the call, at a place
    Text,      // what a function that is pure gives for these arguments, numbers that are followed among them
    Decorated,  // a tensor that the call has made, and the constants that it has put on it under these names
    Reference,  // a weak one without a callback to what was there before the call
    Same
  };

  // What the holes of a tree are filled with.
  struct Fill {
    const std::vector<at::Tensor>& registers;
    const std::vector<PyObject*>& state;  // borrowed: the values of the guard nodes
    const Numbers* numbers = nullptr;     // of the program, with their values
    const NumberValue* values = nullptr;
  };

  // How a value is taken apart. Both return -1 where they do not know the object.
  struct Source {
    std::function<int(PyObject*)> tensor;  // the register that holds this tensor
    std::function<int(PyObject*)> state;   // the guard node that reaches this object
    // Told of each constant, before it is taken.
    std::function<void(PyObject*)> constant = [](PyObject*) {};
    // The number that this int or float carries.
    std::function<int(PyObject*)> number = [](PyObject*) { return -1; };
    // The guard node of the module that has these globals, and, told of each cell of the closure of a
    // function, which node's closure has it where: where both are given, functions that the call has made are
    // taken apart, and partials and methods.
    std::function<int(PyObject*)> module = nullptr;
    std::function<std::pair<int, Py_ssize_t>(PyObject* cell, PyObject* function)> cell = nullptr;
    // Told of each object that is made again of its parts.
    std::function<void(PyObject*)> part = [](PyObject*) {};
    // The register of which this numpy array shows the memory.
    std::function<int(PyObject*)> array = [](PyObject*) { return -1; };
    // How a text that follows numbers was made.
    std::function<const Tree*(PyObject*)> text = [](PyObject*) { return nullptr; };
    // Whether the call has made what this register holds.
    std::function<bool(int)> made = [](int) { return false; };
  };

  // Throws std::runtime_error with a reason where some part cannot be rebuilt.
  static Tree of(PyObject* value, const Source& source);

  py::object build(const Fill& fill) const;
  // The first item alone of a tuple.
  py::object build_first(const Fill& fill) const;

  // Calls `visit` on every register number in the tree, arrays' among them.
  void each_register(const std::function<void(int)>& visit) const;
  // Calls `visit` on every number in the tree that is followed.
  void each_number(const std::function<void(int)>& visit) const;
  // Whether there is one.
  bool takes_numbers() const;
  bool holds_tensor() const { return kind == Kind::Register || kind == Kind::Parameter; }
  // Whether it is nothing that the call has made of parts, which others could hold, or change: a tensor, a
  // number, a text, a constant, what was there.
  bool is_plain() const;
  // Calls `visit` on every state node in the tree.
  void each_state(const std::function<void(int&)>& visit);
  // The ids of the objects that this tree was made of, valid while the original value lives.
  static void containers(PyObject* value, std::vector<PyObject*>* out);

  Kind kind = Kind::Constant;
  int index = -1;    // register, number, state node, or number of the object that this is the Same as
  py::object value;  // constant, type, code, function, or tuple of keys
  std::vector<Tree> items;

 private:
  struct Builder;
  struct Rebuilder;
};

}  // namespace lazytrace
