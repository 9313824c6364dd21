#include "record/python/asked.h"

#include <algorithm>
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

// What the known ones among methods of C are made of.
AddressSet& known_methods() {
  static auto* known = new AddressSet();
  return *known;
}

// What the class has under the name of a builtin method, if one of its kind is known.
PyObject* method_of(PyCFunctionObject* bound) {
  PyObject* self = bound->m_self;
  if (!self || PyModule_Check(self) || PyType_Check(self) || !known_methods().count(bound->m_ml))
    return nullptr;
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
    if (Py_IS_TYPE(function.ptr(), &PyMethodDescr_Type))
      known_methods().insert(reinterpret_cast<PyMethodDescrObject*>(function.ptr())->d_method);
    known_functions()[function.ptr()] = {
        kind != "clock" && kind != "sample",    kind == "bits",   kind == "below",
        kind == "counts" || kind == "sample",   kind == "within", std::move(name),
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

// Whether the method of `self` is one of Python's library.
bool is_as_known(PyObject* self, PyObject* method) {
  PyObject* found = _PyType_Lookup(Py_TYPE(self), method);
  PyObject** own = _PyObject_GetDictPtr(self);
  return found && asked_function(found) && !(own && *own && PyDict_GetItemWithError(*own, method));
}

bool draws_as_known(PyObject* self, const AskedFunction& asked) {
  const auto& methods = methods_drawn_by(asked);
  return self && std::all_of(methods.begin(), methods.end(),
                             [&](PyObject* method) { return is_as_known(self, method); });
}

// Whether an int64 is below it.
bool fits_bound(PyObject* bound) {
  if (!bound) return false;
  if (is_carrier(bound)) return true;
  if (!PyLong_CheckExact(bound)) return false;
  int overflow = 0;
  return PyLong_AsLongLongAndOverflow(bound, &overflow) > 0 && !overflow;
}
}  // namespace

const std::vector<PyObject*>& methods_drawn_by(const AskedFunction& asked) {
  auto name = [](const char* text) { return PyUnicode_InternFromString(text); };
  static const std::vector<PyObject*> none, below = {name("getrandbits")},
                                            within = {name("random"), name("gammavariate")};
  return asked.below ? below : asked.within ? within : none;
}

AskedCall asked_call(PyObject* callable, PyObject* const* args, Py_ssize_t count) {
  AskedCall call = take_apart(callable);
  if (!call.asked || !(call.asked->bits || call.asked->below || call.asked->within)) return call;
  // A method that stands below its object has that for its first argument.
  bool found = Py_IS_TYPE(callable, &PyMethodDescr_Type) || PyFunction_Check(callable);
  PyObject* self = found ? (count ? args[0] : nullptr) : call.self;
  PyObject* number = count == found + 1 ? args[found] : nullptr;
  if (!call.asked->bits && !draws_as_known(self, *call.asked)) return {};
  bool fits = call.asked->within || (call.asked->bits ? fits_bits(number) : fits_bound(number));
  return fits ? call : AskedCall();
}

}  // namespace lazytrace
