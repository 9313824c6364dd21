#include "flat/form.h"

#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "flat/named.h"
#include "flat/replayed_backward.h"
#include "replay/interpreter.h"
#include "support/firsts.h"
#include "torch/autograd_graph.h"
#include "torch/memory.h"
#include "torch/storage.h"

namespace lazytrace {

// A leaf that accumulates its gradient as it comes.
bool is_plain_leaf(const at::Tensor& tensor) {
  auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  return tensor.is_leaf() && (!meta || (!meta->grad_dtype_ && !meta->allow_grad_dtype_mismatch_));
}

void work_out_all(const Numbers& numbers, NumberValues* values) {
  values->resize(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i].is_given() || numbers[i].asks_tensor()) continue;
    std::optional<NumberValue> result = constant_value(numbers[i]);
    if (!numbers[i].is_leaf()) result = apply(numbers, numbers[i], values->data());
    try {
      if (!result) result = apply_in_python(numbers, numbers[i], values->data());
    } catch (pybind11::error_already_set&) {
      continue;  // of what was not read yet
    }
    if (result) (*values)[i] = *result;
  }
}

namespace {

// Calls `use` with each tensor that was there before the call, and with its gradient, which may be undefined,
// until it gives false.
template <class Use>
bool each_tensor(const Plan& plan, const std::vector<at::Tensor>& registers, Use use) {
  static const at::Tensor none;
  auto use_both = [&](int reg) {
    const at::Tensor& tensor = registers[reg];
    return use(tensor) && use(tensor.defined() && tensor.is_leaf() ? tensor.grad() : none);
  };
  const std::vector<int>& captures = plan.program().captures;
  return std::all_of(plan.used.begin(), plan.used.end(), use_both) &&
         std::all_of(captures.begin(), captures.end(), use_both);
}

// Calls `use` with a number for each of the addresses that sharing_of() compares, until it gives false.
template <class Use>
bool each_shared(const Plan& plan, const std::vector<at::Tensor>& registers, Use use) {
  Firsts firsts(6 * (plan.used.size() + plan.program().captures.size()));
  int next = 0;
  return each_tensor(plan, registers, [&](const at::Tensor& tensor) {
    bool memory = tensor.defined() && tensor.has_storage();
    int number = next++;
    return use(firsts.of(storage_of(tensor), 0, number)) &&
           use(firsts.of(memory ? tensor.const_data_ptr() : nullptr, 1, number)) &&
           use(firsts.of(tensor.defined() ? version_counter_of(tensor) : nullptr, 2, number));
  });
}

}  // namespace

// Most programs have torch's memory alone, which is asked first.
bool storages_overlap(const Plan& plan, const std::vector<at::Tensor>& registers) {
  bool own = each_tensor(plan, registers, [](const at::Tensor& tensor) {
    const c10::StorageImpl* storage = storage_of(tensor);
    return !storage || !is_foreign(storage);
  });
  if (own) return false;
  std::vector<const c10::StorageImpl*> storages;
  each_tensor(plan, registers, [&](const at::Tensor& tensor) {
    if (const c10::StorageImpl* storage = storage_of(tensor)) storages.push_back(storage);
    return true;
  });
  return any_overlap(std::move(storages));
}

std::vector<int> sharing_of(const Plan& plan, const std::vector<at::Tensor>& registers) {
  std::vector<int> sharing;
  each_shared(plan, registers, [&](int number) {
    sharing.push_back(number);
    return true;
  });
  return sharing;
}

namespace {
bool shares_as(const std::vector<int>& sharing, const Plan& plan, const std::vector<at::Tensor>& registers) {
  size_t at = 0;
  bool same = each_shared(plan, registers,
                          [&](int number) { return at < sharing.size() && sharing[at++] == number; });
  return same && at == sharing.size();
}
}  // namespace

bool FlatForm::fits(const std::vector<at::Tensor>& registers, const NumberValues& given) const {
  // Which leaf's hooks a pass calls first may be seen, and what they let go of may be needed.
  auto hooked = [&](const BackwardForm::Open& one) {
    return registers[one.reg].defined() && has_hooks(registers[one.reg]);
  };
  if (backward && std::any_of(backward->begins.begin(), backward->begins.end(), hooked)) return false;
  if (!std::all_of(leaves.begin(), leaves.end(), [&](int reg) { return is_plain_leaf(registers[reg]); }))
    return false;
  if (!have_edges(plan->used, registers) || !have_edges(program().captures, registers)) return false;
  if (!shares_as(sharing, *plan, registers) || storages_overlap(*plan, registers)) return false;
  if (reads.empty()) return true;
  NumberValues values = given;
  work_out_all(program().numbers, &values);
  return std::all_of(reads.begin(), reads.end(), [&](size_t at) {
    const Step& step = program().steps[at];
    auto id = static_cast<size_t>(step.arguments[0].reg);
    return same_value(step.results[0].read, to_ivalue(program().numbers[id], values[id]));
  });
}

std::vector<at::Generator> FlatForm::generators_of(const std::vector<PyObject*>& nodes) const {
  std::vector<at::Generator> found;
  for (int node : generators)
    found.push_back(reinterpret_cast<THPGenerator*>(nodes[static_cast<size_t>(node)])->cdata);
  return found;
}

Earlier FlatForm::earlier(const std::vector<at::Tensor>& registers) const {
  Earlier state;
  if (!backward) return state;
  if (program().random) state.random = RandomStreams::now();
  at::AutoDispatchBelowADInplaceOrView below;
  for (int reg : backward->written) state.written.push_back(registers[reg].clone());
  return state;
}

void FlatForm::put_history(std::vector<at::Tensor>* all, const NumberValues& numbers,
                           const Earlier& earlier) const {
  std::vector<at::Tensor>& registers = *all;
  if (backward) ReplayedBackward::attach(backward, all, numbers, earlier);
  for (const Spent& one : spent) {
    auto node = make_spent(one.kind);
    torch::autograd::edge_list edges;
    for (int leaf : one.leaves) edges.push_back(torch::autograd::impl::gradient_edge(registers[leaf]));
    for (int other : one.results) edges.push_back(torch::autograd::impl::gradient_edge(registers[other]));
    node->set_next_edges(std::move(edges));
    for (auto [at, reg] : one.registers) {
      skip_inputs(node.get(), at - node->num_inputs());
      torch::autograd::set_history(registers[reg], node);
    }
  }
}

}  // namespace lazytrace
