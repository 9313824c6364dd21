// A number inside torch that nobody follows.
#pragma once

#include <c10/core/SymNodeImpl.h>

#include <cstdint>
#include <optional>
#include <string>

namespace lazytrace {

// What torch is handed where a thread finds a number in state that another thread follows: its value, for
// whoever asks. Immutable; needs no GIL.
class PlainNode final : public c10::SymNodeImpl {
 public:
  explicit PlainNode(int64_t value) : whole_(value), value_(static_cast<double>(value)), real_(false) {}
  explicit PlainNode(double value) : value_(value), real_(true) {}

  bool is_int() override { return !real_; }
  bool is_bool() override { return false; }
  bool is_float() override { return real_; }
  bool is_constant() override { return true; }
  c10::SymNode clone() override { return c10::intrusive_ptr<PlainNode>::reclaim_copy(this); }
  c10::SymNode wrap_int(int64_t value) override { return c10::make_intrusive<PlainNode>(value); }
  c10::SymNode wrap_float(double value) override { return c10::make_intrusive<PlainNode>(value); }
  int64_t guard_int(const char*, int64_t) override { return int_(); }
  double guard_float(const char*, int64_t) override { return value_; }
  bool guard_bool(const char*, int64_t) override { return value_ != 0; }
  int64_t int_() override {
    TORCH_CHECK(!real_, "a float in place of an int");
    return whole_;
  }
  // Sizes are compared and worked out as plain ones with this.
  std::optional<int64_t> constant_int() override { return maybe_as_int(); }
  std::optional<int64_t> maybe_as_int() override {
    return real_ ? std::nullopt : std::optional<int64_t>(whole_);
  }
  bool has_hint() override { return true; }
  std::string str() override { return real_ ? std::to_string(value_) : std::to_string(whole_); }

 private:
  int64_t whole_ = 0;
  double value_;
  bool real_;
};

}  // namespace lazytrace
