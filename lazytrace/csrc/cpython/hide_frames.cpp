#include "cpython/hide_frames.h"

#include <utility>

namespace lazytrace {

namespace {
// The innermost of this thread. They lie on the stack; one that goes takes itself out, in whatever order.
thread_local HideFrames* hiding = nullptr;

// How many frames of this thread count for no limit of recursion.
thread_local int allowed = 0;
constexpr int kMostAllowed = 3000;
}  // namespace

HideFrames::HideFrames(bool (*hidden)(PyObject*)) {
  PyThreadState* thread = PyThreadState_Get();
  _PyCFrame* entered = thread->cframe;
  for (visible_ = entered->current_frame; visible_ && hidden(reinterpret_cast<PyObject*>(visible_->f_code));
       visible_ = visible_->previous) {
    outer_ = visible_;
    ++allowed_;
  }
  if (!outer_) return;
  if (allowed > kMostAllowed) allowed_ = 0;
  allowed += allowed_;
  thread->recursion_remaining += allowed_;
  entered_ = entered;
  inner_ = std::exchange(entered->current_frame, visible_);
  around_ = std::exchange(hiding, this);
}

HideFrames::~HideFrames() {
  if (!entered_) return;
  allowed -= allowed_;
  PyThreadState_Get()->recursion_remaining -= allowed_;
  entered_->current_frame = inner_;
  HideFrames** link = &hiding;
  while (*link != this) link = &(*link)->around_;
  *link = around_;
}

Frame Frame::previous() const {
  const HideFrames* one = hiding;
  // The last frame that something hides has the visible one behind it, too, and that is right.
  for (const HideFrames* h = hiding; h; h = h->around_)
    if (h->outer_ == f_) one = h->around_;
  for (; one; one = one->around_)
    if (one->visible_ == f_->previous) return Frame(one->inner_);
  return Frame(f_->previous);
}

}  // namespace lazytrace
