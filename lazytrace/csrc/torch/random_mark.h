// Where the default generators stand: two marks differ where random numbers were drawn between them.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <array>

#include "torch/gpu.h"

namespace lazytrace {

class RandomMark {
 public:
  // Where its engine stands among the numbers that it has made ahead, and some of these: it makes all of them
  // anew when they are used up, and when it is seeded. Asked of a copy (2.5 KB), as nothing may be drawn: a
  // generator that was seeded just now would make them first. Two marks that are equal by chance are one in
  // 2^64. No GIL needed.
  static RandomMark now() {
    RandomMark mark;
    static at::Generator generator = at::detail::getDefaultCPUGenerator();
    auto* cpu = generator.get<at::CPUGeneratorImpl>();
    std::lock_guard<std::mutex> lock(generator.mutex());
    at::mt19937_data_pod engine = cpu->engine().data();
    mark.left_ = engine.left_;
    for (size_t i = 0; i < mark.some_.size(); ++i) mark.some_[i] = engine.state_[i * kApart];
    mark.normal_ = cpu->next_float_normal_sample().has_value();
    mark.gpus_ = gpu_in_use() ? of_gpus() : 0;
    return mark;
  }
  bool operator!=(const RandomMark& other) const {
    return left_ != other.left_ || some_ != other.some_ || normal_ != other.normal_ || gpus_ != other.gpus_;
  }

 private:
  // Their generators count what they have given: a seed, and how far from there.
  static uint64_t of_gpus() {
    uint64_t all = 0;
    for (at::Generator& generator : default_generators()) {
      if (generator.device().is_cpu()) continue;
      std::lock_guard<std::mutex> lock(generator.mutex());
      all = all * 0x9e3779b97f4a7c15 + generator.current_seed() * 31 + generator.get_offset();
    }
    return all;
  }

  static constexpr size_t kApart = at::MERSENNE_STATE_N / 4;
  int left_ = 0;
  std::array<uint32_t, 4> some_ = {};
  bool normal_ = false;
  uint64_t gpus_ = 0;
};

}  // namespace lazytrace
