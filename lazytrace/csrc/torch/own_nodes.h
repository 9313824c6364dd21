// Which nodes of autograd a recording has seen come about.
#pragma once

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace lazytrace {

// Each thread numbers the nodes that it makes, and no number comes twice. Nodes that accumulate gradients
// have none of their own: they belong to their leaves. Belongs to the thread that made it.
class OwnNodes {
 public:
  // What runs meanwhile is not seen.
  void pause() { paused_at_ = at::sequence_number::peek(); }
  void resume() {
    uint64_t now = at::sequence_number::peek();
    if (now != paused_at_) unseen_.emplace_back(paused_at_, now);
  }

  // Not of one that was made in a pause, or by another thread.
  bool holds(const torch::autograd::Node& node) const {
    uint64_t number = node.sequence_nr();
    return node.thread_id() == thread_ && number >= first_ && number < at::sequence_number::peek() &&
           std::none_of(
               unseen_.begin(), unseen_.end(),
               [&](const auto& pause) { return number >= pause.first && number < pause.second; });
  }

 private:
  uint64_t thread_ = at::RecordFunction::currentThreadId();
  uint64_t first_ = at::sequence_number::peek();
  uint64_t paused_at_ = 0;
  std::vector<std::pair<uint64_t, uint64_t>> unseen_;
};

}  // namespace lazytrace
