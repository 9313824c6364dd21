#include "cpython/carried_iterator.h"

namespace lazytrace {

namespace {

struct CarriedIterator {
  PyObject_HEAD;
  PyObject *inner, *plain, *carried;  // owned
  Py_ssize_t next;
};

CarriedIterator* of(PyObject* self) { return reinterpret_cast<CarriedIterator*>(self); }

void drop_iterator(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Py_XDECREF(of(self)->inner);
  Py_XDECREF(of(self)->plain);
  Py_XDECREF(of(self)->carried);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* advance(PyObject* self) {
  PyObject* value = PyIter_Next(of(self)->inner);
  Py_ssize_t at = of(self)->next++;
  if (!value || at >= PyList_GET_SIZE(of(self)->plain) || PyList_GET_ITEM(of(self)->plain, at) != value)
    return value;
  Py_DECREF(value);
  return Py_NewRef(PyList_GET_ITEM(of(self)->carried, at));
}

PyTypeObject* type_of_iterator() {
  static PyTypeObject* const made = [] {
    static PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(drop_iterator)},
                                  {Py_tp_iter, reinterpret_cast<void*>(PyObject_SelfIter)},
                                  {Py_tp_iternext, reinterpret_cast<void*>(advance)},
                                  {0, nullptr}};
    static PyType_Spec spec = {"lazytrace.iterator", sizeof(CarriedIterator), 0, Py_TPFLAGS_DEFAULT, slots};
    return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  }();
  return made;
}

}  // namespace

py::object carried_iterator(py::object list, py::list plain, py::list carried) {
  PyObject* inner = PyObject_GetIter(list.ptr());
  if (!inner || !type_of_iterator()) throw py::error_already_set();
  PyObject* made = type_of_iterator()->tp_alloc(type_of_iterator(), 0);
  if (!made) throw py::error_already_set();
  of(made)->inner = inner;
  of(made)->plain = plain.release().ptr();
  of(made)->carried = carried.release().ptr();
  return py::reinterpret_steal<py::object>(made);
}

PyObject* carried_entries(PyObject* iterator) {
  return Py_IS_TYPE(iterator, type_of_iterator()) ? of(iterator)->carried : nullptr;
}

bool carry_no_more(PyObject* iterator) {
  if (!Py_IS_TYPE(iterator, type_of_iterator())) return false;
  Py_SETREF(of(iterator)->carried, Py_NewRef(of(iterator)->plain));
  return true;
}

}  // namespace lazytrace
