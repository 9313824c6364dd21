// Whether a function whose replay stops at a side exit can run again from there.
#pragma once

#include <ATen/core/Tensor.h>

#include <climits>
#include <string>
#include <vector>

#include "program/program.h"

namespace lazytrace {

// What was done so far, as far as it matters to code that runs again over steps that have run.
class Resuming {
 public:
  explicit Resuming(Program* program) : program_(program) {}

  void add(const Step& step) { look_at_versions(), changed_ |= step.once(); }
  // From the next step on, Python code that runs again would not see what it saw.
  void end(const std::string& why);
  // The function asks how often a tensor of its own was written to. It sees the same when it runs again as
  // long as that is never.
  void ask_version(const at::Tensor& tensor);
  // Whether it can be resumed no more; then it must not be once something was changed.
  bool ended() { return look_at_versions(), program_->unresumable <= at_step(); }
  bool ended_before() { return look_at_versions(), program_->unresumable < at_step(); }
  const std::string& why() const { return why_; }
  // Whether a step so far must not be done again.
  bool changed() const { return changed_; }
  // What has changed, in words.
  std::string change() const;

  // A Python function is called as one step; operators inside it may read values.
  void begin_opaque() { hidden_varies_ = false; }
  void add_hidden(bool varies) { hidden_varies_ |= varies; }
  bool hidden_varies() const { return hidden_varies_; }
  // `block`: of Python code that was watched.
  void end_opaque(bool python, bool block = false) { after_opaque_ |= python, after_block_ |= block; }
  bool after_opaque() const { return after_opaque_; }
  bool after_block() const { return after_block_; }

 private:
  int at_step() const { return static_cast<int>(program_->steps.size()); }
  void look_at_versions();

  Program* program_;
  std::vector<c10::VariableVersion> asked_;  // at which the tensors were not written to
  bool changed_ = false;
  bool after_opaque_ = false, after_block_ = false;
  bool hidden_varies_ = false;
  std::string why_;
};

}  // namespace lazytrace
