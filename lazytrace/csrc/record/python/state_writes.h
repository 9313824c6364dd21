// Writes to what was there before the call: made again by a replay, or the end of reusability.
#pragma once

#include "cpython/frame.h"
#include "program/effects.h"
#include "record/operators/recorder.h"
#include "record/python/early_stores.h"
#include "record/python/exchange.h"
#include "record/python/gradients.h"
#include "record/python/provenance.h"
#include "record/python/reads/classes.h"
#include "record/python/reads/consumption.h"
#include "record/python/reads/containers.h"
#include "record/python/reads/live_lists.h"
#include "record/python/reads/names.h"

namespace lazytrace {

// Enters what it sees into the log of writes, which the reads ask. Needs the GIL.
class StateWrites {
 public:
  StateWrites(Recorder* recorder, GuardTree* tree, Exchange* exchange, Provenance* provenance, Writes* log,
              ClassReads* classes, LiveLists* lists, ContainerReads* containers, NameReads* names,
              Consumption* consumption, Gradients* gradients, EarlyStores* early)
      : recorder_(recorder),
        tree_(tree),
        exchange_(exchange),
        provenance_(provenance),
        log_(log),
        classes_(classes),
        lists_(lists),
        containers_(containers),
        names_(names),
        consumption_(consumption),
        gradients_(gradients),
        early_(early) {}

  // A write that no replay can make.
  void write(PyObject* object, Wording what);
  // A write that a replay can make again, or else write(). `container`: the dict, list or cell that changes.
  void write_again(Effect::Kind kind, PyObject* object, PyObject* container, PyObject* key, Py_ssize_t index,
                   PyObject* value, Wording what);
  // All of a list or tuple is put behind what a list or a deque holds, as one write for each item; false
  // where it is not that simple.
  bool extend(PyObject* list, PyObject* items, Wording what);
  // The first entry of a list or a deque, or the last, is taken out and comes to Python.
  void take_out(PyObject* list, bool last, Wording what);
  // Whether it is the __dict__ of an object.
  bool is_namespace(PyObject* dict) const;
  // Whether a pop() of a dict is no more than that of a name of an object: then it is noted.
  bool pop_name(PyObject* dict, PyObject* name, Wording what);
  // Whether pop() looks at nothing but this entry: of a namespace, one that the call has set, or none.
  bool pops_entry_alone(PyObject* dict, PyObject* name) const;
  // All entries of a list or a deque whose length and entries are followed go; false of any other.
  bool clear(PyObject* list, Wording what);
  // A change of what a list or dict holds that is more than one entry, or else write().
  void rewrite(PyObject* container, Wording what, bool emptied = false);
  // container[key] = value with an int that is followed for a key, which becomes a plain one: it is followed
  // still. False where it must be read.
  bool write_entry(PyObject* container, PyObject** key, PyObject* value);
  // What an instruction does with an object on the stack, and with another one, or none.
  void set_attribute(PyObject** object, PyObject* name, PyObject** value);
  // `value`: null where it is deleted.
  void write_attribute(PyObject* object, PyObject* name, PyObject* value);
  // While object.__setattr__ is called that is bound to its object, with a name and the value.
  EarlyStores::Stack while_called(PyObject** callee, PyObject** value) {
    return EarlyStores::Stack::of_call(early_, callee, value);
  }
  // What object.__setattr__ writes; null: what object.__delattr__ takes away.
  void write_plainly(PyObject* object, PyObject* name, PyObject* value);
  void write_item(PyObject* object, PyObject* key, PyObject* value);
  void write_global(Frame f, PyObject* name, PyObject* value);
  void write_cell(Frame f, int index, PyObject* value);

  // `requires_grad` of a tensor is set. False: a replay could not do it.
  bool write_requires_grad(PyObject* tensor, bool value);

  // A weak reference is asked for an object. True: a write has taken it away, or the recording holds it, and
  // nobody else may any more, which fails.
  bool lets_go(PyObject* object);

  // Drops writes that leave what was there before, and refuses those that the next call would trip over.
  void settle();
  // A place that held None and now holds what may differ at each call, or the other way round: in a function
  // where these take turns either may be found again.
  enum class Turn : uint8_t { None, ToValue, ToNone };
  // They are kept. Before the call.
  void keep_turns() { keeps_turns_ = true; }
  // After settle(): which of them is why there is no program.
  Turn turn() const { return turn_; }
  // After it: all places that were written, those too that hold again what they held.
  std::vector<Effect>& written() { return written_; }

 private:
  bool is_own(PyObject* object);
  void put_back_viewed();
  bool changes_nothing(int owner, Access access, PyObject* key, Py_ssize_t index, PyObject* before,
                       PyObject* value) const;
  enum class Verdict : uint8_t { Kept, Dropped, Refused };
  Verdict verdict_on(const Writes::Write& write) const;
  bool holds_given(PyObject* value) const;
  bool comes_again(int owner, PyObject* original) const;
  Verdict verdict_on_content(const Writes::Write& write) const;
  bool hangs_on_value(const Writes::Write& write) const;
  bool may_come_again(const Writes::Write& write, const Guard& before) const;
  static Turn turn_of(const Writes::Write& write, const Guard& before);
  void enter(Effect effect, PyObject* container, PyObject* value, const std::string& what);
  bool fill_added(PyObject* list, PyObject* key, PyObject* value);
  bool takes_entry(PyObject* container, int node) const;
  bool keeps_order(PyObject* object, PyObject* key) const;
  bool read_as_other(int node, PyObject* key) const;
  bool take_back(PyObject* dict, PyObject* key);
  bool can_take_out(int owner, PyObject* dict) const;
  bool delete_entry(PyObject* dict, PyObject* key, Wording what);
  bool take_out_of_namespace(Effect::Kind kind, int owner, PyObject* dict, PyObject* key, Wording what);
  void read_shared_namespace(PyObject* object, PyObject* dict);
  void delete_in_namespace(PyObject* object, PyObject* name, Wording what);
  void write_in_namespace(PyObject* object, PyObject* name, PyObject* value, Wording what);
  void write_slot(PyObject* object, PyObject* name, PyObject* value, Wording what);
  void write_class(PyObject* type, PyObject* name, PyObject* value, Wording what);
  bool leave_to_descriptor(PyObject* object, PyObject* name, PyObject* value);
  void write_of_thread(PyObject* object, PyObject* name, PyObject* value, Wording what);
  void write_tensor_attribute(PyObject* tensor, PyObject* name, PyObject* value, Wording what);
  bool write_beside_tensor(PyObject* tensor, PyObject* name, PyObject* value, Wording what);
  void write_list_item(PyObject* list, PyObject* index, PyObject* value, Wording what);
  void append(PyObject* list, PyObject* value, Wording what);
  void refuse(PyObject* list, Wording what);
  void drop(PyObject* list, Py_ssize_t place, Wording what);

  Recorder* recorder_;
  GuardTree* tree_;
  Exchange* exchange_;
  Provenance* provenance_;
  Writes* log_;
  ClassReads* classes_;
  LiveLists* lists_;
  ContainerReads* containers_;
  NameReads* names_;
  Consumption* consumption_;
  Gradients* gradients_;
  EarlyStores* early_;
  std::vector<Effect> written_;
  bool keeps_turns_ = false;
  Turn turn_ = Turn::None;
  PyObject* keyed_ = nullptr;  // the container that the instruction writes to under a key that is followed
};

}  // namespace lazytrace
