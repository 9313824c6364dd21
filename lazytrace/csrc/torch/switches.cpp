#include "torch/switches.h"

#include <ATen/Context.h>

#include <cstring>

#include "cpython/objects.h"

namespace lazytrace {

namespace {

// torch raises where the older switch and the newer precisions contradict each other.
int32_t allows_tf32(const at::Context& context) {
  try {
    return context.allowTF32CuDNN();
  } catch (const c10::Error&) {
    return kNoSwitchValue;
  }
}

struct Row {
  const char* name;
  SwitchKind kind;
  const char* getter;
  const char* setter;
  const char* selects[2];  // the first arguments of both, or null
  int32_t (*read)(const at::Context& context);
  void (*write)(at::Context& context, int32_t value);
};

const Row kRows[] = {
#define SWITCH(name, kind, getter, setter, read, write)                   \
  {name,                                                                  \
   SwitchKind::kind,                                                      \
   getter,                                                                \
   setter,                                                                \
   {nullptr, nullptr},                                                    \
   [](const at::Context& context) { return static_cast<int32_t>(read); }, \
   [](at::Context& context, int32_t value) { write; }},
#define PRECISION(name, backend, operation, of, on)                                                       \
  {name,                                                                                                  \
   SwitchKind::Precision,                                                                                 \
   "_get_fp32_precision_getter",                                                                          \
   "_set_fp32_precision_setter",                                                                          \
   {backend, operation},                                                                                  \
   [](const at::Context& context) {                                                                       \
     return static_cast<int32_t>(context.float32Precision(at::Float32Backend::of, at::Float32Op::on));    \
   },                                                                                                     \
   [](at::Context& context, int32_t value) {                                                              \
     context.setFloat32Precision(at::Float32Backend::of, at::Float32Op::on, at::Float32Precision(value)); \
   }},
#include "torch/switches.def"
};

// "torch._C._get_cudnn_enabled" -> "_get_cudnn_enabled"
bool is_called(const std::string& function, const char* name) {
  size_t dot = function.rfind('.');
  return function.compare(dot == std::string::npos ? 0 : dot + 1, std::string::npos, name) == 0;
}

bool selects(const Row& row, PyObject* const* args, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < 2 && row.selects[i]; ++i)
    if (i >= count || !PyUnicode_Check(args[i]) || text_of(args[i]) != row.selects[i]) return false;
  return true;
}

int32_t number_of_text(SwitchKind kind, const std::string& text) {
  try {
    return kind == SwitchKind::Kernel ? static_cast<int32_t>(at::str2cudnn_depthwise(text))
                                      : static_cast<int32_t>(at::str2precision(text));
  } catch (const c10::Error&) {
    return kNoSwitchValue;
  }
}

}  // namespace

void Switches::put(size_t row, int32_t value) {
  set_ |= 1u << row;
  values_[row] = value;
}

void Switches::drop(size_t row) {
  set_ &= ~(1u << row);
  values_[row] = 0;
}

Switches Switches::held() const {
  Switches now;
  for (size_t row = 0; row < kSwitchCount; ++row)
    if (has(row)) now.put(row, switch_now(row));
  return now;
}

void Switches::apply() const {
  for (size_t row = 0; row < kSwitchCount; ++row)
    if (has(row)) kRows[row].write(at::globalContext(), values_[row]);
}

std::string Switches::text() const {
  std::string text;
  for (size_t row = 0; row < kSwitchCount; ++row)
    if (has(row))
      text += (text.empty() ? "" : ", ") + std::string(kRows[row].name) + "=" + std::to_string(values_[row]);
  return text;
}

int switch_of(const std::string& function, bool sets, PyObject* const* args, Py_ssize_t count) {
  for (size_t row = 0; row < kSwitchCount; ++row)
    if (is_called(function, sets ? kRows[row].setter : kRows[row].getter) && selects(kRows[row], args, count))
      return static_cast<int>(row);
  return -1;
}

int switch_called(const std::string& name) {
  for (size_t row = 0; row < kSwitchCount; ++row)
    if (name == kRows[row].name) return static_cast<int>(row);
  return -1;
}

const char* switch_name(size_t row) { return kRows[row].name; }

int32_t switch_now(size_t row) { return kRows[row].read(at::globalContext()); }

int32_t switch_value(size_t row, PyObject* argument) {
  SwitchKind kind = kRows[row].kind;
  if (kind == SwitchKind::Flag) return argument == Py_True ? 1 : argument == Py_False ? 0 : kNoSwitchValue;
  if (kind != SwitchKind::Number)
    return PyUnicode_CheckExact(argument) ? number_of_text(kind, text_of(argument)) : kNoSwitchValue;
  int overflow = 0;
  long value = PyLong_CheckExact(argument) ? PyLong_AsLongAndOverflow(argument, &overflow) : kNoSwitchValue;
  return overflow || value < 0 || value > INT32_MAX ? kNoSwitchValue : static_cast<int32_t>(value);
}

}  // namespace lazytrace
