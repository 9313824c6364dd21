// Watches the Python code of a recording, instruction by instruction, and keeps what it reads of the state
// around it.
#pragma once

#include <string>
#include <vector>

#include "record/python/pure_functions.h"
#include "record/python/watcher.h"

namespace lazytrace {

// The parts that watch one recording, from the bottom up: each knows those before it and none behind it.
// Each read of an object that was there before the call becomes a guard; each write to one is made again or
// makes the recording impure; an object that was made during the call needs neither.
//
// Needs the GIL throughout. It never runs Python code of the user: all lookups go through the C structures.
class Observer {
 public:
  Observer(Recorder* recorder, GuardTree* tree);
  Observer(const Observer&) = delete;  // its parts point to each other
  Observer& operator=(const Observer&) = delete;

  void start() { watcher_.start(); }
  // False where somebody else replaced the trace function meanwhile.
  bool stop() { return watcher_.stop(); }

  // What a person has allowed to happen at recordings only: print() and logging.
  void ignore(bool print, bool logging) { asides_.allow(print, logging); }

  // From now on Python is given numbers that are followed. Before the call.
  void follow_numbers() { exchange_.follow(); }

  // And numbers in state, whose paths begin with these names of roots; the recorder knows which.
  void follow_state(const std::vector<std::string>& names) { provenance_.follow_state(&exchange_, names); }
  void leave_state(const std::vector<std::string>& paths) { provenance_.leave(paths); }
  // The paths of numbers that the call has changed, where a recording that does not follow them is no use.
  std::vector<std::string> varying(const std::vector<std::string>& names) const {
    return provenance_.varying(names);
  }
  std::vector<std::string> stiff(const std::vector<std::string>& names) const {
    return provenance_.stiff(names);
  }
  // Places that hold None and something else by turns: see StateWrites.
  void keep_turns() { writes_.keep_turns(); }
  StateWrites::Turn turn() const { return writes_.turn(); }

  // Declares the function, or what is an argument or lies in one.
  void add_root(PyObject* object, Py_ssize_t index, Call::Root kind) {
    provenance_.add_root(object, index, kind);
  }
  void comes_from(Call* call) { provenance_.comes_from(call); }
  void add_input(PyObject* tensor, int reg) { provenance_.add_input(tensor, reg); }
  // From now on the signature holds no values (Call::is_value) in containers.
  void leave_values() { provenance_.leave_values(); }
  // Custom functions of autograd that come to operators alone.
  PureFunctions* pure_functions() { return &pure_functions_; }
  CachedEntries* cached_entries() { return &cached_; }
  // The numpy arrays of the call.
  Unseen* unseen() { return &unseen_; }

  // A handle of a hook that the call has set on a tensor.
  void know_handle(PyObject* handle) { whole_calls_.know_handle(handle); }
  void store_early() { early_.begin(); }
  bool may_store_early() const { return early_.has_any(); }
  void take_operators_whole() { whole_calls_.take_operators_whole(); }

  // The guard node through which `object` is reached, or -1.
  int known(PyObject* object) const { return provenance_.known(object); }
  // The same, made where the object can be referenced weakly.
  int reach(PyObject* object) { return provenance_.reach(object); }
  bool by_path(int node) const { return provenance_.by_path(node); }
  bool was_drawn(PyObject* object) const { return provenance_.was_drawn(object); }
  bool others_have(PyObject* container) const { return provenance_.others_have(container); }
  std::string against_leaving(PyObject* part) const { return provenance_.against_leaving(part); }
  bool made_here(PyObject* object) const { return provenance_.is_fresh(object); }
  // Whether a context variable is as the function has set it for a while.
  bool sets_context() const { return context_variables_.sets_any(); }
  // Whether an exception that is raised now could be caught by the Python code of the recording.
  bool would_catch() { return watcher_.would_catch(); }

  // The frames that run, from the function on.
  py::tuple frames() const { return watcher_.frames(); }

  // Checks what only the end of the call can tell; `result` is what the function returned, and beside it all
  // that it has written.
  void finish(PyObject* result);
  void put_originals_back(py::object* result) {
    exchange_.put_originals_back(result, writes(), [&](PyObject* v) { return provenance_.is_fresh(v); });
  }
  // Writes to state so far; after settle_writes() those that a replay must make again.
  std::vector<Writes::Write>& writes() { return log_.all(); }
  // Drops writes that leave what was there before, and refuses those that the next call would trip over.
  void watch_writes() { log_.watch(); }
  // The function sets an attribute, as if it did so in its own code.
  void write_attribute(PyObject* object, PyObject* name, PyObject* value) {
    writes_.write_attribute(object, name, value);
  }
  // A list or dict that the call has made, before it hands it to code that may fill it (Provenance::adopt).
  // What it holds by then counts as written since. Whether it is state from now on.
  bool adopt(PyObject* container);
  void settle_writes() { writes_.settle(); }
  // After it: all places that were written, those too that hold again what they held.
  std::vector<Effect>& written() { return writes_.written(); }

  void pause() { pause_.begin(); }
  void resume() { pause_.end(); }
  const Surroundings& surroundings() const { return around_; }

  std::vector<py::object> take_codes() { return watcher_.take_codes(); }
  std::vector<Scope> take_scopes() { return watcher_.take_scopes(); }

 private:
  Writes log_;
  Pause pause_;
  Exchange exchange_;
  Gradients gradients_;
  WholeCalls whole_calls_;
  Unseen unseen_;
  Provenance provenance_;
  Surroundings around_;
  NewObjects new_objects_;
  Asides asides_;
  ClassReads classes_;
  LiveLists lists_;
  LateReads late_;
  EarlyStores early_;
  DrawnEntries drawn_;
  CachedEntries cached_;
  ContainerReads containers_;
  DefaultDicts default_dicts_;
  AttributeReads attributes_;
  NameReads names_;
  Consumption consumption_;
  FunctionReads functions_;
  PureFunctions pure_functions_;
  StateWrites writes_;
  Protocols protocols_;
  ContextVariables context_variables_;
  WarningReads warnings_;
  Calls calls_;
  Instructions instructions_;
  Modules modules_;
  Flags flags_;
  Watcher watcher_;
};

}  // namespace lazytrace
