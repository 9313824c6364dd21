// Where the default CPU generator stands: two marks differ where random numbers were drawn between them.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

namespace lazytrace {

class RandomMark {
 public:
  // What the generator would give next, asked of a copy of its engine (2.5 KB, about 60 ns; only recordings
  // do). Two marks that are equal by chance are one in 2^64. No GIL needed.
  static RandomMark now() {
    RandomMark mark;
    static at::Generator generator = at::detail::getDefaultCPUGenerator();
    auto* cpu = generator.get<at::CPUGeneratorImpl>();
    std::lock_guard<std::mutex> lock(generator.mutex());
    at::mt19937 engine = cpu->engine();
    mark.next_ = static_cast<uint64_t>(engine()) << 32 | engine();
    mark.normal_ = cpu->next_float_normal_sample().has_value();
    return mark;
  }
  bool operator!=(const RandomMark& other) const { return next_ != other.next_ || normal_ != other.normal_; }

 private:
  uint64_t next_ = 0;
  bool normal_ = false;
};

}  // namespace lazytrace
