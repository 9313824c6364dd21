#include "call/table.h"

namespace lazytrace {

namespace {
// Eight bytes at a time, mixed by multiplication (the finalizer of Austin Appleby's MurmurHash3).
uint64_t hash_of(std::string_view bytes) {
  uint64_t hash = bytes.size();
  auto mix = [&](uint64_t word) {
    hash ^= word;
    hash *= 0xff51afd7ed558ccdu;
    hash ^= hash >> 33;
  };
  const char* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    mix(word);
  }
  uint64_t rest = 0;
  if (left) std::memcpy(&rest, at, left);
  mix(rest);
  return hash;
}
}  // namespace

std::shared_ptr<const TraceTable::Traces> TraceTable::find(std::string_view key) {
  if (last_ && last_->key == key) return last_->traces;
  auto range = entries_.equal_range(hash_of(key));
  for (auto at = range.first; at != range.second; ++at)
    if (at->second.key == key) {
      last_ = &at->second;
      return last_->traces;
    }
  return nullptr;
}

void TraceTable::set(std::string_view key, Traces traces) {
  last_ = nullptr;
  uint64_t hash = hash_of(key);
  auto range = entries_.equal_range(hash);
  auto at = range.first;
  while (at != range.second && at->second.key != key) ++at;
  if (at != range.second) entries_.erase(at);
  if (traces.empty()) return;
  // A call that has none of one kind looks for the other alone.
  if (int loose = traces.front()->program().loose())
    loose_ |= 1u << loose | 1u << (loose & Call::kSizes) | 1u << (loose & Call::kNumbers);
  entries_.emplace(hash, Entry{std::string(key), std::make_shared<const Traces>(std::move(traces))});
}

void TraceTable::settle(std::string_view key, Settled settled) {
  constexpr size_t kKept = 1024;  // as many as Python remembers
  unsettle(key);
  if (settled_.size() >= kKept) return;
  settled_.emplace(hash_of(key), std::make_pair(std::string(key), std::move(settled)));
}

void TraceTable::unsettle(std::string_view key) {
  auto range = settled_.equal_range(hash_of(key));
  for (auto at = range.first; at != range.second; ++at)
    if (at->second.first == key) {
      settled_.erase(at);
      return;
    }
}

namespace {
// Whether the call is one of those that Python need not see.
bool goes_by(TraceTable::Settled& settled) {
  if (!settled.count || settled.left == 1) return false;
  if (settled.left) --settled.left;
  return true;
}
}  // namespace

std::shared_ptr<EagerCount> TraceTable::eager(std::string_view key, bool has_key) {
  if (!settled_.empty()) {
    auto range = settled_.equal_range(hash_of(key));
    for (auto at = range.first; at != range.second; ++at)
      if (at->second.first == key) return goes_by(at->second.second) ? at->second.second.count : nullptr;
  }
  return has_key && goes_by(retreat_) ? retreat_.count : nullptr;
}

void TraceTable::clear() {
  settled_.clear();
  retreat_ = {};
  aside_ = false;
  last_ = nullptr;
  loose_ = 0;
  entries_.clear();
}

}  // namespace lazytrace
