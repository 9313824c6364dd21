// How far a trace has come on its way to a flat form.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "flat/form.h"

namespace lazytrace {

// The first hit shows that the program is worth it, the next is watched, the one after proves the form, and
// from then on it answers. Changed with the GIL only.
struct FlatCourse {
  enum class Stage : uint8_t { Waiting, Due, Made, Ready, Refused } stage = Stage::Waiting;
  bool busy = false;  // a call is making or proving it
  std::shared_ptr<const FlatForm> form;
  std::string obstacle;

  // How far it is ("", "made", "flat" or "refused"), and why it is refused.
  std::pair<std::string, std::string> describe() const {
    static const char* const names[] = {"", "", "made", "flat", "refused"};
    return {names[static_cast<int>(stage)], obstacle};
  }
  void refuse(std::string why) {
    stage = Stage::Refused;
    obstacle = std::move(why);
    form = nullptr;
  }
};

}  // namespace lazytrace
