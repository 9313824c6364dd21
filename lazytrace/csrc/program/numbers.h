// Numbers that a program works out while it runs: sizes of its tensors, and what Python made of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lazytrace {

// NUMBER(kind, operands, text): how a number comes about. `operands` are other numbers, all of them before
// it.
#define LAZYTRACE_NUMBERS(NUMBER)     \
  NUMBER(Constant, 0, "")             \
  NUMBER(Size, 0, "size")             \
  NUMBER(Stride, 0, "stride")         \
  NUMBER(Offset, 0, "offset")         \
  NUMBER(Count, 0, "numel")           \
  NUMBER(Contiguous, 0, "contiguous") \
  NUMBER(Argument, 0, "argument")     \
  NUMBER(Add, 2, "+")                 \
  NUMBER(Sub, 2, "-")                 \
  NUMBER(Mul, 2, "*")                 \
  NUMBER(FloorDiv, 2, "//")           \
  NUMBER(Mod, 2, "%")                 \
  NUMBER(Pow, 2, "**")                \
  NUMBER(Max, 2, "max")               \
  NUMBER(Min, 2, "min")               \
  NUMBER(Less, 2, "<")                \
  NUMBER(LessEqual, 2, "<=")          \
  NUMBER(Equal, 2, "==")              \
  NUMBER(NotEqual, 2, "!=")           \
  NUMBER(Neg, 1, "-")                 \
  NUMBER(Abs, 1, "abs")

struct Number {
  enum class Kind : uint8_t {
#define NUMBER(kind, operands, text) kind,
    LAZYTRACE_NUMBERS(NUMBER)
#undef NUMBER
  } kind = Kind::Constant;
  int reg = -1;        // of a size, stride, offset, count or contiguity: the register that is asked
  int a = -1, b = -1;  // operands
  // A constant's value; which dimension, memory format or argument.
  int64_t which = 0;

  bool is_leaf() const { return kind < Kind::Add; }
  bool asks_tensor() const { return kind >= Kind::Size && kind <= Kind::Contiguous; }
  bool operator==(const Number& other) const {
    return kind == other.kind && reg == other.reg && a == other.a && b == other.b && which == other.which;
  }
};

// Python's arithmetic on whole numbers of 64 bits. Nothing where Python would raise, or the result is larger.
std::optional<int64_t> apply(Number::Kind kind, int64_t a, int64_t b);

// What a tensor answers; it must be strided where strides or its offset are asked for.
int64_t ask(const Number& number, const at::Tensor& tensor);

// "size(r0, 1) * 2"
std::string text_of(const std::vector<Number>& numbers, int id);

}  // namespace lazytrace
