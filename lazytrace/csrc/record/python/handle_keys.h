// The numbers under which torch keeps the hooks of modules.
#pragma once

#include <unordered_set>

#include "cpython/frame.h"
#include "cpython/operations.h"
#include "record/operators/recorder.h"
#include "record/python/provenance.h"
#include "record/python/reads/containers.h"

namespace lazytrace {

// The class of torch's handles of hooks; borrowed.
PyTypeObject* handle_class();

// Each handle of a hook counts a number of its class on, which is the key of the hook. A call that sets a
// hook and removes it again has another key each time, and nothing depends on which one it is: in torch's own
// code the key is taken as it is in the recording, and is not read. Whoever else would see it ends the
// recording (Provenance::note_handle_key).
//
// Needs the GIL.
class HandleKeys {
 public:
  HandleKeys(Recorder* recorder, Provenance* provenance, ContainerReads* containers)
      : recorder_(recorder), provenance_(provenance), containers_(containers) {}
  // Before the instruction is judged.
  void exchange(Frame f, const Operation& operation);

 private:
  void exchange_key(PyObject* container, PyObject** key);

  Recorder* recorder_;
  Provenance* provenance_;
  ContainerReads* containers_;
  std::unordered_set<int> numbers_;  // of handles
};

}  // namespace lazytrace
