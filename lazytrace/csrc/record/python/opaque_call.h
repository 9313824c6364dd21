// The making of one opaque step: its arguments before the call, its result after.
#pragma once

#include <memory>
#include <vector>

#include "record/operators/recorder.h"
#include "record/python/observer.h"

namespace lazytrace {

// Pauses recorder and observer for as long as it lives. Needs the GIL.
class OpaqueCall {
 public:
  // `function`.`attribute`(*args, **kwargs) is what a replay calls; OpaqueStep says what `python` and
  // `feedable` mean.
  OpaqueCall(Recorder* recorder, Observer* observer, PyObject* function, const std::string& attribute,
             PyObject* args, PyObject* kwargs, bool python, bool feedable);
  ~OpaqueCall();
  void finish(PyObject* result);

 private:
  Recorder* recorder_;
  Observer* observer_;
  std::shared_ptr<OpaqueStep> step_;
  std::vector<int> uses_;
  RandomMark random_mark_ = RandomMark::now();
  std::vector<std::pair<at::Tensor, uint32_t>> versions_;
  std::vector<std::pair<at::Tensor, TensorMeta>> looks_;
  size_t touched_ = 0;
  Modes modes_ = Modes::current();
  bool paused_ = true;
};

}  // namespace lazytrace
