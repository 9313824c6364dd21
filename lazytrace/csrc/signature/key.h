// What a call is looked up by: bytes that are equal exactly for calls of one signature.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

namespace lazytrace {

// Written anew at every call into memory that is kept, so that a hit allocates nothing.
class Key {
 public:
  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable<T>::value, "a key holds plain bytes");
    std::memcpy(room(sizeof value), &value, sizeof value);
  }
  void put(const void* bytes, size_t count) {
    if (count) std::memcpy(room(count), bytes, count);
  }
  void put_tag(char tag) { *room(1) = tag; }
  void put_text(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    put(text.data(), text.size());
  }
  // Room for so many bytes at the end, to be written by the caller.
  char* room(size_t count) {
    if (__builtin_expect(size_ + count > capacity_, 0)) grow(count);
    char* at = bytes_.get() + size_;
    size_ += count;
    return at;
  }
  void clear() { size_ = 0; }
  // Back to what it was when it had this many bytes.
  void cut(size_t size) { size_ = size; }
  size_t size() const { return size_; }
  std::string_view view() const { return {bytes_.get(), size_}; }

 private:
  __attribute__((noinline)) void grow(size_t count) {
    capacity_ = 2 * (capacity_ + count) + 256;
    std::unique_ptr<char[]> larger(new char[capacity_]);
    if (size_) std::memcpy(larger.get(), bytes_.get(), size_);
    bytes_ = std::move(larger);
  }

  std::unique_ptr<char[]> bytes_;
  size_t size_ = 0, capacity_ = 0;
};

}  // namespace lazytrace
