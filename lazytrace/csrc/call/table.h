// The traces of one function or instance by signature: what a hit looks up.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "trace/trace.h"

namespace lazytrace {

// Python decides what is stored and what goes (cache.py); this is its copy for hits. Needs the GIL.
class TraceTable {
 public:
  using Traces = std::vector<std::shared_ptr<const Trace>>;

  // The traces of a signature, those to be asked first first; null where there are none. What is returned
  // stays as it is, and alive, whatever happens to the table meanwhile.
  std::shared_ptr<const Traces> find(std::string_view key);
  // Puts these in the place of what the signature has.
  void set(std::string_view key, Traces traces);
  void clear();
  // Whether any trace was entered that fits calls of other sizes than its own.
  bool has_dynamic() const { return has_dynamic_; }
  // The trace has answered a call: it is now the most recently used.
  void mark(const Trace& trace) { trace.used = ++clock_; }

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const Traces> traces;
  };

  // Keys by their hash; of several with one hash, the others are found one by one.
  std::unordered_multimap<uint64_t, Entry> entries_;
  const Entry* last_ = nullptr;  // that was found: most calls look like the one before
  bool has_dynamic_ = false;
  uint64_t clock_ = 0;
};

}  // namespace lazytrace
