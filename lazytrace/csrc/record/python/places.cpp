#include "record/python/places.h"

namespace lazytrace {

void Places::enter(const void* frame, int module, Place* place) {
  scopes_.push_back({place->scope, module});
  place->scope = static_cast<int>(scopes_.size()) - 1;
  open_.emplace_back(frame, place->scope);
}

void Places::leave(const void* frame, Place* place) {
  if (open_.empty() || open_.back().first != frame) return;
  open_.pop_back();
  place->scope = open_.empty() ? -1 : open_.back().second;
}

}  // namespace lazytrace
