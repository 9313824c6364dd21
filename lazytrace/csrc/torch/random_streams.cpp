#include "torch/random_streams.h"

#include <mutex>

#include "torch/gpu.h"

namespace lazytrace {

RandomStreams RandomStreams::now() {
  RandomStreams streams;
  for (at::Generator& generator : default_generators()) {
    std::lock_guard<std::mutex> lock(generator.mutex());
    streams.states_.push_back(generator.get_state());
  }
  return streams;
}

void RandomStreams::put_back() const {
  std::vector<at::Generator> generators = default_generators();
  for (size_t i = 0; i < states_.size(); ++i) {
    std::lock_guard<std::mutex> lock(generators[i].mutex());
    generators[i].set_state(states_[i]);
  }
}

bool RandomStreams::operator==(const RandomStreams& other) const {
  if (states_.size() != other.states_.size()) return false;
  for (size_t i = 0; i < states_.size(); ++i)
    if (!at::equal(states_[i], other.states_[i])) return false;
  return true;
}

}  // namespace lazytrace
