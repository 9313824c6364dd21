// One recording from start to verdict, and the trace that a reusable one becomes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "guards.h"
#include "observer.h"
#include "recorder.h"
#include "runner.h"
#include "signature.h"

namespace lazytrace {

// Why a trace did not answer a call.
struct Miss {
  int node = -1;         // the guard that failed
  int step = -1;         // the step whose result differed
  bool effects = false;  // whether something had been changed by then
  std::string found;
  std::vector<py::object> fed;
};

// Guards, program and the shape of the result: all that a hit needs. Immutable, so any thread may use it.
// Holds nothing of the user's alive; destroy it with the GIL.
class Trace {
 public:
  // The result of the call, or a Miss. Takes and gives back the GIL.
  py::object replay(const Call& call) const;
  // Runs the program on the arguments of the recording, and says how the result differs; empty where it does
  // not.
  std::string prove(const Call& call);
  // Only the guards: -1, or the node that fails.
  int check(const Call& call) const;
  py::tuple explain(int node, const Call& call, const std::vector<std::string>& names) const;

  const Program& program() const { return *program_; }
  size_t guards() const { return tree_.size(); }
  // One row per step, for listings: (kind, operator, arguments, results, modes, file, line).
  py::list rows() const;
  py::list guard_rows(const std::vector<std::string>& names) const;
  py::list output_registers() const;

 private:
  friend class Recording;
  Outcome run(const Call& call, std::vector<at::Tensor>* registers, GuardTree::Values* values,
              int* failed) const;

  std::shared_ptr<Program> program_;
  GuardTree tree_;
  Tree output_;
  std::vector<std::pair<int, at::Tensor>> first_;  // what eager returned, until it has been proved
};

// Ownership: made and destroyed by the thread that records, with the GIL.
class Recording {
 public:
  explicit Recording(const Call& call);
  ~Recording();
  static Recording* active();

  // Runs the function for real. Its exceptions pass through unchanged; nothing stays switched.
  py::object run(py::object function, py::tuple args, py::dict kwargs);
  // The trace, or null with reason() and where() set.
  std::shared_ptr<Trace> finish(py::object result);
  py::object opaque(py::object wrapper, const std::string& attribute, py::object function, py::tuple args,
                    py::dict kwargs, bool python);

  // Calls a function of ours that is no part of the recording.
  py::object aside(py::object function);

  std::string reason() const { return recorder_.reason(); }
  py::tuple where() const;
  void fail(const std::string& reason) { recorder_.fail(reason); }

 private:
  Tree take_apart(PyObject* result, std::vector<std::pair<int, at::Tensor>>* tensors);
  bool renumber(Trace* trace);

  Recorder recorder_;
  GuardTree tree_;
  Observer observer_;
  bool replaced_ = false;
};

// The results that opaque functions of this thread give instead of running: a replay ran them already. Empty:
// none.
std::vector<py::object>& fed_results();
// The next of these, or where there is none the result of the call.
py::object fed_or_called(const py::object& function, const py::tuple& args, const py::dict& kwargs);

py::tuple place_tuple(const Place& place);

}  // namespace lazytrace
