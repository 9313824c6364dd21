#include "flat/written_later.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <unordered_map>
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

// Steps are known by where they stood at first. They are put into their order at the end: to move one by one
// would cost the square of their number.
class Order {
 public:
  Order(const Kernels& kernels, const Numbers& numbers, std::vector<Step>* steps);

  size_t size() const { return order_.size(); }
  // The one that comes at this place now.
  size_t at(size_t place) const { return order_[place]; }
  const Step& step(size_t one) const { return steps_[one]; }

  // The step, and those from the place `from` on that must run before it; nothing where these cannot be
  // moved.
  std::optional<std::set<size_t>> what_leads_to(size_t one, size_t from) const;
  // To the place `to`, in their order. Gives the place behind them.
  size_t move(const std::set<size_t>& steps, size_t to);
  void put_in_order();

 private:
  std::set<int> needed_by(const Step& step) const;
  bool movable(const Step& step) const;
  std::vector<size_t> that_precede(size_t one, const std::set<int>& needed) const;
  std::vector<size_t> by_place(const std::set<size_t>& steps) const;
  void take_numbers(const std::set<size_t>& moved, size_t from);

  const Kernels& kernels_;
  const Numbers& numbers_;
  std::vector<Step>& steps_;
  std::vector<Touched> touched_;
  std::vector<size_t> order_, places_;
  std::unordered_map<int, std::vector<size_t>> makers_, givers_;  // of registers, of numbers
  std::unordered_map<const c10::StorageImpl*, std::vector<size_t>> readers_, writers_;
  std::vector<size_t> unknown_, numbered_;  // what they touch; with numbers to work out
};

Order::Order(const Kernels& kernels, const Numbers& numbers, std::vector<Step>* steps)
    : kernels_(kernels), numbers_(numbers), steps_(*steps), order_(steps->size()), places_(steps->size()) {
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::iota(places_.begin(), places_.end(), size_t{0});
  for (size_t one = 0; one < steps_.size(); ++one) {
    const Touched& all = touched_.emplace_back(touched_by(kernels, steps_[one]));
    if (!all.known) unknown_.push_back(one);
    if (!steps_[one].numbers.empty()) numbered_.push_back(one);
    for (int reg : all.made) makers_[reg].push_back(one);
    for (int number : all.gives) givers_[number].push_back(one);
    for (const c10::StorageImpl* memory : all.read) readers_[memory].push_back(one);
    for (const c10::StorageImpl* memory : all.written) writers_[memory].push_back(one);
  }
}

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

// Those that must run before it wherever they stand: what they make, give, or do to memory is in its way.
std::vector<size_t> Order::that_precede(size_t one, const std::set<int>& needed) const {
  std::vector<size_t> found = unknown_;
  auto add = [&](const auto& index, auto key) {
    if (auto known = index.find(key); known != index.end())
      found.insert(found.end(), known->second.begin(), known->second.end());
  };
  const Touched& all = touched_[one];
  for (int reg : all.used) add(makers_, reg);
  for (int reg : all.made) add(makers_, reg);
  for (int number : needed) add(givers_, number);
  for (const c10::StorageImpl* memory : all.read) add(writers_, memory);
  for (const c10::StorageImpl* memory : all.written) add(writers_, memory), add(readers_, memory);
  return found;
}

std::optional<std::set<size_t>> Order::what_leads_to(size_t one, size_t from) const {
  constexpr size_t kMost = 8;
  std::set<size_t> all{one};
  std::vector<size_t> open{one};
  while (!open.empty()) {
    size_t last = open.back();
    open.pop_back();
    if (!touched_[last].known || !movable(steps_[last])) return std::nullopt;
    for (size_t before : that_precede(last, needed_by(steps_[last]))) {
      bool between = places_[before] >= from && places_[before] < places_[last];
      if (!between || !all.insert(before).second) continue;
      open.push_back(before);
      if (all.size() > kMost) return std::nullopt;
    }
  }
  return all;
}

std::vector<size_t> Order::by_place(const std::set<size_t>& steps) const {
  std::vector<size_t> sorted(steps.begin(), steps.end());
  std::sort(sorted.begin(), sorted.end(), [this](size_t a, size_t b) { return places_[a] < places_[b]; });
  return sorted;
}

// Numbers that a step which stays works out for those that are moved.
void Order::take_numbers(const std::set<size_t>& moved, size_t from) {
  for (size_t one : by_place(moved)) {
    std::set<int> needed = needed_by(steps_[one]);
    std::vector<int>& own = steps_[one].numbers;
    const bool had_none = own.empty();
    for (size_t before : numbered_) {
      if (places_[before] < from || places_[before] >= places_[one] || moved.count(before)) continue;
      std::vector<int>& others = steps_[before].numbers;
      auto rest =
          std::stable_partition(others.begin(), others.end(), [&](int id) { return !needed.count(id); });
      own.insert(own.end(), rest, others.end());
      others.erase(rest, others.end());
    }
    std::sort(own.begin(), own.end());  // operands come before what is made of them
    if (had_none && !own.empty()) numbered_.push_back(one);
  }
}

size_t Order::move(const std::set<size_t>& moved, size_t to) {
  take_numbers(moved, to);
  const std::vector<size_t> sorted = by_place(moved);
  const size_t end = places_[sorted.back()] + 1, first = order_[to];
  auto stays = [&](size_t one) { return !moved.count(one); };
  std::vector<size_t> behind;
  std::copy_if(order_.begin() + static_cast<std::ptrdiff_t>(to),
               order_.begin() + static_cast<std::ptrdiff_t>(end), std::back_inserter(behind), stays);
  auto place = std::copy(sorted.begin(), sorted.end(), order_.begin() + static_cast<std::ptrdiff_t>(to));
  std::copy(behind.begin(), behind.end(), place);
  for (size_t at = to; at < end; ++at) places_[order_[at]] = at;
  // The first step in other modes switches them.
  std::swap(steps_[first].modes, steps_[sorted[0]].modes);
  return to + sorted.size();
}

void Order::put_in_order() {
  std::vector<Step> sorted;
  sorted.reserve(steps_.size());
  for (size_t one : order_) sorted.push_back(std::move(steps_[one]));
  steps_ = std::move(sorted);
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
  for (size_t at = to + 1; at < order.size(); ++at) {
    const size_t one = order.at(at);
    if (order.step(one).modes >= 0) to = at;
    if (!looks(order.step(one))) continue;
    if (auto moved = order.what_leads_to(one, to)) to = order.move(*moved, to);
  }
  order.put_in_order();
}

}  // namespace lazytrace
