// Taking the result of an opaque Python step apart into tensors and values, the same way at each call.
#pragma once

#include <Python.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "cpython/objects.h"
#include "torch/traits.h"

namespace lazytrace {

// What a key or the class of a named tuple is, in as many letters as that takes: who gets the result may look
// at it. Objects are told apart by where they lie.
inline std::string exact_text(PyObject* object) {
  PyObject* repr = is_immutable(object) && !is_enum_member(object) ? PyObject_Repr(object) : nullptr;
  PyErr_Clear();  // an int may be too long
  std::string text = Py_TYPE(object)->tp_name + std::string(" ");
  text += repr ? text_of(repr) : std::to_string(reinterpret_cast<uintptr_t>(object));
  Py_XDECREF(repr);
  return text + ",";
}

// Takes the result of an opaque step apart. What is nested too deeply is a leaf.
class Flattened {
 public:
  // `given`: what the step was called with. Nobody but the caller holds the value, unless it is of others,
  // too. `as_copy`: as a copy of it is, which nobody else holds. Needs the GIL.
  Flattened(PyObject* value, PyObject* given, bool as_copy = false) : as_copy_(as_copy) {
    if (given) meet(given, kDeepest);
    from_value_ = met_.size();
    walk(value, kDeepest, true);
  }

  std::vector<PyObject*> leaves;  // in order, borrowed from the value
  std::string shape;  // equal exactly for equal structures, of tensors of equal traits, leaves or not
  // The lists, dicts and tuples in it, in order, but for what was given, and which of them others hold, too.
  std::vector<PyObject*> containers;
  std::vector<bool> others;
  // The lists and dicts of what was given that it has, too, and those that it has in places of its own, each
  // as often.
  std::vector<PyObject*> given_back, held;

 private:
  static constexpr int kDeepest = 100;

  static bool is_container(PyObject* value) {
    return PyDict_CheckExact(value) || PyList_CheckExact(value) || PyTuple_CheckExact(value) ||
           is_named_tuple(value);
  }

  // Numbers the lists and dicts of what was given.
  void meet(PyObject* value, int depth) {
    if (!depth || !is_container(value)) return;
    bool dict = PyDict_CheckExact(value);
    if ((dict || PyList_CheckExact(value)) && !met_.emplace(value, met_.size()).second) return;
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (dict && PyDict_Next(value, &position, &key, &item)) meet(item, depth - 1);
    for (Py_ssize_t i = 0; !dict && i < PySequence_Fast_GET_SIZE(value); ++i)
      meet(PySequence_Fast_GET_ITEM(value, i), depth - 1);
  }

  // `own`: nobody else holds what it lies in.
  void walk(PyObject* value, int depth, bool own) {
    if (!depth || !is_container(value)) {
      if (is_tensor(value)) meet_tensor(THPVariable_Unpack(value));
      shape += ".";
      leaves.push_back(value);
      return;
    }
    bool dict = PyDict_CheckExact(value), list = PyList_CheckExact(value);
    // Who gets one that can change in two places, or that others hold, may change it for all.
    if (dict || list) {
      auto [known, fresh] = met_.emplace(value, met_.size());
      if (!fresh) {
        bool was_given = known->second < from_value_;
        if (was_given) given_back.push_back(value);
        if (was_given && own) held.push_back(value);
        shape += was_given ? "^" + std::to_string(known->second)
                           : "=" + std::to_string(known->second - from_value_);
        shape += ",";
        return;
      }
    }
    own &= as_copy_ || Py_REFCNT(value) == 1;
    containers.push_back(value);
    others.push_back(!own);
    shape += dict ? (own ? "{" : "{&") : list ? (own ? "[" : "[&") : "(";
    if (is_named_tuple(value)) shape += exact_text(reinterpret_cast<PyObject*>(Py_TYPE(value)));
    dict ? walk_entries(value, depth - 1, own) : walk_items(value, depth - 1, own);
    shape += dict ? "}" : ")";
  }

  // One that requires gradients has a graph, or its gradient goes to itself.
  void meet_tensor(const at::Tensor& tensor) {
    shape += traits_of(tensor);
    if (tensor.defined() && tensor.requires_grad() && tensor.is_leaf()) shape += "*";
  }

  void walk_items(PyObject* sequence, int depth, bool own) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence); ++i)
      walk(PySequence_Fast_GET_ITEM(sequence, i), depth, own);
  }

  void walk_entries(PyObject* dict, int depth, bool own) {
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(dict, &position, &key, &item)) {
      shape += exact_text(key);
      walk(item, depth, own);
    }
  }

  std::unordered_map<PyObject*, size_t> met_;  // lists and dicts
  size_t from_value_ = 0;
  bool as_copy_;
};

}  // namespace lazytrace
