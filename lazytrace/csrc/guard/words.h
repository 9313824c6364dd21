// The quick way to ask most guards: words of memory that are what they were at the last check that passed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lazytrace {

// A word of an object: a reference, a version, a length. It may be read once those before it were found as
// they were, as these show that the object is still there and laid out as it was.
struct Word {
  const void* place;
  uint64_t mask, value;
  int task;  // that it stands for
};

// Words that stand for all tasks before `task`, which none can stand for; the last has no task behind it.
struct Stretch {
  size_t words, task;
};

// Belongs to one GuardTree; holds no references. Read and changed with the GIL only.
struct QuickWay {
  static constexpr int kMostPatience = 8;

  std::vector<Word> words;
  std::vector<Stretch> stretches;
  std::vector<void*> nodes;    // values by node
  std::vector<char> restless;  // tasks whose words were found otherwise
  std::vector<char> roving;    // nodes that were found to be other objects
  int calm = 0;                // how many checks have passed since, without a change
  int patience = 2;            // how many must pass before it is made (again)
  bool ready = false;

  // What has to be asked again, once: whatever has changed is left to its task from then on.
  void drop() {
    // Making it takes as long as ten checks, and where one place has changed another often will.
    if (ready) patience = std::min(2 * patience, kMostPatience);
    ready = false;
    calm = 0;
  }
  // The first word from `from` to `to` that is another one; `to` where there is none.
  size_t first_other(size_t from, size_t to) const {
    for (; from < to; ++from) {
      const Word& word = words[from];
      if ((*static_cast<const uint64_t*>(word.place) & word.mask) != word.value) break;
    }
    return from;
  }
};

}  // namespace lazytrace
