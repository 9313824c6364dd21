#include "record/python/reads/drawn_entries.h"

#include <structseq.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "cpython/array_memory.h"
#include "cpython/carrier.h"
#include "cpython/objects.h"
#include "cpython/values.h"
#include "record/python/unseen.h"
#include "support/reasons.h"
#include "torch/traits.h"

namespace lazytrace {

namespace {

constexpr char kName[] = "list entry";

// Not those of C, which have more fields than items.
bool is_tuple(PyObject* v) {
  return PyTuple_CheckExact(v) || (is_named_tuple(v) && !is_struct_sequence(Py_TYPE(v)));
}

// Whether its class has no `__getitem__` of its own.
bool gives_items(PyObject* tuple) {
  PyMappingMethods* methods = Py_TYPE(tuple)->tp_as_mapping;
  return methods && methods->mp_subscript == PyTuple_Type.tp_as_mapping->mp_subscript;
}

constexpr int kDeepest = 4;

// What a step gives for an array: a tensor of its memory, in a class of its own that tells it from a tensor.
PyTypeObject* memory_class() {
  static PyStructSequence_Field fields[] = {{"memory", nullptr}, {nullptr, nullptr}};
  static PyStructSequence_Desc description = {"lazytrace.array", nullptr, fields, 1};
  static PyTypeObject* const type = PyStructSequence_NewType(&description);
  return type;
}

bool is_memory(PyObject* value) { return Py_IS_TYPE(value, memory_class()); }

const at::Tensor& tensor_in(PyObject* memory) { return THPVariable_Unpack(PyTuple_GET_ITEM(memory, 0)); }

// What a step gives for a number of numpy's: one of Python's, in a class of its own for each kind.
PyTypeObject* scalar_class(ScalarKind kind) {
  static PyStructSequence_Field fields[] = {{"value", nullptr}, {nullptr, nullptr}};
  static PyStructSequence_Desc descriptions[] = {{"lazytrace.float64", nullptr, fields, 1},
                                                 {"lazytrace.float32", nullptr, fields, 1},
                                                 {"lazytrace.int64", nullptr, fields, 1}};
  static PyTypeObject* const types[] = {PyStructSequence_NewType(&descriptions[0]),
                                        PyStructSequence_NewType(&descriptions[1]),
                                        PyStructSequence_NewType(&descriptions[2])};
  return types[static_cast<size_t>(kind)];
}

bool is_scalar(PyObject* value) {
  return Py_IS_TYPE(value, scalar_class(ScalarKind::Double)) ||
         Py_IS_TYPE(value, scalar_class(ScalarKind::Single)) ||
         Py_IS_TYPE(value, scalar_class(ScalarKind::Long));
}

// Of a number that is no nan: which object one is shows.
py::object with_scalar(PyObject* scalar) {
  auto kind = is_int64(scalar)     ? ScalarKind::Long
              : is_float32(scalar) ? ScalarKind::Single
                                   : ScalarKind::Double;
  auto made = py::reinterpret_steal<py::object>(PyStructSequence_New(scalar_class(kind)));
  if (!made) throw py::error_already_set();
  PyObject* value = kind == ScalarKind::Long ? PyLong_FromLongLong(int64_value(scalar))
                                             : PyFloat_FromDouble(float_value(scalar));
  if (!value) throw py::error_already_set();
  PyStructSequence_SET_ITEM(made.ptr(), 0, value);
  return made;
}

py::object of_class(PyTypeObject* type, py::tuple items) {
  if (type == &PyTuple_Type) return std::move(items);
  auto made = py::reinterpret_steal<py::object>(
      PyTuple_Type.tp_new(type, py::make_tuple(std::move(items)).ptr(), nullptr));
  if (!made) throw py::error_already_set();
  return made;
}

// The entry with tensors for the arrays in it and with Python's numbers for numpy's, itself where there are
// none. Those of an array are other ones each time, as no two arrays are told apart by them.
py::object with_memories(PyObject* value, int depth = 0) {
  auto as_it_is = py::reinterpret_borrow<py::object>(value);
  if (is_followable_scalar(value)) return is_nan(value) ? as_it_is : with_scalar(value);
  if (is_plain_array(value)) {
    py::object memory = memory_of_array(value);
    if (!memory) return as_it_is;
    auto made = py::reinterpret_steal<py::object>(PyStructSequence_New(memory_class()));
    if (!made) throw py::error_already_set();
    PyStructSequence_SET_ITEM(made.ptr(), 0, memory.release().ptr());
    return made;
  }
  // That of a copy would run, too.
  if (!is_tuple(value) || depth == kDeepest || Py_TYPE(value)->tp_finalize) return as_it_is;
  py::tuple items(PyTuple_GET_SIZE(value));
  bool same = true;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
    py::object item = with_memories(PyTuple_GET_ITEM(value, i), depth + 1);
    same &= item.ptr() == PyTuple_GET_ITEM(value, i);
    items[static_cast<size_t>(i)] = std::move(item);
  }
  return same ? as_it_is : of_class(Py_TYPE(value), std::move(items));
}

Py_ssize_t size_of(PyObject* container) {
  if (is_tuple(container)) return PyTuple_GET_SIZE(container);
  return PyRange_Check(container) ? PySequence_Size(container) : size_of_list(container);
}

// The entry of before the call at this place, of which so many at the begin are gone by now, and so many were
// put behind them: a new reference, and where there is none nothing that anybody keeps.
PyObject* entry_at(PyObject* container, Py_ssize_t place, Py_ssize_t gone, Py_ssize_t added) {
  Py_ssize_t size = size_of(container);
  bool behind = place < 0 && place + added >= 0;
  place += place >= 0 ? gone : size + added;
  if (behind || place < gone || place >= size) return Py_NewRef(Py_Ellipsis);
  if (PyRange_Check(container)) return PySequence_GetItem(container, place);
  return is_tuple(container) ? Py_NewRef(PyTuple_GET_ITEM(container, place))
                             : entry_of_list(container, place);
}

PyObject* take_entry(PyObject*, PyObject* args) {
  PyObject* container;
  Py_ssize_t place, gone, added;
  if (!PyArg_ParseTuple(args, "Onnn", &container, &place, &gone, &added)) return nullptr;
  auto found = py::reinterpret_steal<py::object>(entry_at(container, place, gone, added));
  if (!found) return nullptr;
  try {
    return with_memories(found.ptr()).release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
}

// The same of a list that the function has changed by now.
PyObject* entry_now(PyObject* container, Py_ssize_t place, const LiveLists::Ends& ends) {
  if (place < 0) place += ends.left + ends.added;
  return place >= 0 && place < ends.left ? entry_of_list(container, place) : Py_NewRef(Py_Ellipsis);
}

// What the steps call, for as long as the process.
PyObject* taker() {
  static PyMethodDef method = {kName, take_entry, METH_VARARGS, nullptr};
  static PyObject* const function = PyCFunction_New(&method, self_of_steps());
  return function;
}

bool is_number(PyObject* value) {
  if (PyFloat_CheckExact(value)) return !is_nan(value);
  int overflow = 0;
  return PyLong_CheckExact(value) && (PyLong_AsLongLongAndOverflow(value, &overflow), !overflow);
}

// Of a constant table there may be another one of equal values by now.
bool is_same(PyObject* given, PyObject* found) {
  if (given == found || (is_immutable(found) && same_immutable(found, given))) return true;
  if (is_memory(given)) return is_memory_of(tensor_in(given), found);
  if (is_scalar(given)) {
    py::object now = with_memories(found);
    return Py_IS_TYPE(now.ptr(), Py_TYPE(given)) &&
           same_immutable(PyTuple_GET_ITEM(now.ptr(), 0), PyTuple_GET_ITEM(given, 0));
  }
  bool alike = is_tuple(given) && Py_IS_TYPE(found, Py_TYPE(given)) &&
               PyTuple_GET_SIZE(given) == PyTuple_GET_SIZE(found);
  for (Py_ssize_t i = 0; alike && i < PyTuple_GET_SIZE(given); ++i)
    alike = is_same(PyTuple_GET_ITEM(given, i), PyTuple_GET_ITEM(found, i));
  return alike;
}

// Whether a step can give it: nothing that others may change, that autograd adds gradients to, or that a
// guard has led to.
bool can_give(const Surroundings& around, const Unseen& unseen, PyObject* value, int depth = 0) {
  if (is_memory(value)) {
    auto array = py::reinterpret_steal<py::object>(array_of_tensor(tensor_in(value)));
    if (!array) throw py::error_already_set();
    bool known = unseen.is_given(array.ptr()) || around.provenance->known(array.ptr()) >= 0;
    return !known && around.recorder->draw(tensor_in(value));
  }
  if (is_tensor(value)) {
    const at::Tensor& tensor = THPVariable_Unpack(value);
    return traits_of(tensor).empty() && !tensor.requires_grad() && around.recorder->draw(tensor);
  }
  if (is_number(value) || is_scalar(value)) return true;
  if (PyUnicode_Check(value)) return depth > 0;  // of a table of texts: see Exchange
  if (!is_tuple(value)) return is_immutable(value) && !is_enum_member(value) && !PyFloat_Check(value);
  bool all = depth < kDeepest && !Py_TYPE(value)->tp_finalize;  // that of a copy would run, too
  all &= is_immutable(value) || around.provenance->known(value) < 0;
  for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(value); ++i)
    all = can_give(around, unseen, PyTuple_GET_ITEM(value, i), depth + 1);
  return all;
}

// A tuple of numbers that are followed is none that a step could be given.
bool holds_carrier(PyObject* value) {
  if (!is_tuple(value)) return is_carrier(value) || is_flag(value);
  PyObject** items = PySequence_Fast_ITEMS(value);
  return std::any_of(items, items + PyTuple_GET_SIZE(value), holds_carrier);
}

// A whole number that is followed, or a tensor of one.
bool is_place(PyObject* place) {
  if (is_index(place)) return true;
  return is_carrier(place) && !is_real_carrier(place) && is_scalar_carrier(place) == is_long_carrier(place);
}

// Rebuilds a value whose numbers, leaf by leaf, are followed; `given` is what the step gives for it.
class Carrying {
 public:
  Carrying(const Surroundings& around, Unseen* unseen, const std::vector<int>& numbers)
      : around_(around), unseen_(unseen), numbers_(numbers) {}

  py::object of(PyObject* given, PyObject* value) {
    if (is_memory(given)) return array_of(given, value);
    if (is_scalar(given)) return scalar_of(value);
    if (!is_tuple(given)) {
      int number = numbers_[next_++];
      if (number < 0) return py::reinterpret_borrow<py::object>(value);
      NumberRecorder* numbers = around_.recorder->numbers();
      if (PyBool_Check(value))
        return py::reinterpret_steal<py::object>(numbers->flag(number, value == Py_True));
      return py::reinterpret_steal<py::object>(numbers->carrier_of(number, value));
    }
    py::tuple items(PyTuple_GET_SIZE(value));
    bool same = true;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
      items[static_cast<size_t>(i)] = of(PyTuple_GET_ITEM(given, i), PyTuple_GET_ITEM(value, i));
      same &= PyTuple_GET_ITEM(items.ptr(), i) == PyTuple_GET_ITEM(value, i);
    }
    auto made = same ? py::reinterpret_borrow<py::object>(value) : of_class(Py_TYPE(value), std::move(items));
    around_.provenance->note_drawn(made);
    if (!same) around_.exchange->stands_for(made, value);
    return made;
  }

 private:
  py::object scalar_of(PyObject* value) {
    NumberRecorder* numbers = around_.recorder->numbers();
    int number = numbers_[next_++];
    int made = number < 0 ? -1 : number_like(numbers, number, value);
    if (number >= 0 && made < 0) numbers->read(number);
    if (made < 0) return py::reinterpret_borrow<py::object>(value);
    return py::reinterpret_steal<py::object>(numbers->carrier_of(made, value));
  }

  // One that was taken before is another one by now: what a replay takes may be two.
  py::object array_of(PyObject* given, PyObject* value) {
    ++next_;
    auto array = unseen_->is_made(value)
                     ? py::reinterpret_steal<py::object>(PyObject_CallMethod(value, "view", nullptr))
                     : py::reinterpret_borrow<py::object>(value);
    if (!array) throw py::error_already_set();
    around_.provenance->note_drawn(array);
    if (!array.is(py::handle(value))) around_.exchange->stands_for(array, value);
    unseen_->add_made(array, tensor_in(given), false);
    return array;
  }

  const Surroundings& around_;
  Unseen* unseen_;
  const std::vector<int>& numbers_;
  size_t next_ = 0;
};

}  // namespace

// What the call has put into a list of its own as plain numbers is as good as a constant table. Each place of
// a long one would have a copy of it.
py::object DrawnEntries::table_of(PyObject* container) const {
  constexpr Py_ssize_t kLongest = 1024;
  bool list = PyList_CheckExact(container) && PyList_GET_SIZE(container) <= kLongest;
  if (!list || !around_->provenance->is_fresh(container) || around_->provenance->touched(container))
    return py::reinterpret_borrow<py::object>(container);
  PyObject** items = PySequence_Fast_ITEMS(container);
  bool plain = std::all_of(items, items + PyList_GET_SIZE(container), is_number);
  return plain ? py::reinterpret_steal<py::object>(PyList_AsTuple(container))
               : py::reinterpret_borrow<py::object>(container);
}

bool DrawnEntries::may_take(PyObject* container) const {
  if (PyRange_Check(container)) return true;
  bool list = PyList_CheckExact(container) || is_deque(container);
  if (!list && !(is_tuple(container) && gives_items(container))) return false;
  const Provenance* provenance = around_->provenance;
  if (provenance->touched(container) || provenance->is_fresh(container)) return false;
  if (is_tuple(container) && is_immutable(container)) return !holds_carrier(container);
  int node = provenance->known(container);
  if (node < 0 || provenance->structural(node)) return false;
  if (lists_->is(container)) return true;
  return !is_deque(container) && !around_->writes->wrote_to(container) &&
         !around_->writes->took_over(container);
}

// A tensor of one whole number stands for that.
bool DrawnEntries::follow(PyObject** place) const {
  if (is_carrier(*place)) return true;
  Recorder* recorder = around_->recorder;
  py::object value;
  int id = recorder->item_number(THPVariable_Unpack(*place), [&] {
    value = py::reinterpret_steal<py::object>(PyNumber_Index(*place));
    if (!value) throw py::error_already_set();
  });
  if (id < 0) return false;
  Py_SETREF(*place, recorder->numbers()->carrier(id));
  return true;
}

// Nothing where a step cannot give it.
py::object DrawnEntries::take(PyObject* container, PyObject* place) {
  Recorder* recorder = around_->recorder;
  bool live = lists_->is(container);
  LiveLists::Ends ends = live ? lists_->ends_of(container) : LiveLists::Ends();
  if (ends.gone < 0) return {};
  Py_ssize_t at = carrier_value(place);
  // As a replay finds it, before the function has put anything there.
  bool within = at < 0 || at < ends.left;
  auto found = py::reinterpret_steal<py::object>(within ? live ? entry_now(container, at, ends)
                                                               : entry_at(container, at, 0, 0)
                                                        : Py_NewRef(Py_Ellipsis));
  if (!found) throw py::error_already_set();
  bool nothing = found.ptr() == Py_Ellipsis;
  bool fed = recorder->feeding();
  // Python finds it by itself: it must be what the replay has found.
  if (fed && (!recorder->expects(kName) || !is_same(recorder->fed_value().ptr(), found.ptr()))) return {};
  py::object given = fed ? recorder->fed_value() : with_memories(found.ptr());
  if (!fed && (nothing || !can_give(*around_, *unseen_, given.ptr()))) return {};
  py::tuple args = py::make_tuple(py::handle(container), py::handle(place), ends.gone, ends.added);
  OpaqueCall call(*around_, taker(), "", args.ptr(), nullptr, false, true);
  call.gives_numbers();
  call.gives_flags();
  call.finish(given.ptr());
  if (nothing) return {};
  if (fed && !can_give(*around_, *unseen_, given.ptr()))
    recorder->fail(say(reason::OpaqueResult, kName, type_name(found.ptr())));
  if (recorder->stopped()) return found;
  return Carrying(*around_, unseen_, call.numbers()).of(given.ptr(), found.ptr());
}

bool DrawnEntries::before(Frame f, const Operation& operation) {
  if (operation.action != Action::GetsItem || around_->recorder->stopped()) return false;
  if (!around_->recorder->numbers() || around_->recorder->inside_operator()) return false;
  PyObject** container = f.place(operation.first);
  PyObject** place = f.place(operation.second);
  if (!is_place(*place)) return false;
  py::object table = table_of(*container);
  if (!may_take(table.ptr()) || !follow(place)) return false;
  py::object found = take(table.ptr(), *place);
  if (!found) return false;
  lists_->put_alone(container, place, std::move(found));
  return true;
}

}  // namespace lazytrace
