// What a replay has set of tensors themselves before its program is done: flags and memory.
#pragma once

#include <ATen/ATen.h>

#include <utility>
#include <vector>

namespace lazytrace {

// `requires_grad` of tensors that were there before the call, and `.data` of any. Where a replay stops and
// the function runs again, that sets them itself, and reads them before it does: they are as they were when
// the call began.
//
// Holds the tensors until it is cleared. Needs no GIL.
class SetTensors {
 public:
  void set_requires_grad(const at::Tensor& tensor, bool value) {
    flags_.emplace_back(tensor, tensor.requires_grad());
    tensor.set_requires_grad(value);
  }
  void set_data(at::Tensor& tensor, const at::Tensor& value) {
    data_.push_back({tensor, tensor.variable_data(), value});
    tensor.set_data(value);
  }
  void take_back() {
    for (auto set = flags_.rbegin(); set != flags_.rend(); ++set) set->first.set_requires_grad(set->second);
    for (auto set = data_.rbegin(); set != data_.rend(); ++set) set->tensor.set_data(set->before);
  }
  // Another trace goes on where the replay stopped.
  void put_again() {
    for (const auto& [tensor, before] : flags_) tensor.set_requires_grad(!before);
    for (Data& set : data_) set.tensor.set_data(set.value);
  }
  void clear() {
    flags_.clear();
    data_.clear();
  }

 private:
  struct Data {
    at::Tensor tensor, before, value;
  };
  std::vector<std::pair<at::Tensor, bool>> flags_;  // with what it was; only changes are steps
  std::vector<Data> data_;
};

}  // namespace lazytrace
