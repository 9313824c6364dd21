#include "trace/counters.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "cpython/carrier.h"
#include "cpython/slots.h"
#include "cpython/values.h"

namespace lazytrace {

namespace {

// Python code in the middle may write there in the same thread, where the function has read before.
bool runs_python(const Program& program) {
  return program.python_between ||
         std::any_of(program.steps.begin(), program.steps.end(), [](const Step& step) {
           return step.python || (step.opaque && (step.opaque->python || step.opaque->call.takes_numbers()));
         });
}

}  // namespace

bool is_place(const Effect& effect, const Guard& guard) {
  if (guard.parent != effect.owner) return false;
  switch (effect.kind) {
    case Effect::Kind::Attribute:
      return (guard.access == Access::Instance || guard.access == Access::Attribute) &&
             same_immutable(guard.key.ptr(), effect.key.ptr());
    case Effect::Kind::Item:
      return guard.access == Access::Item && is_immutable(effect.key.ptr()) &&
             same_immutable(guard.key.ptr(), effect.key.ptr());
    case Effect::Kind::At:
      return guard.access == Access::At && guard.index == effect.index;
    case Effect::Kind::Cell:
      return guard.access == Access::Cell && guard.index == effect.index;
    default:
      return false;
  }
}

namespace {
// The numbers that steps take.
std::vector<int> taken_by_steps(const Program& program) {
  std::vector<int> taken;
  for (const Step& step : program.steps)
    for (const Argument& argument : step.arguments) {
      if (argument.kind == Argument::Kind::Number || argument.kind == Argument::Kind::NumberTensor)
        taken.push_back(argument.reg);
      if (argument.kind == Argument::Kind::Numbers)
        taken.insert(taken.end(), argument.list.begin(), argument.list.end());
    }
  return taken;
}

// What the place holds, if it is a number of that kind.
std::optional<NumberValue> number_in(const Effect& effect, PyObject* owner, bool real) {
  PyObject* container = effect.container(owner);
  bool slot = effect.kind == Effect::Kind::Attribute && is_slot(owner, effect.key.ptr());
  bool by_key = !slot && (effect.kind == Effect::Kind::Attribute || effect.kind == Effect::Kind::Item);
  if ((by_key && !PyDict_Check(container)) || (effect.kind == Effect::Kind::At && !PyList_Check(container)))
    return std::nullopt;
  py::object held = effect.held(container);
  if (!held) return std::nullopt;
  if (real)
    return PyFloat_Check(held.ptr()) || is_float32(held.ptr())
               ? std::make_optional(NumberValue::of_real(float_value(held.ptr())))
               : std::nullopt;
  if (is_int64(held.ptr())) return NumberValue::of(int64_value(held.ptr()));
  if (!PyLong_CheckExact(held.ptr())) return std::nullopt;
  int overflow = 0;
  long long value = PyLong_AsLongLongAndOverflow(held.ptr(), &overflow);
  return overflow ? std::nullopt : std::make_optional(NumberValue::of(value));
}

std::optional<NumberValue> worked_out(const Numbers& numbers, const Number& number,
                                      const NumberValue* values) {
  if (auto result = apply(numbers, number, values)) return result;
  try {
    return apply_in_python(numbers, number, values);
  } catch (const py::error_already_set&) {
    return std::nullopt;
  }
}

}  // namespace

void Counters::find(const Program& program, const GuardTree& tree, const std::vector<Effect>& effects,
                    const Tree& output) {
  if (output.items.size() != effects.size() + 1 || runs_python(program)) return;
  std::vector<int> taken = taken_by_steps(program);
  auto hangs_on = [&](int number, int leaf) {
    int64_t which = program.numbers[static_cast<size_t>(leaf)].which;
    auto is_it = [&](const Number& one) { return one.kind == Number::Kind::State && one.which == which; };
    return number >= 0 && !leaves_of(program.numbers, number, is_it).empty();
  };
  for (size_t i = 0; i < effects.size(); ++i) {
    const Tree& value = output.items[i + 1];
    if (value.kind != Tree::Kind::Number) continue;
    for (int leaf : program.given) {
      const Number& number = program.numbers[static_cast<size_t>(leaf)];
      const Effect& effect = effects[i];
      if (number.kind != Number::Kind::State || effect.moves ||
          !is_place(effect, tree[static_cast<int>(number.which)]))
        continue;
      bool looked_at = std::any_of(taken.begin(), taken.end(), [&](int one) { return hangs_on(one, leaf); });
      if (!looked_at && hangs_on(value.index, leaf)) counters_.push_back({i, leaf});
    }
  }
  if (!counters_.empty()) output.each_number([&](int number) { left_.push_back(number); });
}

void Counters::catch_up(const Program& program, const std::vector<Effect>& effects,
                        const std::vector<PyObject*>& state, NumberValues* numbers) const {
  std::vector<std::pair<int, NumberValue>> changed;
  for (const Counter& counter : counters_) {
    const Effect& effect = effects[counter.effect];
    auto at = static_cast<size_t>(counter.number);
    auto now = number_in(effect, state[effect.owner], program.numbers[at].real);
    if (now && std::memcmp(&*now, &(*numbers)[at], sizeof *now) != 0)
      changed.emplace_back(counter.number, *now);
  }
  if (changed.empty()) return;
  NumberValues made = *numbers;
  std::vector<char> other(program.numbers.size(), 0), needed(program.numbers.size(), 0);
  for (auto& [number, value] : changed) {
    made[static_cast<size_t>(number)] = value;
    other[static_cast<size_t>(number)] = 1;
  }
  for (int number : left_) needed[static_cast<size_t>(number)] = 1;
  // Operands come before what is made of them.
  for (size_t i = program.numbers.size(); i-- > 0;) {
    const Number& number = program.numbers[i];
    if (!needed[i] || number.is_leaf()) continue;
    for (int operand : {number.a, number.b})
      if (operand >= 0) needed[static_cast<size_t>(operand)] = 1;
  }
  for (size_t i = 0; i < program.numbers.size(); ++i) {
    const Number& number = program.numbers[i];
    if (!needed[i] || number.is_leaf()) continue;
    for (int operand : {number.a, number.b}) other[i] |= operand >= 0 && other[static_cast<size_t>(operand)];
    if (!other[i]) continue;
    auto result = worked_out(program.numbers, number, made.data());
    if (!result) return;  // no number of this kind: what is written is what was worked out
    made[i] = *result;
  }
  *numbers = std::move(made);
}

}  // namespace lazytrace
