// The states of the default generators of random numbers, to be put back.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace lazytrace {

// Where the streams of the CPU and of the GPUs in use are. Needs no GIL.
class RandomStreams {
 public:
  RandomStreams() = default;  // of none
  static RandomStreams now();

  bool defined() const { return !states_.empty(); }
  void put_back() const;
  bool operator==(const RandomStreams& other) const;

 private:
  std::vector<at::Tensor> states_;  // in the order of default_generators()
};

}  // namespace lazytrace
