#include "torch/modes.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <sstream>
#include <utility>

namespace lazytrace {

Modes Modes::current() {
  Modes modes;
  modes.grad = at::GradMode::is_enabled();
  modes.inference = c10::InferenceMode::is_enabled();
  modes.autocast_cache = at::autocast::is_autocast_cache_enabled();
  AutocastDtypes dtypes = autocast_dtypes();
  c10::DispatchKeySet off = c10::impl::tls_local_dispatch_key_set().excluded_;
  const auto& keys = autocast_keys();
  for (size_t i = 0; i < kAutocastCount; ++i) {
    modes.autocast[i] = !off.has(keys[i]);
    modes.autocast_dtype[i] = static_cast<c10::ScalarType>(dtypes[i]);
  }
  return modes;
}

bool Modes::operator==(const Modes& other) const {
  if (grad != other.grad || inference != other.inference || autocast_cache != other.autocast_cache ||
      autocast_region != other.autocast_region || switches != other.switches)
    return false;
  for (size_t i = 0; i < kAutocastCount; ++i)
    if (autocast[i] != other.autocast[i] || autocast_dtype[i] != other.autocast_dtype[i]) return false;
  return true;
}

bool Modes::any_autocast() const {
  for (bool enabled : autocast)
    if (enabled) return true;
  return false;
}

void Modes::leave_autocast() {
  for (bool& on : autocast) on = false;
  autocast_region = 0;
}

std::string Modes::text() const {
  std::ostringstream out;
  if (inference) out << "inference_mode ";
  if (!grad && !inference) out << "no_grad ";
  for (size_t i = 0; i < kAutocastCount; ++i)
    if (autocast[i])
      out << "autocast(" << c10::DeviceTypeName(kAutocastDevices[i], true) << ", "
          << c10::toString(autocast_dtype[i]) << ") ";
  if (std::string set = switches.text(); !set.empty()) out << set << " ";
  std::string text = out.str();
  if (!text.empty()) text.pop_back();
  return text;
}

void ModeSwitch::to(const Modes& modes) {
  if (!base_) base_ = now_ = Modes::current();
  if (modes == now_) return;
  inference_.reset();
  if (modes.inference != base_->inference) inference_.emplace(modes.inference);
  at::GradMode::set_enabled(modes.grad);
  apply_autocast(modes);
  if (modes.switches != now_.switches) apply_switches(modes.switches);
  now_ = modes;
}

void ModeSwitch::apply_switches(const Switches& switches) {
  Switches held = switches.held(), to = switches;
  for (size_t row = 0; row < kSwitchCount; ++row) {
    if (switches.has(row) && !found_.has(row)) found_.put(row, held.value(row));
    // A pass that runs after the function's switches have gone back.
    if (!switches.has(row) && found_.has(row)) to.put(row, found_.value(row));
  }
  to.apply();
}

void ModeSwitch::apply_autocast(const Modes& modes) {
  // The casts of the caller's autocast stay.
  if (modes.autocast_region != now_.autocast_region) leave_autocast();
  if (modes.autocast_region && !nested_) {
    at::autocast::increment_nesting();
    nested_ = true;
  }
  for (size_t i = 0; i < kAutocastCount; ++i) {
    at::autocast::set_autocast_enabled(kAutocastDevices[i], modes.autocast[i]);
    at::autocast::set_autocast_dtype(kAutocastDevices[i], modes.autocast_dtype[i]);
  }
  at::autocast::set_autocast_cache_enabled(modes.autocast_cache);
}

KeptRegion ModeSwitch::keep_region(int number) {
  if (!nested_ || now_.autocast_region != number) return {};
  nested_ = false;
  return KeptRegion(number);
}

void ModeSwitch::go_on_in(KeptRegion region) {
  if (!region.number()) return;
  base_ = now_ = Modes::current();
  now_.autocast_region = region.number();
  region.give_up();
  nested_ = true;
}

ModeSwitch::~ModeSwitch() {
  inference_.reset();
  if (base_ && now_ != *base_) {
    at::GradMode::set_enabled(base_->grad);
    for (size_t i = 0; i < kAutocastCount; ++i) {
      at::autocast::set_autocast_enabled(kAutocastDevices[i], base_->autocast[i]);
      at::autocast::set_autocast_dtype(kAutocastDevices[i], base_->autocast_dtype[i]);
    }
    at::autocast::set_autocast_cache_enabled(base_->autocast_cache);
  }
  found_.apply();
  leave_autocast();
}

void ModeSwitch::leave_autocast() {
  // The cast weights of a finished autocast region must not be met by the next one (autocast_mode.cpp).
  if (nested_ && at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  nested_ = false;
}

}  // namespace lazytrace
