#include "record/python/calls/protocols.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>

#include "cpython/carrier.h"
#include "cpython/dict_view.h"
#include "cpython/numpy_arithmetic.h"
#include "cpython/objects.h"
#include "cpython/operations.h"
#include "cpython/values.h"
#include "support/reasons.h"

namespace lazytrace {

// C code calls an attribute of the class for it, which its metaclass may have, or give in code of its own.
void Protocols::read_subscripted(PyObject* cls) {
  static PyObject* const name = PyUnicode_InternFromString("__class_getitem__");
  static PyObject* const fallback = PyUnicode_InternFromString("__getattr__");
  auto* type = reinterpret_cast<PyTypeObject*>(cls);
  classes_->read_hook(type, "__class_getitem__");
  PyMappingMethods* own = Py_TYPE(cls)->tp_as_mapping;
  if (own && own->mp_subscript) return;  // `Color["RED"]`
  classes_->read_special(cls, "__class_getitem__");
  bool has = _PyType_Lookup(type, name) || _PyType_Lookup(Py_TYPE(cls), name);
  if (!has) classes_->read_special(cls, "__getattr__");
  if (overrides_getattribute(Py_TYPE(cls)) || (!has && _PyType_Lookup(Py_TYPE(cls), fallback)))
    recorder_->fail(say(reason::SpecialInC, "__class_getitem__", class_text(Py_TYPE(cls)), "metaclass"));
}

void Protocols::read_item(PyObject* object, PyObject* key) {
  is_immutable(key) ? consumption_->read_specials_of(key) : consumption_->use_as_key(key);
  classes_->read_special(object, "__getitem__");
  if (is_tensor(object)) return;
  PyTypeObject* type = Py_TYPE(object);
  if (PyDict_Check(object)) {
    static PyObject* name = PyUnicode_InternFromString("__getitem__");
    PyObject* getter = _PyType_Lookup(type, name);
    if (getter && PyFunction_Check(getter)) return;
    if (!containers_->can_look_up(object, key)) return;
    bool plain = PyDict_CheckExact(object) || (is_key_by_identity(key) && entry_of(object, key)) ||
                 (is_key(key) && PyDict_Contains(object, key) == 1);
    PyErr_Clear();
    // A number that is followed, looked up among texts.
    if (is_carrier(key) && PyDict_CheckExact(object)) return containers_->read_whole(object);
    // Python code gives something instead, and shows itself: that of a Counter.
    static PyObject* const missing = PyUnicode_InternFromString("__missing__");
    PyObject* other = plain ? nullptr : _PyType_Lookup(type, missing);
    if (other) classes_->read_special(object, "__missing__");
    if (other && PyFunction_Check(other) && is_key(key)) return containers_->read_dict_item(object, key);
    if (!plain && provenance_->known(object) >= 0)
      return writes_->write(object, [&] { return "looks up a missing key of a " + type_name(object); });
    return containers_->read_dict_item(object, key);
  }
  if (PyList_Check(object) || PyTuple_Check(object)) return containers_->read_sequence_item(object, key);
  if (PyType_Check(object)) read_subscripted(object);
  read_operand(object);
}

namespace {
// The plain dict that a view of C shows; null of anything else.
PyObject* dict_behind(PyObject* view) {
  if (!Py_IS_TYPE(view, &PyDictItems_Type) && !Py_IS_TYPE(view, &PyDictValues_Type) &&
      !Py_IS_TYPE(view, &PyDictKeys_Type))
    return nullptr;
  PyObject* dict = dict_of_view(view);
  return PyDict_CheckExact(dict) || is_default_dict(dict) ? dict : nullptr;
}
}  // namespace

void Protocols::read_length(PyObject* object) {
  if (PyObject* dict = dict_behind(object)) provenance_->meet_viewed(object, dict), object = dict;
  classes_->read_special(object, "__bool__");
  classes_->read_special(object, "__len__");
  if (is_tensor(object) || is_immutable(object)) return;
  if (c_base(Py_TYPE(object)) != &PyBaseObject_Type && !is_container(object) && !containers_->follows(object))
    return consumption_->consume(object, Consumer::Reads);
  containers_->read_length(object);
}

void Protocols::read_iteration(PyObject* object) {
  classes_->read_special(object, "__iter__");
  classes_->read_special(object, "__getitem__");
  if (is_tensor(object) || is_immutable(object)) return;
  if (PyIter_Check(object)) return containers_->advance(object);
  if (c_base(Py_TYPE(object)) == &PyBaseObject_Type) return provenance_->owner(object), void();
  // What it gives Python comes from the dict as it is.
  if (PyObject* dict = dict_behind(object)) {
    provenance_->meet_viewed(object, dict);
    return containers_->read_in_order(dict);
  }
  if (!is_container(object)) return consumption_->consume(object, Consumer::Reads);
  containers_->read_in_order(object);
  containers_->read_order(object);
}

void Protocols::read_contains(PyObject* container, PyObject* item) {
  for (const char* name : {"__contains__", "__iter__", "__getitem__"})
    classes_->read_special(container, name);
  if (is_tensor(container)) return consumption_->consume(item, Consumer::Reads);
  consumption_->consume(item, Consumer::Compares);
  if (is_immutable(container)) return;
  if (PyDict_Check(container) && is_key(item)) return containers_->read_key(container, item);
  // `name in log.keys()` looks at no value either.
  PyObject* behind = Py_IS_TYPE(container, &PyDictKeys_Type) ? dict_behind(container) : nullptr;
  if (behind && is_key(item))
    return provenance_->meet_viewed(container, behind), containers_->read_key(behind, item);
  if (containers_->read_entry(container, item)) return;
  if (can_ask_for_member(container, item)) return containers_->read_member(container, item);
  if (PyIter_Check(container)) containers_->advance(container);
  consumption_->ask_for_members(container);
}

void Protocols::read_members(PyObject* container) {
  classes_->read_special(container, "__contains__");
  classes_->read_special(container, "__iter__");
  consumption_->consume(container, Consumer::Reads);
}

namespace {

// Values of which there is one object in a process.
bool is_single(PyObject* v) {
  if (v == Py_None || v == Py_True || v == Py_False || v == Py_Ellipsis || v == Py_NotImplemented)
    return true;
  if (PyLong_CheckExact(v)) {
    int overflow;
    long value = PyLong_AsLongAndOverflow(v, &overflow);
    return !overflow && value >= -5 && value <= 256;
  }
  return is_enum_member(v) || THPDtype_Check(v) || THPLayout_Check(v) || THPMemoryFormat_Check(v);
}

}  // namespace

void Protocols::read_identity(PyObject* a, PyObject* b) {
  // Which object such a value is, its guard holds as well.
  if (is_single(a) || is_single(b)) return;
  bool values = is_immutable(a) && is_immutable(b);
  if (values) return recorder_->fail("compares the identity of two values of type " + type_name(a));
  if (provenance_->tells_given(a, b) || provenance_->tells_given(b, a)) return;
  provenance_->compare_as_itself(a);
  provenance_->compare_as_itself(b);
}

bool Protocols::refuse_array(PyObject* operand) {
  if (!is_numpy_array(operand)) return false;
  recorder_->fail("computes with a numpy array");
  return true;
}

void Protocols::read_operand(PyObject* object) {
  if (!refuse_array(object)) consumption_->consume(object, Consumer::Compares);
}

// A tensor of torch's own classes shows the operator's methods and no others: its class has twenty more that
// are written in Python, and each of these is a guard. Any other class may lead anywhere.
void Protocols::operate(PyObject* operand, Consumer how, const OperatorMethods& methods) {
  if (recorder_->stopped() || refuse_array(operand)) return;
  if (how == Consumer::Text || !THPVariable_CheckTypeExact(Py_TYPE(operand)))
    return consumption_->consume_operand(operand, how);
  consumption_->hand_over_tensor(operand);
  for (const char* name : methods)
    if (name) classes_->read_special(operand, name);
}

// What numpy does about a division by zero and the like is set for a thread, and a replay would not do it.
bool Protocols::refuse_scalars(int operation, PyObject* left, PyObject* right) {
  // Those that are followed are asked for their values, or say so themselves.
  if (is_scalar_carrier(left) || is_scalar_carrier(right)) return false;
  auto is_one = is_followable_scalar;
  if ((is_carrier(left) && is_one(right)) || (is_one(left) && is_carrier(right))) return false;
  if (!is_numpy_arithmetic(left, right) || computes_quietly(operation, left, right)) return false;
  recorder_->fail(say(reason::ComputesWithScalar, type_name(is_numpy_scalar(left) ? left : right)));
  return true;
}

void Protocols::read_arithmetic(PyObject* const* args, Py_ssize_t count) {
  // abs() and round() are quiet where a sum is; the others are as quiet as a power, which is the least so.
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!args[i] || is_tensor(args[i])) continue;
    PyObject* right = count == 2 && args[1] ? args[1] : args[i];
    if (is_numpy_scalar(args[i]) && refuse_scalars(count == 1 ? kAddition : kPower, args[0], right)) return;
    if (!is_numpy_scalar(args[i])) consumption_->expect_arithmetic();
  }
}

void Protocols::read_unary(PyObject* operand) {
  if (!refuse_scalars(kAddition, operand, operand)) operate(operand, Consumer::Compares, methods_of_unary());
}

void Protocols::read_comparison(PyObject* left, PyObject* right) {
  operate(right, Consumer::Compares, methods_of_comparison());
  operate(left, Consumer::Compares, methods_of_comparison());
}

void Protocols::read_binary(PyObject* left, PyObject* right, int operation) {
  bool in_place = is_in_place(operation);
  // `%` of a text writes text; `-`, `&`, `|` and `^` of sets compare.
  bool text = is_remainder(operation) && (PyUnicode_Check(left) || PyBytes_Check(left));
  Consumer how = text ? Consumer::Text : Consumer::Compares;
  if (refuse_array(left) || refuse_array(right) || refuse_scalars(operation, left, right)) return;
  auto what = [&] { return "changes a " + type_name(left) + " in place"; };
  if (in_place && is_addition(operation) && PyList_CheckExact(left) && writes_->extend(left, right, what))
    return;
  const OperatorMethods& methods = methods_of_operation(operation);
  operate(right, how, methods);
  if (in_place && !is_tensor(left) && !is_immutable(left) && c_base(Py_TYPE(left)) != &PyBaseObject_Type &&
      !PyTuple_Check(left)) {
    classes_->read_specials(Py_TYPE(left));
    if (PyDict_Check(left)) consumption_->look_up_entries(right);
    return writes_->rewrite(left, what);
  }
  operate(left, how, methods);
}

void Protocols::read_classes(PyObject* object, PyObject* classes, bool subclass) {
  consumption_->consume(classes, Consumer::Reads);
  auto ask = [&](PyObject* cls) {
    classes_->read_special(cls, subclass ? "__subclasscheck__" : "__instancecheck__");
    containers_->read_bases(cls);
  };
  if (PyTuple_Check(classes))
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(classes); ++i) ask(PyTuple_GET_ITEM(classes, i));
  else
    ask(classes);
  if (!subclass) classes_->read_special(object, "__class__");
  containers_->read_bases(subclass && PyType_Check(object) ? object
                                                           : reinterpret_cast<PyObject*>(Py_TYPE(object)));
}

// The hash of an object without a __hash__ of its own is its address, of which only what is equal to it
// follows.
void Protocols::hash_object(PyObject* object) {
  if (is_immutable(object)) return;
  if (PyTuple_CheckExact(object)) {
    containers_->read_whole(object);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) hash_object(PyTuple_GET_ITEM(object, i));
    return;
  }
  classes_->read_special(object, "__hash__");
  if (is_tensor(object)) return fix_identity(object, "hash");
  static PyObject* name = PyUnicode_InternFromString("__hash__");
  PyObject* own = _PyType_Lookup(Py_TYPE(object), name);
  if (own && PyFunction_Check(own)) return;
  bool address = own && own == PyDict_GetItemWithError(PyBaseObject_Type.tp_dict, name);
  address ? fix_identity(object, "hash") : recorder_->fail("calls hash()");
}

// A number that tells which object it is: it stays the same as long as the object is there, and is the next
// call's, too, if that finds the same object.
void Protocols::fix_identity(PyObject* object, const char* asked) {
  int node = is_tensor(object) ? provenance_->node_of_tensor(object) : provenance_->known(object);
  if (node < 0 && !is_tensor(object)) node = provenance_->owner(object);
  if (node < 0 || !PyType_SUPPORTS_WEAKREFS(Py_TYPE(object)))
    return recorder_->fail("calls " + std::string(asked) + "()");
  if (provenance_->by_path(node)) provenance_->read_self(node, object);
}

void Protocols::identify(PyObject* object, bool as_key, Frame asks) {
  if (as_key) return provenance_->compare_as_itself(object);
  // Tensors are the keys of sets and dicts by what they are: all that follows is which of them are one.
  if (is_tensor(object) && asks && asks == hashes_tensor_) return provenance_->compare_as_itself(object);
  fix_identity(object, "id");
}

// "{0.k}" and "{x[k]}" ask the argument for more than its text.
void Protocols::read_format(PyObject* const* args, Py_ssize_t count) {
  std::string text = text_of(args[0]);
  bool inside = false;
  for (char letter : text) {
    if (letter == '{' || letter == '}') inside = letter == '{';
    if (inside && (letter == '.' || letter == '[')) {
      // A precision ("{:.3f}") has its dot behind a colon.
      for (Py_ssize_t i = 1; i < count; ++i)
        if (!is_immutable(args[i]) || PyType_HasFeature(Py_TYPE(args[i]), Py_TPFLAGS_HEAPTYPE))
          return recorder_->fail("formats a text that asks an object for its attributes");
    }
    if (letter == ':') inside = false;
  }
  consumption_->hand_over(args + 1, count - 1, Consumer::Text);
}

}  // namespace lazytrace
