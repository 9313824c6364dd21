#include "flat/written_later.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "passes/registers.h"

namespace lazytrace {

namespace {

// What order hangs on.
struct Touched {
  bool known = true;
  std::vector<int> made, used;  // registers
  std::vector<c10::StorageImpl*> read, written;
  std::vector<int> gives;  // numbers
};

template <typename T>
bool share(const std::vector<T>& a, const std::vector<T>& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](const T& one) { return std::find(b.begin(), b.end(), one) != b.end(); });
}

Touched touched_by(const Kernels& kernels, const Step& step) {
  Touched all;
  all.known = step.kind != Step::Kind::Opaque && !step.python && !step.random;
  auto memory = [&](int reg, std::vector<c10::StorageImpl*>* found) {
    c10::StorageImpl* one = kernels.memory_of(reg);
    all.known &= one != nullptr;
    found->push_back(one);
  };
  each_argument(step, [&](int reg) {
    all.used.push_back(reg);
    memory(reg, &all.read);
  });
  each_result(step, [&](int reg) {
    if (reg < 0) return;
    all.made.push_back(reg);
    memory(reg, &all.written);
  });
  if (step.kind == Step::Kind::Operator)
    each_written(step, [&](int reg) { memory(reg, &all.written); });
  else
    all.written.insert(all.written.end(), all.read.begin(), all.read.end());
  for (const Result& result : step.results)
    if (result.number >= 0) all.gives.push_back(result.number);
  return all;
}

// Whether an exit is nothing but a look at a number that a step of the form brings.
bool looks_at_number(const Step& step, const Numbers& numbers) {
  if (step.kind != Step::Kind::Read || step.arguments[0].kind != Argument::Kind::Number) return false;
  auto later = [](const Number& number) { return number.comes_later(); };
  return step.exit && !leaves_of(numbers, step.arguments[0].reg, later).empty();
}

class Order {
 public:
  Order(const Kernels& kernels, const Numbers& numbers, std::vector<Step>* steps)
      : kernels_(kernels), numbers_(numbers), steps_(*steps) {
    for (const Step& step : steps_) touched_.push_back(touched_by(kernels, step));
  }

  // The step, and those from `from` on that must run before it; nothing where these cannot be moved.
  std::optional<std::set<size_t>> what_leads_to(size_t at, size_t from) const;
  // To the place `to`, in their order. Gives the place behind them.
  size_t move(const std::set<size_t>& steps, size_t to);

 private:
  std::set<int> needed_by(const Step& step) const;
  bool movable(const Step& step) const;
  bool must_precede(const Touched& before, const Touched& after, const std::set<int>& needed) const;
  void take_numbers(const std::set<size_t>& moved, size_t from);

  const Kernels& kernels_;
  const Numbers& numbers_;
  std::vector<Step>& steps_;
  std::vector<Touched> touched_;
};

// The numbers that it takes or works out, and what these are made of.
std::set<int> Order::needed_by(const Step& step) const {
  std::vector<int> open(step.numbers);
  for (const Argument& argument : step.arguments) {
    if (argument.kind == Argument::Kind::Number || argument.kind == Argument::Kind::NumberTensor)
      open.push_back(argument.reg);
    if (argument.kind == Argument::Kind::Numbers)
      open.insert(open.end(), argument.list.begin(), argument.list.end());
  }
  std::set<int> found;
  while (!open.empty()) {
    int id = open.back();
    open.pop_back();
    if (id < 0 || !found.insert(id).second) continue;
    open.push_back(numbers_[static_cast<size_t>(id)].a);
    open.push_back(numbers_[static_cast<size_t>(id)].b);
  }
  return found;
}

bool Order::movable(const Step& step) const {
  constexpr size_t kMost = 64;  // bytes, of a count
  bool kind = step.kind == Step::Kind::Operator || step.kind == Step::Kind::Numbers ||
              looks_at_number(step, numbers_);
  if (!kind || (step.exit && step.kind != Step::Kind::Read) || step.accumulates >= 0) return false;
  auto memory = step.early ? kernels_.early_memory(step) : std::nullopt;
  if (step.early && !memory) return false;
  auto asks = [&](int id) {
    const Number& number = numbers_[static_cast<size_t>(id)];
    return number.asks_tensor() || number.kind == Number::Kind::Asked;
  };
  std::set<int> needed = needed_by(step);
  return std::none_of(needed.begin(), needed.end(), asks) &&
         (!memory || std::all_of(memory->begin(), memory->end(),
                                 [](c10::StorageImpl* one) { return one->nbytes() <= kMost; }));
}

bool Order::must_precede(const Touched& before, const Touched& after, const std::set<int>& needed) const {
  auto is_needed = [&](int number) { return needed.count(number) > 0; };
  return !before.known || share(before.made, after.used) || share(before.made, after.made) ||
         share(before.written, after.read) || share(before.written, after.written) ||
         share(before.read, after.written) ||
         std::any_of(before.gives.begin(), before.gives.end(), is_needed);
}

std::optional<std::set<size_t>> Order::what_leads_to(size_t at, size_t from) const {
  constexpr size_t kMost = 8;
  std::set<size_t> all{at};
  std::vector<size_t> open{at};
  while (!open.empty()) {
    size_t one = open.back();
    open.pop_back();
    if (!touched_[one].known || !movable(steps_[one])) return std::nullopt;
    std::set<int> needed = needed_by(steps_[one]);
    for (size_t before = from; before < one; ++before) {
      if (all.count(before) || !must_precede(touched_[before], touched_[one], needed)) continue;
      all.insert(before);
      open.push_back(before);
      if (all.size() > kMost) return std::nullopt;
    }
  }
  return all;
}

// Numbers that a step which stays works out for those that are moved.
void Order::take_numbers(const std::set<size_t>& moved, size_t from) {
  for (size_t one : moved) {
    std::set<int> needed = needed_by(steps_[one]);
    std::vector<int>& own = steps_[one].numbers;
    for (size_t before = from; before < one; ++before) {
      if (moved.count(before)) continue;
      std::vector<int>& others = steps_[before].numbers;
      auto rest =
          std::stable_partition(others.begin(), others.end(), [&](int id) { return !needed.count(id); });
      own.insert(own.end(), rest, others.end());
      others.erase(rest, others.end());
    }
    std::sort(own.begin(), own.end());  // operands come before what is made of them
  }
}

size_t Order::move(const std::set<size_t>& moved, size_t to) {
  take_numbers(moved, to);
  for (size_t one : moved) {
    // The first step in other modes switches them.
    int modes = std::exchange(steps_[to].modes, -1);
    auto rotate = [&](auto& all) {
      auto begin = all.begin();
      std::rotate(begin + static_cast<std::ptrdiff_t>(to), begin + static_cast<std::ptrdiff_t>(one),
                  begin + static_cast<std::ptrdiff_t>(one) + 1);
    };
    rotate(steps_);
    rotate(touched_);
    steps_[to++].modes = modes;
  }
  return to;
}

}  // namespace

void write_later(const Kernels& kernels, const Numbers& numbers, size_t begin, std::vector<Step>* steps) {
  size_t to = begin;
  while (to < steps->size() && !(*steps)[to].early) ++to;
  auto looks = [&](const Step& step) { return looks_at_number(step, numbers); };
  if (to == steps->size() ||
      std::none_of(steps->begin() + static_cast<std::ptrdiff_t>(to), steps->end(), looks))
    return;
  Order order(kernels, numbers, steps);
  for (size_t at = to + 1; at < steps->size(); ++at) {
    if ((*steps)[at].modes >= 0) to = at;
    if (!looks((*steps)[at])) continue;
    if (auto moved = order.what_leads_to(at, to)) to = order.move(*moved, to);
  }
}

}  // namespace lazytrace
