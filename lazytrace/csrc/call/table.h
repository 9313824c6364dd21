// The traces of one function or instance by signature: what a hit looks up.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trace/trace.h"

namespace lazytrace {

// How many calls ran eagerly for one reason, and how long, without Python knowing of each. Outlives the
// function: reports read it. Needs the GIL.
struct EagerCount {
  uint64_t calls = 0;
  double seconds = 0;
};

// Python decides what is stored and what goes (cache.py); this is its copy for hits. Needs the GIL.
class TraceTable {
 public:
  using Traces = std::vector<std::shared_ptr<const Trace>>;
  // A signature runs eagerly, and Python need not see each of its calls.
  struct Settled {
    std::shared_ptr<EagerCount> count;
    uint64_t left = 0;  // so many calls from now Python is to see one again; 0: never
  };

  // The traces of a signature, those to be asked first first; null where there are none. What is returned
  // stays as it is, and alive, whatever happens to the table meanwhile.
  std::shared_ptr<const Traces> find(std::string_view key);
  // Puts these in the place of what the signature has.
  void set(std::string_view key, Traces traces);
  void clear();
  // Whether any trace was entered that fits calls that differ in this: sizes, numbers or both.
  bool has(int loose) const { return loose_ >> loose & 1; }
  // The trace has answered a call: it is now the most recently used.
  void mark(const Trace& trace) {
    trace.used = ++clock_;
    ++trace.hits;
    ++uses_;
    if (trace.number >= newest_) retreat_.count.reset();
  }

  // Whether the trace, which has answered a call, is better asked first: Python decides, as it has the order,
  // but not of ways that are taken by turns. `branched`: another one was asked, and came to a side exit.
  bool comes_first(const Trace& trace, bool branched) {
    int64_t before = std::exchange(branch_, branched ? trace.number : -1);
    return branched && before == branch_;
  }

  // Calls of this key that no trace answers run eagerly from now on.
  void settle(std::string_view key, Settled settled);
  void unsettle(std::string_view key);
  // The next `left` calls that no trace answers do, whatever their key; when a trace with this number or a
  // higher one has answered a call, Python decides anew.
  void retreat(Settled settled, int64_t number) {
    retreat_ = std::move(settled);
    newest_ = number;
  }
  // Ends that; how many calls were left, without the one that Python sees now.
  uint64_t end_retreat() {
    uint64_t left = std::exchange(retreat_, {}).left;
    return left ? left - 1 : 0;
  }
  // Whether traces are asked at all: where each replay ends in a side exit, its call is better not replayed.
  void set_aside(bool aside) { aside_ = aside; }
  bool is_aside() const { return aside_; }
  // How often a trace was marked.
  uint64_t uses() const { return uses_; }

  // Who counts the call when it runs eagerly now; null where Python must see it. `key` is that of the call,
  // or says why it has none.
  std::shared_ptr<EagerCount> eager(std::string_view key, bool has_key);

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const Traces> traces;
  };

  // Keys by their hash; of several with one hash, the others are found one by one.
  std::unordered_multimap<uint64_t, Entry> entries_;
  const Entry* last_ = nullptr;  // that was found: most calls look like the one before
  std::unordered_multimap<uint64_t, std::pair<std::string, Settled>> settled_;
  Settled retreat_;
  int64_t newest_ = INT64_MAX;
  uint64_t uses_ = 0;
  bool aside_ = false;
  int64_t branch_ = -1;  // that answered the last call, after the exit of another
  unsigned loose_ = 0;   // a bit for each combination
  // One for all tables, so that uses of different functions compare. Changed with the GIL only.
  inline static uint64_t clock_ = 0;
};

}  // namespace lazytrace
