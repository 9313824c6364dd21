// What is known of a code object: where it comes from, and what each of its instructions does.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cpython/frame.h"
#include "cpython/operations.h"

namespace lazytrace {

namespace py = pybind11;

// What is known of a code object, kept with the code object itself.
enum CodeFlags : uintptr_t {
  kSkipped = 2,
  kUser = 4,
  kOpaque = 8,
  kInstalled = 16,
  kLogging = 32,
  kOwn = 64,
  kThrough = 128,      // the function of lazytrace that calls a traced object: it holds that object alone
  kBookkeeping = 256,  // what torch notes of others for itself
  kRestores = 512,     // its exception handlers put back modes of torch, and nothing else
  kDispatches = 1024,  // trusted, and asks no tensor what autograd knows of it
  kImports = 2048,     // what `from a import b` runs where a is there
  kFinds = 4096,       // what looks for a module in a folder, of which it keeps a list
  kStandsIn = 8192,    // what is called in the place of other code while a recording is made
  kRunsHooks = 16384,  // its exception handlers run the forward hooks of a module that are called always
  kTorchs = 32768,     // in a file of torch's
  kStacks = 65536,     // what torch asks for the stack when anomaly mode is on
};
uintptr_t code_flags(PyObject* code);

// Code of lazytrace itself.
inline bool is_own_code(PyObject* code) { return code_flags(code) & kOwn; }
// That, and what is called in the place of other code.
inline bool stands_for_code(PyObject* code) { return code_flags(code) & (kOwn | kStandsIn); }
// Code of lazytrace itself, and what calls a traced object, in whose place the caller stands.
inline bool is_engine_code(PyObject* code) { return code_flags(code) & (kOwn | kThrough); }

// The frame so many above this one. Null where it lies around the call, or behind one of ours: what stands
// for other code would not be there without a recording.
Frame frame_above(Frame f, long steps);

// Code of torch that is not watched: what it is handed counts as read.
inline bool is_trusted(uintptr_t flags) { return (flags & (kSkipped | kOwn)) == kSkipped; }
inline bool is_trusted_code(PyObject* code) { return is_trusted(code_flags(code)); }

// Whether calling the object runs such code: operators of torch.ops and the like, which hold what was put
// there when they were made.
bool is_trusted_callable(PyObject* object);
// Whether a frame with these globals runs code of the module copy: there, an id() is a key of its memo, and
// which object a value is says whether a copy of it was made.
bool is_copying(PyObject* globals);
// The same of the module functools.
bool is_caching(PyObject* globals);

// The globals that an instruction has read a name of, and in which recording.
struct GlobalMemo {
  uint64_t recording = 0;
  PyObject* globals = nullptr;
};

struct CodeFacts {
  uintptr_t flags = 0;
  std::vector<Operation> operations;  // by instruction; empty until the code is watched
  std::vector<GlobalMemo> memos;
};
// Owned by the code object. Needs the GIL.
CodeFacts* facts_of(PyObject* code);
// The same with its instructions.
CodeFacts* decoded_facts_of(PyObject* code);

// Whether what the instruction gives is gone through at once, and seen by nobody.
bool is_gone_through(Frame f);

// Told by Python once: the folders of torch, of lazytrace and of the standard library, and the code objects
// that are opaque steps.
void configure_observer(const std::string& torch_folder, const std::string& own_folder,
                        const std::string& library_folder, const std::vector<py::object>& opaque_codes);

// The instruction behind the one that the frame is at, past what belongs to that; null where there is none.
const Operation* next_operation(Frame f);

}  // namespace lazytrace
