#include "record/operators/parsed_ints.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

namespace lazytrace {

namespace {

using Names = std::unordered_set<std::string>;

// Operator -> its ints that say how much.
const std::unordered_map<std::string, Names>& table() {
  static const auto* rows = new std::unordered_map<std::string, Names>{
      {"linspace", {"steps"}},
      {"sparse_coo_tensor", {"size"}},
      {"logspace", {"steps"}},
      {"tril_indices", {"row", "col", "offset"}},
      {"triu_indices", {"row", "col", "offset"}},
      {"hann_window", {"window_length"}},
      {"hamming_window", {"window_length"}},
      {"blackman_window", {"window_length"}},
      {"bartlett_window", {"window_length"}},
      {"kaiser_window", {"window_length"}},
      {"fft_fftfreq", {"n"}},
      {"fft_rfftfreq", {"n"}},
      {"vander", {"N"}},
      {"histc", {"bins"}},
      {"one_hot", {"num_classes"}},
      {"chunk", {"chunks"}},
      {"unfold", {"size", "step"}},
      {"diagonal", {"offset"}},
      {"diag", {"diagonal"}},
      {"diag_embed", {"offset"}},
      {"diagflat", {"offset"}},
      {"avg_pool1d", {"kernel_size", "stride", "padding"}},
      {"avg_pool2d", {"kernel_size", "stride", "padding"}},
      {"avg_pool3d", {"kernel_size", "stride", "padding"}},
      {"max_pool1d", {"kernel_size", "stride", "padding"}},
      {"max_pool2d", {"kernel_size", "stride", "padding"}},
      {"max_pool3d", {"kernel_size", "stride", "padding"}},
      {"adaptive_avg_pool1d", {"output_size"}},
      {"adaptive_max_pool1d", {"output_size"}},
      {"adaptive_max_pool2d", {"output_size"}},
      {"pixel_shuffle", {"upscale_factor"}},
      {"pixel_unshuffle", {"downscale_factor"}},
      {"_pad_packed_sequence", {"total_length"}},
  };
  return *rows;
}

bool says_how_much(const std::string& name, const std::string& argument) {
  auto row = table().find(name);
  return row != table().end() && row->second.count(argument) > 0;
}

std::string of_aten(const c10::FunctionSchema& schema) {
  constexpr const char* kAten = "aten::";
  return schema.name().rfind(kAten, 0) == 0 ? schema.name().substr(6) : "";
}

}  // namespace

bool takes_plain_ints(const std::string& name) { return table().count(name) > 0; }

void ParsedInts::begin(std::string name, std::vector<int> in_lists) {
  name_ = std::move(name);
  in_lists_ = std::move(in_lists);
}

bool ParsedInts::waits_behind(const c10::FunctionSchema& schema) const {
  return asked_.empty() && of_aten(schema) != name_;
}

std::vector<int> ParsedInts::asked() const {
  std::vector<int> ids;
  for (const Asked& one : asked_) ids.push_back(one.id);
  return ids;
}

std::vector<int> ParsedInts::end() {
  name_.clear();
  std::vector<int> left = asked();
  asked_.clear();
  return left;
}

void ParsedInts::leave(int id) {
  auto is_it = [&](const Asked& one) { return one.id == id; };
  asked_.erase(std::remove_if(asked_.begin(), asked_.end(), is_it), asked_.end());
}

namespace {
// Without what says that it may be missing, or that there are several.
c10::TypeKind kind_of(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (auto list = type->cast<c10::ListType>()) type = list->getElementType();
  return type->kind();
}

// Neither a SymInt, whose origin is known, nor a dtype or the like, which torch keeps as an int, too.
bool is_plain_int(const c10::Argument& argument) { return kind_of(argument) == c10::TypeKind::IntType; }

// What a binding makes of an int without telling which. Of one for a scalar torch keeps which it is.
bool is_made_of_ints(const c10::Argument& argument) {
  c10::TypeKind kind = kind_of(argument);
  return kind == c10::TypeKind::FloatType || kind == c10::TypeKind::DeviceObjType;
}
}  // namespace

// The plain ints among the arguments, in lists, too.
std::vector<ParsedInts::Place> ParsedInts::places(const c10::FunctionSchema& schema,
                                                  const torch::jit::Stack& stack) {
  std::vector<Place> found;
  size_t count = schema.arguments().size(), first = stack.size() - count;
  for (size_t i = 0; i < count; ++i) {
    const c10::IValue& value = stack[first + i];
    if (!is_plain_int(schema.arguments()[i])) continue;
    if (value.isInt()) found.push_back({i, 0, value.toInt()});
    if (!value.isIntList()) continue;
    auto items = value.toIntVector();
    for (size_t at = 0; at < items.size(); ++at) found.push_back({i, at, items[at]});
  }
  return found;
}

namespace {
// Whether what a binding took out of an int is among these: it asks an int for a float as it does for an int.
bool is_made_of(int64_t value, const c10::IValue& given) {
  auto same = [&](double one) { return one == static_cast<double>(value); };
  if (given.isDouble()) return same(given.toDouble());
  if (given.isDevice()) return given.toDevice().index() == value;
  if (!given.isDoubleList()) return false;
  auto items = given.toDoubleVector();
  return std::any_of(items.begin(), items.end(), same);
}

// Whether this value is that of a float or a device whose origin is not known.
bool is_elsewhere(int64_t value, const c10::FunctionSchema& schema, const torch::jit::Stack& stack,
                  const std::vector<std::pair<size_t, Argument>>& known) {
  size_t count = schema.arguments().size(), first = stack.size() - count;
  for (size_t i = 0; i < count; ++i) {
    bool told = std::any_of(known.begin(), known.end(), [&](const auto& one) { return one.first == i; });
    if (!told && is_made_of_ints(schema.arguments()[i]) && is_made_of(value, stack[first + i])) return true;
  }
  return false;
}

Argument argument_of(const torch::jit::Stack& stack, const c10::FunctionSchema& schema, size_t at,
                     const std::vector<std::pair<size_t, int>>& items) {
  const c10::IValue& value = stack[stack.size() - schema.arguments().size() + at];
  Argument argument;
  if (value.isInt()) {
    argument.kind = Argument::Kind::Number;
    argument.reg = items[0].second;
    return argument;
  }
  argument.kind = Argument::Kind::Numbers;
  argument.constant = value;
  argument.list.assign(value.toIntVector().size(), -1);
  for (auto& [item, id] : items) argument.list[item] = id;
  return argument;
}
}  // namespace

std::vector<int> ParsedInts::asked(int64_t value) const {
  std::vector<int> ids;
  for (const Asked& one : asked_)
    if (one.value == value) ids.push_back(one.id);
  return ids;
}

// Which of the numbers that were asked for is at each place of one value; none where there is a doubt.
std::vector<int> ParsedInts::numbers_for(const std::vector<Place>& places,
                                         const std::vector<int>& ids) const {
  if (ids.empty()) return {};
  bool same = std::all_of(ids.begin(), ids.end(), [&](int id) { return id == ids[0]; });
  bool together = std::all_of(places.begin(), places.end(),
                              [&](const Place& place) { return place.argument == places[0].argument; });
  // C++ leaves open in which order a binding takes its arguments; the items of one are taken in theirs.
  if (ids.size() == places.size()) return same || together ? ids : std::vector<int>();
  // The parser makes a list of one int, which it asks for once.
  std::unordered_set<size_t> arguments;
  for (const Place& place : places) arguments.insert(place.argument);
  bool inside = std::find(in_lists_.begin(), in_lists_.end(), ids[0]) != in_lists_.end();
  if (!same || inside || arguments.size() != ids.size()) return {};
  return std::vector<int>(places.size(), ids[0]);
}

std::optional<std::vector<std::pair<size_t, Argument>>> ParsedInts::take_as(const Step& then,
                                                                            const c10::FunctionSchema& schema,
                                                                            const torch::jit::Stack& stack) {
  if (of_aten(schema) != name_ || then.op.schema().name() != schema.name()) return {};
  if (then.arguments.size() != schema.arguments().size()) return {};
  std::map<size_t, std::vector<std::pair<size_t, int>>> found;  // argument -> (item, id)
  for (const Place& place : places(schema, stack)) {
    const Argument& argument = then.arguments[place.argument];
    bool list = argument.kind == Argument::Kind::Numbers;
    if (list && place.item >= argument.list.size()) return {};
    int id = list ? argument.list[place.item] : argument.kind == Argument::Kind::Number ? argument.reg : -1;
    if (id < 0) continue;
    bool asked = std::any_of(asked_.begin(), asked_.end(),
                             [&](const Asked& one) { return one.id == id && one.value == place.value; });
    if (!asked) return {};
    found[place.argument].emplace_back(place.item, id);
  }
  std::vector<std::pair<size_t, Argument>> taken;
  for (auto& [at, items] : found) {
    taken.emplace_back(at, argument_of(stack, schema, at, items));
    for (auto& [item, id] : items) leave(id);
  }
  return taken;
}

std::vector<std::pair<size_t, Argument>> ParsedInts::take(
    const c10::FunctionSchema& schema, const torch::jit::Stack& stack,
    const std::vector<std::pair<size_t, Argument>>& known) {
  std::vector<std::pair<size_t, Argument>> taken;
  if (asked_.empty() || of_aten(schema) != name_) return taken;
  std::map<int64_t, std::vector<Place>> by_value;
  for (const Place& place : places(schema, stack)) by_value[place.value].push_back(place);
  std::map<size_t, std::vector<std::pair<size_t, int>>> found;  // argument -> (item, id)
  for (auto& [value, at] : by_value) {
    std::vector<int> ids = numbers_for(at, asked(value));
    bool followed = std::all_of(at.begin(), at.end(), [&](const Place& place) {
      return says_how_much(name_, schema.arguments()[place.argument].name());
    });
    if (ids.empty() || !followed || is_elsewhere(value, schema, stack, known)) continue;
    for (size_t i = 0; i < at.size(); ++i) found[at[i].argument].emplace_back(at[i].item, ids[i]);
    auto is_it = [value = value](const Asked& one) { return one.value == value; };
    asked_.erase(std::remove_if(asked_.begin(), asked_.end(), is_it), asked_.end());
  }
  for (auto& [at, items] : found) taken.emplace_back(at, argument_of(stack, schema, at, items));
  return taken;
}

}  // namespace lazytrace
