// What Python's operators and protocols read of their operands: x[k], len(x), iteration, `in`, `is`, x + y.
#pragma once

#include "cpython/frame.h"
#include "cpython/operations.h"
#include "record/operators/recorder.h"
#include "record/python/provenance.h"
#include "record/python/reads/classes.h"
#include "record/python/reads/consumption.h"
#include "record/python/reads/containers.h"
#include "record/python/state_writes.h"

namespace lazytrace {

// An instruction and the function of C that does the same are judged here alike. Needs the GIL; runs no
// Python code of the user.
class Protocols {
 public:
  Protocols(Recorder* recorder, Provenance* provenance, ClassReads* classes, ContainerReads* containers,
            Consumption* consumption, StateWrites* writes)
      : recorder_(recorder),
        provenance_(provenance),
        classes_(classes),
        containers_(containers),
        consumption_(consumption),
        writes_(writes) {}

  void read_item(PyObject* object, PyObject* key);
  // len(x) or bool(x).
  void read_length(PyObject* object);
  void read_iteration(PyObject* object);
  void read_contains(PyObject* container, PyObject* item);
  // What a container of plain ints holds, for a number that is compared with each.
  void read_members(PyObject* container);
  void read_identity(PyObject* a, PyObject* b);
  void read_operand(PyObject* object);
  void read_comparison(PyObject* left, PyObject* right);
  // -x, +x, ~x
  void read_unary(PyObject* operand);
  // `operation`: the argument of BINARY_OP.
  void read_binary(PyObject* left, PyObject* right, int operation);
  // The arguments of a function of C that does arithmetic.
  void read_arithmetic(PyObject* const* args, Py_ssize_t count);
  void read_classes(PyObject* object, PyObject* classes, bool subclass);
  void hash_object(PyObject* object);
  // id(x), which the frame asks for, if there is one; `as_key`: only to tell it apart from other objects.
  void identify(PyObject* object, bool as_key, Frame asks);
  void read_format(PyObject* const* args, Py_ssize_t count);

  // The frame that runs now is the __hash__ of a tensor, which asks for its id().
  void hash_tensor(Frame f) { hashes_tensor_ = f; }
  void leave(Frame f) {
    if (hashes_tensor_ == f) hashes_tensor_ = Frame();
  }

 private:
  void operate(PyObject* operand, Consumer how, const OperatorMethods& methods);
  void read_subscripted(PyObject* cls);
  bool refuse_array(PyObject* operand);
  bool refuse_scalars(int operation, PyObject* left, PyObject* right);
  void fix_identity(PyObject* object, const char* asked);

  Recorder* recorder_;
  Provenance* provenance_;
  ClassReads* classes_;
  ContainerReads* containers_;
  Consumption* consumption_;
  StateWrites* writes_;
  Frame hashes_tensor_;
};

}  // namespace lazytrace
