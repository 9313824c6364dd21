// Numbers that a program works out while it runs: sizes and values of its tensors, and what Python made of
// them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lazytrace {

namespace py = pybind11;

// NUMBER(kind, operands, text): how a number comes about. `operands` are other numbers, all of them before
// it. Works: whether the operation `which` gives a number for them. IfSet and IfClear: the second one where
// the first is, or is not, 1, and else zero in all bits, so that Either of the two is `b if a else c` to the
// bit.
#define LAZYTRACE_NUMBERS(NUMBER)      \
  NUMBER(Constant, 0, "")              \
  NUMBER(Size, 0, "size")              \
  NUMBER(Stride, 0, "stride")          \
  NUMBER(Offset, 0, "offset")          \
  NUMBER(Count, 0, "numel")            \
  NUMBER(Contiguous, 0, "contiguous")  \
  NUMBER(Argument, 0, "argument")      \
  NUMBER(Item, 0, "item")              \
  NUMBER(State, 0, "state")            \
  NUMBER(Asked, 0, "asked")            \
  NUMBER(Add, 2, "+")                  \
  NUMBER(Sub, 2, "-")                  \
  NUMBER(Mul, 2, "*")                  \
  NUMBER(TrueDiv, 2, "/")              \
  NUMBER(FloorDiv, 2, "//")            \
  NUMBER(Mod, 2, "%")                  \
  NUMBER(Pow, 2, "**")                 \
  NUMBER(Max, 2, "max")                \
  NUMBER(Min, 2, "min")                \
  NUMBER(Less, 2, "<")                 \
  NUMBER(LessEqual, 2, "<=")           \
  NUMBER(Equal, 2, "==")               \
  NUMBER(NotEqual, 2, "!=")            \
  NUMBER(Works, 2, "works")            \
  NUMBER(IfSet, 2, "if set")           \
  NUMBER(IfClear, 2, "if clear")       \
  NUMBER(Either, 2, "or")              \
  NUMBER(MathPow, 2, "math.pow")       \
  NUMBER(Atan2, 2, "math.atan2")       \
  NUMBER(Copysign, 2, "math.copysign") \
  NUMBER(RoundTo, 2, "round")          \
  NUMBER(Neg, 1, "-")                  \
  NUMBER(Abs, 1, "abs")                \
  NUMBER(Float, 1, "float")            \
  NUMBER(Long, 1, "np.int64")          \
  NUMBER(Trunc, 1, "int")              \
  NUMBER(Floor, 1, "math.floor")       \
  NUMBER(Ceil, 1, "math.ceil")         \
  NUMBER(Round, 1, "round")            \
  NUMBER(Sqrt, 1, "math.sqrt")         \
  NUMBER(Exp, 1, "math.exp")           \
  NUMBER(Expm1, 1, "math.expm1")       \
  NUMBER(Log, 1, "math.log")           \
  NUMBER(Log2, 1, "math.log2")         \
  NUMBER(Log10, 1, "math.log10")       \
  NUMBER(Log1p, 1, "math.log1p")       \
  NUMBER(Sin, 1, "math.sin")           \
  NUMBER(Cos, 1, "math.cos")           \
  NUMBER(Tan, 1, "math.tan")           \
  NUMBER(Atan, 1, "math.atan")         \
  NUMBER(Sinh, 1, "math.sinh")         \
  NUMBER(Cosh, 1, "math.cosh")         \
  NUMBER(Tanh, 1, "math.tanh")         \
  NUMBER(Fabs, 1, "math.fabs")         \
  NUMBER(Asin, 1, "math.asin")         \
  NUMBER(Acos, 1, "math.acos")         \
  NUMBER(Asinh, 1, "math.asinh")       \
  NUMBER(Acosh, 1, "math.acosh")       \
  NUMBER(Atanh, 1, "math.atanh")       \
  NUMBER(Erf, 1, "math.erf")           \
  NUMBER(Erfc, 1, "math.erfc")         \
  NUMBER(Gamma, 1, "math.gamma")       \
  NUMBER(Lgamma, 1, "math.lgamma")     \
  NUMBER(Cbrt, 1, "math.cbrt")         \
  NUMBER(Exp2, 1, "math.exp2")         \
  NUMBER(Degrees, 1, "math.degrees")   \
  NUMBER(Radians, 1, "math.radians")   \
  NUMBER(Hypot, 2, "math.hypot")       \
  NUMBER(Fmod, 2, "math.fmod")         \
  NUMBER(Scalar, 1, "np.float64")      \
  NUMBER(Single, 1, "np.float32")      \
  NUMBER(NumpyAbsolute, 1, "np.abs")   \
  NUMBER(NumpyExp, 1, "np.exp")        \
  NUMBER(NumpyLog, 1, "np.log")        \
  NUMBER(NumpyLog10, 1, "np.log10")    \
  NUMBER(NumpyLog2, 1, "np.log2")      \
  NUMBER(NumpySqrt, 1, "np.sqrt")      \
  NUMBER(NumpyLog1p, 1, "np.log1p")    \
  NUMBER(NumpyExpm1, 1, "np.expm1")    \
  NUMBER(NumpySin, 1, "np.sin")        \
  NUMBER(NumpyCos, 1, "np.cos")        \
  NUMBER(NumpyTanh, 1, "np.tanh")      \
  NUMBER(NumpyPower, 2, "np.power")

// Which of the two it is, the number says whose value it is.
union NumberValue {
  int64_t whole;
  double real;

  static NumberValue of(int64_t value) { return {value}; }
  static NumberValue of_real(double value) {
    NumberValue made;
    made.real = value;
    return made;
  }
};

struct Number {
  enum class Kind : uint8_t {
#define NUMBER(kind, operands, text) kind,
    LAZYTRACE_NUMBERS(NUMBER)
#undef NUMBER
  } kind = Kind::Constant;
  bool real = false;   // a float rather than an int
  int reg = -1;        // of a size, stride, offset, count, contiguity or item: the register that is asked
  int a = -1, b = -1;  // operands
  // A constant's value, of a float its bits; which dimension, memory format, argument, guard or operation, or
  // the how manyeth item or answer.
  int64_t which = 0;
  std::shared_ptr<const std::string>
      name;  // of an argument, a number in state or what was asked, for listings

  bool is_leaf() const { return kind < Kind::Add; }
  bool asks_tensor() const { return kind >= Kind::Size && kind <= Kind::Contiguous; }
  // Somebody else puts its value there: the call, or the step that gives it.
  bool is_given() const { return kind >= Kind::Argument && kind <= Kind::Asked; }
  // What a step of the program brings, not the call.
  bool comes_later() const { return asks_tensor() || kind == Kind::Item || kind == Kind::Asked; }
  // A number of numpy's.
  bool is_scalar() const { return kind == Kind::Scalar || kind == Kind::Single || kind == Kind::Long; }
  bool chooses() const { return kind >= Kind::IfSet && kind <= Kind::Either; }
  bool compares() const { return kind >= Kind::Less && kind <= Kind::NotEqual; }
  bool operator==(const Number& other) const {
    return kind == other.kind && real == other.real && reg == other.reg && a == other.a && b == other.b &&
           which == other.which;
  }
};

using Numbers = std::vector<Number>;
using NumberValues = std::vector<NumberValue>;

// Whether the result of an operation is a float; those of arithmetic on ints are ints.
bool gives_real(Number::Kind kind, bool a_is_real, bool b_is_real);

// Python's arithmetic, in the ordinary cases alone: nothing where an operand or the result is not finite, a
// whole number has more than 64 bits, or Python would raise. Bit for bit what CPython computes, by the same
// functions of C. Does not need the GIL.
std::optional<NumberValue> apply(const Numbers& numbers, const Number& number, const NumberValue* values);
// The same in all cases, by Python itself: nothing where what Python gives is no such number. Needs the GIL;
// throws what Python raises.
std::optional<NumberValue> apply_in_python(const Numbers& numbers, const Number& number,
                                           const NumberValue* values);

// What a tensor answers; it must be strided where strides or its offset are asked for.
int64_t ask(const Number& number, const at::Tensor& tensor);

// The value of a leaf that no tensor is asked for.
inline NumberValue constant_value(const Number& number) {
  NumberValue made;
  std::memcpy(&made, &number.which, sizeof made);
  return made;
}

// A new int or float.
py::object to_python(const Number& number, NumberValue value);
inline c10::IValue to_ivalue(const Number& number, NumberValue value) {
  return number.real ? c10::IValue(value.real) : c10::IValue(value.whole);
}

// Told by Python once: the function that works out each kind of number, by name.
void configure_numbers(const py::dict& functions);
Number::Kind number_kind(const std::string& name);

// Those of the leaves that a number is made of, itself among them, that `asked` holds for.
template <typename Asked>
std::vector<int> leaves_of(const Numbers& numbers, int id, Asked asked) {
  std::vector<int> open{id}, found;
  std::vector<char> met(numbers.size(), 0);
  while (!open.empty()) {
    int next = open.back();
    open.pop_back();
    if (next < 0 || std::exchange(met[static_cast<size_t>(next)], 1)) continue;
    const Number& number = numbers[static_cast<size_t>(next)];
    if (number.is_leaf()) {
      if (asked(number)) found.push_back(next);
      continue;
    }
    open.push_back(number.a);
    open.push_back(number.b);
  }
  return found;
}

// "size(r0, 1) * 2"
std::string text_of(const Numbers& numbers, int id);

}  // namespace lazytrace
