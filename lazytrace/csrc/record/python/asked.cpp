#include "record/python/asked.h"

#include <string>
#include <utility>

#include "cpython/carrier.h"
#include "support/address_map.h"

namespace lazytrace {

namespace {
AddressMap<AskedFunction>& known_functions() {
  static auto* known = new AddressMap<AskedFunction>();
  return *known;
}

// What the class has under the name of a builtin method.
PyObject* method_of(PyCFunctionObject* bound) {
  PyObject* self = bound->m_self;
  if (!self || PyModule_Check(self) || PyType_Check(self)) return nullptr;
  py::object name = py::reinterpret_steal<py::object>(PyUnicode_FromString(bound->m_ml->ml_name));
  if (!name) throw py::error_already_set();
  PyObject* found = _PyType_Lookup(Py_TYPE(self), name.ptr());
  bool same = found && Py_IS_TYPE(found, &PyMethodDescr_Type) &&
              reinterpret_cast<PyMethodDescrObject*>(found)->d_method == bound->m_ml;
  return same ? found : nullptr;
}

// Kept for the life of the process.
struct OfNumpy {
  PyObject* step = nullptr;
  PyObject* functions = nullptr;  // null once they are known
};

OfNumpy& of_numpy_later() {
  static OfNumpy later;
  return later;
}

void know(const py::dict& functions, const py::handle& step) {
  py::object partial = py::module_::import("functools").attr("partial");
  for (auto [function, word] : functions) {
    std::string kind = py::cast<std::string>(word);
    std::string name = py::cast<std::string>(function.attr("__qualname__"));
    if (PyCFunction_Check(function.ptr()))
      name = py::cast<std::string>(function.attr("__module__")) + "." + name;
    Py_INCREF(function.ptr());
    known_functions()[function.ptr()] = {kind != "clock", kind == "bits", kind == "below", std::move(name),
                                         partial(step, function).release().ptr()};
  }
}
}  // namespace

void configure_asked(const py::dict& functions, const py::object& step, const py::object& of_numpy) {
  know(functions, step);
  of_numpy_later() = {Py_NewRef(step.ptr()), Py_NewRef(of_numpy.ptr())};
}

void know_asked_of_numpy() {
  OfNumpy& later = of_numpy_later();
  if (!later.functions || !PyDict_GetItemString(PyImport_GetModuleDict(), "numpy.random")) return;
  PyObject* functions = std::exchange(later.functions, nullptr);
  know(py::cast<py::dict>(py::handle(functions)()), later.step);
}

const AskedFunction* asked_function(PyObject* function) { return known_functions().find(function); }

namespace {
AskedCall take_apart(PyObject* callable) {
  if (const AskedFunction* asked = asked_function(callable)) return {asked, nullptr};
  if (PyMethod_Check(callable)) {
    const AskedFunction* asked = asked_function(PyMethod_GET_FUNCTION(callable));
    return {asked, asked ? PyMethod_GET_SELF(callable) : nullptr};
  }
  if (!PyCFunction_Check(callable)) return {};
  auto* bound = reinterpret_cast<PyCFunctionObject*>(callable);
  PyObject* method = method_of(bound);
  const AskedFunction* asked = method ? asked_function(method) : nullptr;
  return {asked, asked ? bound->m_self : nullptr};
}

// Whether so many bits are always an int64.
bool fits_bits(PyObject* bits) {
  constexpr long kMost = 63;
  if (!bits || !PyLong_CheckExact(bits)) return false;
  long count = PyLong_AsLong(bits);
  PyErr_Clear();
  return count >= 0 && count <= kMost;
}

// Whether an int64 is below it, and `self` draws bits as C does.
bool fits_bound(PyObject* self, PyObject* bound) {
  if (!self || !bound) return false;
  static PyObject* bits = PyUnicode_InternFromString("getrandbits");
  PyObject* draws = _PyType_Lookup(Py_TYPE(self), bits);
  const AskedFunction* known = draws ? asked_function(draws) : nullptr;
  PyObject** own = _PyObject_GetDictPtr(self);
  if (!known || !known->bits || (own && *own && PyDict_GetItemWithError(*own, bits))) return false;
  if (is_carrier(bound)) return true;
  if (!PyLong_CheckExact(bound)) return false;
  int overflow = 0;
  return PyLong_AsLongLongAndOverflow(bound, &overflow) > 0 && !overflow;
}
}  // namespace

AskedCall asked_call(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  AskedCall call = take_apart(callable);
  if (!call.asked || (!call.asked->bits && !call.asked->below)) return call;
  // A method that stands below its object has that for its first argument.
  bool found = Py_IS_TYPE(callable, &PyMethodDescr_Type) || PyFunction_Check(callable);
  PyObject* self = found ? (count ? args[0] : nullptr) : call.self;
  PyObject* number = count == found + 1 ? args[found] : nullptr;
  bool fits = call.asked->bits ? fits_bits(number) : fits_bound(self, number);
  return fits ? call : AskedCall();
}

}  // namespace lazytrace
