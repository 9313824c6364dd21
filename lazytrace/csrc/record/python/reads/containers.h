// Reads of dicts, lists, tuples and sets, and of iterators over them.
#pragma once

#include "program/effects.h"
#include "record/operators/recorder.h"
#include "record/python/provenance.h"
#include "record/python/reads/classes.h"
#include "record/python/reads/late_reads.h"
#include "record/python/reads/live_lists.h"

namespace lazytrace {

// Objects whose parts a guard can reach by itself.
bool is_container(PyObject* v);
// Whether it is a set, and a guard can ask it for `key`: none of its members has an __eq__ of Python.
bool can_ask_for_member(PyObject* v, PyObject* key);

// Each read leaves guards for what was found. Needs the GIL; runs no Python code of the user.
class ContainerReads {
 public:
  ContainerReads(Recorder* recorder, GuardTree* tree, Provenance* provenance, Writes* log,
                 ClassReads* classes, LiveLists* lists, LateReads* late)
      : recorder_(recorder),
        tree_(tree),
        provenance_(provenance),
        log_(log),
        classes_(classes),
        lists_(lists),
        late_(late) {}

  void read_dict_item(PyObject* dict, PyObject* key);
  // What a dict has under an object that is known, whatever else it has; false where it is not that simple.
  bool read_entry(PyObject* dict, PyObject* key);
  // Whether a dict can be asked for a key without code of the user's that compares it: the recording has
  // failed where not.
  bool can_look_up(PyObject* dict, PyObject* key);
  // Whether a dict has a key.
  void read_key(PyObject* dict, PyObject* key);
  // One entry of a list or tuple; `key` is anything that Python code gave.
  void read_sequence_item(PyObject* sequence, PyObject* key);
  // The entries of one that an instruction takes apart, which may be numbers that are followed: false where
  // they are to be read as those of any other iterable.
  bool read_unpacked(PyObject** sequence);
  void read_arrays(PyObject** sequence);
  // The same of one that zip() goes through, in whose place a tuple is put.
  void read_row(PyObject** sequence);
  // Puts a dict of the same in the place of one that becomes part of another, with the numbers that are
  // followed: f(**self.__dict__).
  void read_merged(PyObject** place);
  // Puts a list of the numbers in its place of a list of numbers, or of lists of these, that becomes a
  // tensor: all of them will be others at the next call.
  void read_numbers(PyObject** place);
  // The same of one that something is made of: where some of them have differed.
  void read_varying(PyObject** place);
  // Whether there may be such numbers in it.
  bool may_vary(PyObject* list) const;
  // Whether it is a list that holds tuples alone, as a rollout is, in state or of the call's own.
  bool holds_rows(PyObject* list) const;
  // The numbers that are followed of a dict whose items or values are asked for, by key: they are to lie in
  // it before that. All that it held before the call is read then.
  std::vector<std::pair<py::object, py::object>> read_viewed(PyObject* dict);
  // Whether a write has put one of these there, and the number that was there; else null.
  PyObject* replaced_by(PyObject* dict, PyObject* key, PyObject* value) const;
  // Whether a set holds an equal of `key`.
  void read_member(PyObject* set, PyObject* key);
  // The attributes of an object that was written to, seen as a dict: that it is the same one.
  void read_as_namespace(PyObject* dict);
  void read_length(PyObject* container);
  // Its length and all entries.
  void read_whole(PyObject* container);
  // The same where it is only gone through: no key is looked up, so keys may be any objects.
  void read_in_order(PyObject* container);
  // What a list or dict held before the call is read, and what it holds in the end is one write: neither
  // reads nor writes of it count from now on. False where that cannot be; `what` is about to be done.
  // `emptied`: Python learns nothing of the numbers that it held.
  bool take_over(PyObject* container, Wording what, bool emptied = false);
  // Of a dict or a list that was written to under keys that are followed: they are read.
  void fix_keys(PyObject* container);
  // The same of a deque, where its length and entries are followed; false of any other.
  bool read_deque(PyObject* deque);
  // Whether the length and entries of a list or a deque are followed.
  bool follows(PyObject* list) const { return lists_->is(list); }
  // The order of a set, which hangs on the addresses of members without a __hash__ of their own.
  void read_order(PyObject* set);
  // The classes that a class has for bases, which can be assigned to.
  void read_bases(PyObject* type);
  // An iterator moves on.
  void advance(PyObject* iterator);

 private:
  bool can_merge(int node, PyObject* dict) const;
  // `flags`: truth values count, too.
  bool is_known_by_place(PyObject* list) const;
  py::list numbers_in(PyObject* list);
  bool read_beside_writes(int node, PyObject* list);
  Py_ssize_t count_numbers(PyObject* list, int depth, bool flags) const;
  // What an entry holds, or, where it does not come to Python, that it is there.
  void read_entry_of(PyObject* dict, PyObject* key, bool gives_value);
  void fix_hash(PyObject* member);
  bool can_take_over(PyObject* container) const;
  // Of a container that was written to.
  void settle(PyObject* container);
  bool keeps_length(int node, PyObject* container);
  void read_entries(int node, PyObject* held, bool emptied = false);
  // Its keys and values one by one, by the places where they stand.
  void read_places(int node, PyObject* object);
  void compare_key(PyObject* key);
  // Of one with keys that no guard can hold; false where that cannot be.
  bool read_by_place(int node, PyObject* container);
  // Of a container whose structure the signature holds: the values in it.
  void read_values(int node, PyObject* held);
  // Whether the signature holds this entry.
  bool holds(int node, PyObject* value) const;

  Recorder* recorder_;
  GuardTree* tree_;
  Provenance* provenance_;
  Writes* log_;
  ClassReads* classes_;
  LiveLists* lists_;
  LateReads* late_;
  struct Viewed {
    PyObject* dict;
    py::object key, carrier, number;
  };
  std::vector<Viewed> viewed_;
  AddressSet all_read_;  // dicts whose entries of before the call are read, or followed
  AddressSet whole_;     // containers whose contents are all guarded
  AddressSet by_place_;  // those of which no guard says what a lookup of a key would find
};

}  // namespace lazytrace
