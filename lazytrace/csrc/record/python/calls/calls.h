// What a call does to and with the state around it.
#pragma once

#include <string>

#include "cpython/frame.h"
#include "record/operators/recorder.h"
#include "record/python/asides.h"
#include "record/python/calls/context_variables.h"
#include "record/python/calls/protocols.h"
#include "record/python/calls/warnings.h"
#include "record/python/new_objects.h"
#include "record/python/provenance.h"
#include "record/python/reads/attributes.h"
#include "record/python/reads/classes.h"
#include "record/python/reads/consumption.h"
#include "record/python/reads/containers.h"
#include "record/python/state_writes.h"

namespace lazytrace {

enum class Does : uint8_t;

// Judges callables: by their kind, and callables of C by what callables.def says of them. Needs the GIL; runs
// no Python code of the user.
class Calls {
 public:
  Calls(Recorder* recorder, GuardTree* tree, Provenance* provenance, NewObjects* new_objects, Asides* asides,
        ClassReads* classes, ContainerReads* containers, AttributeReads* attributes, Consumption* consumption,
        StateWrites* writes, Protocols* protocols, ContextVariables* context_variables,
        WarningReads* warnings);

  // The frame that makes the call that comes next, and its keywords, borrowed from its code.
  void enter(Frame f) { calling_ = f; }
  PyObject* keyword_names() const { return keyword_names_; }
  void name_keywords(PyObject* names) { keyword_names_ = names; }

  void call(PyObject* callable, PyObject* const* args, Py_ssize_t count);
  // Whether a call that an instruction makes is made again at each replay, and its number followed. C code
  // that is handed such a function calls it where nobody sees it.
  bool asks_for_number(PyObject* callable, PyObject* const* args, Py_ssize_t count);
  // What stands behind `*`, as the tuple that the call makes of it, where no Python code can run for that.
  void spread(PyObject** arguments);
  void call_extended(PyObject* callable, PyObject* args, PyObject* kwargs);
  // Reads of an attribute, with the call that may stand behind it.
  void read_attribute(PyObject* object, PyObject* name);
  void read_attribute_again(PyObject* object, PyObject* name);
  // What an instruction does with an object on the stack.
  void read_on_stack(PyObject** object, PyObject* name);
  // One that is compared with None, and seen by nothing else.
  void ask_for_none(PyObject* object, PyObject* name);
  // `case [...]` and `case {...}`.
  void ask_whether_collection(PyObject* object);

 private:
  // What stands behind a __getattr__ that is no Python function; null: nothing was asked.
  void call_fallback(PyObject* getter, PyObject* object, PyObject* name);
  void call_type(PyTypeObject* type, PyObject* const* args, Py_ssize_t count);
  void call_type_itself(PyObject* const* args, Py_ssize_t count);
  void call_builtin(PyObject* function, PyObject* const* args, Py_ssize_t count);
  void read_format(PyObject* const* args, Py_ssize_t count);
  void call_descriptor(PyObject* callable, PyObject* const* args, Py_ssize_t count);
  void read_wrapped_slot(PyObject* callable);
  void call_slot_wrapper(PyObject* callable, PyObject* const* args, Py_ssize_t count);
  void read_in_key(PyObject* part, int depth = 0);
  void call_cache(PyObject* callable, PyObject* const* args, Py_ssize_t count);
  void call_cache_by_name(PyObject* callable, c10::ArrayRef<PyObject*> args, PyObject* kwargs);
  void call_partial(PyObject* callable, PyObject* const* args, Py_ssize_t count);
  void call_instance(PyObject* callable, PyObject* const* args, Py_ssize_t count);
  void get_locals();
  void get_frame(PyObject* depth);
  void call_holder(PyObject* callable, PyObject* const* args, Py_ssize_t count);
  bool computes(Does does, PyObject* const* args, Py_ssize_t count);
  void call_method(PyTypeObject* owner, const std::string& name, PyObject* self, PyObject* const* args,
                   Py_ssize_t count);
  void call_tensor_method(const std::string& name, PyObject* const* args, Py_ssize_t count);
  void call_torch(const char* name, PyObject* const* args, Py_ssize_t count);
  bool binds_its_own(PyObject* descriptor);
  void call_object_method(const std::string& name, PyObject* self, PyObject* const* args, Py_ssize_t count);
  void call_container_method(PyTypeObject* type, const std::string& name, PyObject* self,
                             PyObject* const* args, Py_ssize_t count);
  bool take_apart(PyObject* object);
  void call_stand_in(PyObject* self, PyObject* const* args, Py_ssize_t count);
  bool update_dict(PyObject* dict, PyObject* const* args, Py_ssize_t count);
  void call_operator_object(PyObject* callable, PyObject* const* args, Py_ssize_t count);
  // What a row of callables.def says.
  void perform(Does does, const std::string& name, PyObject* const* args, Py_ssize_t count);
  void perform_on_objects(Does does, const std::string& name, PyObject* const* args, Py_ssize_t count);
  void ask_abstract_classes(PyObject* const* args, Py_ssize_t count);
  void keep_items(PyObject* const* args, Py_ssize_t count);
  void keep_update(PyObject* const* args, Py_ssize_t count);
  void look_up_entries(PyObject* const* args, Py_ssize_t count);
  void read_abstractness(PyTypeObject* type);
  void read_abstractness_within(PyObject* type);
  void get_described(PyObject* descriptor, PyObject* object);
  void read_codec(PyObject* const* names, Py_ssize_t count);
  void read_bases_of_class(PyObject* const* args, Py_ssize_t count);
  void read_bases_in(PyObject* bases);
  void import_module(PyObject* const* args, Py_ssize_t count);
  void read_bound_self(PyObject* function, PyObject* self);
  // C code may call what it is handed, with arguments that nobody sees.
  void judge_callback(PyObject* callable);
  void judge_one(PyObject* callable);
  void expect_of(Does does);
  void expect_texts(const char* callee, PyObject* const* args, Py_ssize_t count);
  void judge_method_callback(PyTypeObject* type, const std::string& name, PyObject* self);

  int nested_ = 0;  // objects that are called by what their classes hold
  Recorder* recorder_;
  GuardTree* tree_;
  Provenance* provenance_;
  NewObjects* new_objects_;
  Asides* asides_;
  ClassReads* classes_;
  ContainerReads* containers_;
  AttributeReads* attributes_;
  Consumption* consumption_;
  StateWrites* writes_;
  Protocols* protocols_;
  ContextVariables* context_variables_;
  WarningReads* warnings_;
  Frame calling_;
  int cache_uses_ = 0;
  bool judges_callback_ = false;  // what is judged is called later, with what nobody knows yet
  PyObject* keyword_names_ = nullptr;
  // Of a call that passes keywords in a dict, borrowed; None where there are others beside them.
  PyObject* keywords_ = nullptr;
};

}  // namespace lazytrace
