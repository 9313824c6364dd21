// A recorded program: operators, registers, constants and what the recording expects of each step. How it is
// run is worked out of it (passes/plan.h), and not in here.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/utils/pybind.h>

#include <climits>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "program/behind.h"
#include "program/effect.h"
#include "program/look_behind.h"
#include "program/numbers.h"
#include "program/value_tree.h"
#include "torch/autograd_graph.h"
#include "torch/modes.h"
#include "torch/tensor_meta.h"

namespace lazytrace {

struct Argument {
  // Number: one that the program works out; NumberTensor: the same as the tensor of no dimensions that torch
  // makes of a Python number. Numbers: a list of whole numbers, some of them worked out. Generator: of random
  // numbers, that a guard node has found.
  enum class Kind : uint8_t {
    Constant,
    Register,
    List,
    Number,
    NumberTensor,
    Numbers,
    Generator
  } kind = Kind::Constant;
  int node = -1;               // of a Generator
  bool optional_list = false;  // List of Tensor?: -1 stands for None
  // Of a loose tensor that the step writes to: whether its memory was there before the call.
  enum class Memory : uint8_t { Any, Own, Outer } memory = Memory::Any;
  int reg = -1;  // or which number
  c10::IValue constant;
  std::vector<int> list;  // of Numbers: which number, or -1: then `constant` has it
};

struct Result {
  // Number: a value that Python has seen, and that is followed.
  enum class Kind : uint8_t { Register, List, Read, Number, Ignored } kind = Kind::Register;
  bool known =
      false;  // the same TensorImpl as a register that was there before the step (an in-place result)
  bool loose = false;  // sizes and strides may differ from call to call
  int reg = -1;
  int number = -1;
  int base = -1;         // the register of an argument whose memory it shows
  int64_t distance = 0;  // of its first element from that of the argument, in elements
  std::shared_ptr<const TensorMeta> meta = TensorMeta::undefined();
  c10::IValue read;  // the value that Python saw; of a number, one of its kind
  std::vector<Result> list;
};

// Where in the user's code a step was made. The code objects are kept alive by the Program.
struct Place {
  PyObject* code = nullptr;
  int lasti = -1;
  int scope = -1;  // index into Program::scopes
};
// A call of `forward` that a step was made in: the guard node of the module, -1 where none reaches it.
struct Scope {
  int parent = -1;  // the call around it, or -1
  int module = -1;
};
// (file, line, function); "" where there is none. Needs the GIL.
py::tuple place_tuple(const Place& place);

// What the function has written to a place in Python state by the time that a step runs.
struct WrittenByThen {
  Effect effect;
  Tree value;
};

// One Python call that is made again at each replay: script_if_tracing, opaque, custom autograd functions.
struct OpaqueStep {
  Tree function;  // a guard node: the step holds nothing of the user's alive. Needs the GIL, like the other
                  // tree
  std::string attribute;  // which attribute of it is called; empty: itself
  Tree call;              // (args, kwargs)
  std::string name;
  std::string shape;                   // structure of the result (Flattened)
  std::vector<bool> others;            // which of the lists, dicts and tuples in it others hold, in order
  std::vector<WrittenByThen> written;  // which a replay writes before, too
  std::vector<py::object> values;      // the leaves of the result that are not tensors (None for tensors)
  bool python = true;                  // runs Python code, which may do anything, and then only once per call
  bool free = false;                   // it is of somebody who may look at, and change, any Python state
  bool feedable = true;                // its result can be handed to the function when that must run again
  bool touches = false;                // it changed Python state that recordings could read
  bool of_operator = false;  // it calls one with kernels in Python; torch makes some state at the first call
  bool confuses = false;     // it changed what the function had read: code that runs again reads otherwise
  // That is all that keeps the function from running again: what it had read can be shown (EarlierState).
  bool confuses_alone = false;
  std::vector<LookBehind> looks;  // of arguments that it has changed the look of
  // Which of the objects that a replay makes for it it has changed (MadeParts).
  std::vector<int> fills;
  // The function can run again for what it gives, though not behind it: what it has changed then is known.
  bool leads_back = false;
  bool keeps = false;  // an object that the call has made, of which code that runs again has another
  // Nor has it kept what the call may still come to, which would be another object than a replay has made.
  bool may_not_keep = false;
  bool effects = false;        // it wrote to a tensor that it was given
  bool random = false;         // it drew random numbers
  bool draws = false;          // none of torch's: code of C that gives an array of them (numpy)
  bool sets = false;           // the attribute of its first argument that has the name of the second
  bool engine = false;         // it is a backward pass of autograd
  bool accumulates = false;    // which adds to the gradients of leaves
  bool told = false;           // it gives what it gave, as far as tensors show, or raises
  bool asks = false;           // it gives a number that is another one at each call, and is followed
  bool gives_numbers = false;  // the numbers in what it gives are other ones at each call, and are followed
  bool gives_flags = false;    // and the truth values, as 1 and 0
  bool late = false;           // it reads state that Python code of an earlier step has changed
  // It prints or logs values, or puts what a function has made into its cache: it gives nothing, and changes
  // nothing else.
  bool tells = false;
  bool cannot_raise = false;
  const void* pure = nullptr;  // the custom function of autograd whose code comes to operators alone
  // It runs Python code that was watched: this reads what is guarded, and does nothing else than run
  // operators.
  bool watched = false;
  bool hook = false;  // it sets a hook, or takes one off, which is watched where a pass calls it
  int hooks = 0;      // how many hooks more its first argument has: 1 gives the handle, -1 takes one off
  bool hooks_outside = false;  // that was there before the call, which takes the hook off again
  // It makes handles of hooks: torch counts them on from what the function has written by then.
  bool counts = false;
  std::unordered_set<const void*> functions;  // custom functions of autograd there, as `pure`
  // What that code was answered by operators that look at values, in order.
  std::vector<bool> answers;
  int turn = 0;   // of those that are free: which one in the recording, from 1
  Behind behind;  // of a free one: what guards say nothing of once it has run
};

struct Step {
  enum class Kind : uint8_t {
    Operator,
    Literal,
    Fill,
    Data,
    RequireGrad,
    Opaque,
    Read,
    Gradient,     // reads the `.grad` of its argument
    SetGradient,  // sets that of its first argument to the second, or to None
    SetData,      // sets the `.data` of its first argument to the second, which looks the same
    Numbers       // does nothing but work out numbers
  } kind = Kind::Operator;
  explicit Step(c10::OperatorHandle handle) : op(std::move(handle)) {}
  Step(Kind k, c10::OperatorHandle handle) : kind(k), op(std::move(handle)) {}

  c10::OperatorHandle op;  // for the other kinds: an operator that documents it
  std::vector<Argument> arguments;
  std::vector<Result> results;
  std::vector<int> numbers;    // those that are worked out before it runs, in order
  bool takes_numbers = false;  // some of its arguments are numbers that may differ
  // Gives its argument or a new tensor, and which one hangs on more than how the argument looks.
  bool gives_either = false;
  int modes = -1;  // index into Program::modes where this step runs in other modes than the one before
  Place place;
  std::shared_ptr<OpaqueStep> opaque;
  at::Tensor
      literal;  // Literal: cloned at each replay. Fill: what Python wrote to the memory of its argument
  bool filled = false;  // an `empty` that a later Fill belongs to: Python fills its memory itself
  bool random = false;  // draws random numbers
  bool effect = false;  // changes something that outlives the call
  // Traces that share all steps before this one, and their results, have the same node here; those that share
  // its results too, the same branch. Numbers of the process, never used twice.
  int64_t node = -1;
  int64_t branch = -1;
  bool below = false;  // was called below autograd, as torch's factories do
  bool flat = false;   // a kernel that autograd came to: autograd itself is left out
  // Registers that the function held no more when it came here: where it runs again after a later exit, it
  // does not come to what lies in them.
  std::vector<int> gone;
  bool python = false;    // an operator whose kernel is written in Python
  bool measures = false;  // Read: of a number that says how large a result is
  // What it gives, or whether it raises, may differ from call to call: a side exit. A recording sees it, and
  // a flat form says anew which of its steps are.
  bool exit = false;
  int region = 0;  // of autocast, of the function's own, in which it runs, counted from 1
  // An exit only since writes to Python state come first, which would be left behind where it raises.
  bool after_writes = false;
  bool by_size = false;  // an exit only since its arguments may have other sizes
  bool early = false;    // of a flat form: writes to memory that was there before the call
  int accumulates =
      -1;  // of a flat form: the register of a leaf whose gradient it sets or adds to, as autograd does
  int index = -1;  // of a select that stands for `x[..., n, ...]`: which index n is, for what is raised

  // It draws numbers that another run in the same call can be given again: as an array, or as the order of
  // one that it shuffles.
  bool draws_once() const {
    bool draws = opaque && opaque->draws && !opaque->python && !opaque->asks && results.size() == 1;
    return draws && (shuffles() || (results[0].kind == Result::Kind::Register && !results[0].known));
  }
  bool shuffles() const {
    return opaque && opaque->draws && results.size() == 1 && results[0].kind == Result::Kind::Read &&
           arguments.size() == 1 && arguments[0].kind == Argument::Kind::Register;
  }
  // Must not be done again in the same call.
  bool once() const { return effect || random || python || (opaque && opaque->python && opaque->feedable); }
};

// What the `.grad` of a tensor that was there before the call has to be when the call begins, as the program
// reads it or adds to it.
struct EntryGradient {
  int reg = -1;   // of the tensor
  int same = -1;  // the argument or the captured tensor that is the gradient, too
  int twin = -1;  // the other entry that has the same gradient; both -1: it is nothing else
  std::shared_ptr<const TensorMeta> meta;
  Takes takes = Takes::Adds;
  int step = 0;  // the first step that depends on it
};

// A tensor that was there before the call, whose `.grad` the call sets itself: what it was is asked by
// nobody.
struct SetEntry {
  int reg = -1;
  Takes takes = Takes::Adds;
  int step = 0;  // the one that sets it
};

// Ownership: a Program owns its constants and code objects, and no user function, module or parameter.
// It is immutable once built, so any number of threads may run it. Destroy it with the GIL held.
struct Program {
  std::vector<Step> steps;
  std::vector<Modes> modes;  // [0]: the modes at the start
  int registers = 0;
  int inputs = 0;             // registers [0, inputs) are the tensors of the arguments
  std::vector<int> captures;  // register of each tensor that the guards collect
  std::vector<EntryGradient> gradients;
  std::vector<py::object> keep;
  std::vector<Scope> scopes;     // those around come first
  lazytrace::Numbers numbers;    // in an order in which they can be worked out
  bool follows_numbers = false;  // what item() gave was followed
  bool dynamic = false;          // fits calls of other sizes than the one that was recorded
  bool loose_numbers = false;    // fits calls with other ints and floats
  bool sized = false;            // a number that the call or its state brings said how large a result is
  std::vector<int> given;        // the numbers that the call and its guards bring
  // Of a dynamic one: how the tensors of inputs and captures looked, by register. Null where that is not
  // known.
  std::vector<std::shared_ptr<const TensorMeta>> looks;
  NumberValues numbers_then;  // the same of its numbers
  // Of numbers in state that were to be followed where they were read after so many steps.
  std::unordered_map<std::string, size_t> state_paths;
  std::vector<std::string> root_names;  // that these paths begin with
  bool effects = false;
  bool random = false;
  bool small = false;           // all that its tensors hold is a few elements, on the CPU
  bool undisturbed = false;     // no subclass, hook or kernel of Python's was there to run in the middle
  bool unfilled = false;        // a tensor was made larger, and nobody has said what is in it
  bool python_between = false;  // hooks of autograd run Python code in the middle, which must not run twice
  std::vector<int> hooked;      // registers of leaves whose hooks are guarded
  std::vector<SetEntry> set;    // gradients that the call sets before it reads them
  bool hooks_outside = false;   // sets hooks on leaves of before the call
  bool backward = false;        // runs a backward pass that was seen to call no hook but these
  bool grows = false;           // a backward pass builds a graph of its own
  bool changes_looks = false;   // shape, memory or requires_grad of a tensor, in place
  // From this step on, Python code that runs again would see other metadata. A flat form ends earlier, where
  // its steps are no longer those that were recorded, and what no function stands behind has none: -1.
  int unresumable = INT_MAX;

  // Whether it runs in an autocast region of the function's own, which has a cache of cast weights.
  bool inside_autocast(size_t step) const {
    for (size_t i = step + 1; i-- > 0;)
      if (steps[i].modes >= 0) return modes[steps[i].modes].autocast_region > 0;
    return false;
  }
  // Whether weights that it has cast stay in the cache of the caller's autocast region: where it began again,
  // these nodes would be older than all others, and gradients would be added up in another order.
  bool casts_stay() const { return modes[0].any_autocast() && modes[0].autocast_cache; }

  // Which of Call::Loose it fits.
  int loose() const { return (dynamic ? 1 : 0) | (loose_numbers ? 2 : 0); }
  // Whether a replay asks tensors of before the call for gradients, or what a pass would do there.
  bool asks_gradients() const { return !gradients.empty() || !set.empty(); }
  // Whether there are numbers that a replay works out.
  bool works_out() const { return dynamic || !numbers.empty(); }

  // How many operators a replay runs, opaque steps and literals included.
  size_t size() const { return steps.size(); }
};

}  // namespace lazytrace
