#include "torch/autocast.h"

#include <ATen/autocast_mode.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace lazytrace {

namespace {

// The thread-local variables of the library that holds torch's autocast, as this thread has them.
struct Block {
  const char* start = nullptr;
  size_t size = 0;
};

struct Search {
  ElfW(Addr) function = 0;  // of the library
  Block found;
};

// dladdr() would say so as well, and go through all symbols of the library for the name.
bool holds(const dl_phdr_info& library, ElfW(Addr) address) {
  return std::any_of(library.dlpi_phdr, library.dlpi_phdr + library.dlpi_phnum, [&](const auto& part) {
    return part.p_type == PT_LOAD && address - (library.dlpi_addr + part.p_vaddr) < part.p_memsz;
  });
}

int visit_library(dl_phdr_info* library, size_t, void* data) {
  auto* search = static_cast<Search*>(data);
  if (!holds(*library, search->function)) return 0;
  for (int i = 0; i < library->dlpi_phnum; ++i)
    if (library->dlpi_phdr[i].p_type == PT_TLS && library->dlpi_tls_data)
      search->found = {static_cast<const char*>(library->dlpi_tls_data), library->dlpi_phdr[i].p_memsz};
  return 1;
}

Block block_of_thread() {
  at::autocast::get_autocast_dtype(c10::kCPU);  // a thread gets its variables when it uses the first of them
  Search search;
  search.function = reinterpret_cast<ElfW(Addr)>(&at::autocast::get_autocast_dtype);
  dl_iterate_phdr(visit_library, &search);
  return search.found;
}

// Another dtype for one device, until it goes out of scope.
class OtherDtype {
 public:
  OtherDtype(c10::DeviceType device, c10::ScalarType dtype)
      : device_(device), old_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::set_autocast_dtype(device, dtype);
  }
  ~OtherDtype() { at::autocast::set_autocast_dtype(device_, old_); }
  OtherDtype(const OtherDtype&) = delete;
  OtherDtype& operator=(const OtherDtype&) = delete;

 private:
  c10::DeviceType device_;
  c10::ScalarType old_;
};

constexpr ptrdiff_t kNowhere = -1;

// The one byte of the block that becomes `dtype` when the device is given it, or kNowhere where more or less
// than that changes.
ptrdiff_t changed_byte(const Block& block, c10::DeviceType device, c10::ScalarType dtype) {
  std::vector<char> before(block.start, block.start + block.size);
  OtherDtype other(device, dtype);
  constexpr size_t kAtOnce = 1024;
  ptrdiff_t changed = kNowhere;
  for (size_t i = 0; i < block.size; ++i) {
    if (i % kAtOnce == 0 && i + kAtOnce <= block.size &&
        std::memcmp(block.start + i, before.data() + i, kAtOnce) == 0) {
      i += kAtOnce - 1;
      continue;
    }
    if (block.start[i] == before[i]) continue;
    if (changed != kNowhere || block.start[i] != static_cast<char>(dtype)) return kNowhere;
    changed = static_cast<ptrdiff_t>(i);
  }
  return changed;
}

// How far into the block torch's array from device type to dtype lies.
ptrdiff_t find_array() {
  Block block = block_of_thread();
  if (!block.start) return kNowhere;
  ptrdiff_t array = kNowhere;
  for (auto device : kAutocastDevices)
    for (auto dtype : {c10::kLong, c10::kDouble, c10::kComplexFloat}) {
      ptrdiff_t byte = changed_byte(block, device, dtype);
      ptrdiff_t start = byte - static_cast<ptrdiff_t>(device);
      if (byte == kNowhere || start < 0 || (array != kNowhere && start != array)) return kNowhere;
      array = start;
    }
  return array;
}

ptrdiff_t place_of_array() {
  static const ptrdiff_t place = find_array();
  return place;
}

// torch's array of this thread, from device type to dtype. Null until it is asked for, and where it is not
// found.
thread_local const char* array_of_thread = nullptr;
thread_local bool looked_for = false;

void look_for_array() {
  looked_for = true;
  if (place_of_array() == kNowhere) return;
  if (const char* start = block_of_thread().start) array_of_thread = start + place_of_array();
}

}  // namespace

const std::array<c10::DispatchKey, kAutocastCount>& autocast_keys() {
  static const auto keys = [] {
    std::array<c10::DispatchKey, kAutocastCount> made;
    for (size_t i = 0; i < kAutocastCount; ++i)
      made[i] = at::autocast::get_autocast_dispatch_key_from_device_type(kAutocastDevices[i]);
    return made;
  }();
  return keys;
}

AutocastDtypes ask_autocast_dtypes() {
  AutocastDtypes dtypes;
  for (size_t i = 0; i < kAutocastCount; ++i)
    dtypes[i] = static_cast<uint8_t>(at::autocast::get_autocast_dtype(kAutocastDevices[i]));
  return dtypes;
}

AutocastDtypes autocast_dtypes() {
  if (__builtin_expect(!looked_for, 0)) look_for_array();
  const char* array = array_of_thread;
  if (__builtin_expect(!array, 0)) return ask_autocast_dtypes();
  AutocastDtypes dtypes;
  for (size_t i = 0; i < kAutocastCount; ++i)
    dtypes[i] = static_cast<uint8_t>(array[static_cast<int>(kAutocastDevices[i])]);
  return dtypes;
}

bool found_autocast_dtypes() { return place_of_array() != kNowhere; }

}  // namespace lazytrace
