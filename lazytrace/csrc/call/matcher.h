// The path of a hit from the call to its result, without Python.
#pragma once

#include <memory>
#include <unordered_map>

#include "call/table.h"
#include "signature/signature.h"

namespace lazytrace {

class WorkspaceLease;

// How often a function was answered by a replay. Outlives the function: reports read it. Needs the GIL.
struct HitCount {
  uint64_t value = 0;
  void add() { ++value; }
};

// What a replay has raised, for Python to raise again. Needs the GIL.
struct Raised {
  std::exception_ptr error;
};

// The context variable that says whether lazytrace is disabled. Told by Python once.
void configure_disabled(py::object variable);

// Whether somebody else is tracing or transforming, so that a traced function steps aside. Needs the GIL.
bool must_step_aside();

// Answers the calls of one traced function that are hits, and leaves all others to Python (engine.py).
// Ownership: holds tables and weak references, and nothing of the user's. Needs the GIL.
class Matcher {
 public:
  Matcher(std::shared_ptr<Signature> signature, std::shared_ptr<TraceTable> table,
          std::shared_ptr<HitCount> hits)
      : signature_(std::move(signature)), own_(std::move(table)), hits_(std::move(hits)) {}

  // What is called, borrowed from the wrapper.
  struct Callee {
    PyObject* engine;    // takes the calls that are no hits
    PyObject* function;  // the plain one
    PyObject* defaults;  // a function or a dict
    PyObject* instance;  // that a method belongs to, or null
  };

  // The result; null with an exception set, or without one where Python must see to the call.
  PyObject* call(const Callee& callee, const Passed& passed);

  // The traces of an instance that is alive; the reference belongs to it.
  void enter(py::object instance, py::object reference, std::shared_ptr<TraceTable> table);
  void leave(size_t instance);

  bool enabled = true;  // off: every call goes through Python, which times it

 private:
  bool ask_all(const Callee& callee, const Passed& passed, TraceTable* table, WorkspaceLease* lease,
               PyObject** result);
  bool ask(const Callee& callee, const Passed& passed, TraceTable* table, std::string_view key,
           WorkspaceLease* lease, PyObject** result);
  TraceTable* table_of(PyObject* instance) const;
  PyObject* go_on(const Callee& callee, const Passed& passed, std::unique_ptr<Call> call, const Trace& trace,
                  py::object outcome);

  struct Known {
    py::object reference;
    std::shared_ptr<TraceTable> table;
  };
  std::shared_ptr<Signature> signature_;
  std::shared_ptr<TraceTable> own_;
  std::shared_ptr<HitCount> hits_;
  std::unordered_map<PyObject*, Known> instances_;
};

// Whether somebody is to be told of each eager call, so that none goes by without Python.
void tell_eager_calls(bool tell);

// (args, kwargs) of a call.
py::tuple packed(const Passed& passed);

}  // namespace lazytrace
