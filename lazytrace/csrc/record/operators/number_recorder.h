// Where the numbers that Python works with come from.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "program/program.h"
#include "support/address_map.h"

namespace lazytrace {

namespace py = pybind11;

// Writes down each number of a dynamic recording once, and knows which of Python's ints carries which.
//
// In a dynamic recording Python is given carriers in place of sizes. Arithmetic on them makes new numbers;
// handed to an operator they are arguments that a replay works out; anything that looks at the value is a
// read that the replay compares. The idea of following sizes as values rather than solving for them was tried
// for lazytrace; torch.compile's symbolic shapes are the other way.
//
// Ownership: holds the carriers until the recording ends, so that their addresses are their own. Shared with
// the SymInts that are on their way through torch. What makes or retires a carrier needs the GIL.
class NumberRecorder : public std::enable_shared_from_this<NumberRecorder> {
 public:
  // `read`: enters a comparison with this value into the program. `fail`: ends the recording.
  struct Owner {
    std::function<void(int, int64_t)> read;
    std::function<void(const std::string&)> fail;
  };
  NumberRecorder(std::vector<Number>* numbers, Owner owner) : numbers_(numbers), owner_(std::move(owner)) {}
  ~NumberRecorder() { end(); }
  NumberRecorder(const NumberRecorder&) = delete;
  NumberRecorder& operator=(const NumberRecorder&) = delete;

  int constant(int64_t value);
  // What the tensor of a register answers now.
  int leaf(Number::Kind kind, int reg, int64_t which, const at::Tensor& tensor);
  int argument(int64_t which, int64_t value);
  // -1: the result is no whole number of 64 bits.
  int apply(Number::Kind kind, int a, int b);
  int64_t value(int id) const { return values_[static_cast<size_t>(id)]; }
  // The value, which the program compares from now on.
  int64_t read(int id);

  // A new reference to an int that carries the number.
  PyObject* carrier(int id);
  // The number of a carrier, or of a plain int; -1 of anything else.
  int number_of(PyObject* object);
  // Reads the value of a carrier and makes it a plain int; nothing for other objects.
  void settle(PyObject* object);
  // The same of all carriers in tuples, lists and dicts.
  void settle_inside(PyObject* object, int depth = 0);
  // Makes all carriers plain ints; the program learns nothing.
  void end();
  bool live() const { return live_; }

  // Takes the origins out of the arguments of an operator, which it leaves with plain values: those that are
  // to be recorded in another way than by their values, by argument.
  std::vector<std::pair<size_t, Argument>> lift(const c10::FunctionSchema& schema, torch::jit::Stack* stack);
  // Reads all of them instead.
  void settle(const std::vector<std::pair<size_t, Argument>>& lifted);

  // The numbers that were made since it was asked last.
  std::vector<int> take_new() { return std::exchange(new_, {}); }

 private:
  int add(const Number& number, int64_t value);
  std::optional<Argument> lift_value(c10::IValue* value);
  std::optional<Argument> lift_list(c10::IValue* value);
  std::optional<Argument> lift_tensor(c10::IValue* value);
  int lift_number(c10::IValue* value);

  std::vector<Number>* numbers_;  // of the program, which the owner keeps
  Owner owner_;
  bool live_ = true;
  std::vector<int64_t> values_;
  std::vector<char> read_;
  std::vector<int> new_;
  std::unordered_multimap<size_t, int> index_;
  AddressMap<int> carried_;
  std::vector<PyObject*> carriers_;  // owned
};

// A number as torch takes it from a carrier. Needs the GIL.
py::object symbolic_node(const std::shared_ptr<NumberRecorder>& recorder, int id);

}  // namespace lazytrace
