// Lists and deques that differ from call to call: how long they are, and the numbers in them, are followed.
#pragma once

#include <c10/util/FunctionRef.h>

#include <string>
#include <utility>
#include <vector>

#include "cpython/frame.h"
#include "cpython/operations.h"
#include "record/operators/recorder.h"
#include "record/python/exchange.h"
#include "record/python/provenance.h"

namespace lazytrace {

// Which lists and deques these are, Provenance knows: their paths are followed. Of each it is known what the
// call has done to it so far: entries of before the call are gone at its ends, others were put behind them.
// So whatever is read of it is an entry of before the call, a number that follows from how long it was then,
// or what the call has put there. Before an instruction that reads one a list of just these lies in its place
// on the stack. Anything else that looks at one reads all of it, and how long it is, exactly.
//
// The guard reads what was there before the call; nothing of it is compared but what kind of number it is.
// Needs the GIL.
class LiveLists {
 public:
  LiveLists(Recorder* recorder, GuardTree* tree, Provenance* provenance, Exchange* exchange)
      : recorder_(recorder), tree_(tree), provenance_(provenance), exchange_(exchange) {}

  bool is(PyObject* object) const { return provenance_->has_live() && provenance_->live(object) >= 0; }

  // Puts something else in the place of lists on the stack, before the instruction is judged.
  void before(Frame f, const Operation& operation);
  // The same of what is called, once it was judged.
  void exchange();

  // Reads, exactly. `key`: anything that Python code gave.
  void read_length(PyObject* list);
  void read_item(PyObject* list, PyObject* key);
  void read_whole(PyObject* list);

  // The same of a list that is none of them, and holds nothing but ints, floats and lists of these: another
  // list, with the numbers that are followed. `wrote`: whether the call has put what lies at this place
  // there.
  py::list numbers_in(PyObject* list, c10::function_ref<bool(PyObject*, Py_ssize_t)> wrote);
  // A value of a container, as Python is given it where these numbers, or none, are followed.
  py::object followed(py::object value, c10::ArrayRef<int> numbers);

  // What the call has done to a list so far: how many of the entries of before it are gone at its begin, and
  // left, and how many were put behind these. Below 0, more than that says where they lie.
  struct Ends {
    Py_ssize_t gone = 0, left = PY_SSIZE_T_MAX, added = 0;
  };
  Ends ends_of(PyObject* list);
  // On the stack: a list with this entry alone in the place of a container, and its place there in that of
  // `key`.
  void put_alone(PyObject** container, PyObject** key, py::object entry);

  // Something is about to be put behind its entries, or taken from them. False: a replay could not do it.
  bool append(PyObject* list);
  // Whether the key is the place of an entry that was put behind those of before the call, however many these
  // are: as the how manyeth. `buffer.append(None); buffer[position] = x`.
  bool is_added(PyObject* list, PyObject* key, Py_ssize_t* place);
  // The same of this call alone.
  bool was_added(PyObject* list, Py_ssize_t index);
  // The first entry, or the last, comes to Python. `place`: see Effect::index.
  bool take_out(PyObject* list, bool last, Py_ssize_t* place);
  // What `del list[key]` takes, some at its begin or the last.
  bool remove(PyObject* list, PyObject* key, std::vector<Py_ssize_t>* places);
  // All entries go.
  bool clear(PyObject* list);
  // A list of all that lies there, in its place on the stack.
  void put_entries(PyObject** place, bool iterates);

 private:
  struct List {
    PyObject* object = nullptr;               // Provenance holds it
    int node = -1;                            // its guard
    Py_ssize_t length = 0;                    // before the call
    Py_ssize_t from_start = 0, from_end = 0;  // how many of these are gone at its begin, and at its end
    Py_ssize_t added = 0;                     // how many were put behind them
    bool emptied = false;                     // nothing of before the call is left, however long it was
    std::vector<py::object> iterated;         // lists in its place that may be gone through still

    Py_ssize_t left() const { return emptied ? 0 : length - from_start - from_end; }
  };

  List* of(PyObject* object);
  int length_number(const List& list);
  bool had_at_least(const List& list, Py_ssize_t count);
  bool has_at_least(const List& list, Py_ssize_t count);
  void fix_length(const List& list);
  Py_ssize_t length_now(const List& list) { return list.left() + list.added; }
  py::object entry(const List& list, Py_ssize_t index);
  py::object entry_from_end(const List& list, Py_ssize_t place);
  py::object added(const List& list, Py_ssize_t place);
  py::object item(const List& list, Py_ssize_t index);
  bool slice(const List& list, PyObject* key, py::list* found);
  bool entries(const List& list, py::list* found);
  bool total(const List& list, PyObject* function, py::list* found);
  bool may_change(List* list);
  void put(PyObject** place, py::list made);
  void before_item(PyObject** list, PyObject** key);
  void ask_truth(PyObject* object);
  void before_length(PyObject** callee, PyObject** list);
  void before_call(PyObject** callee, PyObject** args, Py_ssize_t count);

  Recorder* recorder_;
  GuardTree* tree_;
  Provenance* provenance_;
  Exchange* exchange_;
  std::vector<std::pair<PyObject*, List>> lists_;  // few
  std::vector<std::pair<PyObject**, py::object>> later_;
  PyObject* asked_ = nullptr;  // whether it has entries, and nothing else, is what the instruction reads
};

}  // namespace lazytrace
