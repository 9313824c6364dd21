// Reads of classes: what a lookup finds on them, and the special methods that C code looks up.
#pragma once

#include "record/operators/recorder.h"
#include "record/python/provenance.h"

namespace lazytrace {

// The name that a class statement gave.
std::string class_text(PyTypeObject* type);
// Whether a class answers attributes in Python code of its own, or looks them up as object does.
bool overrides_getattribute(PyTypeObject* type);
bool generic_lookup(PyTypeObject* type);
// Whether it gets attributes as a property does, whatever else its class has; and whether by a function of
// Python.
bool is_property(PyObject* value);
bool gets_by_python(PyObject* property);
// Those that a class is derived from directly.
template <class Use>
void each_base(PyTypeObject* type, Use use) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_bases); ++i)
    use(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_bases, i)));
}

// Each read leaves guards for what was found. Needs the GIL; runs no Python code of the user.
class ClassReads {
 public:
  ClassReads(Recorder* recorder, Provenance* provenance) : recorder_(recorder), provenance_(provenance) {}

  void read_class(PyTypeObject* type, PyObject* name, PyObject* value);
  // What an entry of a class, found at a node, does when it is looked up on an instance.
  void read_behind(int node, PyObject* value);
  // What setting a property calls, or deleting it: its `part`.
  void read_setter(PyTypeObject* type, PyObject* name, PyObject* property, const char* part,
                   PyObject* setter);
  // How what a class has is bound to an instance, and whether before what the instance has.
  void read_binding(PyObject* value);
  // A special method on the class of the object; `name` is a literal.
  void read_special(PyObject* object, const char* name);
  // What is looked up on a class itself and called by C code: __init__, __class_getitem__.
  void read_hook(PyTypeObject* type, const char* name) { read_special(type, interned(name)); }
  // Which special methods the class has, and which functions they are.
  void read_specials(PyTypeObject* type);
  // What a class of C has never changes.
  void know_static(PyObject* value);

 private:
  static PyObject* interned(const char* name);
  void read_special(PyTypeObject* type, PyObject* name);
  void read_inherited(PyTypeObject* type, PyObject* name);
  void read_bound_to_class(PyObject* descriptor);
  // By the call.
  bool is_made(PyTypeObject* type) const;

  Recorder* recorder_;
  Provenance* provenance_;
};

}  // namespace lazytrace
