// How far a trace has come on its way to a flat form.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flat/asked.h"
#include "flat/form.h"

namespace lazytrace {

// The first hit shows that the program is worth it, the next is watched, the one after proves the form, and
// from then on it answers. Changed with the GIL only.
struct FlatCourse {
  enum class Stage : uint8_t { Waiting, Due, Made, Ready, Refused } stage = Stage::Waiting;
  bool busy = false;       // a call is making or proving it
  bool graphless = false;  // nothing is left to autograd: its form goes without the code of custom functions
  std::shared_ptr<const FlatForm> form;
  // Of a program that leaves nothing to autograd, and has no form: how it is run at these sizes.
  std::shared_ptr<const Plan> at_sizes;
  // Of a program that leaves a graph: what passes through that of an earlier hit have asked, and then how the
  // gradients look that they bring. Hits are looked at ever more seldom.
  std::shared_ptr<Asked> asked;
  std::vector<TensorMeta> looks;
  uint32_t hits = 0;
  uint32_t met = 0;  // of sizes: how often they were, while nothing was made of them
  std::string obstacle;
  int answered = 0, stopped = 0;  // how often it did, and how often it stopped on its way

  // What it did until it stopped was for nothing, so it must not stop often: it takes about half of the time
  // of the program, which then runs as well.
  void note(bool ok) {
    if (!goes_on(ok)) refuse("values lead away from it too often");
  }
  // Counts, and says whether that is so still.
  bool goes_on(bool ok) {
    ++(ok ? answered : stopped);
    return stopped <= 2 || 3 * stopped <= answered;
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

// The courses of a trace: one, or, of a program that fits calls of other sizes, one for each of the sizes
// that are met. Changed with the GIL only.
class FlatCourses {
 public:
  const std::shared_ptr<FlatCourse>& only() { return alone_; }
  // `sizes`: those of all tensors of a call that may have other ones; `steps`: of the program. Null where
  // other sizes have all the places.
  std::shared_ptr<FlatCourse> of(std::vector<int64_t> sizes, size_t steps);
  // Whether a call may make or prove the form of this one. What is made for one size after the other takes a
  // few calls each: of a loop over many sizes most calls shall run as the program does.
  bool may_make(const FlatCourse* course);
  // The one that tells most: one that answers, or else has a form, or else was refused.
  const FlatCourse& first() const;
  // How many of them answer.
  size_t ready() const;
  // For how many sizes there is a plan.
  size_t at_sizes() const;

 private:
  struct Sized {
    std::vector<int64_t> sizes;
    std::shared_ptr<FlatCourse> course;
    uint64_t used;  // when it was asked for, by `clock_`
  };

  std::shared_ptr<FlatCourse> alone_ = std::make_shared<FlatCourse>();
  std::vector<Sized> sized_;
  uint64_t clock_ = 0;
  const void* making_ = nullptr;  // which one was at it last, and when, by `clock_`
  uint64_t made_ = 0;
};

}  // namespace lazytrace
