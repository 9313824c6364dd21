#include "call/wrapper.h"

#include <structmember.h>

#include <algorithm>

#include "cpython/frame.h"
#include "record/python/code_facts.h"

namespace lazytrace {

namespace {

// What follows wrapt's own fields in a wrapper. Zero until arm(): such a wrapper is called through __call__.
struct Armed {
  vectorcallfunc vectorcall;
  PyObject *engine, *function, *defaults;  // owned
  std::shared_ptr<Matcher>* matcher;       // owned
  bool passes_instance;
};

struct ArmedBound {
  vectorcallfunc vectorcall;
};

PyTypeObject* function_base = nullptr;  // wrapt's classes
PyTypeObject* bound_base = nullptr;
PyTypeObject* function_type = nullptr;  // and ours
PyTypeObject* bound_type = nullptr;

template <typename T>
T* fields(PyObject* self, PyTypeObject* base) {
  return reinterpret_cast<T*>(reinterpret_cast<char*>(self) + base->tp_basicsize);
}

Armed* armed(PyObject* self) { return fields<Armed>(self, function_base); }

int clear(PyObject* self) {
  Armed* a = armed(self);
  a->vectorcall = nullptr;
  Py_CLEAR(a->engine);
  Py_CLEAR(a->function);
  Py_CLEAR(a->defaults);
  delete a->matcher;
  a->matcher = nullptr;
  return 0;
}

int tp_clear(PyObject* self) {
  clear(self);
  return function_base->tp_clear(self);
}

int tp_traverse(PyObject* self, visitproc visit, void* arg) {
  Armed* a = armed(self);
  Py_VISIT(a->engine);
  Py_VISIT(a->function);
  Py_VISIT(a->defaults);
  return function_base->tp_traverse(self, visit, arg);
}

void tp_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear(self);
  function_base->tp_dealloc(self);
  // The dealloc of a class made at run time lets go of the class of the object, that of a static one does
  // not.
  if (!PyType_HasFeature(function_base, Py_TPFLAGS_HEAPTYPE)) Py_DECREF(type);
}

// Where the code of lazytrace ends that called a replay, or raised again what one had.
const std::vector<PyObject*>* replaying = nullptr;

// What the function has raised came through frames of lazytrace, which are not the program's: the outermost
// ones, or all of them, where a replay has raised it. What lazytrace itself raises keeps them.
void drop_engine_frames() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  auto* first = reinterpret_cast<PyTracebackObject*>(traceback);
  PyObject* last = nullptr;  // borrowed from its frame
  while (first) {
    PyObject* code = Frame(first->tb_frame).code();
    if (!is_engine_code(code)) break;
    last = code;
    first = first->tb_next;
  }
  bool by_replay = !first && replaying && last &&
                   std::find(replaying->begin(), replaying->end(), last) != replaying->end();
  if ((first || by_replay) && reinterpret_cast<PyObject*>(first) != traceback) {
    Py_XINCREF(first);
    Py_XSETREF(traceback, reinterpret_cast<PyObject*>(first));
    PyException_SetTraceback(value, traceback ? traceback : Py_None);
  }
  PyErr_Restore(type, value, traceback);
}

PyObject* engine_call(const Matcher::Callee& callee, const Passed& passed) {
  static PyObject* name = PyUnicode_InternFromString("call");
  py::tuple both = packed(passed);
  PyObject* instance = callee.instance ? callee.instance : Py_None;
  return PyObject_CallMethodObjArgs(callee.engine, name, instance, both[0].ptr(), both[1].ptr(), nullptr);
}

PyObject* answer(const Armed& a, PyObject* instance, const Passed& passed) try {
  Matcher::Callee callee{a.engine, a.function, a.defaults, instance};
  PyObject* result = (*a.matcher)->call(callee, passed);
  if (!result && !PyErr_Occurred()) result = engine_call(callee, passed);
  if (!result) drop_engine_frames();
  return result;
} catch (py::error_already_set& error) {
  error.restore();
  return nullptr;
} catch (const std::exception& error) {
  PyErr_SetString(PyExc_RuntimeError, error.what());
  return nullptr;
}

PyObject* call_function(PyObject* self, PyObject* const* args, size_t count, PyObject* names) {
  Py_ssize_t positional = PyVectorcall_NARGS(count);
  return answer(*armed(self), nullptr, {args, positional, names, args + positional});
}

PyObject* call_through_python(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) try {
  py::tuple both = packed({args, count, names, args + count});
  return Py_TYPE(self)->tp_call(self, both[0].ptr(), both[1].ptr());
} catch (py::error_already_set& error) {
  error.restore();
  return nullptr;
}

PyObject* call_bound(PyObject* self, PyObject* const* args, size_t count, PyObject* names) {
  static PyObject* parent_name = PyUnicode_InternFromString("_self_parent");
  static PyObject* instance_name = PyUnicode_InternFromString("_self_instance");
  Py_ssize_t positional = PyVectorcall_NARGS(count);
  py::object parent = py::reinterpret_steal<py::object>(PyObject_GetAttr(self, parent_name));
  if (!parent) return nullptr;
  bool known = PyObject_TypeCheck(parent.ptr(), function_type) && armed(parent.ptr())->vectorcall;
  if (!known || !armed(parent.ptr())->passes_instance)
    return call_through_python(self, args, positional, names);
  const Armed& a = *armed(parent.ptr());
  py::object instance = py::reinterpret_steal<py::object>(PyObject_GetAttr(self, instance_name));
  if (!instance) return nullptr;
  if (instance.is_none()) return answer(a, nullptr, {args, positional, names, args + positional});
  Py_ssize_t keywords = names ? PyTuple_GET_SIZE(names) : 0;
  c10::SmallVector<PyObject*, 16> all;
  all.reserve(static_cast<size_t>(1 + positional + keywords));
  all.push_back(instance.ptr());
  all.append(args, args + positional + keywords);
  PyObject* owner = PyType_Check(instance.ptr()) ? nullptr : instance.ptr();
  return answer(a, owner, {all.data(), 1 + positional, names, all.data() + 1 + positional});
}

PyObject* new_bound(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject* self = bound_base->tp_new(type, args, kwargs);
  if (self) fields<ArmedBound>(self, bound_base)->vectorcall = call_bound;
  return self;
}

PyTypeObject* make_class(const char* name, PyTypeObject* base, size_t size, std::vector<PyType_Slot> slots) {
  PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, base->tp_basicsize, READONLY, nullptr}, {}};
  slots.push_back({Py_tp_members, members});
  slots.push_back({0, nullptr});
  PyType_Spec spec = {name, static_cast<int>(base->tp_basicsize + static_cast<Py_ssize_t>(size)), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots.data()};
  PyObject* made = PyType_FromSpecWithBases(&spec, reinterpret_cast<PyObject*>(base));
  if (!made) throw py::error_already_set();
  return reinterpret_cast<PyTypeObject*>(made);
}

}  // namespace

py::tuple make_wrapper_classes(py::object function_wrapper, py::object bound_wrapper) {
  function_base = reinterpret_cast<PyTypeObject*>(function_wrapper.inc_ref().ptr());
  bound_base = reinterpret_cast<PyTypeObject*>(bound_wrapper.inc_ref().ptr());
  function_type = make_class("lazytrace._core.Wrapper", function_base, sizeof(Armed),
                             {{Py_tp_dealloc, reinterpret_cast<void*>(tp_dealloc)},
                              {Py_tp_traverse, reinterpret_cast<void*>(tp_traverse)},
                              {Py_tp_clear, reinterpret_cast<void*>(tp_clear)}});
  bound_type = make_class("lazytrace._core.BoundWrapper", bound_base, sizeof(ArmedBound),
                          {{Py_tp_new, reinterpret_cast<void*>(new_bound)},
                           {Py_tp_traverse, reinterpret_cast<void*>(bound_base->tp_traverse)},
                           {Py_tp_clear, reinterpret_cast<void*>(bound_base->tp_clear)},
                           {Py_tp_dealloc, reinterpret_cast<void*>(bound_base->tp_dealloc)}});
  return py::make_tuple(py::handle(reinterpret_cast<PyObject*>(function_type)),
                        py::handle(reinterpret_cast<PyObject*>(bound_type)));
}

void call_natively(py::object cls) {
  auto* type = reinterpret_cast<PyTypeObject*>(cls.ptr());
  if (!PyType_IsSubtype(type, function_type) && !PyType_IsSubtype(type, bound_type))
    throw py::type_error("not a class of traced functions");
  // Python 3.11 does not hand this flag down, as a subclass may define __call__; ours does so for those calls
  // that are no hits.
  type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
  PyType_Modified(type);
}

void configure_replaying(std::vector<py::object> functions) {
  static std::vector<PyObject*> codes;
  for (py::object& one : functions) codes.push_back(py::object(one.attr("__code__")).release().ptr());
  replaying = &codes;
}

void arm(py::object wrapper, py::object engine, py::object function, py::object defaults,
         std::shared_ptr<Matcher> matcher, bool passes_instance) {
  if (!PyObject_TypeCheck(wrapper.ptr(), function_type)) throw py::type_error("not a traced function");
  clear(wrapper.ptr());
  Armed* a = armed(wrapper.ptr());
  a->engine = engine.release().ptr();
  a->function = function.release().ptr();
  a->defaults = defaults.release().ptr();
  a->matcher = new std::shared_ptr<Matcher>(std::move(matcher));
  a->passes_instance = passes_instance;
  a->vectorcall = call_function;
}

}  // namespace lazytrace
