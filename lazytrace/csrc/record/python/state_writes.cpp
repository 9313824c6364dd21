#include "record/python/state_writes.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <utility>

#include "cpython/carrier.h"
#include "cpython/ends.h"
#include "cpython/objects.h"
#include "cpython/slots.h"
#include "cpython/thread_local.h"
#include "cpython/values.h"
#include "signature/signature.h"
#include "support/reasons.h"

namespace lazytrace {

// Whether the call has made it. What an entry of before the call is given as stands for that.
bool StateWrites::is_own(PyObject* object) {
  // What a step fills, whose code is watched: a replay calls it.
  if (recorder_->in_block() && provenance_->is_adopted(object)) {
    // Where what the function has put there is not shown, that would come behind what the step has.
    if (log_->wrote_to(object)) provenance_->meets_hidden(object);
    return provenance_->touch(object), true;
  }
  if (!provenance_->is_fresh(object)) return false;
  if (provenance_->was_drawn(object)) recorder_->fail(say(reason::WritesDrawn));
  return true;
}

void StateWrites::write(PyObject* object, Wording what) {
  if (is_own(object)) return;
  int node = provenance_->known(object);
  if (node >= 0) {
    int root = tree_->root_of(node);
    PyObject* holder = (*tree_)[root].access == Access::Weak ? (*tree_)[root].raw : nullptr;
    return !holder || provenance_->lasting(root) ? recorder_->fail(what())
                                                 : provenance_->remember_write(holder, what);
  }
  // What it holds is read without a path to it, and would be given to Python as it was before.
  if (is_enum_member(object)) return recorder_->fail(what());
  provenance_->remember_write(object, what);
}

// The next recording does not follow it.
void StateWrites::refuse(PyObject* list, Wording what) {
  provenance_->note_stiff(provenance_->live(list));
  recorder_->fail(what());
}

// Of a list whose length and entries are followed.
void StateWrites::append(PyObject* list, PyObject* value, Wording what) {
  if (!lists_->append(list)) return refuse(list, what);
  enter({Effect::Kind::Append, provenance_->live(list), {}, -1}, list, value, what());
}

void StateWrites::drop(PyObject* list, Py_ssize_t place, Wording what) {
  enter({Effect::Kind::Drop, provenance_->live(list), {}, place}, list, Py_None, what());
}

void StateWrites::take_out(PyObject* list, bool last, Wording what) {
  Py_ssize_t place;
  if (is_deque(list) && provenance_->known(list) >= 0) provenance_->note_varying(provenance_->known(list));
  if (!lists_->is(list)) return rewrite(list, what);
  lists_->take_out(list, last, &place) ? drop(list, place, what) : refuse(list, what);
}

bool StateWrites::clear(PyObject* list, Wording what) {
  // The next recording follows it, if this one comes to nothing.
  if (int node = provenance_->known(list); node >= 0 && !lists_->is(list) && !provenance_->is_fresh(list))
    provenance_->note_varying(node);
  if (!lists_->is(list)) return false;
  lists_->clear(list) ? drop(list, Effect::kAll, what) : refuse(list, what);
  return true;
}

bool StateWrites::extend(PyObject* list, PyObject* items, Wording what) {
  constexpr Py_ssize_t kMost = 256;
  bool plain = PyList_CheckExact(items) || PyTuple_CheckExact(items);
  if (!plain || items == list || provenance_->is_fresh(list)) return false;
  if (PySequence_Fast_GET_SIZE(items) > kMost) return false;
  consumption_->keep_entries(&items, 1, Consumer::Reads);
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items); ++i)
    write_again(Effect::Kind::Append, list, list, nullptr, -1, PySequence_Fast_GET_ITEM(items, i), what);
  return true;
}

namespace {
// No replay compares which of several equal containers a step gives: it may be this one at some calls only,
// where a write shows in what the step has given.
void part_from_given(Provenance* provenance, PyObject* container) {
  provenance->tells_given(container, container);
  provenance->begin_step();
}
}  // namespace

void StateWrites::rewrite(PyObject* object, Wording what, bool emptied) {
  if (lists_->is(object)) return refuse(object, what);
  if (is_own(object)) return;
  part_from_given(provenance_, object);
  if (containers_->take_over(object, what, emptied)) return;
  write(object, what);
}

// Whether an entry was read under a key that is equal to this one, but of another type.
bool StateWrites::read_as_other(int node, PyObject* key) const {
  if (PyTuple_Check(key)) return tree_->has_read_as_other(node, key);
  if (!PyLong_Check(key)) return false;
  py::object number = py::reinterpret_steal<py::object>(PyNumber_Float(key));
  long value = PyLong_AsLong(key);
  if (PyErr_Occurred()) {
    PyErr_Clear();
    return true;
  }
  return tree_->find(node, Access::Item, number.ptr(), -1) >= 0 ||
         ((value == 0 || value == 1) && tree_->find(node, Access::Item, value ? Py_True : Py_False, -1) >= 0);
}

void StateWrites::enter(Effect effect, PyObject* container, PyObject* value, const std::string& what) {
  static const Access kAccess[] = {Access::Instance, Access::Item, Access::At, Access::At,  Access::Cell,
                                   Access::Item,     Access::Own,  Access::At, Access::Item};
  Access access = kAccess[static_cast<size_t>(effect.kind)];
  if (effect.kind == Effect::Kind::Attribute && is_slot(container, effect.key.ptr()))
    access = Access::Attribute;
  py::object original = effect.held(container);
  bool drops = effect.kind == Effect::Kind::Drop, appends = drops || effect.kind == Effect::Kind::Append;
  bool keyed = effect.kind == Effect::Kind::Entry;
  py::object taken = appends ? effect.taken(container) : original;
  if (shows_its_end(taken.ptr())) {
    // What is held until the recording ends would go too late. Its destructor runs aside.
    if (appends || !has_destructor(original.ptr()) || provenance_->known(original.ptr()) >= 0)
      return recorder_->fail(what), provenance_->let_go();
    original = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(Py_TYPE(original.ptr())));
    taken = py::object();
    provenance_->touch(container);  // what it held is not known any more
    provenance_->note_destructor(what);
  }
  Writes::Write entry;
  exchange_->leave(value);
  if (!appends && !keyed) entry.before = tree_->find(effect.owner, access, effect.key.ptr(), effect.index);
  entry.effect = std::move(effect);
  entry.effect.first = entry.effect.last = recorder_->last_node();
  entry.container = py::reinterpret_borrow<py::object>(container);
  entry.value = py::reinterpret_borrow<py::object>(value);
  entry.original = std::move(original);
  if (appends) entry.taken = std::move(taken);
  entry.what = what;
  entry.place = recorder_->place;
  bool listed = PyList_CheckExact(container) || entry.effect.kind == Effect::Kind::Item;
  if (listed && container != Frame::current().globals()) part_from_given(provenance_, container);
  log_->add(std::move(entry));
}

void StateWrites::write_again(Effect::Kind kind, PyObject* object, PyObject* container, PyObject* key,
                              Py_ssize_t index, PyObject* value, Wording what) {
  if (is_own(object)) return;
  if (recorder_->inside_operator()) return recorder_->fail(what());
  if (kind == Effect::Kind::Append && lists_->is(object)) return append(object, value, what);
  int node = provenance_->known(object);
  if (node < 0) return write(object, what);
  if (kind == Effect::Kind::Attribute && container != object)
    node = provenance_->owner_of_namespace(object, container);
  if (!provenance_->outlasts(node)) return write(object, what);
  if (log_->took_over(container)) return rewrite(object, what);
  Guard& guard = (*tree_)[node];
  if (kind == Effect::Kind::Item && !PyUnicode_CheckExact(key)) containers_->fix_keys(container);
  if (kind == Effect::Kind::Item && read_as_other(node, key)) return rewrite(object, what);
  bool grows =
      kind == Effect::Kind::Append || (kind == Effect::Kind::Item && !PyDict_Contains(container, key));
  if (grows && guard.length >= 0) return rewrite(object, what);  // its length was read
  // How long the list was when the call began does not show once Python code has changed it.
  if (kind == Effect::Kind::At && provenance_->touched(object)) return write(object, what);
  if (kind == Effect::Kind::At && !provenance_->structural(node)) tree_->expect_length(node, object);
  enter({kind, node, key ? py::reinterpret_borrow<py::object>(key) : py::object(), index}, container, value,
        what());
}

namespace {
// Whether a variable has it, or code that waits, which then holds it whoever records. What stands for
// functions of C is code that waits for a recording alone.
bool is_in_a_frame(PyObject* object) {
  for (Frame f = Frame::current(); f; f = f.previous()) {
    if (stands_for_code(f.code())) continue;
    std::vector<PyObject**> places = f.places(true);
    if (std::any_of(places.begin(), places.end(), [&](PyObject** at) { return *at == object; })) return true;
  }
  return false;
}
}  // namespace

bool StateWrites::lets_go(PyObject* object) {
  if (object == Py_None || is_in_a_frame(object)) return false;
  auto is_it = [&](PyObject* held) { return held == object; };
  auto took = [&](const Writes::Write& write) {
    return leads_to(write.original.ptr(), is_it) || leads_to(write.taken.ptr(), is_it);
  };
  const std::vector<Writes::Write>& writes = log_->all();
  // The results of an operator may be there for as long as the instruction that follows, and longer.
  bool of_an_operator = is_tensor(object) && provenance_->known(object) < 0;
  bool taken = std::any_of(writes.begin(), writes.end(), took);
  if (!taken && !of_an_operator && !provenance_->holds_alone(object)) return false;
  recorder_->fail(say(reason::LetGo, type_name(object)));
  return true;
}

// Writing what is there already changes nothing, as long as it is there: that is guarded like a read. A
// number that is followed may be another one when the function runs again after a side exit, and what it was
// recorded to read it must read then, too. So that is written whatever was there.
bool StateWrites::changes_nothing(int owner, Access access, PyObject* key, Py_ssize_t index, PyObject* before,
                                  PyObject* value) const {
  // A tensor that was found at this very place, as what optimizers keep. Python code of a step may leave
  // another one there.
  if (value && before == value && is_tensor(value) && owner >= 0)
    return provenance_->known(value) >= 0 && !provenance_->touched_count() &&
           provenance_->known(value) == tree_->find(owner, access, key, index);
  return value && before && is_immutable(value) && same_immutable(before, value) &&
         !provenance_->follows(owner, access, key, index);
}

// An entry that the call has added to a dict is as if it had never been there once it is taken away again;
// one that was there before moves, if it comes again. What Python code of a step has seen of it would have to
// be taken away before the next one.
bool StateWrites::take_back(PyObject* dict, PyObject* key) {
  Writes::Write* added = log_->find_entry(dict, key);
  if (!added || added->is_taken_back() || added->shown) return false;
  if (recorder_->inside_operator() || provenance_->touched_count()) return false;
  Effect& effect = added->effect;
  if (added->original && !can_take_out(effect.owner, dict)) return false;
  Access access = effect.kind == Effect::Kind::Item ? Access::Item : Access::Instance;
  PyObject* original = added->original.ptr();
  if (added->before < 0 && original)
    provenance_->follow_child(effect.owner, access, key, -1, original);
  else if (added->before < 0)
    provenance_->read_child(effect.owner, access, key, -1, nullptr);
  if (added->original) effect.moves = true;
  log_->take_back(added, recorder_->last_node());
  return true;
}

namespace {
// What a module has is found by its functions, which go on to builtins where it is missing.
bool is_of_module(PyObject* dict) {
  static PyObject* const builtins = PyUnicode_InternFromString("__builtins__");
  static PyObject* const loader = PyUnicode_InternFromString("__loader__");
  return PyDict_GetItemWithError(dict, builtins) || PyDict_GetItemWithError(dict, loader);
}
}  // namespace

// Whether an entry of this namespace may go for a while. Only those are no lists of keys to anybody: of other
// dicts all is written at the end.
bool StateWrites::can_take_out(int owner, PyObject* dict) const {
  if (owner < 0 || recorder_->inside_operator() || provenance_->touched_count()) return false;
  return provenance_->outlasts(owner) && PyDict_CheckExact(dict) && !is_of_module(dict) &&
         !log_->took_over(dict);
}

bool StateWrites::is_namespace(PyObject* dict) const {
  int node = PyDict_CheckExact(dict) ? provenance_->known(dict) : -1;
  return node >= 0 && (*tree_)[node].access == Access::Namespace;
}

bool StateWrites::pops_entry_alone(PyObject* dict, PyObject* name) const {
  if (is_namespace(dict)) return true;
  if (!PyDict_CheckExact(dict) || !PyUnicode_CheckExact(name)) return false;
  const Writes::Write* added = log_->find_entry(dict, name);
  return added ? !added->original : !PyDict_GetItemWithError(dict, name);
}

bool StateWrites::pop_name(PyObject* dict, PyObject* name, Wording what) {
  if (!PyUnicode_CheckExact(name) || !pops_entry_alone(dict, name)) return false;
  PyObject* held = PyDict_GetItemWithError(dict, name);
  if (!is_namespace(dict)) {
    if (held) return delete_entry(dict, name, what);
    return containers_->read_dict_item(dict, name), true;
  }
  if (!can_take_out(provenance_->known(dict), dict)) return false;
  // What pop() gives is the number itself, which nobody would follow.
  if (held && (PyLong_CheckExact(held) || PyFloat_Check(held))) return false;
  containers_->read_dict_item(dict, name);
  if (!held) return true;
  if (!delete_entry(dict, name, what)) write(dict, what);
  return true;
}

// What the call has added to a dict, or a name of an object.
bool StateWrites::delete_entry(PyObject* dict, PyObject* key, Wording what) {
  if (log_->find_entry(dict, key)) {
    containers_->read_as_namespace(dict);
    return take_back(dict, key);
  }
  if (!is_namespace(dict)) return false;
  return take_out_of_namespace(Effect::Kind::Item, provenance_->known(dict), dict, key, what);
}

// An entry that was there before the call: when it comes again it lies behind the others.
bool StateWrites::take_out_of_namespace(Effect::Kind kind, int owner, PyObject* dict, PyObject* key,
                                        Wording what) {
  if (log_->wrote(dict, key)) return take_back(dict, key);
  PyObject* held = PyDict_GetItemWithError(dict, key);
  if (!held || !PyUnicode_CheckExact(key) || !can_take_out(owner, dict)) return false;
  Access access = kind == Effect::Kind::Item ? Access::Item : Access::Instance;
  provenance_->follow_child(owner, access, key, -1, held);  // that it is there; a number may be another one
  Effect effect{kind, owner, py::reinterpret_borrow<py::object>(key), -1};
  effect.moves = true;
  enter(std::move(effect), dict, nullptr, what());
  return true;
}

// Whoever has the namespace by another way sees the write, as long as it is this one.
void StateWrites::read_shared_namespace(PyObject* object, PyObject* dict) {
  int owner = provenance_->known(dict) >= 0 ? provenance_->owner(object) : -1;
  if (owner >= 0) provenance_->read_child(owner, Access::Namespace, nullptr, -1, dict);
}

void StateWrites::delete_in_namespace(PyObject* object, PyObject* name, Wording what) {
  PyObject* dict = *_PyObject_GetDictPtr(object);
  bool known = provenance_->known(object) >= 0 && !provenance_->touched_attribute(object, name);
  if (!known) return write(object, what);
  int owner = provenance_->owner_of_namespace(object, dict);
  read_shared_namespace(object, dict);
  if (!take_out_of_namespace(Effect::Kind::Attribute, owner, dict, name, what)) write(object, what);
}

// An entry of the instance __dict__.
void StateWrites::write_in_namespace(PyObject* object, PyObject* name, PyObject* value, Wording what) {
  if (!value) return delete_in_namespace(object, name, what);
  if (early_->store(object, name, value)) return;
  PyObject** dict = _PyObject_GetDictPtr(object);
  if (provenance_->touched_attribute(object, name)) return write(object, what);
  PyObject* before = PyDict_GetItemWithError(*dict, name);
  int own = provenance_->known(object) < 0 ? -1 : provenance_->owner_of_namespace(object, *dict);
  bool same = own >= 0 && !log_->wrote(*dict, name) && !provenance_->touched(object) &&
              changes_nothing(own, Access::Instance, name, -1, before, value);
  if (same) return provenance_->read_child(own, Access::Instance, name, -1, before);
  read_shared_namespace(object, *dict);
  write_again(Effect::Kind::Attribute, object, *dict, name, -1, value, what);
}

void StateWrites::write_slot(PyObject* object, PyObject* name, PyObject* value, Wording what) {
  py::object before = held_by_slot(object, name);
  int owner = provenance_->known(object);
  bool same = owner >= 0 && !provenance_->touched(object) && !log_->wrote(object, name) &&
              changes_nothing(owner, Access::Attribute, name, -1, before.ptr(), value);
  if (same) return provenance_->read_child(owner, Access::Attribute, name, -1, before.ptr());
  write_again(Effect::Kind::Attribute, object, object, name, -1, value, what);
}

namespace {
// Whether a descriptor is made in Python, so that the body of its method will be seen.
bool shows_itself(PyObject* descriptor, const char* method) {
  if (!is_python_class(Py_TYPE(descriptor))) return false;
  py::str name(method);
  PyObject* found = _PyType_Lookup(Py_TYPE(descriptor), name.ptr());
  return found && PyFunction_Check(found);
}
}  // namespace

// What the class has under the name is read; whether it is code of Python, which shows itself.
bool StateWrites::leave_to_descriptor(PyObject* object, PyObject* name, PyObject* value) {
  PyObject* descriptor = _PyType_Lookup(Py_TYPE(object), name);
  classes_->read_class(Py_TYPE(object), name, descriptor);
  if (!descriptor) return false;
  if (Py_IS_TYPE(descriptor, &PyProperty_Type)) {
    const char* part = value ? "fset" : "fdel";
    py::object target = py::reinterpret_steal<py::object>(PyObject_GetAttrString(descriptor, part));
    if (target && PyFunction_Check(target.ptr())) {
      classes_->read_setter(Py_TYPE(object), name, descriptor, part, target.ptr());
      return true;
    }
  }
  const char* sets = value ? "__set__" : "__delete__";
  if (!shows_itself(descriptor, sets)) return false;
  classes_->read_special(descriptor, sets);
  return true;
}

void StateWrites::set_attribute(PyObject** object, PyObject* name, PyObject** value) {
  EarlyStores::Stack stack(early_, object, value);
  write_attribute(*object, name, value ? *value : nullptr);
}

void StateWrites::write_attribute(PyObject* object, PyObject* name, PyObject* value) {
  if (is_numpy_array(object)) return recorder_->fail(say(reason::ComputesWithArray));
  auto what = [&] { return (value ? "sets ." : "deletes .") + text_of(name) + " of a " + type_name(object); };
  if (is_tensor(object)) return write_tensor_attribute(object, name, value, what);
  if (is_thread_local(object)) return write_of_thread(object, name, value, what);
  PyObject* descriptor = _PyType_Lookup(Py_TYPE(object), name);
  if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE)) {
    classes_->read_special(object, value ? "__setattr__" : "__delattr__");
    static PyObject* const setter = PyUnicode_InternFromString("__setattr__");
    static PyObject* const deleter = PyUnicode_InternFromString("__delattr__");
    PyObject* asked = value ? setter : deleter;
    PyObject* own = _PyType_Lookup(Py_TYPE(object), asked);
    if (own && PyFunction_Check(own)) return;  // its body will be seen
    bool plain = own == PyDict_GetItemWithError(PyBaseObject_Type.tp_dict, asked);
    if (!plain && Py_TYPE(object)->tp_setattro != PyObject_GenericSetAttr) return write(object, what);
    if (leave_to_descriptor(object, name, value)) return;
  }
  if (PyType_Check(object)) return write_class(object, name, value, what);
  PyObject** dict = _PyObject_GetDictPtr(object);
  if (value && is_slot(object, name)) return write_slot(object, name, value, what);
  bool plain = dict && *dict && !(descriptor && Py_TYPE(descriptor)->tp_descr_set);
  plain ? write_in_namespace(object, name, value, what) : write(object, what);
}

namespace {
bool is_special_name(const std::string& name) { return name.size() > 4 && name.compare(0, 2, "__") == 0; }
}  // namespace

// What the class has of its own under the name, and is no special method.
void StateWrites::write_class(PyObject* object, PyObject* name, PyObject* value, Wording what) {
  auto* type = reinterpret_cast<PyTypeObject*>(object);
  PyObject* of_meta = _PyType_Lookup(Py_TYPE(object), name);
  PyObject* before = is_python_class(type) ? PyDict_GetItemWithError(type->tp_dict, name) : nullptr;
  bool plain = value && before && !provenance_->is_fresh(object) && !is_special_name(text_of(name)) &&
               !(of_meta && Py_TYPE(of_meta)->tp_descr_set) && !Py_TYPE(before)->tp_descr_get &&
               Py_TYPE(object)->tp_setattro == PyType_Type.tp_setattro;
  int node = plain ? provenance_->class_node(type) : -1;
  if (node < 0 || recorder_->inside_operator()) return write(object, what);
  // What it had before is guarded first, so that a guard on what it has since says the same or never holds.
  if (!log_->wrote(object, name) && tree_->find(node, Access::Own, name, -1) < 0) {
    classes_->read_class(type, name, before);
    provenance_->read_child(node, Access::Own, name, -1, before);
  }
  enter({Effect::Kind::Class, node, py::reinterpret_borrow<py::object>(name), -1}, object, value, what());
}

void StateWrites::write_tensor_attribute(PyObject* tensor, PyObject* name, PyObject* value, Wording what) {
  classes_->read_special(tensor, value ? "__setattr__" : "__delattr__");
  classes_->read_class(Py_TYPE(tensor), name, _PyType_Lookup(Py_TYPE(tensor), name));
  const at::Tensor& of = THPVariable_Unpack(tensor);
  std::string text = text_of(name);
  if (text == "grad") return gradients_->write(tensor, value);
  // The next use of the tensor shows it, and makes a step of it.
  bool sets = text == "requires_grad" && (value == Py_True || value == Py_False);
  PyObject* descriptor = _PyType_Lookup(Py_TYPE(tensor), name);
  bool own = value && !(descriptor && Py_TYPE(descriptor)->tp_descr_set);  // is kept beside the tensor
  // torch takes the flag from leaves alone.
  if (value != Py_True && !own) recorder_->saw_gradients(of);
  if (sets && write_requires_grad(tensor, value == Py_True)) return;
  bool plain = text == "data" && value && is_tensor(value) && THPVariable_CheckTypeExact(Py_TYPE(tensor)) &&
               THPVariable_CheckTypeExact(Py_TYPE(value));
  if (plain && recorder_->write_data(of, THPVariable_Unpack(value))) return;
  // What leaves the call of those that it has made is looked at then, but for gradients.
  if (own && recorder_->made(of) && !recorder_->is_gradient(of)) return;
  bool beside = !(descriptor && Py_TYPE(descriptor)->tp_descr_set);
  if (beside && write_beside_tensor(tensor, name, value, what)) return;
  recorder_->fail(what());
}

// What is kept beside a tensor in state.
bool StateWrites::write_beside_tensor(PyObject* tensor, PyObject* name, PyObject* value, Wording what) {
  bool plain = Py_TYPE(tensor)->tp_setattro == PyObject_GenericSetAttr && provenance_->known(tensor) >= 0 &&
               !provenance_->is_input(tensor) && !provenance_->touched_attribute(tensor, name);
  if (!plain) return false;
  make_namespace(tensor);
  write_in_namespace(tensor, name, value, what);
  return true;
}

bool StateWrites::write_requires_grad(PyObject* object, bool value) {
  const at::Tensor& tensor = THPVariable_Unpack(object);
  if (tensor.requires_grad() == value) return true;
  if (value && tensor.is_leaf() && recorder_->made(tensor)) return true;
  return THPVariable_CheckTypeExact(Py_TYPE(object)) && recorder_->write_requires_grad(tensor, value);
}

// Of a threading.local: an entry of what this thread has set.
void StateWrites::write_of_thread(PyObject* object, PyObject* name, PyObject* value, Wording what) {
  PyObject* descriptor = _PyType_Lookup(Py_TYPE(object), name);
  int node = provenance_->known(object);
  py::object dict = attributes_in_thread(object);
  bool plain = node >= 0 && dict && text_of(name) != "__dict__" && !provenance_->touched(object) &&
               !(descriptor && Py_TYPE(descriptor)->tp_descr_set);
  if (!plain) return write(object, what);
  if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE)) {
    classes_->read_special(object, value ? "__setattr__" : "__delattr__");
    classes_->read_class(Py_TYPE(object), name, descriptor);
  }
  provenance_->read_child(node, Access::OfThread, nullptr, -1, dict.ptr());
  write_item(dict.ptr(), name, value);
}

void StateWrites::write_plainly(PyObject* self, PyObject* name, PyObject* value) {
  auto sets = [&] { return (value ? "sets ." : "deletes .") + text_of(name) + " of a " + type_name(self); };
  PyObject* descriptor = PyUnicode_Check(name) ? _PyType_Lookup(Py_TYPE(self), name) : nullptr;
  PyObject** dict = PyType_Check(self) ? nullptr : _PyObject_GetDictPtr(self);
  bool plain = dict && *dict && PyUnicode_Check(name) && !(descriptor && Py_TYPE(descriptor)->tp_descr_set);
  if (PyUnicode_Check(name) && PyType_HasFeature(Py_TYPE(self), Py_TPFLAGS_HEAPTYPE) &&
      leave_to_descriptor(self, name, value))
    return;
  if (plain) return write_in_namespace(self, name, value, sets);
  if (value && PyUnicode_Check(name) && is_slot(self, name)) return write_slot(self, name, value, sets);
  write(self, sets);
}

namespace {
// Whether its items are set by dict's own code, as those of a Counter: an OrderedDict writes down their
// order.
bool sets_as(PyTypeObject* type, PyObject* object) {
  static PyObject* name = PyUnicode_InternFromString("__setitem__");
  return PyDict_Check(object) && _PyType_Lookup(Py_TYPE(object), name) == _PyType_Lookup(type, name);
}
bool sets_as_dict(PyObject* object) { return sets_as(&PyDict_Type, object); }
}  // namespace

namespace {
// [:]
bool is_all(PyObject* key) {
  auto* slice = PySlice_Check(key) ? reinterpret_cast<PySliceObject*>(key) : nullptr;
  return slice && slice->start == Py_None && slice->stop == Py_None && slice->step == Py_None;
}
}  // namespace

// Of what was written to it before a key of another kind is another one for any number.
bool StateWrites::takes_entry(PyObject* container, int node) const {
  if (provenance_->structural(node) || provenance_->touched(container) || log_->took_over(container))
    return false;
  if (!provenance_->outlasts(node)) return false;
  // How many a dict has was read, and may be others now.
  if (PyList_CheckExact(container) ? lists_->is(container) : (*tree_)[node].length >= 0) return false;
  return std::all_of(log_->all().begin(), log_->all().end(), [&](const Writes::Write& write) {
    return write.container.ptr() != container || write.effect.kind == Effect::Kind::Entry ||
           (write.effect.kind == Effect::Kind::Item && PyUnicode_CheckExact(write.effect.key.ptr()));
  });
}

// What the call has put behind the entries of a list that is followed.
bool StateWrites::fill_added(PyObject* list, PyObject* key, PyObject* value) {
  Py_ssize_t place = 0;
  if (!lists_->is(list) || !lists_->is_added(list, key, &place) || recorder_->stopped()) return false;
  exchange_->leave(value);
  return log_->fill(list, place, py::reinterpret_borrow<py::object>(value), recorder_->last_seeing_node());
}

bool StateWrites::write_entry(PyObject* container, PyObject** key, PyObject* value) {
  bool list = PyList_CheckExact(container), plain = list || PyDict_CheckExact(container);
  if (!plain || !is_carrier(*key) || recorder_->inside_operator() || recorder_->stopped()) return false;
  if (list && fill_added(container, *key, value)) {
    Py_SETREF(*key, PyLong_FromLongLong(carrier_value(*key)));
    keyed_ = container;
    return true;
  }
  int node = provenance_->is_fresh(container) ? -1 : provenance_->known(container);
  if (node < 0 || !takes_entry(container, node)) return false;
  if (is_real_carrier(*key) || (is_long_carrier(*key) && !list)) return false;  // it stays the key that it is
  auto found = py::reinterpret_steal<py::object>(PyLong_FromLongLong(carrier_value(*key)));
  if (!found) throw py::error_already_set();
  if (list) {
    // Asked whatever it is: a function that runs again for one that lies outside asks the same.
    NumberRecorder& numbers = *recorder_->numbers();
    int number = numbers.number_of(*key), last = numbers.constant(PyList_GET_SIZE(container) - 1);
    tree_->expect_length(node, container);
    bool within = numbers.read(numbers.apply(Number::Kind::LessEqual, numbers.constant(0), number)).whole;
    within = !recorder_->stopped() && within &&
             numbers.read(numbers.apply(Number::Kind::LessEqual, number, last)).whole;
    if (!within || recorder_->stopped()) return false;
  }
  auto carrier = py::reinterpret_steal<py::object>(std::exchange(*key, found.inc_ref().ptr()));
  if (is_long_carrier(carrier.ptr())) {  // a list takes an int64 for the int
    NumberRecorder& numbers = *recorder_->numbers();
    int number = numbers.apply(Number::Kind::Trunc, numbers.number_of(carrier.ptr()), -1);
    carrier = py::reinterpret_steal<py::object>(numbers.carrier(number));
  }
  py::tuple both = py::make_tuple(carrier, py::handle(value));
  auto what = list ? "sets an entry of a list" : "sets an entry of a dict";
  enter({Effect::Kind::Entry, node, found, -1}, container, both.ptr(), what);
  keyed_ = container;
  return true;
}

// Whether setting the entry of an OrderedDict in state leaves the order as it is: that the key is there is
// guarded then.
bool StateWrites::keeps_order(PyObject* object, PyObject* key) const {
  if (!PyODict_Check(object) || !sets_as(&PyODict_Type, object)) return false;
  bool known = provenance_->known(object) >= 0 && !provenance_->touched(object) && !log_->took_over(object);
  return known && PyDict_GetItemWithError(object, key);
}

void StateWrites::write_item(PyObject* object, PyObject* key, PyObject* value) {
  if (std::exchange(keyed_, nullptr) == object) return;
  if (is_numpy_array(object)) return recorder_->fail(say(reason::ComputesWithArray));
  classes_->read_special(object, value ? "__setitem__" : "__delitem__");
  is_immutable(key) ? consumption_->read_specials_of(key) : consumption_->use_as_key(key);
  if (is_tensor(object)) return consumption_->consume(value, Consumer::Reads);
  if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE)) {
    static PyObject *const setter = PyUnicode_InternFromString("__setitem__"), *const deleter =
                                                                                   PyUnicode_InternFromString(
                                                                                       "__delitem__");
    PyObject* own = _PyType_Lookup(Py_TYPE(object), value ? setter : deleter);
    if (own && PyFunction_Check(own)) return;
  }
  auto said = [&] {
    return (value ? "sets [" : "deletes [") + short_repr(is_immutable(key) ? key : Py_Ellipsis) + "] of a " +
           type_name(object);
  };
  if (is_all(key) && PyList_CheckExact(object) && clear(object, said)) {
    if (value && !extend(object, value, said)) refuse(object, said);
    return;
  }
  std::vector<Py_ssize_t> places;
  if (!value && lists_->is(object)) {
    if (!lists_->remove(object, key, &places)) refuse(object, said);
    for (Py_ssize_t place : places) drop(object, place, said);
    return;
  }
  if (value && PySlice_Check(key))
    consumption_->consume(value, Consumer::Reads);  // whose items go into the list
  // 1, True and 1.0 are one key and nan is none: these are left to eager calls.
  bool simple = is_plain_key(key);
  if (value && PyDict_Check(object) && simple && !containers_->can_look_up(object, key)) return;
  if (value && sets_as_dict(object) && simple) {
    PyObject* before = PyDict_GetItemWithError(object, key);
    // What Python code of a step leaves there may be something else in each call. Where the function runs
    // again, its reads of that are steps.
    bool left =
        provenance_->touched(object) || (recorder_->feeding() && recorder_->expects("read_entry_again"));
    bool same = !left && !log_->wrote(object, key) && !log_->took_over(object) &&
                changes_nothing(provenance_->known(object), Access::Item, key, -1, before, value);
    if (same) return containers_->read_dict_item(object, key);
    return write_again(Effect::Kind::Item, object, object, key, -1, value, said);
  }
  if (value && PyUnicode_CheckExact(key) && keeps_order(object, key)) {
    containers_->read_key(object, key);
    return write_again(Effect::Kind::Item, object, object, key, -1, value, said);
  }
  if (value && PyList_CheckExact(object) && PyLong_CheckExact(key))
    return write_list_item(object, key, value, said);
  bool entry = !value && PyDict_CheckExact(object) && PyUnicode_CheckExact(key);
  if (entry && delete_entry(object, key, said)) return;
  // All that was there goes, whatever it was.
  rewrite(object, said, !value && is_all(key) && PyList_CheckExact(object));
}

void StateWrites::write_list_item(PyObject* list, PyObject* key, PyObject* value, Wording what) {
  Py_ssize_t index = PyLong_AsSsize_t(key), size = PyList_GET_SIZE(list);
  if (PyErr_Occurred()) {  // no list is as long as that
    PyErr_Clear();
    index = size;
  }
  if (!recorder_->inside_operator() && fill_added(list, key, value)) return;
  // A counter says which, as the next recording knows, which follows it.
  if (lists_->is(list) && lists_->was_added(list, index) && provenance_->note_last_varying(index))
    return recorder_->fail(what());
  // One that is followed takes it.
  if (int node = provenance_->known(list); log_->appended_to(list) && node >= 0 && !lists_->is(list))
    provenance_->note_varying(node);
  if (log_->appended_to(list) || log_->took_over(list) || lists_->is(list)) return rewrite(list, what);
  if (index < 0) index += size;
  if (index >= 0 && index < size)
    return write_again(Effect::Kind::At, list, list, nullptr, index, value, what);
  containers_->read_length(list);  // an IndexError, as long as the list is as short as that
}

void StateWrites::write_global(Frame f, PyObject* name, PyObject* value) {
  PyObject* before = PyDict_GetItemWithError(f.globals(), name);
  NameReads::GlobalsNode globals = value ? names_->globals_of(f) : NameReads::GlobalsNode{-1, Access::Item};
  if (!provenance_->touched(f.globals()) && !log_->wrote(f.globals(), name) &&
      changes_nothing(globals.node, globals.access, name, -1, before, value))
    return names_->read_global(f, name);
  std::string what = "sets the global " + text_of(name);
  if (globals.node < 0 || recorder_->inside_operator()) return recorder_->fail(what);
  Effect::Kind kind = globals.access == Access::Instance ? Effect::Kind::Attribute : Effect::Kind::Item;
  enter({kind, globals.node, py::reinterpret_borrow<py::object>(name), -1}, f.globals(), value, what);
}

void StateWrites::write_cell(Frame f, int index, PyObject* value) {
  PyObject* cell = f.slot(index);
  const std::pair<int, Py_ssize_t>* place = cell && PyCell_Check(cell) ? provenance_->cell(cell) : nullptr;
  if (!place) return;
  PyObject* before = PyCell_GET(cell);
  if (!provenance_->touched(cell) && !log_->wrote_to(cell) &&
      changes_nothing(place->first, Access::Cell, nullptr, place->second, before, value))
    return names_->read_cell(f, index);
  if (!value) return recorder_->fail("deletes a variable of an enclosing function");
  if (recorder_->inside_operator()) return recorder_->fail("sets a variable of an enclosing function");
  enter({Effect::Kind::Cell, place->first, {}, place->second}, cell, value,
        "sets a variable of an enclosing function");
}

namespace {
// A number of the same type, followed or not, or as many of them.
bool is_number_like(PyObject* number, PyObject* value) {
  if (PyTuple_CheckExact(number)) {
    bool same = PyTuple_CheckExact(value) && PyTuple_GET_SIZE(value) == PyTuple_GET_SIZE(number);
    for (Py_ssize_t i = 0; same && i < PyTuple_GET_SIZE(number); ++i)
      same = is_number_like(PyTuple_GET_ITEM(number, i), PyTuple_GET_ITEM(value, i));
    return same;
  }
  if (is_scalar_carrier(value))
    return is_long_carrier(value)     ? is_int64(number)
           : is_single_carrier(value) ? is_float32(number)
                                      : is_float64(number);
  if (is_carrier(value)) return is_real_carrier(value) == PyFloat_CheckExact(number);
  return same_kind_of_number(number, value);
}
}  // namespace

// Whether it may be another object at the next call, though equal, in a way that no replay knows.
bool StateWrites::holds_given(PyObject* value) const {
  auto given = [&](PyObject* one) { return provenance_->others_have(one); };
  if (given(value)) return true;
  PyObject *key, *item;
  bool any = false;
  for (Py_ssize_t i = 0; PyList_CheckExact(value) && i < PyList_GET_SIZE(value); ++i)
    any |= given(PyList_GET_ITEM(value, i));
  for (Py_ssize_t at = 0; PyDict_CheckExact(value) && PyDict_Next(value, &at, &key, &item);)
    any |= given(item);
  return any;
}

StateWrites::Verdict StateWrites::verdict_on(const Writes::Write& write) const {
  if (write.effect.kind == Effect::Kind::Content) return verdict_on_content(write);
  PyObject* value = write.value.ptr();
  const Guard* before = write.before >= 0 ? &(*tree_)[write.before] : nullptr;
  if (!before || holds_given(value)) return Verdict::Kept;
  bool constant = before->expect == Expect::Constant;
  if (constant && before->loose && is_number_like(before->value.ptr(), value)) return Verdict::Kept;
  if (constant && is_immutable(value) && same_immutable(before->value.ptr(), value)) return Verdict::Dropped;
  if (before->expect == Expect::Identity && before->raw == value) return Verdict::Dropped;
  // The very object that was there, a tensor too: an optimizer puts back the buffer that it has changed in
  // place.
  if (provenance_->known(value) == write.before) return Verdict::Dropped;
  return before->expect == Expect::Anything || may_come_again(write, *before) ? Verdict::Kept
                                                                              : Verdict::Refused;
}

// Whether what a list or dict held before the call is guarded to be there, entry for entry: not one that was
// written before anybody read it, nor a number that is followed.
bool StateWrites::comes_again(int owner, PyObject* original) const {
  bool by_key = provenance_->was_structural(owner), left = provenance_->leaves_values(owner);
  auto guarded = [&](Access access, PyObject* key, Py_ssize_t index, PyObject* held) {
    int node = tree_->find(owner, access, key, index);
    if (node < 0) return by_key && !(left && Call::is_value(held));
    const Guard& guard = (*tree_)[node];
    if (guard.expect == Expect::Constant) return !guard.loose;
    return by_key || guard.expect == Expect::Identity || provenance_->known(held) == node;
  };
  PyObject *key, *value;
  bool all = true;
  for (Py_ssize_t i = 0; PyList_Check(original) && i < PyList_GET_SIZE(original); ++i)
    all &= guarded(Access::At, nullptr, i, PyList_GET_ITEM(original, i));
  for (Py_ssize_t at = 0; PyDict_Check(original) && PyDict_Next(original, &at, &key, &value);)
    all &= guarded(Access::Item, key, -1, value);
  return all;
}

// A list that has grown will not be found again as it was.
StateWrites::Verdict StateWrites::verdict_on_content(const Writes::Write& write) const {
  PyObject *value = write.value.ptr(), *original = write.original.ptr();
  bool is_there = same_content(value, original) && comes_again(write.effect.owner, original);
  if (is_there && !holds_given(value)) return Verdict::Dropped;
  const int first = tree_->root_of(write.effect.owner);
  const Guard& root = (*tree_)[first];
  bool state = first == write.effect.owner && root.expect == Expect::Type;
  bool passed = root.access == Access::Root && root.index > 0 && !state;
  bool grown = PyList_Check(value) && PyList_GET_SIZE(value) > PyList_GET_SIZE(original);
  return grown && !passed ? Verdict::Refused : Verdict::Kept;
}

StateWrites::Turn StateWrites::turn_of(const Writes::Write& write, const Guard& before) {
  PyObject* value = write.value.ptr();
  bool was_none = before.expect == Expect::Constant && before.value.is_none();
  if (!value || was_none == (value == Py_None)) return Turn::None;
  return was_none ? Turn::ToValue : Turn::ToNone;
}

// Whether the guard on what was read there may hold at a later call. Where it cannot, there is no use in a
// recording.
bool StateWrites::may_come_again(const Writes::Write& write, const Guard& before) const {
  PyObject* value = write.value.ptr();
  if (keeps_turns_ && turn_of(write, before) != Turn::None) return true;
  if (before.expect == Expect::Tensor && is_tensor(value)) return true;
  if (before.expect == Expect::Type && before.raw == reinterpret_cast<PyObject*>(Py_TYPE(value))) return true;
  // A flag that is set, a sum that is put back to zero, one of two objects that take turns: what was there
  // before may be there again. A counter goes on from call to call.
  if (before.expect == Expect::Constant && (is_immutable(value) || is_carrier(value)))
    return !is_number_like(before.value.ptr(), value);
  bool lasting = provenance_->known(value) >= 0 || is_enum_member(value);
  if (before.expect == Expect::Identity && lasting) return true;
  // A flag of an object that is passed may be that of a new one.
  const Guard& root = (*tree_)[tree_->root_of(write.effect.owner)];
  bool number = (PyLong_Check(value) && !PyBool_Check(value)) || PyFloat_Check(value);
  return root.access == Access::Root && root.index > 0 && !number;
}

// Whether a followed number is what was read there before hangs on its value. A number of another type is
// not.
bool StateWrites::hangs_on_value(const Writes::Write& write) const {
  if (write.before < 0) return false;
  const Guard& before = (*tree_)[write.before];
  if (before.expect == Expect::Anything || before.loose) return false;
  return before.expect != Expect::Constant || is_number_like(before.value.ptr(), write.value.ptr());
}

// Numbers that were only put in the place of what was there, so that Python is given them.
void StateWrites::put_back_viewed() {
  auto& all = log_->all();
  auto is_put_back = [&](const Writes::Write& entry) {
    if (entry.effect.kind != Effect::Kind::Item || entry.is_taken_back()) return false;
    PyObject *dict = entry.container.ptr(), *key = entry.effect.key.ptr();
    PyObject* number = containers_->replaced_by(dict, key, entry.value.ptr());
    if (!number || PyDict_GetItemWithError(dict, key) != entry.value.ptr()) return false;
    if (PyDict_SetItem(dict, key, number) < 0) throw py::error_already_set();
    return true;
  };
  all.erase(std::remove_if(all.begin(), all.end(), is_put_back), all.end());
}

void StateWrites::settle() {
  provenance_->judge_handle_keys();
  put_back_viewed();
  std::vector<Writes::Write> kept;
  for (Writes::Write& entry : log_->all()) {
    written_.push_back(entry.effect);
    if (entry.effect.kind != Effect::Kind::Content) continue;
    entry.value = content_of(entry.container.ptr());
    exchange_->leave(entry.value.ptr());
  }
  for (Writes::Write& entry : log_->all()) {
    if (entry.is_taken_back()) {
      // Python code of a step may have put something else there in between.
      if (provenance_->touched_count() || entry.effect.moves) {
        recorder_->place = entry.place;
        recorder_->fail(entry.what);
      }
      continue;
    }
    bool shared =
        entry.effect.kind == Effect::Kind::Cell && provenance_->is_shared_cell(entry.container.ptr());
    if (is_carrier(entry.value.ptr()) && hangs_on_value(entry)) exchange_->hand_over(entry.value.ptr());
    Verdict verdict = shared ? Verdict::Refused : verdict_on(entry);
    // Python code of a step may have put something else there in between.
    bool moved = provenance_->touched_count() || entry.effect.moves;
    if (verdict == Verdict::Dropped && moved) verdict = Verdict::Kept;
    bool list = entry.effect.kind == Effect::Kind::Content && PyList_Check(entry.container.ptr());
    // The next recording may follow it.
    if (list && verdict == Verdict::Refused) provenance_->note_varying(entry.effect.owner);
    if (verdict == Verdict::Dropped) continue;
    if (verdict == Verdict::Refused) {
      recorder_->place = entry.place;
      if (!recorder_->stopped() && !shared && entry.before >= 0)
        turn_ = turn_of(entry, (*tree_)[entry.before]);
      recorder_->fail(shared ? entry.what + " that other functions share" : entry.what);
      // The next recording may follow it.
      if (!shared && entry.before >= 0 && tree_->can_be_loose(entry.before) &&
          is_number_like((*tree_)[entry.before].value.ptr(), entry.value.ptr()))
        provenance_->note_varying(entry.before);
      continue;
    }
    kept.push_back(std::move(entry));
  }
  log_->all() = std::move(kept);
}

}  // namespace lazytrace
