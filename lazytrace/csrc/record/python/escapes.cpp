#include "record/python/escapes.h"

#include <unordered_set>

namespace lazytrace {

bool escapes_from_tensor(const std::string& method) {
  static const std::unordered_set<std::string> kNames = {
#define ESCAPE(name) name,
#include "record/python/escapes.def"
  };
  return kNames.count(method) > 0;
}

bool escapes_from_torch(const std::string& function) {
  static const std::unordered_set<std::string> kNames = {
#define TORCH_ESCAPE(name) name,
#include "record/python/escapes.def"
  };
  return kNames.count(function) > 0;
}

}  // namespace lazytrace
