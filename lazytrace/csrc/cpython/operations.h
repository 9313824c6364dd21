// What the instructions of a code object do, from the table of opcodes.
#pragma once

#include <Python.h>

#include <array>
#include <cstdint>
#include <vector>

namespace lazytrace {

// What an instruction does with its operands. Where these stand, opcodes_311.def says.
enum class Action : uint8_t {
  Nothing,           // touches the stack and variables of its frame, and objects that it makes
  Shows,             // nothing either, but its line is one that a reason may name
  NotFollowed,       // anything
  ReadsGlobal,       // name
  ReadsName,         // name
  ReadsVariable,     // of an enclosing function: name is its slot
  ReadsBuildClass,   // __build_class__ of builtins
  ReadsAttribute,    // first.name
  ImportsAttribute,  // first.name, of a module
  ImportsModule,     // name, from the level `first`
  SetsAttribute,     // first.name = second; no second: deletes
  SetsItem,          // first[second] = third; no third: deletes
  SetsGlobal,        // name = first; no first: deletes
  SetsName,          // of a class body or a module
  SetsVariable,      // of an enclosing function: slot `name` = first; no first: deletes
  TestsTruth,        // bool(first)
  AsksLength,        // len(first)
  GetsItem,          // first[second]
  Iterates,          // iter(first)
  Unpacks,           // iterates over first, to the end or for some items
  Merges,            // iterates over first and hashes what comes
  Advances,          // next(first)
  Sends,             // to the generator first
  Contains,          // second in first
  ComparesIdentity,  // first is second
  Compares,          // first < second
  Operates,          // first + second: `name` is which operator
  OperatesAlone,     // -first
  FormatsText,       // f"{first:second}"; `name`: how it is converted before, as FORMAT_VALUE has it
  JoinsTexts,        // `third` pieces, from `first` on
  UsesKeys,          // `third` keys, from `first` on, each `name` values below the one before
  Raises,            // first; no first: what is handled, once more
  MatchesError,      // except first: second is what was raised
  MatchesKind,       // case {...} or case [...]: whether first is of the kind
  MatchesKeys,       // case {first: ...}
  MatchesClass,      // case second(...): `name` attributes by position, those of the tuple `third` by name
  EntersContext,     // with first:
  MakesFunction,     // new on the stack
  NamesKeywords,     // of the call that comes next: constant `name`
  Calls,      // first(second, *`third` arguments), where there is a first; second(*arguments) otherwise
  CallsWith,  // first(*second, **third)
};

// Who gets what Python code that the instruction leads to gives back.
enum class Gives : uint8_t {
  Python,    // the instruction, which puts it on the stack as it is
  ToC,       // C code
  ToCallee,  // whatever is called
};

// One instruction, with the bytes of EXTENDED_ARG before it taken in. Depths count from the top of the stack,
// which is 1; 0: there is no such operand.
struct Operation {
  uint8_t opcode = 0;
  Action action = Action::NotFollowed;
  Gives gives = Gives::Python;
  bool builds = false;  // puts a new container on the stack
  bool renews = false;  // reads what the code sets in the same line: x.n += 1, n = n % 8 + 1
  uint16_t memo = 0;    // of whoever keeps something for it; 0: none
  int first = 0, second = 0, third = 0;
  int name = 0;  // the number of a name, a constant or a variable

  // Whether nobody has to look at it.
  bool harmless() const { return action == Action::Nothing; }
};

// Of the operators that BINARY_OP names: x += y and the like, and x % y.
bool is_in_place(int operation);
bool is_addition(int operation);
bool is_remainder(int operation);
bool is_union(int operation);
// Of numbers: `+`, `-`, `*`, `/`, `//`, `%` and `**`, in place or not.
bool is_arithmetic(int operation);

// The special methods that an operator may call on the class of an operand, whichever side that stands on.
// Literals, of which there is one object each.
using OperatorMethods = std::array<const char*, 6>;  // the rest null
const OperatorMethods& methods_of_operation(int operation);
const OperatorMethods& methods_of_comparison();
const OperatorMethods& methods_of_unary();

// By instruction. Needs the GIL.
std::vector<Operation> operations_of(PyCodeObject* code);

}  // namespace lazytrace
