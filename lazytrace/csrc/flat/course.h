// How far a trace has come on its way to a flat form.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "flat/asked.h"
#include "flat/form.h"

namespace lazytrace {

// The first hit shows that the program is worth it, the next is watched, the one after proves the form, and
// from then on it answers. Changed with the GIL only.
struct FlatCourse {
  enum class Stage : uint8_t { Waiting, Due, Made, Ready, Refused } stage = Stage::Waiting;
  bool busy = false;  // a call is making or proving it
  std::shared_ptr<const FlatForm> form;
  // Of a program that leaves a graph: what passes through that of an earlier hit have asked, and then how the
  // gradients look that they bring. Hits are looked at ever more seldom.
  std::shared_ptr<Asked> asked;
  std::vector<TensorMeta> looks;
  uint32_t hits = 0;
  std::string obstacle;
  int answered = 0, stopped = 0;  // how often it did, and how often it stopped on its way

  // What it did until it stopped was for nothing, so it must not stop often: it takes about half of the time
  // of the program, which then runs as well.
  void note(bool ok) {
    ++(ok ? answered : stopped);
    if (stopped > 2 && 3 * stopped > answered) refuse("values lead away from it too often");
  }
  // "flat" where the form answers, and why it never will.
  std::pair<std::string, std::string> describe() const {
    const char* how = form && form->backward ? "one node" : "flat";
    return {stage == Stage::Ready ? how : "", obstacle};
  }
  void refuse(std::string why) {
    stage = Stage::Refused;
    obstacle = std::move(why);
    form = nullptr;
    asked = nullptr;
  }
};

}  // namespace lazytrace
