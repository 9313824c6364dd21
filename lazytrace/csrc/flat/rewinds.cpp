#include "flat/rewinds.h"

#include <algorithm>

#include "torch/gpu.h"

namespace lazytrace {

namespace {
Step step_of(const char* name) {
  Step step(c10::Dispatcher::singleton().findSchemaOrThrow(name, ""));
  Argument of_default;
  of_default.kind = Argument::Kind::Constant;
  step.arguments.push_back(of_default);
  return step;
}
}  // namespace

int Rewinds::ask() {
  Step step = step_of("lazytrace::random_state");
  Result state;
  state.reg = kernels_->fresh();
  // Not by the operator, which would be seen.
  state.meta = std::make_shared<TensorMeta>(TensorMeta::of(at::detail::getDefaultCPUGenerator().get_state()));
  step.results.push_back(state);
  kernels_->steps().push_back(std::move(step));
  places_.emplace_back(now_, state.reg);
  return state.reg;
}

void Rewinds::set(int reg) {
  Step step = step_of("lazytrace::set_random_state");
  Argument state;
  state.kind = Argument::Kind::Register;
  state.reg = reg;
  step.arguments.push_back(state);
  step.random = true;
  kernels_->steps().push_back(std::move(step));
}

void Rewinds::begin_block() {
  if (gpu_in_use()) return kernels_->hinder("a checkpoint where a GPU is in use");
  now_ = RandomMark::now();
  auto is_here = [&](const auto& place) { return !(place.first != now_); };
  if (std::none_of(places_.begin(), places_.end(), is_here)) ask();
}

void Rewinds::before_kernel() {
  if (!any()) return;
  RandomMark mark = RandomMark::now();
  if (!(mark != now_)) return;
  auto is_there = [&](const auto& place) { return !(place.first != mark); };
  auto place = std::find_if(places_.begin(), places_.end(), is_there);
  if (place == places_.end()) return kernels_->hinder("the random stream is set");
  int to = place->second;
  ask();
  set(to);
  now_ = mark;
}

// Where it has drawn nothing and may draw the next time, what is one place now would be two then.
void Rewinds::after_kernel(bool draws) {
  if (!any()) return;
  RandomMark mark = RandomMark::now();
  if (draws && !(mark != now_))
    kernels_->hinder("a kernel beside a checkpoint hangs on values in what it draws");
  now_ = mark;
}

void Rewinds::go_on() {
  if (any()) now_ = RandomMark::now();
}

}  // namespace lazytrace
