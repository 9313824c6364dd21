#include "program/numbers.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpython/carrier.h"

namespace lazytrace {

namespace {

using Kind = Number::Kind;

constexpr int64_t kSmallest = std::numeric_limits<int64_t>::min();
// Up to here each whole number is a float.
constexpr int64_t kExact = int64_t{1} << 53;

const char* const kNames[] = {
#define NUMBER(kind, operands, text) #kind,
    LAZYTRACE_NUMBERS(NUMBER)
#undef NUMBER
};
constexpr size_t kKinds = std::size(kNames);

using Whole = std::optional<int64_t>;
using Real = std::optional<double>;
using Value = std::optional<NumberValue>;

// ---------------------------------------------------------------- ints
Whole power(int64_t base, int64_t exponent) {
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
Whole divide(int64_t a, int64_t b, bool remainder) {
  if (b == 0 || (b == -1 && a == kSmallest && !remainder)) return {};
  if (b == -1) return remainder ? 0 : -a;
  int64_t quotient = a / b, rest = a % b;
  bool down = rest != 0 && (rest < 0) != (b < 0);
  return remainder ? rest + (down ? b : 0) : quotient - down;
}

Whole apply_whole(Kind kind, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (kind) {
    case Kind::Add:
      return __builtin_add_overflow(a, b, &result) ? Whole() : result;
    case Kind::Sub:
      return __builtin_sub_overflow(a, b, &result) ? Whole() : result;
    case Kind::Mul:
      return __builtin_mul_overflow(a, b, &result) ? Whole() : result;
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
    case Kind::Neg:
      return a == kSmallest ? Whole() : -a;
    case Kind::Abs:
      return a == kSmallest ? Whole() : std::abs(a);
    case Kind::Long:
    case Kind::Trunc:
      return a;
    default:
      return {};
  }
}

// ---------------------------------------------------------------- floats
// As float_floor_div and float_rem do it (Objects/floatobject.c).
Real floor_divide(double a, double b) {
  double rest = std::fmod(a, b), quotient = (a - rest) / b;
  if (rest && (b < 0) != (rest < 0)) quotient -= 1.0;
  if (!quotient) return std::copysign(0.0, a / b);
  double down = std::floor(quotient);
  return quotient - down > 0.5 ? down + 1.0 : down;
}

Real remainder(double a, double b) {
  double rest = std::fmod(a, b);
  if (!rest) return std::copysign(0.0, b);
  return (b < 0) != (rest < 0) ? rest + b : rest;
}

// A result that C had something to say of is left to Python.
template <typename Function, typename... Operands>
Real call(Function function, Operands... operands) {
  errno = 0;
  double result = function(operands...);
  return errno == 0 && std::isfinite(result) ? Real(result) : Real();
}

// The nearest decimal number with so many digits behind the point, as float.__round__ makes it
// (double_round, Objects/floatobject.c): the exact value is rounded to text, half to even, and read again.
// More digits than these are left to Python, which has limits of its own.
Real round_to(double a, double digits) {
  constexpr int kMost = 22;
  char text[400];  // the largest float has 309 digits before the point
  if (digits < 0 || digits > kMost) return {};
  auto end = std::to_chars(text, std::end(text), a, std::chars_format::fixed, static_cast<int>(digits)).ptr;
  double result = 0;
  std::from_chars(text, end, result);
  return result;
}

Real apply_real(Kind kind, double a, double b) {
  switch (kind) {
    case Kind::Add:
      return a + b;
    case Kind::Sub:
      return a - b;
    case Kind::Mul:
      return a * b;
    case Kind::TrueDiv:
      return b == 0 ? Real() : a / b;
    case Kind::FloorDiv:
      return b == 0 ? Real() : floor_divide(a, b);
    case Kind::Mod:
      return b == 0 ? Real() : remainder(a, b);
    case Kind::Pow:
    case Kind::MathPow:
      return a > 0 && b != 0 ? call([](double x, double y) { return std::pow(x, y); }, a, b) : Real();
    case Kind::Max:
      return b > a ? b : a;
    case Kind::Min:
      return b < a ? b : a;
    case Kind::Atan2:
      return a != 0 && b != 0 ? call([](double x, double y) { return std::atan2(x, y); }, a, b) : Real();
    case Kind::Copysign:
      return std::copysign(a, b);
    case Kind::RoundTo:
      return round_to(a, b);
    case Kind::Neg:
      return -a;
    case Kind::Abs:
    case Kind::Fabs:
      return std::fabs(a);
    case Kind::Float:
    case Kind::Scalar:
      return a;
    case Kind::Single: {
      auto single = static_cast<float>(a);
      return std::isfinite(single) ? Real(single) : Real();
    }
#define OF_MATH(kind, function) \
  case Kind::kind:              \
    return call([](double x) { return std::function(x); }, a);
      OF_MATH(Exp, exp)
      OF_MATH(Expm1, expm1)
      OF_MATH(Sin, sin)
      OF_MATH(Cos, cos)
      OF_MATH(Tan, tan)
      OF_MATH(Atan, atan)
      OF_MATH(Sinh, sinh)
      OF_MATH(Cosh, cosh)
      OF_MATH(Tanh, tanh)
#undef OF_MATH
#define OF_POSITIVE(kind, function) \
  case Kind::kind:                  \
    return a > 0 ? call([](double x) { return std::function(x); }, a) : Real();
      OF_POSITIVE(Sqrt, sqrt)
      OF_POSITIVE(Log, log)
      OF_POSITIVE(Log2, log2)
      OF_POSITIVE(Log10, log10)
      OF_POSITIVE(Log1p, log1p)
#undef OF_POSITIVE
    default:
      return {};
  }
}

// A float that is made a whole number.
Whole round_to_whole(Kind kind, double a) {
  double result = a;
  if (kind == Kind::Trunc)
    result = std::trunc(a);
  else if (kind == Kind::Floor)
    result = std::floor(a);
  else if (kind == Kind::Ceil)
    result = std::ceil(a);
  else
    return {};
  if (!(std::fabs(result) < 9e18)) return {};
  return static_cast<int64_t>(result);
}

template <typename T>
std::optional<bool> compare(Kind kind, T a, T b) {
  switch (kind) {
    case Kind::Less:
      return a < b;
    case Kind::LessEqual:
      return a <= b;
    case Kind::Equal:
      return a == b;
    case Kind::NotEqual:
      return a != b;
    default:
      return {};
  }
}

// ---------------------------------------------------------------- operands of either kind
struct Operands {
  bool a_real = false, b_real = false;
  NumberValue a{}, b{};
  bool any_real() const { return a_real || b_real; }
  static bool is_exact(bool real, NumberValue v) {
    return real ? std::isfinite(v.real) : v.whole >= -kExact && v.whole <= kExact;
  }
  // Whether both are floats without a loss, and none is nan or infinite.
  bool are_plain() const { return is_exact(a_real, a) && is_exact(b_real, b); }
  // The same, but that they may be nan or infinite.
  bool are_exact() const { return (a_real || is_exact(false, a)) && (b_real || is_exact(false, b)); }
  bool has_nan() const { return (a_real && std::isnan(a.real)) || (b_real && std::isnan(b.real)); }
  double x() const { return a_real ? a.real : static_cast<double>(a.whole); }
  double y() const { return b_real ? b.real : static_cast<double>(b.whole); }
};

Operands operands_of(const Numbers& numbers, const Number& number, const NumberValue* values) {
  Operands found;
  found.a = values[number.a];
  found.a_real = numbers[static_cast<size_t>(number.a)].real;
  if (number.b < 0) return found;
  found.b = values[number.b];
  found.b_real = numbers[static_cast<size_t>(number.b)].real;
  return found;
}

template <typename T>
Value as_whole(const std::optional<T>& found) {
  return found ? Value(NumberValue::of(*found)) : Value();
}

// What neither raises nor warns where an operand is nan, and gives a nan.
bool keeps_nan(Kind kind) {
  return kind == Kind::Add || kind == Kind::Sub || kind == Kind::Mul || kind == Kind::Neg ||
         kind == Kind::Abs;
}

// What numpy would be asked for of its own numbers, and could have something to say of.
bool is_arithmetic(Kind kind) {
  return (kind >= Kind::Add && kind <= Kind::NotEqual) || kind == Kind::Neg || kind == Kind::Abs;
}

bool rounds(Kind kind) { return kind >= Kind::Trunc && kind <= Kind::Round; }

std::array<PyObject*, kKinds>& functions_of_python() {
  static std::array<PyObject*, kKinds> functions{};
  return functions;
}

}  // namespace

bool gives_real(Kind kind, bool a_is_real, bool b_is_real) {
  if (rounds(kind) || (kind >= Kind::Less && kind <= Kind::NotEqual)) return false;
  if (kind == Kind::TrueDiv || kind == Kind::Float || kind >= Kind::Sqrt ||
      (kind >= Kind::MathPow && kind <= Kind::RoundTo))
    return true;
  return a_is_real || b_is_real;
}

namespace {
// What a Works asks about.
Number asked_of(const Numbers& numbers, const Number& works) {
  Number asked = works;
  asked.kind = static_cast<Kind>(works.which);
  asked.real = gives_real(asked.kind, numbers[static_cast<size_t>(works.a)].real,
                          works.b >= 0 && numbers[static_cast<size_t>(works.b)].real);
  return asked;
}
}  // namespace

namespace {
int64_t bits_of(NumberValue value) {
  int64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

NumberValue choose(Kind kind, NumberValue a, NumberValue b) {
  if (kind == Kind::Either) {
    int64_t bits = bits_of(a) | bits_of(b);
    NumberValue made;
    std::memcpy(&made, &bits, sizeof made);
    return made;
  }
  return (a.whole != 0) == (kind == Kind::IfSet) ? b : NumberValue::of(0);
}
}  // namespace

Value apply(const Numbers& numbers, const Number& number, const NumberValue* values) {
  if (number.chooses()) return choose(number.kind, values[number.a], values[number.b]);
  if (number.kind == Kind::Works)
    return apply(numbers, asked_of(numbers, number), values) ? Value(NumberValue::of(1)) : Value();
  Operands on = operands_of(numbers, number, values);
  if (!on.any_real() && !number.real) {
    if (number.compares()) return as_whole(compare(number.kind, on.a.whole, on.b.whole));
    return as_whole(apply_whole(number.kind, on.a.whole, on.b.whole));
  }
  // Neither Python nor numpy has anything to say of nan and infinity here.
  if (number.compares() && on.are_exact()) return as_whole(compare(number.kind, on.x(), on.y()));
  if (number.real && on.has_nan() && on.are_exact() && keeps_nan(number.kind))
    return NumberValue::of_real(*apply_real(number.kind, on.x(), on.y()));
  if (!on.are_plain()) return {};
  if (rounds(number.kind)) return as_whole(round_to_whole(number.kind, on.x()));
  Real result = apply_real(number.kind, on.x(), on.y());
  return result && std::isfinite(*result) ? Value(NumberValue::of_real(*result)) : Value();
}

py::object to_python(const Number& number, NumberValue value) {
  PyObject* made = number.kind == Kind::Long ? new_int64(value.whole)
                   : number.is_scalar()      ? new_scalar(value.real, number.kind == Kind::Single)
                   : number.real             ? PyFloat_FromDouble(value.real)
                                             : PyLong_FromLongLong(value.whole);
  if (!made) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

Value apply_in_python(const Numbers& numbers, const Number& number, const NumberValue* values) {
  if (number.kind == Kind::Works) try {
      return NumberValue::of(apply_in_python(numbers, asked_of(numbers, number), values).has_value());
    } catch (py::error_already_set&) {
      return NumberValue::of(0);
    }
  PyObject* function = functions_of_python()[static_cast<size_t>(number.kind)];
  auto is_scalar = [&](int id) { return id >= 0 && numbers[static_cast<size_t>(id)].is_scalar(); };
  if (!function || (is_arithmetic(number.kind) && (is_scalar(number.a) || is_scalar(number.b)))) return {};
  auto operand = [&](int id) { return to_python(numbers[static_cast<size_t>(id)], values[id]); };
  py::object a = operand(number.a), b = number.b < 0 ? py::object() : operand(number.b);
  py::object result = py::reinterpret_steal<py::object>(
      PyObject_CallFunctionObjArgs(function, a.ptr(), b ? b.ptr() : nullptr, nullptr));
  if (!result) throw py::error_already_set();
  if (PyFloat_CheckExact(result.ptr()))
    return number.real ? Value(NumberValue::of_real(PyFloat_AS_DOUBLE(result.ptr()))) : Value();
  if (number.real || !PyLong_Check(result.ptr())) return {};
  int overflow = 0;
  int64_t whole = PyLong_AsLongLongAndOverflow(result.ptr(), &overflow);
  return overflow ? Value() : Value(NumberValue::of(whole));
}

int64_t ask(const Number& number, const at::Tensor& tensor) {
  switch (number.kind) {
    case Kind::Size:
      return tensor.size(number.which);
    case Kind::Stride:
      return tensor.stride(number.which);
    case Kind::Offset:
      return tensor.storage_offset();
    case Kind::Count:
      return tensor.numel();
    case Kind::Contiguous:
      return tensor.is_contiguous(static_cast<at::MemoryFormat>(number.which));
    default:
      return number.which;
  }
}

void configure_numbers(const py::dict& functions) {
  for (auto [name, function] : functions) {
    Py_INCREF(function.ptr());  // for as long as the process lives
    functions_of_python()[static_cast<size_t>(number_kind(name.cast<std::string>()))] = function.ptr();
  }
}

Kind number_kind(const std::string& name) {
  for (size_t i = 0; i < kKinds; ++i)
    if (name == kNames[i]) return static_cast<Kind>(i);
  throw py::value_error("no kind of number: " + name);
}

namespace {
std::string text_of(double value) {
  char text[32];
  auto end = std::to_chars(text, text + sizeof text, value).ptr;
  std::string found(text, end);
  bool whole = found.find_first_not_of("-0123456789") == std::string::npos;
  return whole ? found + ".0" : found;
}
}  // namespace

std::string text_of(const Numbers& numbers, int id) {
  static const char* const kTexts[] = {
#define NUMBER(kind, operands, text) text,
      LAZYTRACE_NUMBERS(NUMBER)
#undef NUMBER
  };
  const Number& number = numbers[static_cast<size_t>(id)];
  std::string name = kTexts[static_cast<size_t>(number.kind)], which = std::to_string(number.which);
  if (number.kind == Kind::Constant) return number.real ? text_of(constant_value(number).real) : which;
  if (number.kind == Kind::Argument || number.kind == Kind::State)
    return number.name ? *number.name : name + " " + which;
  if (number.kind == Kind::Item) return name + "(r" + std::to_string(number.reg) + ")";
  if (number.is_leaf()) return name + "(r" + std::to_string(number.reg) + ", " + which + ")";
  if (number.kind == Kind::Works) {
    Numbers asked = numbers;
    asked.push_back(asked_of(numbers, number));
    return name + "(" + text_of(asked, static_cast<int>(numbers.size())) + ")";
  }
  std::string a = text_of(numbers, number.a);
  if (number.b < 0) return name + "(" + a + ")";
  std::string b = text_of(numbers, number.b);
  if (name.rfind("math.", 0) == 0) return name + "(" + a + ", " + b + ")";
  return "(" + a + " " + name + " " + b + ")";
}

}  // namespace lazytrace
