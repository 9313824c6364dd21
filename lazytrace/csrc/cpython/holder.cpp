#include "cpython/holder.h"

namespace lazytrace {

namespace {

// Out of the collector's sight: on the stack of a frame, from one instruction to the next.
struct Holder {
  PyObject_HEAD;
  PyObject *owner, *name, *value;
};

PyObject* get(PyObject* self, PyObject* name) {
  auto* holder = reinterpret_cast<Holder*>(self);
  if (holder->name == name) return Py_NewRef(holder->value);
  PyErr_SetObject(PyExc_AttributeError, name);
  return nullptr;
}

void drop_holder(PyObject* self) {
  auto* holder = reinterpret_cast<Holder*>(self);
  Py_DECREF(holder->value);
  Py_DECREF(holder->name);
  Py_DECREF(holder->owner);
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

PyTypeObject* holder_type() {
  static auto* made = [] {
    static PyType_Slot slots[] = {{Py_tp_getattro, reinterpret_cast<void*>(get)},
                                  {Py_tp_dealloc, reinterpret_cast<void*>(drop_holder)},
                                  {0, nullptr}};
    static PyType_Spec spec = {"lazytrace.Holder", sizeof(Holder), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  }();
  return made;
}

}  // namespace

PyObject* new_holder(PyObject* owner, PyObject* name, PyObject* value) {
  PyTypeObject* type = holder_type();
  auto* made = type ? reinterpret_cast<Holder*>(type->tp_alloc(type, 0)) : nullptr;
  if (!made) return nullptr;
  made->owner = Py_NewRef(owner);
  made->name = Py_NewRef(name);
  made->value = Py_NewRef(value);
  return reinterpret_cast<PyObject*>(made);
}

}  // namespace lazytrace
