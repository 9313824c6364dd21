// What is known of callables that are written in C: the rows of callables.def, found by object.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>

namespace lazytrace {

// What a call reads beside its arguments' own values. Only what has a row is replayed.
enum class Does : uint8_t {
  Unknown,             // no row: it may read anything
  Nothing,             // nothing that a guard or the key does not hold already
  Reads,               // everything that it can reach from its arguments
  Compares,            // the same, and which of the objects there are one
  Text,                // the same, and what objects are called: an address shows
  Computes,            // as Compares, and numpy's error state, if there are scalars of numpy
  Codes,               // its arguments, texts of which name a codec and what it does about errors
  Formats,             // the same, where the text asks for no attributes
  Copies,              // the entries of its container, which it hands on untouched
  Changes,             // everything; writes to its first argument
  Calls,               // what its first argument does with the rest
  Binds,               // nothing: makes a method of a function and an object
  GetsAttribute,       // one attribute of its first argument
  GetsDescribed,       // the attribute that its first argument describes, of its second one
  SetsAttribute,       // writes one
  DeletesAttribute,    // writes one
  GetsNamespace,       // the __dict__ of its argument
  GetsLocals,          // the variables of its caller
  GetsItem,            // one item of its first argument
  Advances,            // moves an iterator on
  Iterates,            // what iterating over its argument reads
  AsksLength,          // how much its argument holds
  AsksTruth,           // whether its argument is true
  AsksContains,        // whether its first argument holds the second
  AsksInstance,        // the classes of its arguments
  AsksSubclass,        // the same
  AsksCall,            // whether the class of its argument has a __call__
  AsksType,            // the class of its argument; with three arguments it makes a class
  GivesFrame,          // a frame that is part of the call
  AsksRecursionLimit,  // sys.getrecursionlimit()
  ClearsCasts,         // nothing where a region of autocast ends; else what the caller has cast is gone
  LeavesAutocast,      // nothing: a level of a region of autocast
  SetsFrameEvaluator,  // what torch's compiler does with the frames that run: it must be put back
  AsksSwitch,          // a row of torch/switches.def
  SetsSwitch,          // the same, which must be put back
  AsksHandled,         // the exception that is handled around the call
  AsksAbc,             // everything, and what abstract classes were told
  ComparesIdentity,    // whether its arguments are one object
  Hashes,              // the value of its argument, or which object it is
  Identifies,          // which object its argument is
  Prints,              // changes the world, unless a person allows it
  Warns,               // everything, and what becomes of a warning
  Pickles,             // everything, where there is nothing in it but texts and numbers
  AsksFolder,          // a folder, for the list of it that importing keeps
  Imports,             // everything, and what is imported under its first argument
  MakesClass,          // nothing: the body of the class shows itself
  MakesNamedTuple,  // the code of a function that makes named tuples, if collections.namedtuple asks for it
  OfNumber,         // the value of its only argument, an ordinary number: nothing that numpy could warn of
  OfPositive,       // the same, of one above 0
  OfNumbers,        // the values of a list or tuple of ordinary numbers: the same
  OfWholes,         // the values of a list or tuple of whole numbers: the same
  OfAnyNumber,      // the value of its only argument, an int or a float
  OfExponent,       // the same, of one whose power is neither 0 nor infinite
  OfSeveral,        // the values of its arguments, ordinary numbers
  OfPower,          // the same of two, whose power is an ordinary number
};

// Whether what the C code does with each of many arguments is known from the arguments alone.
bool computes_alone(Does does);

// All need the GIL. Rows are found by the object that stands under the row's name when it is asked for first,
// so a namesake is not taken for it.
Does function_does(PyCFunctionObject* function);
Does type_does(PyTypeObject* type);
// Of an object that is neither: a function of numpy.
Does object_does(PyObject* callable);
// `type`: the class of C that has the method.
Does method_does(PyTypeObject* type, const std::string& name);
Does tensor_method_does(const std::string& name);

// Whether torch has operators of this name: what is bound under it does nothing but call them.
bool is_operator_name(const std::string& name);

}  // namespace lazytrace
