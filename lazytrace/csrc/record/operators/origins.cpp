#include "record/operators/origins.h"

#include <algorithm>

#include "torch/autograd_graph.h"
#include "torch/storage.h"

namespace lazytrace {

Origins::Origins(Program* program) : program_(program) { known_.reserve(256); }

void Origins::add_again(const at::Tensor& tensor, int reg, bool requires_grad) {
  const Known* before = known(tensor);
  int memory = before && before->reg == reg ? before->memory : reg;
  known_.insert_or_assign(
      tensor.unsafeGetTensorImpl(),
      Known{reg, memory, requires_grad, c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr())});
}

int Origins::add(const at::Tensor& tensor, bool external) {
  int reg = program_->registers++;
  add_again(tensor, reg, tensor.requires_grad());
  if (external) outlives(tensor);
  if (external && !is_stale(tensor) && tensor.grad_fn()) histories_.emplace_back(tensor.grad_fn());
  return reg;
}

std::vector<int> Origins::gone() {
  std::vector<char> held(static_cast<size_t>(program_->registers), 0);
  for (auto& [impl, known] : known_)
    if (!known.keep.expired()) held[known.reg] = 1;
  std::vector<int> found;
  for (auto& [impl, known] : known_)
    if (!held[known.reg] && !was_there(known.reg) && gone_.insert(known.reg).second)
      found.push_back(known.reg);
  std::sort(found.begin(), found.end());
  return found;
}

void Origins::add_input(const at::Tensor& tensor) {
  // One tensor as two arguments: both registers exist, the program uses the first.
  if (known(tensor))
    program_->registers++;
  else
    note_look(add(tensor, true), tensor);
  program_->inputs = program_->registers;
}

void Origins::note_look(int reg, const at::Tensor& tensor) {
  program_->looks.resize(static_cast<size_t>(reg) + 1);
  program_->looks.back() = std::make_shared<TensorMeta>(TensorMeta::of(tensor));
}

void Origins::explain(const at::Tensor& tensor, int node, bool exact) {
  if (explained_.emplace(tensor.unsafeGetTensorImpl(), Explained{node, exact}).second)
    explained_keep_.push_back(tensor);
}

std::vector<at::Tensor> Origins::outer() const {
  std::vector<at::Tensor> all = explained_keep_;
  for (auto& [impl, known] : known_)
    if (was_there(known.reg) && !explained_.count(impl))
      if (auto tensor = known.keep.lock()) all.emplace_back(std::move(tensor));
  return all;
}

Origins::Known* Origins::known(const at::Tensor& tensor) {
  auto found = known_.find(tensor.unsafeGetTensorImpl());
  return found == known_.end() ? nullptr : &found->second;
}

int Origins::find(const at::Tensor& tensor, std::optional<bool>* exact) {
  if (const Known* found = known(tensor)) return found->reg;
  auto explained = explained_.find(tensor.unsafeGetTensorImpl());
  if (explained == explained_.end()) return -1;
  int reg = add(tensor, true);
  note_look(reg, tensor);
  program_->captures.push_back(reg);
  capture_nodes_.push_back(explained->second.node);
  *exact = explained->second.exact;
  return reg;
}

std::vector<at::Tensor> Origins::sources_of(const at::Tensor& tensor) const {
  std::vector<at::Tensor> sources;
  for (const auto* all : {&data_of_, &data_before_})
    for (const at::Tensor& source : *all) {
      auto is_it = [&](const at::Tensor& other) { return other.is_same(source); };
      if (same_place(source, tensor) && !is_it(tensor) && std::none_of(sources.begin(), sources.end(), is_it))
        sources.push_back(source);
    }
  return sources;
}

bool Origins::has_read_data(const at::Tensor& source) const {
  return std::any_of(data_of_.begin(), data_of_.end(),
                     [&](const at::Tensor& one) { return one.is_same(source); });
}

std::vector<at::Tensor> Origins::data_read() const {
  std::vector<at::Tensor> all;
  std::unordered_set<c10::TensorImpl*> seen;
  for (const at::Tensor& one : data_of_)
    if (seen.insert(one.unsafeGetTensorImpl()).second) all.push_back(one);
  return all;
}

void Origins::read_data_of(const at::Tensor& source, const at::Tensor& before) {
  auto is_it = [&](const at::Tensor& one) { return one.is_same(source); };
  data_of_.erase(std::remove_if(data_of_.begin(), data_of_.end(), is_it), data_of_.end());
  data_before_.push_back(before);
}

void Origins::shows(const at::Tensor& tensor, const at::Tensor& other) {
  Known *one = known(tensor), *another = known(other);
  if (one && another) one->memory = another->memory;
}

bool Origins::show_one(const std::vector<at::Tensor>& tensors) {
  const Known* first = tensors.empty() ? nullptr : known(tensors[0]);
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    const Known* found = known(tensor);
    return found ? first && found->memory == first->memory : tensors.size() == 1;
  });
}

void Origins::outlives(const at::Tensor& tensor) {
  auto* storage = storage_of(tensor);
  if (!storage) return;
  bool drawn = drawn_.count(storage) > 0;
  if (external_.emplace(storage, tensor.storage().getWeakStorageImpl()).second && !drawn)
    outer_ranges_.push_back(range_of(storage));
  meets_drawn_ |= drawn || meets(drawn_ranges_, range_of(storage));
}

bool Origins::meets(const std::vector<MemoryRange>& ranges, const MemoryRange& range) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const MemoryRange& one) { return overlap(one, range); });
}

bool Origins::draw(const at::Tensor& tensor) {
  auto* storage = storage_of(tensor);
  if (!storage || (external_.count(storage) && !drawn_.count(storage))) return false;
  MemoryRange range = range_of(storage);
  if (meets(outer_ranges_, range)) return false;
  drawn_ranges_.push_back(range);
  external_.emplace(storage, tensor.storage().getWeakStorageImpl());
  drawn_.insert(storage);
  return true;
}

bool Origins::meets_drawn() const {
  auto has_drawn = [&](const at::Tensor& tensor) {
    return tensor.requires_grad() && tensor.is_leaf() && is_drawn(tensor.grad());
  };
  return meets_drawn_ ||
         (!drawn_.empty() && std::any_of(explained_keep_.begin(), explained_keep_.end(), has_drawn));
}

bool Origins::is_external(const at::Tensor& tensor) const {
  auto* storage = storage_of(tensor);
  return !storage || external_.count(storage);
}

bool Origins::was_there(int reg) const {
  if (reg < program_->inputs) return reg >= 0;
  const std::vector<int>& captures = program_->captures;
  return std::find(captures.begin(), captures.end(), reg) != captures.end();
}

void Origins::clear() {
  known_.clear();
  explained_.clear();
  explained_keep_.clear();
  data_of_.clear();
  data_before_.clear();
}

}  // namespace lazytrace
