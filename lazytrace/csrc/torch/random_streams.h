// The states of generators of random numbers, to be put back.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace lazytrace {

// Where the streams of the CPU and of the GPUs in use are, and those of more generators. Needs no GIL.
class RandomStreams {
 public:
  RandomStreams() = default;  // of none
  static RandomStreams now(const std::vector<at::Generator>& more = {});
  // Where the same streams are now.
  RandomStreams again() const;

  bool defined() const { return !states_.empty(); }
  void put_back() const;
  bool operator==(const RandomStreams& other) const;

 private:
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> states_;  // of each
};

}  // namespace lazytrace
