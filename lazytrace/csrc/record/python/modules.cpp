#include "record/python/modules.h"

#include <array>

#include "cpython/holder.h"
#include "cpython/objects.h"
#include "record/python/reads/classes.h"
#include "support/reasons.h"

namespace lazytrace {

namespace {

// Kept for the life of the process; null: not the code that is known.
PyObject *getter_code = nullptr, *wrapper_code = nullptr, *call_code = nullptr, *tracing_state = nullptr;

PyObject* intern(const char* text) { return PyUnicode_InternFromString(text); }

PyObject* code_of(PyObject* function) {
  return function && PyFunction_Check(function) ? PyFunction_GET_CODE(function) : nullptr;
}

// What an instance of a class that looks attributes up as object does has in its __dict__; null: nothing.
PyObject* own_entry(PyObject* object, PyObject* name) {
  PyObject** dict = _PyObject_GetDictPtr(object);
  return dict && *dict ? PyDict_GetItemWithError(*dict, name) : nullptr;
}

// Of `self.__dict__` no class has made anything else.
bool has_plain_namespace(PyObject* object) {
  static PyObject* const name = intern("__dict__");
  PyObject* found = _PyType_Lookup(Py_TYPE(object), name);
  PyObject** dict = _PyObject_GetDictPtr(object);
  return found && Py_IS_TYPE(found, &PyGetSetDescr_Type) && dict && *dict && PyDict_CheckExact(*dict);
}

// A dict that is empty, as those of hooks are.
bool is_empty(PyObject* value) {
  return value && (PyDict_CheckExact(value) || PyODict_CheckExact(value)) && PyDict_GET_SIZE(value) == 0;
}

}  // namespace

void configure_modules(const py::object& getter, const py::object& wrapper, const py::object& call,
                       const py::object& tracing) {
  auto keep = [](const py::object& value) { return value.is_none() ? nullptr : Py_NewRef(value.ptr()); };
  getter_code = keep(getter);
  wrapper_code = keep(wrapper);
  call_code = keep(call);
  tracing_state = keep(tracing);
}

// Its class looks attributes up as torch.nn.Module does.
bool Modules::usable(PyObject* object) const {
  PyTypeObject* type = Py_TYPE(object);
  return is_torch_module(object) && !overrides_getattribute(type) && generic_lookup(type) &&
         has_plain_namespace(object) && !recorder_->inside_operator() && !recorder_->stopped();
}

// ---------------------------------------------------------------- attributes
namespace {
std::array<PyObject*, 3> tables() {
  static PyObject *const parameters = intern("_parameters"), *const buffers = intern("_buffers"),
                         *const modules = intern("_modules");
  return {parameters, buffers, modules};
}

// What Module.__getattr__ returns, and how many of its tables it looks into; null where it would do anything
// else.
PyObject* find_in_tables(PyObject* module, PyObject* name, size_t* asked) {
  *asked = 0;
  for (PyObject* key : tables()) {
    PyObject* table = own_entry(module, key);
    ++*asked;
    if (!table) continue;
    if (!PyDict_CheckExact(table)) return nullptr;
    if (PyObject* value = PyDict_GetItemWithError(table, name)) return value;
  }
  return nullptr;
}
}  // namespace

void Modules::exchange(Frame f, const Operation& operation) {
  if (operation.action != Action::ReadsAttribute || !getter_code) return;
  PyObject** place = f.place(operation.first);
  PyObject *self = *place, *name = f.name(operation.name);
  PyTypeObject* type = Py_TYPE(self);
  if (_PyType_Lookup(type, name) || !usable(self) || own_entry(self, name)) return;
  static PyObject *const getter_name = intern("__getattr__"), *const namespace_name = intern("__dict__");
  PyObject* getter = _PyType_Lookup(type, getter_name);
  if (code_of(getter) != getter_code) return;
  size_t asked = 0;
  PyObject* value = find_in_tables(self, name, &asked);
  // A number in state may have to be followed from the instruction that puts it on the stack.
  if (!value || PyLong_Check(value) || PyFloat_Check(value)) return;
  functions_->read_function(getter);
  PyObject* dict = *_PyObject_GetDictPtr(self);
  for (PyObject* key : tables()) {
    if (!asked--) break;
    calls_->read_attribute_again(self, namespace_name);
    containers_->read_dict_item(dict, key);
    if (PyObject* table = own_entry(self, key)) containers_->read_dict_item(table, name);
  }
  PyObject* holder = new_holder(self, name, value);
  if (!holder) throw py::error_already_set();
  Py_SETREF(*place, holder);
}

// ---------------------------------------------------------------- calls
bool Modules::enter(Frame f) {
  if (!wrapper_code || !call_code || (f.code() != wrapper_code && f.code() != call_code)) return false;
  // Somebody else evaluates frames, and may call Python code before they run.
  if (!evaluates_frames()) return false;
  PyObject* self = f.argument(0);
  if (!self || !usable(self)) return false;
  return f.code() == wrapper_code ? enter_wrapper(f, self) : enter_call(f, self);
}

namespace {
// The method that an object has by its class, borrowed; null where it is anything else.
PyObject* plain_method(PyObject* object, PyObject* name) {
  PyObject* found = own_entry(object, name) ? nullptr : _PyType_Lookup(Py_TYPE(object), name);
  return found && PyFunction_Check(found) ? found : nullptr;
}
}  // namespace

// `if self._compiled_call_impl is not None`, and the call of self._call_impl.
bool Modules::enter_wrapper(Frame f, PyObject* self) {
  static PyObject *const compiled = intern("_compiled_call_impl"), *const call = intern("_call_impl");
  PyObject *own = own_entry(self, compiled), *of_class = _PyType_Lookup(Py_TYPE(self), compiled);
  PyObject* method = plain_method(self, call);
  if (of_class != Py_None || (own && own != Py_None) || code_of(method) != call_code) return false;
  calls_->read_attribute_again(self, compiled);
  calls_->read_attribute_again(self, call);
  return expect(f, method);
}

// Whether a tracer of torch's is at work, self.forward, no hooks of the module or of all, and the call of
// forward.
bool Modules::enter_call(Frame f, PyObject* self) {
  static PyObject* const own[] = {intern("_backward_hooks"), intern("_backward_pre_hooks"),
                                  intern("_forward_hooks"), intern("_forward_pre_hooks")};
  static PyObject* const of_all[] = {intern("_global_backward_pre_hooks"), intern("_global_backward_hooks"),
                                     intern("_global_forward_hooks"), intern("_global_forward_pre_hooks")};
  static PyObject *const torch = intern("torch"), *const c = intern("_C"),
                         *const tracing = intern("_get_tracing_state"), *const forward = intern("forward");
  PyObject* package = PyDict_GetItemWithError(f.globals(), torch);
  PyObject* core = package && PyModule_CheckExact(package)
                       ? PyDict_GetItemWithError(PyModule_GetDict(package), c)
                       : nullptr;
  PyObject* ask =
      core && PyModule_CheckExact(core) ? PyDict_GetItemWithError(PyModule_GetDict(core), tracing) : nullptr;
  PyObject* method = plain_method(self, forward);
  bool plain = ask && ask == tracing_state && method &&
               !(code_flags(PyFunction_GET_CODE(method)) & kThrough) && !whole_calls_->exchanges(method);
  for (PyObject* name : own)
    plain = plain && !_PyType_Lookup(Py_TYPE(self), name) && is_empty(own_entry(self, name));
  for (PyObject* name : of_all) plain = plain && is_empty(PyDict_GetItemWithError(f.globals(), name));
  py::object state = plain ? py::reinterpret_steal<py::object>(PyObject_CallNoArgs(ask)) : py::object();
  if (!state) PyErr_Clear();
  if (!state || !state.is_none()) return false;
  names_->read_global(f, torch);
  calls_->read_attribute_again(package, c);
  calls_->read_attribute_again(core, tracing);
  calls_->enter(f);
  calls_->call(ask, nullptr, 0);
  calls_->read_attribute_again(self, forward);
  for (PyObject* name : own) {
    calls_->read_attribute_again(self, name);
    protocols_->read_length(own_entry(self, name));
  }
  for (PyObject* name : of_all) {
    names_->read_global(f, name);
    protocols_->read_length(PyDict_GetItemWithError(f.globals(), name));
  }
  return expect(f, method);
}

// Another thread may change a module while the frame runs: what it calls next shows whether it went its way.
bool Modules::expect(Frame f, PyObject* callee) {
  instructions_->note_callee(f, true);
  decoded_facts_of(f.code());
  expecting_ = f;
  expected_ = callee;
  return true;
}

void Modules::meet(Frame f) {
  if (f.previous() != expecting_ || f.function() != expected_) return lose();
  expecting_ = Frame();
}

void Modules::lose() {
  expecting_ = Frame();
  recorder_->fail(say(reason::ModuleChanged));
}

}  // namespace lazytrace
