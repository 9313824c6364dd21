// Warnings: what becomes of one hangs on the filters, and on whether it was given before.
#pragma once

#include "cpython/frame.h"
#include "record/operators/recorder.h"
#include "record/python/provenance.h"
#include "record/python/reads/attributes.h"
#include "record/python/reads/consumption.h"

namespace lazytrace {

// Needs the GIL.
class WarningReads {
 public:
  WarningReads(Recorder* recorder, Provenance* provenance, AttributeReads* attributes,
               Consumption* consumption)
      : recorder_(recorder), provenance_(provenance), attributes_(attributes), consumption_(consumption) {}

  // warnings.warn() in this frame. `names`: the keywords of the last arguments, or null; `spread`: others are
  // in a dict.
  void warn(Frame caller, PyObject* const* args, Py_ssize_t count, PyObject* names, bool spread);

 private:
  void read_filters();
  void read_registry(Frame place, PyObject* message, PyObject* category);
  bool remembers_elsewhere(PyObject* category) const;

  Recorder* recorder_;
  Provenance* provenance_;
  AttributeReads* attributes_;
  Consumption* consumption_;
};

}  // namespace lazytrace
