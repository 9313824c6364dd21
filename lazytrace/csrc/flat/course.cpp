#include "flat/course.h"

namespace lazytrace {

namespace {
// A form takes about 1 KiB for each step, and there is one for each sizes.
size_t most_forms(size_t steps) {
  constexpr size_t kFewest = 4, kMost = 128, kSteps = 50000;
  return std::clamp(kSteps / std::max<size_t>(steps, 1), kFewest, kMost);
}
}  // namespace

std::shared_ptr<FlatCourse> FlatCourses::of(std::vector<int64_t> sizes, size_t steps) {
  constexpr uint64_t kRarely = 512;  // calls
  ++clock_;
  auto known =
      std::find_if(sized_.begin(), sized_.end(), [&](const Sized& one) { return one.sizes == sizes; });
  if (known == sized_.end()) {
    auto oldest = std::min_element(sized_.begin(), sized_.end(),
                                   [](const Sized& a, const Sized& b) { return a.used < b.used; });
    bool full = sized_.size() >= most_forms(steps);
    // Where more sizes than that take turns, those that have a form keep it.
    if (full && clock_ - oldest->used < kRarely) return nullptr;
    if (full) sized_.erase(oldest);
    known = sized_.insert(sized_.end(), {std::move(sizes), std::make_shared<FlatCourse>(), 0});
  }
  known->used = clock_;
  return known->course;
}

bool FlatCourses::may_make(const FlatCourse* course) {
  constexpr uint64_t kPause = 4;  // calls
  if (making_ && making_ != course && clock_ < made_ + kPause) return false;
  making_ = course;
  made_ = clock_;
  return true;
}

const FlatCourse& FlatCourses::first() const {
  auto rank = [](const FlatCourse& course) {
    return (course.stage == FlatCourse::Stage::Ready ? 4 : 0) + (course.form ? 2 : 0) +
           (course.obstacle.empty() ? 0 : 1);
  };
  const FlatCourse* found = alone_.get();
  for (const Sized& one : sized_)
    if (rank(*one.course) > rank(*found)) found = one.course.get();
  return *found;
}

size_t FlatCourses::ready() const {
  auto answers = [](const FlatCourse& course) { return course.stage == FlatCourse::Stage::Ready; };
  auto sized =
      std::count_if(sized_.begin(), sized_.end(), [&](const Sized& one) { return answers(*one.course); });
  return static_cast<size_t>(sized) + (answers(*alone_) ? 1 : 0);
}

size_t FlatCourses::at_sizes() const {
  return static_cast<size_t>(std::count_if(sized_.begin(), sized_.end(),
                                           [](const Sized& one) { return one.course->at_sizes != nullptr; }));
}

}  // namespace lazytrace
