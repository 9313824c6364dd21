// The functions that activation checkpointing calls, and once more in the backward pass, and hooks on
// gradients.
#pragma once

#include <memory>
#include <vector>

#include "record/python/opaque_call.h"

namespace lazytrace {

// A call of checkpoint() is one opaque step, and so is a backward pass. The function that it is given is
// watched all the same, in both: what it reads gets guards, so that a flat form can go without it
// (OpaqueStep::watched). Its operators are no steps. What it does besides fails the recording. The same holds
// for the hooks that a pass calls.
//
// One for each recording; what stands in the place of a function shares it. Needs the GIL.
class WatchedBlocks : public std::enable_shared_from_this<WatchedBlocks> {
 public:
  // Borrows what it stands in, and comes to it only while a step runs.
  explicit WatchedBlocks(const Surroundings& around) : around_(around) {}
  // What is called in the place of the function.
  py::object instead_of(const py::object& function);

  // Whether it is worth watching: a function of Python's, whose code does not plainly do more than read and
  // run operators.
  static bool may_watch(PyObject* hook);
  // The same of one that may put something into lists and dicts, besides.
  static bool may_fill(PyObject* hook);
  // These hooks may be watched: the call has set them. Held.
  void know(PyObject* hook) { hooks_.push_back(py::reinterpret_borrow<py::object>(hook)); }
  bool knows(PyObject* hook) const;

  // In the place of hooks, in the dicts that the engine calls them from, stands what watches them. RAII.
  class InPlace {
   public:
    InPlace(const std::shared_ptr<WatchedBlocks>& blocks, const std::vector<py::dict>& dicts);
    ~InPlace();
    InPlace(const InPlace&) = delete;
    InPlace& operator=(const InPlace&) = delete;

   private:
    struct Hook {
      py::dict dict;
      py::object key, hook, instead;
    };
    std::vector<Hook> all_;
  };

  // A step runs that may call these, and else nothing that is not torch's. RAII: also on exceptions.
  class Running {
   public:
    Running(std::shared_ptr<WatchedBlocks> blocks, OpaqueCall* step);
    ~Running() { blocks_->step_ = nullptr; }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    std::shared_ptr<WatchedBlocks> blocks_;
  };

  // Inside a block: what runs meanwhile is torch's, or is known to run operators alone. RAII.
  class Unwatched {
   public:
    explicit Unwatched(const WatchedBlocks& blocks) : pause_(blocks.around_.pause) { pause_->begin(); }
    ~Unwatched() { pause_->end(); }
    Unwatched(const Unwatched&) = delete;
    Unwatched& operator=(const Unwatched&) = delete;

   private:
    Pause* pause_;
  };
  // There the custom function of autograd is called, whose code comes to operators alone.
  void meet_function(const void* function) { step_->meet_function(function); }

 private:
  py::object call(const py::object& function, const py::args& args, const py::kwargs& kwargs);

  Surroundings around_;
  OpaqueCall* step_ = nullptr;
  std::vector<py::object> hooks_;
};

}  // namespace lazytrace
