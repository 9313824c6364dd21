// What single instructions do to the places on the stack and to the variables of their frame.
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

namespace lazytrace {

// As somebody needs to know it who follows which value lies where.
struct StackMove {
  enum class Kind : uint8_t {
    Nothing,             // pushes something new at most
    Loads,               // variable `argument`
    Stores,              // the top, into it
    Deletes,             // the variable
    BindsToCell,         // the variable lies in a cell from now on
    Drops,               // the top, of which it asks at most whether it is None
    Copies,              // what lies `argument` below
    Swaps,               // the top with that
    Jumps,               // forward, if the top is true
    JumpsUnless,         // forward, if it is false
    Inverts,             // not top
    Operates,            // with the two topmost
    ComparesIdentities,  // of the two topmost
    Calls,               // with the `takes` topmost
    Builds,              // a list or a tuple of the `argument` topmost
    Appends,             // the top, to a list
    Gives,               // the top, to who has called the frame, or goes through what it yields
    Takes                // looks at the `takes` topmost
  } kind = Kind::Takes;
  int argument = 0;
  int takes = -1;  // -1: maybe all
};

// Of the instruction at this byte, with what EXTENDED_ARG says before it.
StackMove stack_move(const std::vector<uint8_t>& bytes, size_t at);
// Whether a generator goes on at this byte, which is not its begin.
bool goes_on_at(const std::vector<uint8_t>& bytes, size_t at);

// The two constants of `a if top else b` behind a jump, or of two assignments to one variable. Of one
// assignment, `if top: v = a`, there is no second one.
struct TwoConstants {
  int falls = -1, jumps = -1;  // the one behind the jump, and the one that it jumps to
  int local = -1;              // the variable; -1: what comes to the stack
  int end = 0;                 // the instruction where both go on
};
// `jump`: the instruction. False where it is anything else.
bool find_two_constants(const std::vector<uint8_t>& bytes, int jump, TwoConstants* found);

}  // namespace lazytrace
