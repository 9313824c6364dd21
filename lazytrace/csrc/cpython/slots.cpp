#include "cpython/slots.h"

#include <structmember.h>

#include "cpython/objects.h"

namespace lazytrace {

namespace {
// Null where the class has none under the name.
const PyMemberDef* slot_of(PyObject* object, PyObject* name) {
  PyObject* found = _PyType_Lookup(Py_TYPE(object), name);
  if (!found || !Py_IS_TYPE(found, &PyMemberDescr_Type)) return nullptr;
  const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(found)->d_member;
  bool plain = is_python_class(Py_TYPE(object)) && c_base(Py_TYPE(object)) == &PyBaseObject_Type;
  return plain && member->type == T_OBJECT_EX && !(member->flags & READONLY) ? member : nullptr;
}
}  // namespace

bool is_slot(PyObject* object, PyObject* name) { return slot_of(object, name); }

bool is_kept_as_number(PyObject* object, PyObject* name) {
  PyObject* found = _PyType_Lookup(Py_TYPE(object), name);
  if (!found || !Py_IS_TYPE(found, &PyMemberDescr_Type)) return false;
  int kind = reinterpret_cast<PyMemberDescrObject*>(found)->d_member->type;
  return kind != T_OBJECT && kind != T_OBJECT_EX;
}

py::object held_by_slot(PyObject* object, PyObject* name) {
  const PyMemberDef* slot = slot_of(object, name);
  if (!slot) return {};
  return py::reinterpret_borrow<py::object>(
      *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + slot->offset));
}

}  // namespace lazytrace
