// The memory that a hit works in, kept from call to call.
#pragma once

#include <memory>
#include <vector>

#include "guard/guards.h"
#include "replay/early_writes.h"
#include "replay/interpreter.h"
#include "signature/signature.h"

namespace lazytrace {

struct Workspace {
  std::unique_ptr<Call> call = std::make_unique<Call>();
  Key other_key;  // of calls of other sizes or numbers
  GuardTree::Values values;
  std::vector<at::Tensor> registers;
  OpaqueResults opaque;
  InterpreterMemory memory;
  EarlyWrites early;

  void clear() {
    if (call)
      call->clear();
    else
      call = std::make_unique<Call>();  // Python has taken it
    values.clear();
    registers.clear();
    opaque.clear();
    early.clear();
    memory.stack.clear();
    memory.shells.clear();
    memory.set.clear();
    memory.emptied.clear();
    memory.done.clear();
  }
};

// A workspace for as long as it lives, one of this thread's where one is free: a replay may call Python,
// which calls traced functions again. Make and destroy it with the GIL.
class WorkspaceLease {
 public:
  WorkspaceLease() : pool_(of_thread()) {
    if (pool_.empty()) {
      space_ = std::make_unique<Workspace>();
    } else {
      space_ = std::move(pool_.back());
      pool_.pop_back();
    }
  }
  ~WorkspaceLease() {
    space_->clear();
    pool_.push_back(std::move(space_));
  }
  WorkspaceLease(const WorkspaceLease&) = delete;
  WorkspaceLease& operator=(const WorkspaceLease&) = delete;

  Workspace& operator*() { return *space_; }
  Workspace* operator->() { return space_.get(); }

 private:
  using Pool = std::vector<std::unique_ptr<Workspace>>;
  // What lies in it holds no Python object and no tensor, so a thread that ends needs no GIL for it.
  static Pool& of_thread() {
    static thread_local Pool pool;
    return pool;
  }

  Pool& pool_;
  std::unique_ptr<Workspace> space_;
};

}  // namespace lazytrace
