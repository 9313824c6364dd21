// The reasons of reasons.def as values, and the one way to put them into words.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lazytrace {

constexpr size_t places_in(std::string_view text) {
  size_t places = 0;
  for (size_t i = 0; i + 1 < text.size(); ++i) places += text[i] == '{' && text[i + 1] == '}';
  return places;
}

// One reason, whose text has so many places to fill. Holds literals only.
template <size_t Places>
struct Reason {
  const char* code;
  const char* text;
};

namespace reason {
#define REASON(name, code, text, advice) inline constexpr Reason<places_in(text)> name{code, text};
#include "support/reasons.def"
#undef REASON
}  // namespace reason

namespace detail {
std::string fill(std::string_view text, const std::string* values);
}

// The text, its places filled in order: say(reason::TakesSubclass, type_name(v)).
template <size_t Places, typename... Values>
std::string say(const Reason<Places>& reason, const Values&... values) {
  static_assert(sizeof...(Values) == Places, "as many values as the text has places");
  const std::string all[Places + 1] = {std::string(values)...};
  return detail::fill(reason.text, all);
}

struct ReasonRow {
  const char *code, *text, *advice;
};
// The whole table, in its order.
const std::vector<ReasonRow>& reasons();

}  // namespace lazytrace
