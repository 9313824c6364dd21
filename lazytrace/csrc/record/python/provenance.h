// Where the objects of a recording come from: reached by a guarded path, made by the call, or not known yet.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "guard/guards.h"
#include "record/operators/recorder.h"
#include "record/python/exchange.h"
#include "record/python/handed_on.h"
#include "record/python/placed.h"
#include "record/python/touched.h"
#include "signature/signature.h"
#include "support/address_map.h"

namespace lazytrace {

// What a write is called in a reason: put into words only where somebody will read them.
using Wording = c10::function_ref<std::string()>;

// An object that was there before the call must be reached by a guarded path. One that no read has led to is
// either gone at the end of the call, or part of the result, or ends reusability.
//
// Ownership: holds what it saw until the recording ends, so that no address is used twice. Needs the GIL.
class Provenance {
 public:
  Provenance(Recorder* recorder, GuardTree* tree);

  // Of this recording, among all of this process.
  uint64_t number() const { return number_; }

  // Declares the function, or what is an argument or lies in one.
  void add_root(PyObject* object, Py_ssize_t index, Call::Root kind);
  void add_input(PyObject* tensor, int reg);
  bool is_input(PyObject* tensor) const { return input_.count(tensor); }

  // The guard node through which `object` is reached, or -1.
  int known(PyObject* object) const;
  // The same, made where the object can be referenced weakly.
  int reach(PyObject* object);
  // The node of a member of an enum, which is a value and has attributes of its own. -1: made by the call, or
  // not found again.
  int member_node(PyObject* member);
  // The node of an object that was there before the call, or -1: then it shows at the end whether it was.
  int owner(PyObject* object);
  // The same where one entry of a dict is read.
  int owner_of_entry(PyObject* dict, PyObject* key);
  // The same of an object with this namespace. Of several objects that share one, all is read and written as
  // that of the first, as long as they do.
  int owner_of_namespace(PyObject* object, PyObject* dict);
  // The node of the class of an object, which is guarded with the object.
  int class_node(PyTypeObject* type);
  // The node of a module, or of a function of C: made where there is none.
  int weak_node(PyObject* object);
  // The node of sys.modules.
  int modules_node();
  // What sys.modules has under a dotted name and under its first part.
  void read_imported(const std::string& name);
  // The node of the module that has these globals, or -1.
  int module_of(PyObject* globals);
  // The node of a module, which code that is not watched may have led to: by its name, if it was imported.
  int module_node(PyObject* module);
  int node_of_tensor(PyObject* tensor);
  void know(PyObject* object, int node) { known_[object] = node; }
  // One that the call makes: each check of the guards makes another.
  py::object make_generator(PyObject* device);
  // Whether it is a list or dict that the call has made and no step has yet. One that is empty is state from
  // then on, made by each check of the guards: all steps of a replay share that, and it may leave the call.
  // What is that now, borrowed.
  bool may_adopt(PyObject* container) const;
  // `place`: where it lies on the stack, if nothing else has it.
  PyObject* adopt(PyObject* container, PyObject** place = nullptr);
  bool is_adopted(PyObject* object) const;
  // Whether steps have left one of them as it was which the function has written to or looked into, as it
  // could not if they had changed it. They may do so at another call.
  bool leaves_adopted(c10::function_ref<bool(PyObject*)> written) const;
  // Where it has no node yet.
  void know_first(PyObject* object, int node) { known_.emplace(object, node); }
  bool by_path(int node) const { return (*tree_)[node].access != Access::Weak; }
  // From now on the signature holds no values (Call::is_value) in containers: what is read of them is
  // guarded.
  void leave_values() { leaves_values_ = true; }
  bool leaves_values(int node) const { return leaves_values_ && was_structural(node); }
  // Whether the signature guards what the node held when the call began, but for the values that it leaves.
  bool was_structural(int node) const {
    return static_cast<size_t>(node) < structural_.size() && structural_[static_cast<size_t>(node)];
  }
  // Whether it says what the node holds now: a step may have changed a list or a dict since, at this call or
  // at another. So what is read behind one has nodes, by which replays look for changes.
  bool structural(int node) const {
    return was_structural(node) && (turns_ == 0 || structural_[static_cast<size_t>(node)] == kFixed);
  }
  // A step comes that may change them, at this call or at another: what the function has read of lists and
  // dicts of a structure so far has nodes from now on. `before`: what one held when the call began.
  void read_structures(c10::function_ref<py::object(PyObject*)> before);
  // Whether an iterator goes through a list or dict of the structure that a step has changed meanwhile: how
  // long that is no replay compares.
  bool goes_through_changed(PyObject* iterator) const;
  // Whether a weak root outlives the call for sure: a module, a class, a function or a member of an enum.
  bool lasting(int root) const;
  // Whether what leads to the object of this node does: an argument, state, or such a weak root.
  bool outlasts(int node) const;

  // A read leaves a guard for what was found.
  void read_child(int node, Access access, PyObject* key, Py_ssize_t index, PyObject* value) {
    read_node(node, access, key, index, value);
  }
  // The same: the node of the guard, and whether it was made just now.
  std::pair<int, bool> read_node(int node, Access access, PyObject* key, Py_ssize_t index, PyObject* value);
  // The same where the instruction that is judged puts the value on the stack as it is.
  void read_operand(int node, Access access, PyObject* key, Py_ssize_t index, PyObject* value);
  // The same of all entries of a list or tuple that the instruction takes apart, but for those that are held.
  void read_operands(int node, PyObject** sequence, c10::function_ref<bool(Py_ssize_t)> held);
  // The same, and a tuple of them with the numbers that are followed; null where there are none.
  py::object read_entries(int node, PyObject* sequence, c10::function_ref<bool(Py_ssize_t)> held);
  // The numbers that are followed there, of a value that is not put on the stack.
  c10::ArrayRef<int> follow_child(int node, Access access, PyObject* key, Py_ssize_t index, PyObject* value);
  // The node of a list or a deque whose length and entries are followed, or -1.
  int live(PyObject* object) const {
    const int* found = live_.find(object);
    return found ? *found : -1;
  }
  bool has_live() const { return any_live_; }
  // A tensor that shows the memory of an array of numpy in state; null of any other. Its guard says how it
  // looks.
  py::object memory_of(PyObject* array) const {
    const py::object* found = memories_.find(array);
    return found ? *found : py::object();
  }
  bool has_memories() const { return any_memory_; }
  // Which object it is.
  void read_self(int node, PyObject* object);
  // An object that trusted code calls: itself, and what it calls in turn, as an operator of torch.ops does.
  void read_trusted(int node, PyObject* callable);
  // That the object is none of those that were compared with it.
  void compare_as_itself(PyObject* object);

  // Whether an exception is handled around the call, and which one is handled now.
  // Which kernels operators have, where that is not torch's alone to say.
  void read_kernels();
  void read_handled();
  void read_handled_now();
  // Whether the function is in a handler of its own.
  bool handles_its_own() const;

  // What C code says of an error names classes, and functions that were called otherwise than they can be.
  void note_failed_call() { failed_call_ = true; }
  void read_names_in_errors();

  // C code, or an object, may have this list or dict by now.
  void note_handed(PyObject* container) { handed_[container] = true; }
  bool is_handed(PyObject* container) const {
    const bool* handed = handed_.find(container);
    return handed && *handed;
  }
  // Objects that were made during the call.
  bool is_fresh(PyObject* object) const {
    return fresh_addresses_.count(object) && !older_.count(object) && !others_have(object);
  }
  void note_made(PyObject* object) {
    fresh_addresses_.insert(object);
    if (bool* handed = handed_.find(object)) *handed = false;
    if (bool* others = others_have_.find(object)) *others = false;
  }
  // A tuple that a step has taken out of a container of before the call, or its copy that carries numbers. A
  // replay would make another one.
  // A functools cache in which the call has made an entry, and may have dropped others.
  void note_filled(PyObject* cache) { filled_.insert(cache); }
  bool was_filled(PyObject* cache) const { return filled_.count(cache) > 0; }
  // Whether this was read of the object of a node.
  bool has_read(int node, Access access) const;
  void note_drawn(const py::object& made) {
    note_made(made.ptr());
    drawn_.push_back(made);
  }
  bool was_drawn(PyObject* object) const {
    return std::any_of(drawn_.begin(), drawn_.end(),
                       [&](const py::object& one) { return one.ptr() == object; });
  }
  // Part of an object of before the call, which Python makes when it is asked for, where something may have
  // lain that the call has made and let go of.
  void note_older(PyObject* object) { older_.insert(object); }
  void note_fresh(PyObject* made);

  // Whether this was asked before in this recording: state does not change in one that is reusable.
  bool asked(const void* owner, const void* what);
  bool seen(const void* owner, PyObject* name);

  // Numbers in state are followed: `names` are those of the roots. Before the call.
  void follow_state(Exchange* exchange, std::vector<std::string> names) {
    exchange_ = exchange;
    names_ = std::move(names);
    for (PyObject* root : roots_) follow_root(root);
  }
  // Those at these paths are not.
  void leave(const std::vector<std::string>& paths) { fixed_.insert(paths.begin(), paths.end()); }
  // Whether the instruction that is judged now reads what its code sets: a number will be another one at the
  // next call, and is followed from here on.
  void note_renewal(bool renews) { renews_ = renews; }
  // Whether what reads now asks whether there is anything, and not what it is. Returns what it was before.
  bool ask_presence(bool asks) { return std::exchange(asks_presence_, asks); }
  // Whether a number in this place is followed, or would be if it was read.
  bool follows(int owner, Access access, PyObject* key, Py_ssize_t index) const {
    return recorder_->follows_state() && owner >= 0 &&
           recorder_->follows_state(as_fed(owner, tree_->path_below(owner, access, key, index, names_)));
  }
  // The same, or from now on.
  bool will_follow(int owner, Access access, PyObject* key, Py_ssize_t index) const {
    return renews_ || follows(owner, access, key, index);
  }
  // A number that was read there will be another one at the next call, or a list another length.
  void note_varying(int node) { varying_.push_back(node); }
  // The same of the int that was read last, if it is this one, and is not followed.
  bool note_last_varying(Py_ssize_t value) {
    const Guard* last = last_int_ < 0 ? nullptr : &(*tree_)[last_int_];
    bool is_it = last && !last->loose && PyLong_AsSsize_t(last->value.ptr()) == value;
    PyErr_Clear();
    if (is_it) note_varying(last_int_);
    return is_it;
  }
  std::vector<std::string> varying(const std::vector<std::string>& names) const {
    return paths_of(varying_, names);
  }
  // A list that is followed was changed in a way that a replay cannot follow.
  void note_stiff(int node) { stiff_.push_back(node); }
  std::vector<std::string> stiff(const std::vector<std::string>& names) const {
    return paths_of(stiff_, names);
  }

  // What opaque steps, and what runs aside, have written to.
  void touch(PyObject* object);
  // All of it, or attributes of it.
  bool touched(PyObject* object) const { return !touched_.empty() && is_written(object); }
  // One attribute of an object, which says nothing of the others.
  void touch_attribute(PyObject* object, PyObject* name);
  bool touched_attribute(PyObject* object, PyObject* name) const;
  // An entry of a namespace that a step has set, which has touched it.
  void place(PyObject* dict, PyObject* name, PyObject* value);
  void note_late_read(PyObject* container, PyObject* name) { placed_.note_read(container, name); }
  Placed::How is_placed(PyObject* dict, PyObject* name, py::object* value);
  // A step that runs Python code comes next.
  void doubt_placed() { placed_.doubt(); }
  // Whether it may have changed in anything but attributes of known names.
  bool touched_beyond_names(PyObject* object) const;
  // One entry of a dict, which may be the namespace of an object.
  bool touched_entry(PyObject* dict, PyObject* key) const;
  // The way to an object that a read has led to, in words.
  std::string path_of(PyObject* object) const { return tree_->path(known(object), names_); }
  // Whether the object of one of these nodes, or one on the way to it, is such a thing.
  bool any_lies_in(const std::vector<int>& nodes, c10::function_ref<bool(PyObject*)> such);
  // Watched code of a step runs, which a replay calls before the writes to these containers are made.
  void hide(std::vector<PyObject*> containers, std::string step) {
    hidden_ = std::move(containers);
    hidden_from_ = std::move(step);
  }
  // Whether it is one of those. Then the recording fails, as a replay would read what was there before.
  bool meets_hidden(PyObject* container) const { return !hidden_.empty() && fails_for_hidden(container); }
  void touch(PyTypeObject* type, PyObject* name);
  bool touched(PyTypeObject* type, PyObject* name) const;
  // A number of this class that steps count on, which nobody has followed: it is read as it is then by none.
  void note_counted(PyTypeObject* type, PyObject* name) { counted_ = {type, name}; }
  bool has_counted(PyTypeObject* type, PyObject* name) const {
    return counted_ == std::make_pair(type, name);
  }
  // What all that was read so far leads to, and the search for what has changed since: C code has ways to
  // write that no instruction shows.
  GuardTree::Look look() const { return tree_->look(roots_.data(), roots_.size(), inputs_); }
  std::vector<int> touch_changed(const GuardTree::Look& before);
  // A step that may have written to any state has run: notes which nodes say nothing from then on, as what
  // they lead to is touched or among those that have `changed`. Returns the number of the step.
  int note_behind(const std::vector<int>& changed);
  bool has_stepped() const { return turns_ > 0; }
  // A node is read of an object that is touched: each replay asks what it leads to.
  void keep_asking(int node);
  // The same for an attribute beside those that were written to, up to the step that has run last.
  void ask_so_far(int node);
  Behind behind(int turn, const std::vector<int>& renamed) const;
  // The key of a handle, which is another one at each call, stands in a dict. Nobody but torch may look at
  // the dict for as long as it does, and it may not stay.
  void note_handle_key(PyObject* dict, PyObject* key) {
    std::pair one(py::reinterpret_borrow<py::object>(dict), py::reinterpret_borrow<py::object>(key));
    auto is_it = [&](const auto& known) {
      return known.first.is(one.first) && known.second.equal(one.second);
    };
    if (std::none_of(handle_keys_.begin(), handle_keys_.end(), is_it)) handle_keys_.push_back(std::move(one));
  }
  void judge_handle_keys();
  bool holds_only_handle_keys(PyObject* dict) const { return PyDict_GET_SIZE(dict) <= handle_keys_in(dict); }
  // Whether a read that was seen need not be seen again: nothing was written behind the back of the
  // recording or is hidden, and no number in state is followed.
  bool untouched() const {
    return touched_.empty() && touched_names_.empty() && state_.empty() && hidden_.empty();
  }
  size_t touched_count() const { return touched_.added() + touched_otherwise(); }
  // How much that is, and whether of what was written to since then anything is there still.
  struct TouchedSoFar {
    size_t objects = 0, others = 0;
  };
  TouchedSoFar touched_so_far() const { return {touched_.added(), touched_otherwise()}; }
  bool left_touched(const TouchedSoFar& since, const std::function<bool(PyObject*)>& goes_with_result) const {
    return touched_so_far().others != since.others ||
           touched_.any_left_since(since.objects, goes_with_result);
  }
  // A destructor has run for what the function has written over. That of another object of its class may
  // change what this one has not, so nothing may be read or done behind it.
  void note_destructor(const std::string& what) { behind_destructor_ = what; }
  // Why not, or nothing.
  const std::string& behind_destructor() const { return behind_destructor_; }
  // A step that has touched something when it was recorded is not run again by a function that resumes.
  void touch_unseen() { touched_unseen_ = 1; }
  // Whether any of these was read before.
  bool touched_what_was_read() const;

  // Closure cells of functions that were there before the call: (node of the function, index).
  void add_cell(PyObject* cell, int function, Py_ssize_t index);
  const std::pair<int, Py_ssize_t>* cell(PyObject* cell) const { return cells_.find(cell); }
  // A function that holds the cell was handed on to be called later: a replay makes both anew, so what the
  // cell holds may not change.
  void keep_cell(PyObject* cell, const std::string& name);
  // What the code of a step was given and has kept; before code that may come to it: whether the call has
  // left it as it was. Whether the call could change it still.
  bool hand_on(const HandedParts& parts, const std::string& step, bool kept);
  void judge_handed_on();
  // `by_result`: see HandedParts. Whether the variables of the call lead to one of them.
  bool keeps(const HandedParts& parts, const std::vector<PyObject*>& by_result) const;
  bool reaches_any(const std::vector<PyObject*>& parts) const;
  // A step of the replay keeps what was made for it: the function that runs again goes on with that, which
  // stands in the place of its own in variables, and in what they lead to. Nothing else may lead to its own
  // by the next instruction, which settles that, the next code of a step, and the end.
  void replace(PyObject* own, PyObject* other);
  // False where that shows only once a call has returned. Asked before each instruction.
  bool settle_replaced() { return !judges_replaced_ || settle_now(); }
  // `holders`: how many are known to hold each.
  void judge_replaced(std::unordered_map<PyObject*, Py_ssize_t> holders = {});
  // What code of steps keeps.
  std::vector<py::object> handed_on() const { return handed_on_.all(); }
  // Why what the call has made may not be made again for its result or for state; "" if it may. What the code
  // of a step has put into it no replay knows, and what that code keeps is another object by then.
  std::string against_leaving(PyObject* part) const;
  void renew_handed_on(const HandedParts& given, const std::string& step);
  // Whether several such functions share it.
  bool is_shared_cell(PyObject* cell) const { return shared_cells_.count(cell); }
  bool has_shared_cells() const { return !shared_cells_.empty(); }

  // Of a recording that has failed: what it has seen may go when it is due.
  void let_go() {
    roots_.clear();
    inputs_.clear();
    held_.clear();
    touched_.let_go();
    late_.clear();  // its weak references show, too
    handed_on_.clear();
    given_.clear();
    kept_cells_.clear();
    adopted_.clear();
    placed_.clear();
    tree_->let_go_of_made();
    recorder_->let_go();
    if (call_) call_->let_go();
  }
  // The call that the roots are of, which holds those that lie in lists and dicts.
  void comes_from(Call* call) { call_ = call; }
  // Before each instruction: whether something that only the recording still holds would run code as it goes.
  // Then the recording fails, so that it goes when it is due.
  bool give_up_for_ends();
  // Whether it may be there only because the recording holds it.
  bool holds_alone(PyObject* object) const;
  void hold(PyObject* object) { held_.push_back(py::reinterpret_borrow<py::object>(object)); }
  // What the step that ran last has given: what lists and dicts in it hold follows from the step until code
  // of Python runs that a replay calls, whoever else has them. `handed`: what the step was called with.
  // `others`: as in OpaqueStep.
  void give(PyObject* result, PyObject* handed, const std::vector<bool>& others);
  // Such code is about to run.
  void begin_step();
  bool is_given(PyObject* container) const;
  // Whether a step has given a list, dict or tuple that others hold, too: a replay knows its contents, not
  // which one it is.
  bool others_have(PyObject* container) const {
    const bool* found = others_have_.find(container);
    return found && *found;
  }
  // Whether these are compared, of which a step has given the first: the recording is given up, unless the
  // call has made the other.
  bool tells_given(PyObject* object, PyObject* other);
  // A view of a dict shows this one, which may be of unknown origin: that shows at the end. Somebody may put
  // a view of another dict where the function finds this view.
  void meet_viewed(PyObject* view, PyObject* dict);
  // An object of unknown origin is written to: that shows at the end.
  void remember_write(PyObject* object, Wording what);

  // Checks what only the end of the call can tell; `result` is what the function returned, and beside it all
  // that it has written.
  void finish(PyObject* result);

 private:
  // A path that begins with this node. While what has run before is fed: as the trace names it, which may
  // have come to the same object by another path.
  std::string as_fed(int node, std::string path) const;
  bool fails_for_hidden(PyObject* container) const;
  // How many keys of handles it holds.
  Py_ssize_t handle_keys_in(PyObject* dict) const;
  void read_name_of(PyTypeObject* type);
  std::vector<PyObject*> objects_by_node();
  struct Late {
    PyObject* object;
    py::object weak;  // empty: `held` keeps it
    py::object held;
    bool read;  // what was done, or else `what`
    std::string what;
    Place place;
    bool in_operator;  // by a kernel in Python
  };
  Late* remember_late(PyObject* object);
  int learn_node(int node, Access access, PyObject* key, Py_ssize_t index, PyObject* value, bool* made);
  void read_kinds_inside(int node, PyObject* value);
  void learn(int node, PyObject* value);
  void follow_number(int node, PyObject* value);
  void follow_list(int node, PyObject* value);
  // A list that is state is followed as any other is, and so is a deque, once it is known which shall be.
  void follow_root(PyObject* root) {
    if (recorder_->follows_state()) follow_list(known(root), root);
  }
  void follow_items(int node, PyObject* tuple);
  bool follow_with_another(int node, PyObject* value);
  void read_memory(int node, PyObject* array);
  std::vector<std::string> paths_of(const std::vector<int>& nodes,
                                    const std::vector<std::string>& names) const;
  void follow(int node, PyObject* value, std::string path);
  // The numbers that are followed at a node, or none.
  c10::ArrayRef<int> numbers_of(int node) const;
  void read_method(int node, PyObject* method);
  void read_generator(int node, PyObject* object);
  std::vector<py::object> given_;
  AddressSet ever_given_;
  size_t kernels_before_ = 0;     // of Python, that had run when they were given
  AddressMap<bool> others_have_;  // of these
  AddressMap<bool> handed_;
  Py_ssize_t made_anew_ = 0;
  // Lists and dicts of the call's own that are state, as often as they were held when it was asked last.
  std::vector<std::pair<py::object, Py_ssize_t>> adopted_;
  bool fails_for_adopted(bool asks_all);
  void read_kind(int node, PyObject* object);
  bool is_looked_into(int node) const;
  void judge_cells();
  bool stays_unknown(const Late& late, const std::vector<PyObject*>& returned) const;
  void collect_cycles(const std::vector<PyObject*>& returned);
  void forget_what_goes();
  void judge_destructors(const std::vector<PyObject*>& returned);
  void judge_late(const std::vector<PyObject*>& returned);

  Recorder* recorder_;
  GuardTree* tree_;
  uint64_t number_;
  PyObject* handled_around_;  // borrowed from the caller, who is in its handler
  AddressMap<int> known_;     // object -> guard node
  AddressMap<int> members_;   // the same of members of enums that have no weak references
  enum Structure : char { kNoStructure, kFixed, kChangeable };
  std::vector<Structure> structural_;  // by node
  bool structures_read_ = false;
  bool leaves_values_ = false;
  AddressMap<py::object> fresh_;  // made during the call, with a destructor -> weak reference
  AddressSet fresh_addresses_, older_;
  AddressMap<int> input_;  // tensor argument -> register
  AddressMap<std::pair<int, Py_ssize_t>> cells_;
  AddressSet shared_cells_;
  bool failed_call_ = false;
  struct KeptCell {
    py::object cell, content;
    std::string name;
    Place place;
  };
  std::vector<KeptCell> kept_cells_;
  HandedOn handed_on_;
  std::vector<std::pair<py::object, py::object>> replaced_;
  bool judges_replaced_ = false;  // before the next instruction
  bool settle_now();
  const void* below_ = Frame::current().address();  // the frame that calls the function
  bool is_written(PyObject* object) const;
  int found(PyObject* object);
  void fail_for_touched(PyObject* object);
  Touched touched_;
  // The namespaces among them of which no more than these names were written to.
  struct TouchedNames {
    PyObject* object;  // by address
    std::vector<py::object> names;
    bool all = false;  // it was written to in another way since
    bool has(PyObject* name) const;
  };
  AddressMap<TouchedNames> touched_in_;                         // by namespace
  std::vector<PyObject*> hidden_;                               // the writes hold them
  std::string hidden_from_;                                     // the name of the step
  std::vector<std::pair<py::object, py::object>> handle_keys_;  // (dict, key)
  size_t touched_unseen_ = 0, touched_again_ = 0;
  size_t touched_otherwise() const { return touched_names_.size() + touched_unseen_ + touched_again_; }
  std::string behind_destructor_;
  struct LeftBehind {
    int node, turn;
    bool contents;
  };
  std::vector<LeftBehind> behind_;  // each node once, and once for its contents
  int turns_ = 0;
  std::vector<int> read_by_turn_;  // how many nodes there were
  struct Shared {
    py::object dict;
    int owner;
  };
  std::vector<Shared>
      shared_;  // namespaces that others hold, too, and the first object that was found to have it
  Placed placed_;
  bool replaced_what_was_read_ = false;
  void replace_placed(PyObject* object, PyObject* name);
  std::vector<std::pair<py::object, py::object>> touched_names_;  // of classes
  std::vector<PyObject*> roots_, inputs_;                         // held_ keeps them
  Call* call_ = nullptr;                                          // that they are of
  Exchange* exchange_ = nullptr;                                  // where numbers in state are followed
  std::vector<std::string> names_;
  std::unordered_map<int, int> state_;               // guard node -> number
  std::unordered_map<int, std::vector<int>> items_;  // guard node of a tuple -> those of its items
  AddressMap<int> live_;                             // list or deque -> guard node
  bool any_live_ = false;
  AddressMap<py::object> memories_;  // array of numpy -> tensor
  bool any_memory_ = false;
  std::vector<py::object> drawn_;
  int last_int_ = -1;  // the node of an int that was read
  std::unordered_set<PyObject*> filled_;
  std::vector<int> varying_, stiff_;
  std::pair<PyTypeObject*, PyObject*> counted_ = {nullptr, nullptr};
  std::unordered_set<std::string> fixed_;
  bool renews_ = false, asks_presence_ = false;
  void follow_renewed(int node);
  std::vector<Late> late_;
  AddressSet late_seen_;
  bool ends_show_ = false;  // something that the call has made may run code where it goes
  std::vector<std::pair<const void*, const void*>> asked_;  // (owner, name), once each
  HashedNumbers asked_index_;
  std::vector<py::object> held_names_;
  std::vector<py::object> held_;
};

}  // namespace lazytrace
