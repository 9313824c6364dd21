#include "record/python/new_objects.h"

#include "cpython/objects.h"

namespace lazytrace {

bool makes_new(PyTypeObject* type) {
  if (type == &PyFunction_Type) return true;
  static PyObject *make = PyUnicode_InternFromString("__new__"),
                  *call = PyUnicode_InternFromString("__call__");
  PyObject *new_method = _PyType_Lookup(type, make), *meta_call = _PyType_Lookup(Py_TYPE(type), call);
  return new_method && PyCFunction_Check(new_method) && meta_call &&
         Py_IS_TYPE(meta_call, &PyWrapperDescr_Type);
}

void NewObjects::expect(Frame f, PyTypeObject* type) {
  for (auto& [frame, made] : pending_)
    if (frame == f) {
      made = type;
      return;
    }
  pending_.emplace_back(f, type);
}

void NewObjects::forget(Frame f) {
  for (size_t i = pending_.size(); i-- > 0;)
    if (pending_[i].first == f) pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
}

PyTypeObject* NewObjects::pending_of(Frame f) const {
  for (auto& [frame, type] : pending_)
    if (frame == f) return type;
  return nullptr;
}

void NewObjects::note_built(Frame f) { provenance_->note_made(f.peek(1)); }

void NewObjects::note_class_arguments(Frame f) {
  if (!class_statement_ || f.previous() != class_statement_) return;
  for (int i = 0; i < f.code_object()->co_argcount; ++i) {
    PyObject* value = f.argument(i);
    if (value && (PyTuple_CheckExact(value) || PyDict_CheckExact(value)) && Py_SIZE(value) &&
        provenance_->known(value) < 0)
      provenance_->note_made(value);
  }
}

void NewObjects::enter(Frame f) {
  note_class_arguments(f);
  note_arguments(f);
  note_initialized(f);
}

// The tuple behind *args and the dict behind **kwargs are made for the call.
void NewObjects::note_arguments(Frame f) {
  PyCodeObject* code = f.code_object();
  int at = code->co_argcount + code->co_kwonlyargcount;
  for (int flag : {CO_VARARGS, CO_VARKEYWORDS}) {
    if (!(code->co_flags & flag)) continue;
    PyObject* made = f.variable(at++);
    if (made && Py_SIZE(made)) provenance_->note_made(made);
    if (made && PyDict_Check(made)) provenance_->note_made(made);
  }
}

// The object is new from the first line of its __init__ on.
void NewObjects::note_initialized(Frame f) {
  PyTypeObject* type = f.previous() ? pending_of(f.previous()) : nullptr;
  if (!type || text_of(f.code_name()) != "__init__") return;
  PyObject* self = f.argument(0);
  if (self && Py_TYPE(self) == type && makes_new(type) && provenance_->known(self) < 0)
    provenance_->note_fresh(self);
}

void NewObjects::settle(Frame f) {
  if (makes_class_ == f) {
    makes_class_ = class_statement_ = Frame();
    PyObject* made = f.has_stack() ? f.peek(1) : nullptr;
    if (made && PyType_Check(made) && provenance_->known(made) < 0) provenance_->note_fresh(made);
  }
  PyTypeObject* type = pending_of(f);
  if (!type) return;
  forget(f);
  if (!f.has_stack()) return;
  PyObject* made = f.peek(1);
  if (made && Py_TYPE(made) == type && makes_new(type) && provenance_->known(made) < 0)
    provenance_->note_fresh(made);
}

}  // namespace lazytrace
