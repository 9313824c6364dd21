#include "torch/random_streams.h"

#include <mutex>

#include "torch/gpu.h"

namespace lazytrace {

RandomStreams RandomStreams::now(const std::vector<at::Generator>& more) {
  RandomStreams streams;
  streams.generators_ = default_generators();
  streams.generators_.insert(streams.generators_.end(), more.begin(), more.end());
  return streams.again();
}

RandomStreams RandomStreams::again() const {
  RandomStreams streams;
  streams.generators_ = generators_;
  for (at::Generator& generator : streams.generators_) {
    std::lock_guard<std::mutex> lock(generator.mutex());
    streams.states_.push_back(generator.get_state());
  }
  return streams;
}

void RandomStreams::put_back() const {
  for (size_t i = 0; i < states_.size(); ++i) {
    at::Generator generator = generators_[i];
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(states_[i]);
  }
}

bool RandomStreams::operator==(const RandomStreams& other) const {
  if (states_.size() != other.states_.size()) return false;
  for (size_t i = 0; i < states_.size(); ++i)
    if (!at::equal(states_[i], other.states_[i])) return false;
  return true;
}

}  // namespace lazytrace
