// Where the numbers that Python works with come from.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "program/program.h"
#include "record/operators/parsed_ints.h"
#include "record/operators/text_recorder.h"
#include "support/address_map.h"
#include "torch/facts.h"

namespace lazytrace {

namespace py = pybind11;

// Writes down each number of a recording once, and knows which of Python's ints and floats carries which.
//
// Python is given carriers in place of what `item()` gives, and in a dynamic recording of sizes. Arithmetic
// on them makes new numbers; handed to an operator they are arguments that a replay works out; anything that
// looks at the value is a read that the replay compares. The idea of following sizes as values rather than
// solving for them was tried for lazytrace; torch.compile's symbolic shapes are the other way.
//
// Ownership: holds the carriers until the recording ends, so that their addresses are their own. Shared with
// the SymInts that are on their way through torch. What makes or retires a carrier needs the GIL.
class NumberRecorder : public std::enable_shared_from_this<NumberRecorder> {
 public:
  // `read`: enters a comparison with this value into the program. `fail`: ends the recording. `changed`:
  // whether something was changed by now, so that a replay must not run the function from its start;
  // `would_catch`: whether the function would catch what is raised now; `asked`: of a function that runs
  // again, whether it asked this number next, by its id, when it was recorded; `again`: whether it runs
  // again over steps that have run.
  struct Owner {
    std::function<void(int, const c10::IValue&)> read;
    std::function<void(const std::string&)> fail;
    std::function<bool()> changed;
    std::function<bool()> would_catch;
    std::function<std::optional<bool>(int, const Number&)> asked;
    std::function<bool()> again;
    std::function<bool()> at_exit;      // whether what comes next is where the replay met another value
    std::function<const Step*()> then;  // the step that has run and is asked for next, or null
  };
  NumberRecorder(Numbers* numbers, Owner owner) : numbers_(numbers), owner_(std::move(owner)) {}
  ~NumberRecorder();
  NumberRecorder(const NumberRecorder&) = delete;
  NumberRecorder& operator=(const NumberRecorder&) = delete;

  int constant(int64_t value);
  int real_constant(double value);
  // What the tensor of a register answers now.
  int leaf(Number::Kind kind, int reg, int64_t which, const at::Tensor& tensor);
  // What the call has brought: an argument, or the value at a guard. `which` of them, and its name. `size`:
  // it is how many of something there are.
  int given(Number::Kind kind, int64_t which, bool real, NumberValue value, std::string name,
            bool size = false);
  // What `item()` of a register has given just now: a number of its own, as its memory may change.
  int item(int reg, const c10::IValue& value);
  // What a function has answered just now, an exact int or float: a number of its own. -1 of an int of more
  // than 64 bits.
  int answer(PyObject* value, std::string name);
  // -1: the result is no float, and no whole number of 64 bits; or where a replay could come to something
  // that is neither, when it must not start over. Needs the GIL; throws nothing.
  int apply(Number::Kind kind, int a, int b);
  const Numbers& all() const { return *numbers_; }
  const NumberValue* values() const { return values_.data(); }
  NumberValue value(int id) const { return values_[static_cast<size_t>(id)]; }
  const Number& operator[](int id) const { return (*numbers_)[static_cast<size_t>(id)]; }
  // The value, which the program compares from now on.
  NumberValue read(int id);

  // A new reference to an int or float that carries the number.
  PyObject* carrier(int id);
  // The same in place of an object that others may hold: one carrier for one such object. The object itself,
  // which is read, where it is a nan: in containers, that is equal to itself alone.
  PyObject* carrier_of(int id, PyObject* original);
  // The same of a truth value whose number is 1 or 0.
  PyObject* flag(int id, bool value);
  // Whether there are such ones, and the number of one.
  bool has_flags() const { return has_flags_; }
  int number_of_flag(PyObject* flag) const;
  // A carrier or a text, and what Python would have in its place. Both are held until the recorder goes.
  struct Standing {
    int id;
    PyObject *original, *carrier;
  };
  // Of those that stand for an object of their own, though they may be retired by now.
  const std::vector<Standing>& standing() const { return standing_; }
  // What one of them stands for, or null. Borrowed.
  PyObject* original_of(PyObject* carrier) const;
  // The recording has made a text of this one.
  void stand_for(PyObject* text, PyObject* original) { stand(-1, original, text); }
  // Whether Python holds a number that is followed.
  bool has_carriers() const { return !carriers_.empty(); }
  // The number of a carrier, or of a plain int or float; -1 of anything else.
  int number_of(PyObject* object);
  // Reads the value of a carrier and makes it a plain number; nothing for other objects.
  void settle(PyObject* object);
  // The same of all carriers in tuples, lists and dicts.
  void settle_inside(PyObject* object, int depth = 0);
  // The same of those in places where a replay cannot put what it has worked out.
  void settle_odd(PyObject* object, int depth = 0);
  // The texts that were made of them.
  TextRecorder& texts() { return texts_; }
  // Makes all carriers plain numbers, and texts plain; the program learns nothing.
  void end();
  bool live() const { return live_; }

  // Takes the origins out of the arguments of an operator, which it leaves with plain values: those that are
  // to be recorded in another way than by their values, by argument.
  std::vector<std::pair<size_t, Argument>> lift(const c10::FunctionSchema& schema, torch::jit::Stack* stack);
  // A binding of torch is called that hands plain ints to the operator of its own name, see ParsedInts; it
  // has returned, or something else begins: what its operator has not taken is read.
  void open_binding(std::string name, std::vector<int> in_lists);
  void close_binding();
  // The value, which torch's parser asks for: an argument of that operator, or a read.
  int64_t parse(int id);
  // Reads those on which the sizes of results hang, which are to stay what they are. Whether the call or its
  // state has brought any of these. The stack ends with the arguments.
  bool settle_sizes(const c10::FunctionSchema& schema, const torch::jit::Stack& stack,
                    std::vector<std::pair<size_t, Argument>>* lifted);
  // Reads those that say what an operator does, rather than with what: whether the chance of a dropout is 0,
  // and the orders of norms. Takes the GIL.
  void settle_kinds(const c10::FunctionSchema& schema, const OperatorFacts& facts,
                    std::vector<std::pair<size_t, Argument>>* lifted);
  // Reads all of them instead.
  void settle(const std::vector<std::pair<size_t, Argument>>& lifted);

  // Whether what is read now says how large the result of an operator is.
  bool measures() const { return measures_; }

  // The numbers that were made since it was asked last.
  std::vector<int> take_new() { return std::exchange(new_, {}); }

  // The numbers in state that it is worked out of; nothing where it hangs on anything else.
  std::optional<std::vector<int>> state_behind(int id) const;

 private:
  std::vector<std::pair<size_t, Argument>> take_parsed(const c10::FunctionSchema& schema,
                                                       const torch::jit::Stack& stack,
                                                       const std::vector<std::pair<size_t, Argument>>& known);
  int id_of(const Number& number, size_t hash) const;
  int add(const Number& number, NumberValue value);
  bool is_constant(int id) const { return id < 0 || (*this)[id].kind == Number::Kind::Constant; }
  int bits_of(Number::Kind kind, int a, int b) const;
  bool must_ask(Number::Kind kind, int a, int b) const;
  bool works(Number::Kind kind, int a, int b);
  bool asks(Number::Kind kind, int a, int b) const;
  void refuse_answer(int id);
  bool follows_nan(int id) const;
  void stand(int id, PyObject* original, PyObject* carrier);
  void keep_small(PyObject* retired);
  void settle(const Argument& argument);
  std::optional<Argument> lift_value(c10::IValue* value);
  std::optional<Argument> lift_list(c10::IValue* value);
  std::optional<Argument> lift_tensor(c10::IValue* value);
  int lift_number(c10::IValue* value);
  struct Sum {
    std::map<int, int64_t> parts;  // how often each number is in it
    int64_t constant = 0;
  };
  std::optional<Sum> sum_of(int id, int depth = 0) const;
  bool is_given(int id) const;
  bool is_window(const c10::FunctionSchema& schema, const torch::jit::Stack& stack,
                 const std::vector<std::pair<size_t, Argument>>& lifted);

  Numbers* numbers_;  // of the program, which the owner keeps
  Owner owner_;
  bool live_ = true;
  NumberValues values_;
  std::vector<char> read_;
  std::vector<int> bits_;  // how many bits of an int64 its size takes at most; of a float all
  int64_t items_ = 0;
  int64_t answers_ = 0;
  std::vector<int> new_;
  bool measures_ = false;
  std::unordered_multimap<size_t, int> index_;
  AddressMap<int> carried_;
  std::vector<PyObject*> carriers_;  // owned
  std::vector<Standing> standing_;   // few
  bool has_flags_ = false;
  TextRecorder texts_{this};
  ParsedInts parsed_;
};

// A number as torch takes it from a carrier. Needs the GIL.
py::object symbolic_node(const std::shared_ptr<NumberRecorder>& recorder, int id);

}  // namespace lazytrace
