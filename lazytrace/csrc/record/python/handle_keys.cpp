#include "record/python/handle_keys.h"

#include "cpython/carrier.h"
#include "cpython/imports.h"
#include "cpython/objects.h"
#include "record/python/code_facts.h"

namespace lazytrace {

PyTypeObject* handle_class() {
  static PyObject* const type = from_module("torch.utils.hooks", "RemovableHandle").release().ptr();
  return reinterpret_cast<PyTypeObject*>(type);
}

namespace {
bool is_handle(PyObject* object) { return object && Py_IS_TYPE(object, handle_class()); }

bool is_counted(PyObject* value) { return value && is_carrier(value) && !is_real_carrier(value); }
}  // namespace

void HandleKeys::exchange(Frame f, const Operation& operation) {
  static PyObject *const init = PyUnicode_InternFromString("__init__"), *const id =
                                                                            PyUnicode_InternFromString("id");
  if (!recorder_->numbers() || !(code_flags(f.code()) & kTorchs)) return;
  switch (operation.action) {
    case Action::SetsAttribute: {
      PyObject* value = f.peek(operation.second);
      // One that is unpickled gets the number of another one.
      bool counted = is_counted(value) && is_handle(f.peek(operation.first)) && is_text(f.code_name(), init);
      if (counted && is_text(f.name(operation.name), id))
        numbers_.insert(recorder_->numbers()->number_of(value));
      return;
    }
    case Action::SetsItem:
    case Action::Contains:
      return exchange_key(f.peek(operation.first), f.place(operation.second));
    default:
      return;
  }
}

void HandleKeys::exchange_key(PyObject* container, PyObject** key) {
  if (numbers_.empty() || !is_counted(*key) || !PyDict_Check(container)) return;
  if (!numbers_.count(recorder_->numbers()->number_of(*key))) return;
  if (provenance_->known(container) < 0 || provenance_->is_fresh(container)) return;
  // Beside other keys it might be one of them, as where the count was set back.
  if (!provenance_->holds_only_handle_keys(container)) return;
  containers_->read_length(container);
  PyObject* plain = plain_of_carrier(*key);
  if (!plain) throw py::error_already_set();
  provenance_->note_handle_key(container, plain);
  Py_SETREF(*key, plain);
}

}  // namespace lazytrace
