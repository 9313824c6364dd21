#include "record/python/watched_blocks.h"

#include <utility>

#include "support/reasons.h"

namespace lazytrace {

namespace {
// What runs meanwhile is watched as code of the function's own is, and the step is told what was seen.
class Watched {
 public:
  Watched(const Surroundings& around, OpaqueCall* step)
      : around_(around), step_(step), written_(around.writes->changes()) {
    around_.recorder->begin_block();
  }
  ~Watched() {
    // A replay would make them once more than the step does.
    if (around_.writes->changes() != written_) around_.recorder->fail(say(reason::BlockWrites));
    step_->uses(around_.recorder->end_block());
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

 private:
  const Surroundings& around_;
  OpaqueCall* step_;
  size_t written_;
};

struct Looking {
  Pause* pause;
  explicit Looking(Pause* p) : pause(p) { pause->end(); }
  ~Looking() { pause->begin(); }
};
}  // namespace

WatchedBlocks::Running::Running(std::shared_ptr<WatchedBlocks> blocks, OpaqueCall* step)
    : blocks_(std::move(blocks)) {
  blocks_->step_ = step;
  step->watch();
}

py::object WatchedBlocks::instead_of(const py::object& function) {
  return py::cpp_function(
      [function, blocks = shared_from_this()](const py::args& args, const py::kwargs& named) {
        return blocks->call(function, args, named);
      });
}

py::object WatchedBlocks::call(const py::object& function, const py::args& args, const py::kwargs& kwargs) {
  Recorder* recorder = around_.recorder;
  if (!step_ || Recorder::active() != recorder || recorder->stopped()) return function(*args, **kwargs);
  Looking looking(around_.pause);
  // A block of another one is part of it.
  if (recorder->in_block()) return function(*args, **kwargs);
  Watched watched(around_, step_);
  return function(*args, **kwargs);
}

}  // namespace lazytrace
