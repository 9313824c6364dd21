// Entries that a defaultdict makes when they are asked for.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "cpython/frame.h"
#include "cpython/operations.h"
#include "record/operators/recorder.h"
#include "record/python/provenance.h"
#include "record/python/reads/containers.h"

namespace lazytrace {

namespace py = pybind11;

// Puts a stand-in in the place of a defaultdict of before the call that is about to be asked for an entry
// that it does not have, on the stack of the frame: its Python code calls the factory and sets the entry,
// where everybody sees it.
//
// Needs the GIL. Borrows the recorder.
class DefaultDicts {
 public:
  DefaultDicts(const Recorder* recorder, const Provenance* provenance, ContainerReads* containers)
      : recorder_(recorder), provenance_(provenance), containers_(containers) {}

  // Before the instruction is judged.
  void exchange(Frame f, const Operation& operation);

 private:
  const Recorder* recorder_;
  const Provenance* provenance_;
  ContainerReads* containers_;
};

// Told by Python once: the class of the stand-in, which is called with the defaultdict.
void configure_default_dicts(py::object stand_in);

}  // namespace lazytrace
