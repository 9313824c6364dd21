#include "program/numbers.h"

#include <limits>

namespace lazytrace {

namespace {

constexpr int64_t kSmallest = std::numeric_limits<int64_t>::min();

using Maybe = std::optional<int64_t>;

Maybe power(int64_t base, int64_t exponent) {
  if (exponent < 0) return {};  // a float
  int64_t result = 1;
  while (exponent) {
    if (exponent & 1 && __builtin_mul_overflow(result, base, &result)) return {};
    exponent >>= 1;
    if (exponent && __builtin_mul_overflow(base, base, &base)) return {};
  }
  return result;
}

// The quotient is rounded down, and the remainder has the sign of the divisor.
Maybe divide(int64_t a, int64_t b, bool remainder) {
  if (b == 0 || (b == -1 && a == kSmallest)) return {};
  int64_t quotient = a / b, rest = a % b;
  bool down = rest != 0 && (rest < 0) != (b < 0);
  return remainder ? rest + (down ? b : 0) : quotient - down;
}

}  // namespace

Maybe apply(Number::Kind kind, int64_t a, int64_t b) {
  using Kind = Number::Kind;
  int64_t result = 0;
  switch (kind) {
    case Kind::Add:
      return __builtin_add_overflow(a, b, &result) ? Maybe() : result;
    case Kind::Sub:
      return __builtin_sub_overflow(a, b, &result) ? Maybe() : result;
    case Kind::Mul:
      return __builtin_mul_overflow(a, b, &result) ? Maybe() : result;
    case Kind::FloorDiv:
      return divide(a, b, false);
    case Kind::Mod:
      return divide(a, b, true);
    case Kind::Pow:
      return power(a, b);
    case Kind::Max:
      return std::max(a, b);
    case Kind::Min:
      return std::min(a, b);
    case Kind::Less:
      return a < b;
    case Kind::LessEqual:
      return a <= b;
    case Kind::Equal:
      return a == b;
    case Kind::NotEqual:
      return a != b;
    case Kind::Neg:
      return a == kSmallest ? Maybe() : -a;
    case Kind::Abs:
      return a == kSmallest ? Maybe() : std::abs(a);
    default:
      return {};  // no operation
  }
}

int64_t ask(const Number& number, const at::Tensor& tensor) {
  switch (number.kind) {
    case Number::Kind::Size:
      return tensor.size(number.which);
    case Number::Kind::Stride:
      return tensor.stride(number.which);
    case Number::Kind::Offset:
      return tensor.storage_offset();
    case Number::Kind::Count:
      return tensor.numel();
    case Number::Kind::Contiguous:
      return tensor.is_contiguous(static_cast<at::MemoryFormat>(number.which));
    default:
      return number.which;
  }
}

std::string text_of(const std::vector<Number>& numbers, int id) {
  static const char* const kTexts[] = {
#define NUMBER(kind, operands, text) text,
      LAZYTRACE_NUMBERS(NUMBER)
#undef NUMBER
  };
  const Number& number = numbers[static_cast<size_t>(id)];
  std::string name = kTexts[static_cast<size_t>(number.kind)], which = std::to_string(number.which);
  if (number.kind == Number::Kind::Constant) return which;
  if (number.kind == Number::Kind::Argument) return name + " " + which;
  if (number.is_leaf()) return name + "(r" + std::to_string(number.reg) + ", " + which + ")";
  std::string a = text_of(numbers, number.a);
  if (number.b < 0) return name + "(" + a + ")";
  return "(" + a + " " + name + " " + text_of(numbers, number.b) + ")";
}

}  // namespace lazytrace
