// Reads of attributes: of instances, classes, modules, tensors and super().
#pragma once

#include "program/effects.h"
#include "record/operators/recorder.h"
#include "record/python/gradients.h"
#include "record/python/provenance.h"
#include "record/python/reads/classes.h"
#include "record/python/reads/containers.h"
#include "record/python/unseen.h"

namespace lazytrace {

struct Memo;
enum class TensorState;

// Each read leaves guards for what was found. Those that return an object give the C callable that stands
// behind __getattr__ and is called for an attribute that is not there (class Config(dict): __getattr__ =
// dict.__getitem__), borrowed, or null: whoever asks must judge that call. Needs the GIL; runs no Python code
// of the user.
class AttributeReads {
 public:
  AttributeReads(Recorder* recorder, GuardTree* tree, Provenance* provenance, const Writes* log,
                 ClassReads* classes, ContainerReads* containers, LateReads* late, Gradients* gradients,
                 const Unseen* unseen)
      : recorder_(recorder),
        tree_(tree),
        provenance_(provenance),
        log_(log),
        classes_(classes),
        containers_(containers),
        late_(late),
        gradients_(gradients),
        unseen_(unseen) {}

  PyObject* read_attribute(PyObject* object, PyObject* name);
  // The same without what it has done in this recording already.
  PyObject* read_attribute_again(PyObject* object, PyObject* name);
  // What object.__getattribute__ reads.
  PyObject* read_plainly(PyObject* object, PyObject* name);
  // What a decorator of C copies from the function that it is given, or asks it for.
  void read_copied_attributes(PyObject* function);
  // Whether it must be overridden.
  void read_abstractness(PyObject* function);
  void read_module_attribute(PyObject* module, PyObject* name);
  void read_tensor_attribute(PyObject* tensor, PyObject* name);
  // While it lives, what is read is asked for nothing but whether it is None.
  class AskedForNone {
   public:
    explicit AskedForNone(AttributeReads* reads) : asked_(&reads->only_none_) { *asked_ = true; }
    ~AskedForNone() { *asked_ = false; }
    AskedForNone(const AskedForNone&) = delete;
    AskedForNone& operator=(const AskedForNone&) = delete;

   private:
    bool* asked_;
  };

  LateReads* late() const { return late_; }

 private:
  void read_way_to_written(PyObject* object, PyObject* dict);
  PyObject* read_instance(PyObject* object, PyObject* name, PyObject* descriptor);
  void read_of_thread(PyObject* object, PyObject* name);
  PyObject* read_method_attribute(PyObject* method, PyObject* name);
  void read_strange_attribute(PyObject* object, PyObject* name);
  // What lies in the namespace of an object, of which a step may have written other entries.
  void read_entry_of(PyObject* object, int node, PyObject* name, PyObject* value);
  void read_part_of_alias(PyObject* alias, PyObject* name);
  bool is_known_of_array(PyObject* object, PyObject* name) const;
  int node_of(PyObject* object);
  void read_namespace(PyObject* object);
  void read_data_descriptor(PyObject* object, PyObject* name, PyObject* descriptor);
  void read_type_attribute(PyObject* type, PyObject* name);
  bool read_own_number(PyTypeObject* type, PyObject* name, PyObject* value);
  void read_super_attribute(PyObject* object, PyObject* name);
  PyObject* read_behind_start(PyObject* start, PyObject* type, PyObject* name);
  void lose_sight_of(PyObject* type, PyObject* found);
  void read_through_super(PyObject* super, PyObject* name, PyObject* descriptor);
  bool read_leafness(PyObject* tensor);
  bool read_address(PyObject* tensor, PyObject* name);
  bool may_read(TensorState state, PyObject* tensor, bool argument) const;
  void read_tensor_entry(PyObject* tensor, PyObject* name, PyObject* descriptor);
  bool holds(const Memo& memo, const void* object, PyObject* name, uint64_t version) const;
  PyObject* repeat(const Memo& memo, PyObject* object, PyObject* name);

  bool only_none_ = false;
  Recorder* recorder_;
  GuardTree* tree_;
  Provenance* provenance_;
  const Writes* log_;
  ClassReads* classes_;
  ContainerReads* containers_;
  LateReads* late_;
  Gradients* gradients_;
  const Unseen* unseen_;
};

}  // namespace lazytrace
