#include "support/reasons.h"

namespace lazytrace {

std::string detail::fill(std::string_view text, const std::string* values) {
  std::string filled;
  for (size_t at = 0;;) {
    size_t place = text.find("{}", at);
    filled += text.substr(at, place - at);
    if (place == std::string_view::npos) return filled;
    filled += *values++;
    at = place + 2;
  }
}

const std::vector<ReasonRow>& reasons() {
  static const auto* rows = new std::vector<ReasonRow>{
#define REASON(name, code, text, advice) {code, text, advice},
#include "support/reasons.def"
#undef REASON
  };
  return *rows;
}

}  // namespace lazytrace
