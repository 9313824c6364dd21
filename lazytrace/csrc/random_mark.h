// Where the default CPU generator stands: two marks differ exactly where random numbers were drawn between them.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <cstring>

namespace lazytrace {

class RandomMark {
 public:
  // Copies the generator's 2.5 KB of state, about 60 ns; only recordings do. No GIL needed.
  static RandomMark now() {
    RandomMark mark;
    auto generator = at::detail::getDefaultCPUGenerator();
    std::lock_guard<std::mutex> lock(generator.mutex());
    mark.data_ = at::check_generator<at::CPUGeneratorImpl>(generator)->engine().data();
    mark.normal_ = at::check_generator<at::CPUGeneratorImpl>(generator)->next_float_normal_sample().has_value();
    return mark;
  }
  bool operator!=(const RandomMark& other) const {
    return data_.left_ != other.data_.left_ || data_.next_ != other.data_.next_ || data_.seed_ != other.data_.seed_ ||
           data_.state_[0] != other.data_.state_[0] || data_.state_[1] != other.data_.state_[1] || normal_ != other.normal_;
  }

 private:
  at::mt19937_data_pod data_{};
  bool normal_ = false;
};

}  // namespace lazytrace
