// What C code can get at through what it is handed: reads without being told what.
#pragma once

#include <functional>

#include "program/effects.h"
#include "record/operators/recorder.h"
#include "record/python/exchange.h"
#include "record/python/provenance.h"
#include "record/python/reads/attributes.h"
#include "record/python/reads/classes.h"
#include "record/python/reads/containers.h"

namespace lazytrace {

// What a piece of C code does with what it is handed.
enum class Consumer : uint8_t {
  Reads,     // takes values out of it
  Compares,  // and asks which objects are equal: without an __eq__ these are the same ones
  Text,      // and writes it as text
  Trusted,   // is code of torch that is not watched: it reads attributes, too
};

// Needs the GIL; runs no Python code of the user.
class Consumption {
 public:
  Consumption(Recorder* recorder, GuardTree* tree, Exchange* exchange, Provenance* provenance,
              const Writes* log, ClassReads* classes, ContainerReads* containers, AttributeReads* attributes)
      : recorder_(recorder),
        tree_(tree),
        exchange_(exchange),
        provenance_(provenance),
        log_(log),
        classes_(classes),
        containers_(containers),
        attributes_(attributes) {}

  // Who says what becomes of a callable of C that is met on the way. Judging one may consume in its turn: a
  // partial holds arguments.
  void judge_with(std::function<void(PyObject*)> judge) { judge_ = std::move(judge); }

  // Everything that C code could take from `object` without running Python code that is watched.
  void consume(PyObject* object, Consumer how, int depth = 0);
  void hand_over(PyObject* const* args, Py_ssize_t count, Consumer how);
  // The defaults of a function that is watched: what it calls of them is seen then.
  void consume_defaults(PyObject* values);
  // The arguments of what stores the entries of a list, tuple or dict, and looks at none of them.
  void keep_entries(PyObject* const* args, Py_ssize_t count, Consumer how);
  // The arguments of map(), which hands what it is given to a function.
  void hand_on(PyObject* const* args, Py_ssize_t count);
  // An operand of which C code asks nothing but what is read of its class.
  void hand_over_tensor(PyObject* tensor) {
    if (exchange_->follows()) exchange_->hand_over(tensor);
  }
  // A container is asked whether it holds something.
  void ask_for_members(PyObject* container) {
    asks_for_members_ = true;
    consume(container, Consumer::Compares);
    asks_for_members_ = false;
  }
  // C code was handed something that makes texts, or that computes, of what it will be given: what is
  // consumed from now on may be that.
  void expect_text() { expects_text_ = true; }
  // `list[K] | None` does not write it, though a `map(str, ...)` may be about to write what it comes to.
  void consume_operand(PyObject* operand, Consumer how);
  void expect_arithmetic() { expects_arithmetic_ = true; }
  // C code asks an object for a method by its name, as Python code would; `name` is a literal.
  void look_up(PyObject* object, const char* name);
  // What C code asks a mapping for, to make entries of a dict of it.
  void look_up_entries(PyObject* mapping);
  // An object is looked up in a dict or a set.
  void use_as_key(PyObject* key) { consume(key, Consumer::Compares, 1); }
  void read_specials_of(PyObject* value);
  // C code may call it, if it is `type`: of what stands for a number it would get another class.
  void refuse_type(PyObject* object);
  // The text of an object that has no __repr__ of its own tells where it lies.
  void read_names(PyObject* object);
  void name_by_address(PyObject* object);
  // That of object.__repr__(), which a method of the class may have called.
  void write_address(PyObject* object);

 private:
  void consume_value(PyObject* object, Consumer how);
  void consume_object(PyObject* object, Consumer how, int depth);
  void read_function_name(PyObject* function);
  bool reads_text(Consumer how) const { return how == Consumer::Text || expects_text_; }
  void consume_reference(PyObject* reference, Consumer how, int depth);
  void consume_match(PyObject* match, Consumer how, int depth);
  void consume_values(PyObject* dict, Consumer how, int depth);
  void consume_c_object(PyObject* object, Consumer how, int depth);
  void consume_map(PyObject* map, Consumer how, int depth);
  void consume_entries(PyObject* deque, Consumer how, int depth);
  void keep_entries_of(PyObject* container);
  void consume_parts(PyObject* object, Consumer how, int depth);
  void read_callable_as_text(PyObject* callable, Consumer how, int depth);
  void consume_container(PyObject* object, Consumer how, int depth);
  void consume_instance(PyObject* object, Consumer how, int depth);

  Recorder* recorder_;
  GuardTree* tree_;
  Exchange* exchange_;
  Provenance* provenance_;
  const Writes* log_;
  ClassReads* classes_;
  ContainerReads* containers_;
  AttributeReads* attributes_;
  std::function<void(PyObject*)> judge_;
  bool asks_for_members_ = false, expects_text_ = false, expects_arithmetic_ = false;
  bool keeps_ = false;     // C callables are not called by who is handed them
  bool hands_on_ = false;  // it looks at no array that it comes to
};

}  // namespace lazytrace
