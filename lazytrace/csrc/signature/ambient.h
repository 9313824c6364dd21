// The ambient state of a call: which switches of torch are part of its key, and how they are called.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>

#include "signature/signature.h"

namespace lazytrace {

// Writes the ambient part of the key. Refuses a call where the state cannot be keyed. Needs the GIL.
void append_ambient(Call* call);

// Those of them that hold for all threads, a bit each. Needs the GIL.
uint32_t process_switches();
// Makes them what process_switches() gave then, and puts back what it found. Needs no GIL.
class ProcessSwitchesOfThen {
 public:
  explicit ProcessSwitchesOfThen(uint32_t then);
  ~ProcessSwitchesOfThen();
  ProcessSwitchesOfThen(const ProcessSwitchesOfThen&) = delete;
  ProcessSwitchesOfThen& operator=(const ProcessSwitchesOfThen&) = delete;

 private:
  const uint32_t found_;
  const bool other_;
};

// Name -> value of all that the ambient part of a key holds, in words. Calls share the dict: nobody may
// change it.
py::dict describe_ambient();

// The mode behind torch.device(...) as a context: the one torch-function mode that a recording can live with,
// as it only fills in device=. The key holds its device.
bool is_device_context(PyObject* object);
// Whether this thread is in another mode, which is told of each function of torch that is called: it must be
// called then, and nothing that does the same. Needs the GIL.
bool function_mode_listens();
// The same for the rows of ambient.def, as torch starts.
py::dict usual_ambient();

// Whether a function of torch._C returns what the ambient part of a key holds, so that a traced function may
// call it.
bool reads_ambient(const std::string& function);

}  // namespace lazytrace
