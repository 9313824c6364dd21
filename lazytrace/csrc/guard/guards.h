// The Python state that a recording read, as a tree of reads that can be made again.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "guard/earlier_state.h"
#include "guard/words.h"
#include "program/behind.h"
#include "support/address_map.h"
#include "torch/tensor_meta.h"

namespace lazytrace {

namespace py = pybind11;

// How a value is reached from the value of the parent node.
enum class Access : uint8_t {
  Root,            // the function (0) or an argument leaf
  Input,           // a tensor argument
  Weak,            // an object that needs no path: a module, a class, a function; held weakly
  Instance,        // entry of the instance __dict__ (also a module's)
  Namespace,       // the instance __dict__ itself
  Type,            // type(owner)
  Class,           // what a lookup on the class finds, along the MRO
  Own,             // entry of the class's own __dict__
  Specials,        // the names of the special methods that a class has beyond those of its C base
  Item,            // owner[key] of a dict
  Entry,           // owner[k] of a dict, with k the object of node `index`
  At,              // owner[i] of a list or tuple
  FromStart,       // owner[i] of a list or a deque that differs from call to call, as do the next three
  FromEnd,         // owner[-i]
  Length,          // len(owner)
  Total,           // what the builtin function `key` gives for owner[i:], all of them numbers
  Member,          // the key, where a set holds one that is equal
  KeyAt,           // of a dict or a set that is gone through: the key at place i
  ValueAt,         // of a dict that is gone through: what stands at place i
  Cell,            // contents of closure cell i of a function
  Globals,         // the globals of a function
  AbcToken,        // the number that every ABC.register() raises
  RecursionLimit,  // sys.getrecursionlimit()
  FramesLeft,      // whether so many frames may be entered below this one
  WarningFilters,  // the number that every change of the filters of warnings raises
  FrameEvaluator,  // what torch's compiler does with the frames that run
  Kernels,         // the number that every registration of a kernel from Python raises
  Switch,          // row i of torch/switches.def
  Handled,         // whether an exception is handled around the call
  Cached,          // what a functools cache holds under a key
  Self,            // the owner itself, for a second expectation
  Deref,           // what a weak reference refers to
  Exhausted,       // whether an iterator has come to its end, which it stays at
  Context,         // the value of a context variable in this thread or task
  OfThread,        // the attributes that a threading.local has in this thread, as a dict
  Memory,          // of an array of numpy: a tensor that shows it, made for the check
  Made,            // what the call makes, made for the check: an empty `key` where that is a class, or else a
                   // torch.Generator for the device `key`
  Hooks,           // of a tensor: those on its gradient (0), or on what was added to it (1), as a tuple
  Attribute,       // an attribute that C code computes from nothing but the owner (a slot, partial.func,
                   // method.__self__)
};

enum class Expect : uint8_t { Anything, Absent, Constant, Identity, Type, Code, Tensor };

// What a promise that state does not change leaves of a guard.
enum class Demand : uint8_t {
  All,
  Way,  // it is looked at no more than what is found through it needs
  Nothing
};

// Whether it is read of a list or a deque whose length and entries are followed.
constexpr bool is_of_live_list(Access access) {
  return access >= Access::FromStart && access <= Access::Total;
}

struct Guard {
  int parent = -1;
  Access access = Access::Root;
  py::object key;  // name or dictionary key; interned where it is a name
  Py_ssize_t index = -1;
  Expect expect = Expect::Anything;
  py::object plain;  // of an instance of a subclass of str, int, float or bytes: the value beneath
  py::object value;  // Constant, Code: what is expected; Identity: only what cannot be referenced weakly
  PyObject* raw = nullptr;  // Identity, Type: compared, never dereferenced
  py::object weak;          // says whether `raw` is still the object that it was
  Py_ssize_t length = -1;   // of a list, tuple, set or dict that was looked at as a whole
  py::object keys;          // tuple: the keys of a dict that was looked at as a whole, in order
  int same = -1;            // another node with the same object
  int same_input = -1;      // the argument register with the same tensor
  std::unique_ptr<TensorMeta> tensor;
  bool attributes = false;  // of a tensor: whether anything was put on it
  bool loose = false;  // of a tensor: its sizes and strides may differ; of an int or a float: its value may
  PyTypeObject* tensor_type = nullptr;  // Tensor, Parameter: types that are never freed
  int capture = -1;                     // slot of the program that takes this tensor
  int turn = 0, uses = 0;               // of an entry of a functools cache: when it was used last, how often
  std::string shown;                    // the value at the recording, for reports
  int group = -1;                       // the namespace that it is an entry of, or -1
  bool steady = false;  // holds as long as its namespace is unchanged: nothing that can change is behind it
  Demand demand = Demand::All;
};

// Which field of functions a name stands for: asking for it as an attribute would raise an audit event.
enum class FunctionField : Py_ssize_t { None, Defaults, KeywordDefaults };

// Guards on entries of one namespace: a dict or a class. CPython gives each a version that every change
// renews and that no other ever has, so that one comparison stands for all of them.
struct GuardGroup {
  PyObject* holder = nullptr;  // at the last check that passed; compared, never dereferenced
  uint64_t version = 0;
};

// Ownership: strong references only to immutable values, code objects and C objects. User objects are
// compared by address and kept apart from their successors by weak references, so that a trace keeps nothing
// of the user's alive. Every method needs the GIL. check() runs no Python code.
class GuardTree {
 public:
  GuardTree();

  enum class Standing : uint8_t { Unknown, Changed, Unchanged };

  struct Values {
    std::vector<PyObject*> nodes;     // borrowed, by node
    std::vector<py::object> held;     // the few that are new references
    std::vector<PyObject*> captures;  // tensors by slot, borrowed
    const std::vector<PyObject*>* inputs = nullptr;
    std::vector<GuardGroup> groups;  // as check() has found them, once each
    std::vector<Standing> standings;

    // For the next check: keeps the memory.
    void clear() {
      nodes.clear();
      held.clear();
      captures.clear();
      inputs = nullptr;
    }
  };

  int root(Py_ssize_t index);
  // A node that needs no path. -1 where the object cannot be referenced weakly.
  int weak(PyObject* object);
  // The node for a read, made where there is none; `made` says which. Nothing is expected of a new node.
  int child(int parent, Access access, PyObject* key, Py_ssize_t index, bool* made);
  // The same where there is one, or -1.
  int find(int parent, Access access, PyObject* key, Py_ssize_t index) const;
  // Whether an entry was read under a key that is equal to this one, but of another type.
  bool has_read_as_other(int parent, PyObject* key) const;
  int root_of(int node) const {
    while (nodes_[node].parent >= 0) node = nodes_[node].parent;
    return node;
  }
  // Once pruned: the first node that had the same namespace as the object, if that was looked at, or the same
  // object.
  int first_of_namespace(int node) const { return objects_[static_cast<size_t>(node)]; }
  // The first node that had the same object.
  int first_of(int node) const {
    while (true) {
      const Guard& guard = nodes_[node];
      if (guard.same >= 0)
        node = guard.same;
      else if (guard.access == Access::Self)
        node = guard.parent;
      else
        return node;
    }
  }
  Guard& operator[](int node) { return nodes_[node]; }
  const Guard& operator[](int node) const { return nodes_[node]; }
  // The node whose tensor the program takes as this capture.
  int node_of_capture(size_t slot) const;
  // That of a tensor argument, or -1.
  int node_of_input(int reg) const;
  size_t size() const { return nodes_.size(); }
  // The nodes of tensors that are no arguments and no other node's.
  const std::vector<int>& tensors() const { return tensors_; }
  // The nodes whose objects somebody may write to: neither a constant nor the object of another node.
  const std::vector<int>& writable() const { return writable_; }

  // Sets what is expected of a node from the value that it has now (NULL: absent).
  void expect(int node, PyObject* value);
  void expect_identity(int node, PyObject* value);
  void expect_length(int node, PyObject* value);
  // The object of the node was compared with others by what it is: it must be none of them again.
  void expect_distinct(int node) {
    if (std::find(distinct_.begin(), distinct_.end(), node) == distinct_.end()) distinct_.push_back(node);
  }

  // Tensors that are no parameters may have other sizes and strides.
  void loosen();
  // Once all guards are there: finds the groups.
  void group();

  // State is promised not to change: leaves out all but what hangs on arguments (roots from this number on),
  // tensors that the program takes, the nodes that are `needed`, and the way to these. Tensors stay live:
  // each check finds them by their paths.
  void promise(Py_ssize_t first_argument, const std::vector<int>& needed);
  // Takes it back.
  void doubt();
  // How many guards a promise leaves out.
  size_t left_out() const;

  // What a check has made for the call (Access::Made), in its order; and these in the place of those that
  // another check has made: the call has drawn from a generator, or has filled a list.
  std::vector<py::object> made(const Values& values) const;
  void put_made(const std::vector<py::object>& made, Values* values) const;
  // While it is recorded: what the call has made itself, for look(). Until the guards are pruned, or let go.
  void hold_made(int node, PyObject* object) {
    nodes_[node].value = py::reinterpret_borrow<py::object>(object);
  }
  void let_go_of_made() {
    for (Guard& guard : nodes_)
      if (guard.access == Access::Made) guard.value = py::object();
  }

  // Of each node the first above it.
  std::vector<int> roots() const;

  // Drops what hangs on weak roots that are gone; returns the new number of each node, -1 for the dropped.
  std::vector<int> prune();

  // A node whose value is not as expected, or -1. It is the first one, or the one that it was last time.
  int check(PyObject* const* roots, size_t count, const std::vector<PyObject*>& inputs, Values* values) const;

  // The next check finds the first one.
  void forget_failure() const { failed_ = -1; }

  // The first node that leads to something else than check() has `found` in this call, or -1: once Python
  // code has run that may have changed anything, but for what the recording has seen it change (`behind`).
  // What tensors look like is not asked. The caller holds what was found.
  int moved(const Values& found, PyObject* const* roots, size_t count, const std::vector<PyObject*>& inputs,
            const Behind& behind) const;
  // Adds the places by which nodes lead to something else than they did, each of which shows what it had
  // before. False where that is not known of one. What tensors look like is not asked.
  bool earlier(const Values& found, PyObject* const* roots, size_t count,
               const std::vector<PyObject*>& inputs, EarlierState* all) const;

  // What each node leads to at this moment, expected or not.
  struct Look {
    std::vector<PyObject*> nodes;
    std::vector<char> holds, made;
    std::vector<py::object> held;  // all of them, and what was made to read them
  };
  Look look(PyObject* const* roots, size_t count, const std::vector<PyObject*>& inputs) const;
  // The nodes that lead to something else now, or no longer to what was expected.
  static std::vector<int> changed(const Look& before, const Look& now);

  // (path, what it was, what it is now, remark) of a node that failed.
  py::tuple explain(int node, PyObject* const* roots, size_t count,
                    const std::vector<std::string>& names) const;
  // The same of all nodes that fail, but for what hangs on another such node.
  py::list explain_all(PyObject* const* roots, size_t count, const std::vector<PyObject*>& inputs,
                       const std::vector<std::string>& names) const;
  // The paths of the ints and floats that keep a call from this trace by nothing but their values, and of the
  // lists that do so by how long they are, or that are `rewritten` (nodes) by the trace and hold such
  // numbers.
  std::vector<std::string> differing_numbers(PyObject* const* roots, size_t count,
                                             const std::vector<PyObject*>& inputs,
                                             const std::vector<std::string>& names,
                                             const std::vector<int>& rewritten) const;
  // Whether a node has an int or a float, or a tuple of them, in a place where these can be followed.
  bool can_be_loose(int node) const;
  // Those that will differ, too, where the number of a node has.
  std::vector<int> alike(int node) const;
  // A tuple of numbers is expected to be one of as many. Its items are nodes of their own, made by the
  // caller.
  void expect_items(int node, PyObject* tuple);
  // Whether the tensor of a node that fails would be accepted but for its sizes and strides.
  bool differs_in_size(int node, PyObject* const* roots, size_t count,
                       const std::vector<PyObject*>& inputs) const;
  std::string path(int node, const std::vector<std::string>& names) const;
  // By object, which is only compared: how paths go on below it that are asked for, and each as a whole;
  // behind an empty one, its own.
  using Paths = std::unordered_map<PyObject*, std::unordered_map<std::string, std::string>>;
  Paths paths(const Values& values, const std::vector<std::string>& names) const;
  // The path that a node would have which nobody has made yet.
  std::string path_below(int parent, Access access, PyObject* key, Py_ssize_t index,
                         const std::vector<std::string>& names) const;
  std::string expected(const Guard& guard) const;

 private:
  void expect_members(int node, PyObject* united);
  std::string path_of(const Guard& g, const std::vector<std::string>& names) const;
  std::string item_path(const Guard& g, const std::vector<std::string>& names) const;
  std::string attribute_path(int owner, const std::string& name, const std::vector<std::string>& names) const;
  // What the container of a node held before some code has changed that; null where it is not known.
  py::object content_before(size_t node, PyObject* container, const Values& found) const;
  py::object entries_before(int node, PyObject* container, const Values& found) const;
  PyObject* read(const Guard& guard, PyObject* owner, PyObject* const* roots, size_t count,
                 Values* values) const;
  bool accepts(const Guard& guard, PyObject* value, const std::vector<PyObject*>& inputs,
               const Values& values) const;
  py::tuple explain(int node, PyObject* const* roots, size_t count, const std::vector<std::string>& names,
                    Values* values) const;
  // Asks all nodes but those that hang on one that fails; returns those that do.
  std::vector<int> walk(PyObject* const* roots, size_t count, const std::vector<PyObject*>& inputs,
                        Values* all) const;
  bool accepts_shape(const Guard& guard, PyObject* value) const;
  int find(size_t hash, int parent, Access access, PyObject* key, Py_ssize_t index) const;
  // The node and the one before it that it must differ from, or (-1, -1).
  std::pair<int, int> merged(const Values& values) const;

  Standing standing(const Guard& guard, PyObject* owner, std::vector<GuardGroup>* now) const;
  static constexpr int kChanged = -2;
  int check_changes(PyObject* const* roots, size_t count, const std::vector<PyObject*>& inputs,
                    Values* values) const;
  int check_all(PyObject* const* roots, size_t count, const std::vector<PyObject*>& inputs,
                Values* values) const;
  bool fails_again(PyObject* const* roots, size_t count, const std::vector<PyObject*>& inputs,
                   Values* values) const;
  // What is left to do for a namespace that has not changed. Most guards are simple: their task says all that
  // it takes to read a value and to accept it, side by side in memory, as a step has hundreds of them.
  struct Task {
    enum class Kind : uint8_t { Namespace, Simple, Guard } kind;
    Access access;
    Expect expect;
    bool grouped;  // the value is the one that was seen in its namespace
    int node, parent, group;
    int same;
    Py_ssize_t index;
    PyObject* expected;  // the value, type or code; of the guard
    PyObject* weak;      // the reference that says whether `expected` is still what it was, or null
  };
  static bool is_simple(const Guard& guard);
  static Task task_of(const Guard& guard, int node);
  // Whether a simple guard holds for the very object that is expected. Puts the value in its place.
  static bool holds(const Task& task, std::vector<PyObject*>* nodes);
  // Whether the node of a namespace has a task of its own that asks whether its value is accepted.
  static bool asks_itself(const Guard& guard);
  bool read_again(const Task& task, PyObject* const* roots, size_t count,
                  const std::vector<PyObject*>& inputs, Values* values) const;
  // A call that is checked, and the namespaces that were found changed.
  struct Checking {
    PyObject* const* roots;
    size_t count;
    const std::vector<PyObject*>& inputs;
    Values* values;
    c10::SmallVector<std::pair<int, GuardGroup>, 8> changed;
  };
  int ask(const Task& task, Checking* checking) const;
  // What the quick way stands for; `at`: the first task that is still to be asked.
  int ask_quickly(Checking* checking, size_t* at) const;
  bool leads_elsewhere(const Task& task, const Values& values) const;
  class WordMaker;
  void plan();
  void list_namespaces();
  void list_members();
  void list_leading();
  void plan_again();

  std::vector<Guard> nodes_;
  std::vector<int> objects_;   // by node, once pruned: first_of_namespace()
  std::vector<int> distinct_;  // nodes whose objects are pairwise different
  std::vector<int> tensors_, writable_;
  // What the last check that passed has seen. Changed with the GIL only.
  mutable std::vector<GuardGroup> groups_;
  mutable std::vector<PyObject*> seen_;  // values by node; borrowed, valid while their group is unchanged
  mutable bool passed_ = false;          // whether there was one
  mutable int failed_ = -1;              // the node at which the last check failed
  mutable QuickWay quick_;
  std::vector<char> leads_;   // whether other nodes, or a task, hang on which object a node has
  std::vector<Task> tasks_;   // in the order of the nodes
  std::vector<int> members_;  // the nodes of each group, one group after the other
  std::vector<int> begins_;   // where in `members_` those of a group begin; one more for the end
  HashedNumbers index_;       // nodes by parent, access and key
  AddressMap<int> weak_;      // nodes of weak roots by object
};

// The names of the special methods that C code would find on the class and not on its C base, in a fixed
// order.
py::tuple special_names(PyTypeObject* type);

// Two floats, or two ints of 64 bits.
bool same_kind_of_number(PyObject* a, PyObject* b);
// The same, or two tuples of them, side by side.
bool same_kind_of_numbers(PyObject* a, PyObject* b);

// A weak reference to `object`, or an empty object where its type has none.
py::object weak_reference(PyObject* object);
bool still_alive(const py::object& weak, PyObject* object);

}  // namespace lazytrace
