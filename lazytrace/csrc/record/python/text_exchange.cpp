#include "record/python/text_exchange.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <utility>

#include "cpython/objects.h"
#include "cpython/text_carrier.h"
#include "support/address_map.h"

namespace lazytrace {

namespace {

struct Texts {
  AddressMap<PyObject*> callables;
  TextFunctions make;
  py::dict held;
};

// Filled once, before the first recording, and never changed.
Texts& texts() {
  static auto* made = new Texts();
  return *made;
}

// What Python is given where there are numbers and texts that are followed, at the top, in a tuple or a list.
py::object plain_inside(PyObject* object) {
  PyObject* plain = plain_of_followed(object);
  if (!plain) throw py::error_already_set();
  py::object made = py::reinterpret_steal<py::object>(plain);
  if (!PyTuple_CheckExact(object) && !PyList_CheckExact(object)) return made;
  py::list items;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i)
    items.append(plain_inside(PySequence_Fast_GET_ITEM(object, i)));
  return PyTuple_CheckExact(object) ? py::object(py::tuple(items)) : py::object(items);
}

}  // namespace

void configure_texts(const py::dict& callables, TextFunctions functions) {
  Texts& all = texts();
  all.held = py::reinterpret_steal<py::dict>(PyDict_Copy(callables.ptr()));
  for (auto [from, to] : all.held) all.callables[from.ptr()] = to.ptr();
  all.make = std::move(functions);
}

PyObject* const* TextExchange::in_place_of(PyObject* callable) { return texts().callables.find(callable); }

void TextExchange::settle(PyObject* object) {
  if (object && is_text(object) && recorder_->follows_any()) recorder_->numbers()->settle(object);
}

// The instruction works with plain operands, and what it gives is the text.
bool TextExchange::take(Frame f, py::object text, c10::ArrayRef<PyObject**> operands) {
  if (!is_text(text.ptr())) return false;
  for (PyObject** operand : operands)
    if (holds_followed(*operand)) swaps_->note(operand, plain_inside(*operand));
  expect(f, std::move(text));
  return true;
}

bool TextExchange::format(Frame f, const Operation& operation, bool told) {
  PyObject** value = f.place(operation.first);
  py::object spec = py::str();
  if (operation.second) {
    settle(f.peek(operation.second));
    spec = py::reinterpret_borrow<py::object>(f.peek(operation.second));
  }
  bool tensor = !told && !operation.name && THPVariable_CheckExact(*value);
  bool several = (PyTuple_CheckExact(*value) || PyList_CheckExact(*value)) && holds_followed(*value);
  if (!is_followed(*value) && !several && !tensor) return false;
  py::object number = texts().make.number(py::handle(*value));
  py::object text = texts().make.formatted(number, operation.name, spec);
  if (tensor && is_text(text.ptr())) swaps_->note(value, plain_inside(number.ptr()));
  return take(f, std::move(text), {value});
}

void TextExchange::join(Frame f, const Operation& operation) {
  std::vector<PyObject**> pieces;
  bool any = false;
  for (int i = 0; i < operation.third; ++i) {
    pieces.push_back(f.place(operation.first - i));
    any |= is_text(*pieces.back());
  }
  if (!any) return;
  py::tuple items(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) items[i] = py::reinterpret_borrow<py::object>(*pieces[i]);
  if (take(f, texts().make.joined(*items), pieces)) return;
  for (PyObject** piece : pieces) settle(*piece);
}

namespace {
// A tensor without dimensions, alone or among several: what is written for it may be its value.
bool holds_value(PyObject* v) {
  auto one = [](PyObject* item) {
    return THPVariable_CheckExact(item) && THPVariable_Unpack(item).dim() == 0;
  };
  if (!PyTuple_CheckExact(v)) return one(v);
  PyObject** items = PySequence_Fast_ITEMS(v);
  return std::any_of(items, items + PyTuple_GET_SIZE(v), one);
}
}  // namespace

bool TextExchange::fills_with_value(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  static auto* const format =
      reinterpret_cast<PyMethodDescrObject*>(PyDict_GetItemString(PyUnicode_Type.tp_dict, "format"));
  bool bound =
      PyCFunction_Check(callable) && reinterpret_cast<PyCFunctionObject*>(callable)->m_ml == format->d_method;
  return (bound || callable == reinterpret_cast<PyObject*>(format)) &&
         std::any_of(args, args + count, [](PyObject* v) { return v && holds_value(v); });
}

bool TextExchange::operate(Frame f, const Operation& operation) {
  PyObject **left = f.place(operation.first), **right = f.place(operation.second);
  auto is_string = [](PyObject* v) { return is_text(v) || PyUnicode_CheckExact(v); };
  bool value = is_remainder(operation.name) && PyUnicode_CheckExact(*left) && holds_value(*right);
  if (!is_string(*left) || !(is_text(*left) || value || holds_followed(*right))) return false;
  py::object l = py::reinterpret_borrow<py::object>(*left), r = py::reinterpret_borrow<py::object>(*right);
  const TextFunctions& make = texts().make;
  if (value) {
    py::object given = make.number(r, l), text = make.filled(l, given);
    if (is_text(text.ptr())) swaps_->note(right, plain_inside(given.ptr()));
    return take(f, std::move(text), {});
  }
  if (is_addition(operation.name)) return is_string(*right) && take(f, make.added(l, r), {left, right});
  return is_remainder(operation.name) && take(f, make.filled(l, r), {left, right});
}

void TextExchange::deliver_now(Frame f) {
  auto due = std::exchange(due_, {});
  for (Due& one : due) {
    PyObject** top = one.frame == f ? f.place(1) : nullptr;
    py::object plain = py::reinterpret_steal<py::object>(plain_of_followed(one.text.ptr()));
    if (!plain) throw py::error_already_set();
    if (top && PyUnicode_CheckExact(*top) && PyUnicode_Compare(*top, plain.ptr()) == 0)
      Py_SETREF(*top, Py_NewRef(one.text.ptr()));
    else
      settle(one.text.ptr());  // the instruction raised, or what it called runs on
  }
}

}  // namespace lazytrace
