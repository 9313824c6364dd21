// Numbers that torch's parser takes out of carriers for parameters that are plain ints.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "program/program.h"

namespace lazytrace {

// Whether an operator has plain ints that say how much of something there is, rather than what is done
// (dimensions, orders, flags): these are worth following.
bool takes_plain_ints(const std::string& name);

// What the parser has asked for since a binding of torch was called, and to which arguments of its operator
// it went. A SymInt keeps its origin up to the dispatcher; a plain int does not, so that it is looked for
// among the arguments by its value, and followed only where there is no doubt. Touches no Python object.
class ParsedInts {
 public:
  // A binding is called that hands what it is given to the operator of its own name; `in_lists`: the numbers
  // that are inside of its arguments, where they do not stand for a whole list.
  void begin(std::string name, std::vector<int> in_lists);
  bool open() const { return !name_.empty(); }
  // Whether this operator comes before the one that is waited for, and nothing was asked for yet: a binding
  // may convert what it was given first.
  bool waits_behind(const c10::FunctionSchema& schema) const;
  void add(int id, int64_t value) { asked_.push_back({id, value}); }
  // The ids that nobody has taken, in the order in which they were asked for; closes the call.
  std::vector<int> end();
  // The ids that were asked for so far, in their order.
  std::vector<int> asked() const;
  // The arguments of an operator that some of them went to, and those that are left. `known` are arguments
  // that are numbers whose origin is known.
  std::vector<std::pair<size_t, Argument>> take(const c10::FunctionSchema& schema,
                                                const torch::jit::Stack& stack,
                                                const std::vector<std::pair<size_t, Argument>>& known);
  // The same as in the step that has run, whatever values are alike now. None where that cannot be.
  std::optional<std::vector<std::pair<size_t, Argument>>> take_as(const Step& then,
                                                                  const c10::FunctionSchema& schema,
                                                                  const torch::jit::Stack& stack);

 private:
  // It went to an argument.
  void leave(int id);
  struct Asked {
    int id;
    int64_t value;
  };
  struct Place {
    size_t argument, item;
    int64_t value;
  };
  static std::vector<Place> places(const c10::FunctionSchema& schema, const torch::jit::Stack& stack);
  std::vector<int> asked(int64_t value) const;
  std::vector<int> numbers_for(const std::vector<Place>& places, const std::vector<int>& ids) const;

  std::string name_;
  std::vector<int> in_lists_;
  std::vector<Asked> asked_;
};

}  // namespace lazytrace
