// Tables by address for the time of one recording or one replay: a recording asks and fills them tens of
// thousands of times, and std::unordered_map takes an allocation for each entry and a division for each
// question.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace lazytrace {

// The bits of an address that differ from one object to the next, spread over a word.
inline size_t spread(uintptr_t bits) { return static_cast<size_t>((bits >> 4) * 0x9E3779B97F4A7C15u >> 20); }

// Open addressing with linear probing; entries are never taken out. Pointers to values hold until the next
// insertion.
template <typename V>
class AddressMap {
 public:
  struct Entry {
    const void* key = nullptr;
    V value{};
  };

  AddressMap() = default;
  // With memory for so many entries.
  explicit AddressMap(size_t entries) {
    size_t size = 64;
    while (size < entries * 2 + 2) size *= 2;
    entries_ = std::vector<Entry>(size);
  }

  V* find(const void* key) { return const_cast<V*>(static_cast<const AddressMap*>(this)->find(key)); }
  const V* find(const void* key) const {
    if (!size_) return nullptr;
    for (size_t at = spread(reinterpret_cast<uintptr_t>(key)) & mask();; at = (at + 1) & mask()) {
      const Entry& entry = entries_[at];
      if (entry.key == key) return &entry.value;
      if (!entry.key) return nullptr;
    }
  }
  bool count(const void* key) const { return find(key) != nullptr; }
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }

  // The value of a key, and whether it was entered just now.
  std::pair<V*, bool> emplace(const void* key, V value) {
    if ((size_ + 1) * 2 > entries_.size()) grow();
    for (size_t at = spread(reinterpret_cast<uintptr_t>(key)) & mask();; at = (at + 1) & mask()) {
      Entry& entry = entries_[at];
      if (entry.key == key) return {&entry.value, false};
      if (entry.key) continue;
      entry.key = key;
      entry.value = std::move(value);
      ++size_;
      return {&entry.value, true};
    }
  }
  V& operator[](const void* key) { return *emplace(key, V{}).first; }

  // visit(key, value) for each entry, in no order.
  template <typename F>
  void each(F visit) {
    for (Entry& entry : entries_)
      if (entry.key) visit(entry.key, entry.value);
  }
  template <typename F>
  bool any(F holds) const {
    for (const Entry& entry : entries_)
      if (entry.key && holds(entry.key)) return true;
    return false;
  }

 private:
  size_t mask() const { return entries_.size() - 1; }

  void grow() {
    std::vector<Entry> before = std::move(entries_);
    entries_ = std::vector<Entry>(before.empty() ? 64 : before.size() * 4);
    for (Entry& entry : before) {
      if (!entry.key) continue;
      size_t at = spread(reinterpret_cast<uintptr_t>(entry.key)) & mask();
      while (entries_[at].key) at = (at + 1) & mask();
      entries_[at] = std::move(entry);
    }
  }

  std::vector<Entry> entries_;
  size_t size_ = 0;
};

class AddressSet {
 public:
  AddressSet() = default;
  explicit AddressSet(size_t entries) : entries_(entries) {}
  // Whether it was not there yet.
  bool insert(const void* key) { return entries_.emplace(key, {}).second; }
  bool count(const void* key) const { return entries_.count(key); }
  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  template <typename F>
  bool any(F holds) const {
    return entries_.any(holds);
  }

 private:
  struct Nothing {};
  AddressMap<Nothing> entries_;
};

// Numbers by a hash of whatever they stand for; who asks compares the things themselves.
class HashedNumbers {
 public:
  // The first number under the hash for which `same(number)` holds, or -1.
  template <typename F>
  int find(size_t hash, F same) const {
    if (!size_) return -1;
    for (size_t at = hash & mask();; at = (at + 1) & mask()) {
      const Entry& entry = entries_[at];
      if (entry.number < 0) return -1;
      if (entry.hash == hash && same(entry.number)) return entry.number;
    }
  }
  void add(size_t hash, int number) {
    if ((size_ + 1) * 2 > entries_.size()) grow();
    enter(hash, number);
    ++size_;
  }
  void clear() {
    entries_.clear();
    size_ = 0;
  }

 private:
  struct Entry {
    size_t hash = 0;
    int number = -1;
  };
  size_t mask() const { return entries_.size() - 1; }
  void enter(size_t hash, int number) {
    size_t at = hash & mask();
    while (entries_[at].number >= 0) at = (at + 1) & mask();
    entries_[at] = {hash, number};
  }
  void grow() {
    std::vector<Entry> before = std::move(entries_);
    entries_ = std::vector<Entry>(before.empty() ? 256 : before.size() * 4);
    for (const Entry& entry : before)
      if (entry.number >= 0) enter(entry.hash, entry.number);
  }

  std::vector<Entry> entries_;
  size_t size_ = 0;
};

}  // namespace lazytrace
