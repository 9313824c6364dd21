#include "record/python/instructions.h"

#include <opcode.h>

#include <cstring>

#include "cpython/frame.h"
#include "cpython/objects.h"
#include "cpython/values.h"

namespace lazytrace {

namespace {

// Whether calling it, or iterating over it, gives Python what Python code gives back, as it is.
bool hands_on(PyObject* callee) {
  if (PyFunction_Check(callee) || PyGen_CheckExact(callee) || PyCoro_CheckExact(callee)) return true;
  if (PyMethod_Check(callee)) return hands_on(PyMethod_GET_FUNCTION(callee));
  if (PyType_Check(callee)) return is_python_class(reinterpret_cast<PyTypeObject*>(callee));
  if (std::strcmp(Py_TYPE(callee)->tp_name, "functools.partial") == 0) return true;
  return is_python_class(Py_TYPE(callee));
}

}  // namespace

void Instructions::dispatch(_PyInterpreterFrame* f, const Operation& operation, CodeFacts* facts) {
  int opcode = operation.opcode, oparg = operation.oparg;
  switch (opcode) {
    case BUILD_CONST_KEY_MAP:
    case RERAISE:
    case RAISE_VARARGS:
    case WITH_EXCEPT_START:
      return;
    case BUILD_SET:
      for (int i = 1; i <= oparg; ++i) consumption_->use_as_key(peek(f, i));
      return;
    case BUILD_MAP:
      for (int i = 0; i < oparg; ++i) consumption_->use_as_key(peek(f, 2 * i + 2));
      return;
    case SET_ADD:
      return consumption_->use_as_key(peek(f, 1));
    case MAP_ADD:
      return consumption_->use_as_key(peek(f, 2));
    case CHECK_EXC_MATCH:
      return consumption_->consume(peek(f, 1), Consumer::Reads);
    case LOAD_GLOBAL:
      return operation.memo
                 ? names_->read_global_again(f, name_at(f, oparg >> 1), &facts->memos[operation.memo])
                 : names_->read_global(f, name_at(f, oparg >> 1));
    case LOAD_ATTR:
    case LOAD_METHOD:
      return calls_->read_attribute_again(peek(f, 1), name_at(f, oparg));
    case UNARY_NOT:
    case JUMP_IF_FALSE_OR_POP:
    case JUMP_IF_TRUE_OR_POP:
    case POP_JUMP_FORWARD_IF_FALSE:
    case POP_JUMP_FORWARD_IF_TRUE:
    case POP_JUMP_BACKWARD_IF_FALSE:
    case POP_JUMP_BACKWARD_IF_TRUE: {
      PyObject* asked = peek(f, 1);
      return asked == Py_True || asked == Py_False || asked == Py_None ? void()
                                                                       : protocols_->read_length(asked);
    }
    case MAKE_FUNCTION:
      new_objects_->expect(f, &PyFunction_Type);
      return;
    case KW_NAMES:
      return calls_->name_keywords(PyTuple_GET_ITEM(f->f_code->co_consts, oparg));
    case CALL:
      return call(f, oparg);
    case CALL_FUNCTION_EX:
      return call_extended(f, oparg & 1);
    case STORE_ATTR:
    case DELETE_ATTR:
    case STORE_SUBSCR:
    case DELETE_SUBSCR:
    case STORE_GLOBAL:
    case DELETE_GLOBAL:
    case STORE_NAME:
    case DELETE_NAME:
    case STORE_DEREF:
    case DELETE_DEREF:
      return dispatch_writes(f, opcode, oparg);
    default:
      return dispatch_reads(f, opcode, oparg);
  }
}

void Instructions::dispatch_reads(_PyInterpreterFrame* f, int opcode, int oparg) {
  switch (opcode) {
    case LOAD_NAME:
      return names_->read_name(f, name_at(f, oparg));
    case LOAD_BUILD_CLASS: {
      static PyObject* name = PyUnicode_InternFromString("__build_class__");
      return names_->read_global(f, name);
    }
    case LOAD_DEREF:
    case LOAD_CLASSDEREF:
      return names_->read_cell(f, oparg);
    case IMPORT_FROM:
      return calls_->read_attribute(peek(f, 1), name_at(f, oparg));
    case BINARY_SUBSCR:
      return protocols_->read_item(peek(f, 2), peek(f, 1));
    case GET_ITER:
    case GET_YIELD_FROM_ITER:
      return protocols_->read_iteration(peek(f, 1));
    case UNPACK_SEQUENCE:
    case UNPACK_EX:
    case LIST_EXTEND:
      note_callee(f, hands_on(peek(f, 1)));
      return protocols_->read_iteration(peek(f, 1));
    case SET_UPDATE:
    case DICT_UPDATE:
    case DICT_MERGE:
      consumption_->consume(peek(f, 1), Consumer::Compares);
      return protocols_->read_iteration(peek(f, 1));
    case FOR_ITER:
      note_callee(f, hands_on(peek(f, 1)));
      return containers_->advance(peek(f, 1));
    case SEND:
      note_callee(f, true);
      return containers_->advance(peek(f, 2));
    case CONTAINS_OP:
      return protocols_->read_contains(peek(f, 1), peek(f, 2));
    case IS_OP:
      return protocols_->read_identity(peek(f, 2), peek(f, 1));
    case COMPARE_OP:
      return protocols_->read_comparison(peek(f, 2), peek(f, 1));
    case BINARY_OP:
      return protocols_->read_binary(peek(f, 2), peek(f, 1), oparg);
    case UNARY_NEGATIVE:
    case UNARY_POSITIVE:
    case UNARY_INVERT:
      return protocols_->read_operand(peek(f, 1));
    case FORMAT_VALUE:
      return consumption_->consume(peek(f, oparg & 4 ? 2 : 1), Consumer::Text);
    case GET_LEN:
      return protocols_->read_length(peek(f, 1));
    case BEFORE_WITH:
      enter_context(peek(f, 1));
      classes_->read_special(peek(f, 1), "__enter__");
      return classes_->read_special(peek(f, 1), "__exit__");
    case IMPORT_NAME:
      return names_->read_import(f, name_at(f, oparg), peek(f, 2));
    case MATCH_MAPPING:
    case MATCH_SEQUENCE:
      return protocols_->read_length(peek(f, 1));
    case MATCH_KEYS:
      return consumption_->consume(peek(f, 2), Consumer::Compares);
    default:
      recorder_->fail("runs an instruction that lazytrace does not follow (opcode " + std::to_string(opcode) +
                      ")");
  }
}

void Instructions::dispatch_writes(_PyInterpreterFrame* f, int opcode, int oparg) {
  switch (opcode) {
    case STORE_ATTR:
      return writes_->write_attribute(peek(f, 1), name_at(f, oparg), peek(f, 2));
    case DELETE_ATTR:
      return writes_->write_attribute(peek(f, 1), name_at(f, oparg), nullptr);
    case STORE_SUBSCR:
      return writes_->write_item(peek(f, 2), peek(f, 1), peek(f, 3));
    case DELETE_SUBSCR:
      return writes_->write_item(peek(f, 2), peek(f, 1), nullptr);
    case STORE_GLOBAL:
      return writes_->write_global(f, name_at(f, oparg), peek(f, 1));
    case DELETE_GLOBAL:
      return writes_->write_global(f, name_at(f, oparg), nullptr);
    case STORE_NAME:
    case DELETE_NAME:
      if (f->f_locals == f->f_globals) recorder_->fail("runs the body of a module");
      return;
    case STORE_DEREF:
      return writes_->write_cell(f, oparg, peek(f, 1));
    default:
      return writes_->write_cell(f, oparg, nullptr);
  }
}

void Instructions::call(_PyInterpreterFrame* f, int count) {
  calls_->enter(f);
  PyObject* method = peek(f, count + 2);
  PyObject** args = f->localsplus + f->stacktop - count;
  PyObject* callee = method ? method : *(args - 1);
  note_callee(f, hands_on(callee));
  if (method)
    calls_->call(method, args - 1, count + 1);
  else
    calls_->call(callee, args, count);
  calls_->name_keywords(nullptr);
  if (PyType_Check(callee)) new_objects_->expect(f, reinterpret_cast<PyTypeObject*>(callee));
}

void Instructions::call_extended(_PyInterpreterFrame* f, bool keywords) {
  calls_->enter(f);
  PyObject *callee = peek(f, keywords ? 3 : 2), *args = peek(f, keywords ? 2 : 1);
  note_callee(f, hands_on(callee));
  if (PyType_Check(callee)) new_objects_->expect(f, reinterpret_cast<PyTypeObject*>(callee));
  calls_->call_extended(callee, args, keywords ? peek(f, 1) : nullptr);
}

// torch's own context managers run in code that is not watched; one that is kept in state is read whole.
void Instructions::enter_context(PyObject* object) {
  may_suppress_ |= is_python_class(Py_TYPE(object)) && !is_torch_class(Py_TYPE(object));
  int node = provenance_->known(object);
  if (node < 0 || !is_python_class(Py_TYPE(object))) return;
  py::object dict = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(object, nullptr));
  if (!dict) return PyErr_Clear();
  provenance_->read_child(node, Access::Namespace, nullptr, -1, dict.ptr());
  containers_->read_whole(dict.ptr());
}

void Instructions::note_opaque_write(_PyInterpreterFrame* f, int opcode, int oparg) {
  PyObject* target = nullptr;
  if (opcode == STORE_ATTR || opcode == DELETE_ATTR) target = peek(f, 1);
  if (opcode == STORE_SUBSCR || opcode == DELETE_SUBSCR) target = peek(f, 2);
  if (opcode == STORE_GLOBAL || opcode == DELETE_GLOBAL) target = f->f_globals;
  if (opcode == STORE_DEREF || opcode == DELETE_DEREF) target = f->localsplus[oparg];
  if (opcode == BINARY_OP && oparg >= 13) target = peek(f, 2);
  if (opcode == CALL) {
    PyObject* method = peek(f, oparg + 2);
    PyObject* callable = method ? method : peek(f, oparg + 1);
    PyObject* first = method ? peek(f, oparg + 1) : oparg ? peek(f, oparg) : nullptr;
    if (PyCFunction_Check(callable)) target = PyCFunction_GET_SELF(callable);
    if (!target || PyModule_Check(target)) target = first;
    if (PyFunction_Check(callable)) target = nullptr;
  }
  if (!target || is_tensor(target) || is_immutable(target) || PyModule_Check(target) || PyType_Check(target))
    return;
  provenance_->touch(target);
}

bool Instructions::goes_to_c(_PyInterpreterFrame* caller, const CodeFacts& facts) const {
  int at = _PyInterpreterFrame_LASTI(caller);
  switch (facts.operations[static_cast<size_t>(std::max(at, 0))].opcode) {
    case CALL:
    case CALL_FUNCTION_EX:
    case FOR_ITER:
    case SEND:
    case LIST_EXTEND:
    case UNPACK_SEQUENCE:
    case UNPACK_EX: {
      const bool* passes = passes_on_.find(caller);
      return passes && !*passes;
    }
    case SET_UPDATE:
    case DICT_UPDATE:
    case DICT_MERGE:
    case CONTAINS_OP:
    case BINARY_OP:  // "%(a)s" % mapping
    case FORMAT_VALUE:
      return true;
    default:
      return false;
  }
}

}  // namespace lazytrace
