// Switches of at::Context that a traced function may set for a while: the rows of switches.def.
#pragma once

#include <Python.h>

#include <array>
#include <cstdint>
#include <string>

namespace lazytrace {

constexpr size_t kSwitchCount = 0
#define SWITCH(name, kind, getter, setter, read, write) +1
#define PRECISION(name, backend, operation, of, on) +1
#include "torch/switches.def"
    ;

// What Python gives and takes for a switch: a bool, an int, the name of a precision or of a kernel.
enum class SwitchKind : uint8_t { Flag, Number, Precision, Kernel };

// What somebody has set of them, by row. All threads share the context itself.
class Switches {
 public:
  bool operator==(const Switches& other) const { return set_ == other.set_ && values_ == other.values_; }
  bool operator!=(const Switches& other) const { return !(*this == other); }

  bool has(size_t row) const { return (set_ >> row & 1) != 0; }
  int32_t value(size_t row) const { return values_[row]; }
  bool any() const { return set_ != 0; }
  void put(size_t row, int32_t value);
  void drop(size_t row);
  // Of the same rows, what the context holds now.
  Switches held() const;
  // Sets them in the context.
  void apply() const;
  // "cudnn.enabled=0, sdp.flash=1", or "".
  std::string text() const;

 private:
  uint32_t set_ = 0;
  std::array<int32_t, kSwitchCount> values_ = {};  // 0 of what is not set
};

// A value that no setter takes: torch raises as it is asked for it.
constexpr int32_t kNoSwitchValue = -1;

// The row that a function of torch._C gives (or `sets`) when it is called with `args`; -1: none.
int switch_of(const std::string& function, bool sets, PyObject* const* args, Py_ssize_t count);
// The row of a name; -1: none.
int switch_called(const std::string& name);
const char* switch_name(size_t row);
int32_t switch_now(size_t row);
// What an argument of its setter makes it; kNoSwitchValue of what torch would not take. Needs the GIL.
int32_t switch_value(size_t row, PyObject* argument);

}  // namespace lazytrace
