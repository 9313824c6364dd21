#include "record/python/calls/warnings.h"

#include "cpython/objects.h"
#include "cpython/warning_filters.h"
#include "record/python/code_facts.h"
#include "support/reasons.h"

namespace lazytrace {

namespace {
PyObject* warnings_module() { return PyImport_AddModule("warnings"); }

PyObject* named(const char* name) { return PyDict_GetItemString(PyModule_GetDict(warnings_module()), name); }

// A parameter of warn() by its place or its name; null where it is not given.
PyObject* argument(const char* name, Py_ssize_t place, PyObject* const* args, Py_ssize_t count,
                   PyObject* names) {
  Py_ssize_t keywords = names ? PyTuple_GET_SIZE(names) : 0, positional = count - keywords;
  if (place < positional) return args[place];
  for (Py_ssize_t i = 0; i < keywords; ++i)
    if (text_of(PyTuple_GET_ITEM(names, i)) == name) return args[positional + i];
  return nullptr;
}

bool is_subtype(PyObject* type, PyObject* of) {
  return PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type), reinterpret_cast<PyTypeObject*>(of)) != 0;
}
}  // namespace

void WarningReads::warn(Frame caller, PyObject* const* args, Py_ssize_t count, PyObject* names, bool spread) {
  read_filters();
  PyObject* level = argument("stacklevel", 2, args, count, names);
  int overflow = 0;
  long up = level && PyLong_CheckExact(level) ? PyLong_AsLongAndOverflow(level, &overflow) : 1;
  Frame place = overflow ? Frame() : frame_above(caller, up - 1);
  PyObject* message = argument("message", 0, args, count, names);
  if (!place || spread || !message) return recorder_->fail(say(reason::WarnsAround));
  read_registry(place, message, argument("category", 1, args, count, names));
  consumption_->hand_over(args, count, Consumer::Text);
}

// Under a filter that raises, a warning is an exception.
void WarningReads::read_filters() {
  PyObject* filters = named("filters");
  provenance_->weak_node(warnings_module());
  attributes_->read_module_attribute(warnings_module(), py::str("filters").ptr());
  if (filters) consumption_->consume(filters, Consumer::Reads);
}

// One that the module of its place has given is not given again, as long as nobody says that the filters have
// changed.
void WarningReads::read_registry(Frame place, PyObject* message, PyObject* category) {
  static PyObject* const name = PyUnicode_InternFromString("__warningregistry__");
  PyObject* registry = PyDict_GetItemWithError(place.globals(), name);
  if (!category || category == Py_None) category = PyExc_UserWarning;
  py::object text = py::reinterpret_borrow<py::object>(message);
  if (PyObject_TypeCheck(message, reinterpret_cast<PyTypeObject*>(PyExc_Warning))) {
    category = reinterpret_cast<PyObject*>(Py_TYPE(message));
    text = py::str(text);
  } else if (!PyUnicode_CheckExact(message)) {
    // Of anything else the registry holds the object itself: what finds it may be Python code, or raise.
    return recorder_->fail(say(reason::WarnsAround));
  }
  py::tuple key =
      py::make_tuple(text, py::handle(category), PyCode_Addr2Line(place.code_object(), place.lasti()));
  bool known = registry && PyDict_CheckExact(registry);
  PyObject* given = known ? PyDict_GetItemWithError(registry, key.ptr()) : nullptr;
  if (!given) return remembers_elsewhere(category) ? recorder_->fail(say(reason::WarnsOnce)) : void();
  int node = provenance_->module_of(place.globals());
  if (node < 0) return recorder_->fail(say(reason::WarnsAround));
  provenance_->read_child(-1, Access::WarningFilters, nullptr, -1, py::int_(warning_filters_version()).ptr());
  node = provenance_->read_node(node, Access::Instance, name, -1, registry).first;
  provenance_->read_child(node, Access::Item, key.ptr(), -1, given);
}

// Whether it may be that a filter has it remembered for all places what was given. The first filter that
// matches decides; one that asks for a text, a module or a line may match.
bool WarningReads::remembers_elsewhere(PyObject* category) const {
  auto once = [](PyObject* action) {
    std::string text = action ? text_of(action) : "";
    return text == "once" || text == "module";
  };
  PyObject* filters = named("filters");
  for (Py_ssize_t i = 0; filters && PyList_Check(filters) && i < PyList_GET_SIZE(filters); ++i) {
    PyObject* filter = PyList_GET_ITEM(filters, i);
    if (!PyTuple_CheckExact(filter) || PyTuple_GET_SIZE(filter) != 5) return true;
    auto part = [&](Py_ssize_t at) { return PyTuple_GET_ITEM(filter, at); };
    if (!PyType_Check(part(2)) || !PyType_Check(category)) return true;
    if (!is_subtype(category, part(2))) continue;
    bool line = !PyLong_CheckExact(part(4)) || Py_SIZE(part(4)) != 0;
    bool for_all = part(1) == Py_None && part(3) == Py_None && !line;
    if (for_all || once(part(0))) return once(part(0));
  }
  return once(named("defaultaction"));
}

}  // namespace lazytrace
