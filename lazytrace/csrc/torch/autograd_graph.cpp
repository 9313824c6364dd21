#include "torch/autograd_graph.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/python_function.h>
#include <torch/csrc/autograd/python_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>
#include <typeinfo>

#include "torch/transforms.h"

namespace lazytrace {

namespace {

using torch::autograd::Node;

// Whether one of a tensor's hooks would be called. What is unpickled, `torch.load` among it, has a dict of
// hooks that is empty. Torch does not export the type; the size of a dict can be read without the GIL.
bool calls_any(const std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>& hooks) {
  for (auto& hook : hooks) {
    if (!std::strstr(typeid(*hook).name(), "PyFunctionTensorPreHook")) return true;
    PyObject* dict = static_cast<torch::autograd::PyFunctionTensorPreHook&>(*hook).dict;
    if (!PyDict_Check(dict) || PyDict_GET_SIZE(dict)) return true;
  }
  return false;
}

bool has_hooks_of_its_own(Node& node) {
  return !node.pre_hooks().empty() || !node.post_hooks().empty() || calls_any(node.tensor_pre_hooks()) ||
         !node.retains_grad_hooks().empty() || node.tensor_post_acc_grad_hooks();
}

// The class of the custom function that a node in Python belongs to.
const void* function_of(Node& node) {
  static PyObject* const name = PyUnicode_InternFromString("_forward_cls");
  PyObject* shown = static_cast<torch::autograd::PyNode&>(node).pyobj();
  return shown ? _PyType_Lookup(Py_TYPE(shown), name) : nullptr;
}

}  // namespace

// torch does not export the type.
bool is_python(Node& node) { return std::strstr(typeid(node).name(), "PyNode") != nullptr; }

// It shows its identity nowhere, and is a pointer.
const void* version_counter_of(const at::Tensor& tensor) {
  const c10::VariableVersion& version = tensor.unsafeGetTensorImpl()->version_counter();
  const void* counter = nullptr;
  static_assert(sizeof version == sizeof counter);
  std::memcpy(&counter, &version, sizeof counter);
  return counter;
}

namespace {

// What autograd knows of a view that requires gradients, and whose node is not made anew once it was written
// to.
const torch::autograd::DifferentiableViewMeta* view_that_is_fixed(const at::Tensor& tensor) {
  const auto* view = torch::autograd::impl::get_view_autograd_meta(tensor);
  if (!view || !view->has_bw_view()) return nullptr;
  if (view->get_creation_meta() == torch::autograd::CreationMeta::DEFAULT) return nullptr;
  return view->grad_fn_ || view->get_backward_view().base_.requires_grad() ? view : nullptr;
}

}  // namespace

int origin_of_view(const at::Tensor& tensor) {
  const auto* view = torch::autograd::impl::get_view_autograd_meta(tensor);
  return view && view->has_bw_view() ? static_cast<int>(view->get_creation_meta()) : -1;
}

// As VariableHooks::grad_fn() judges it.
bool is_stale(const at::Tensor& tensor) {
  const auto* view = view_that_is_fixed(tensor);
  return view && static_cast<int64_t>(view->get_attr_version()) != tensor._version();
}

bool leads_nowhere(const at::Tensor& tensor) {
  const auto* view = view_that_is_fixed(tensor);
  return view && !view->grad_fn_ && !view->requires_grad_;
}

Takes takes_gradients(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (!meta || (!meta->is_view_ && !meta->grad_fn_) || tensor.is_leaf()) return Takes::Adds;
  return tensor.retains_grad() ? Takes::Retains : Takes::Nothing;
}

bool have_edges(const std::vector<int>& of, const std::vector<at::Tensor>& registers) {
  return std::all_of(of.begin(), of.end(), [&](int reg) {
    const auto* view = registers[reg].defined() ? view_that_is_fixed(registers[reg]) : nullptr;
    return !view || (view->grad_fn_ && !is_stale(registers[reg]));
  });
}

bool calls_python(Node& node) { return has_hooks_of_its_own(node) || is_python(node); }

AutogradGraph AutogradGraph::of(const std::vector<at::Tensor>& roots, const Nodes& histories,
                                const Functions& pure) {
  AutogradGraph graph;
  std::unordered_set<Node*> outer;
  for (const auto& node : histories)
    if (auto held = node.lock()) outer.insert(held.get());
  std::vector<Node*> open;
  auto meet = [&](Node* node) {
    if (node && graph.nodes.insert(node).second) open.push_back(node);
  };
  // A leaf does not hold the node that accumulates its gradient.
  torch::autograd::edge_list begins;
  for (const at::Tensor& root : roots)
    if (root.defined()) begins.push_back(torch::autograd::impl::gradient_edge(root));
  for (const auto& edge : begins) meet(edge.function.get());
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node);
    // What is left of a leaf that has been let go of.
    if (leaf && !leaf->variable.defined()) continue;
    graph.outer |= outer.count(node) > 0;
    // Torch's engine keeps those of these two in the thread of the caller.
    graph.elsewhere |= node->num_inputs() > 0 && !node->device().is_cpu() && !node->device().is_meta();
    graph.python |= is_python(*node) && !pure.count(function_of(*node));
    if (has_hooks_of_its_own(*node)) graph.hooked.push_back(node);
    if (leaf) graph.leaves.push_back(leaf->variable);
    for (const auto& edge : node->next_edges()) meet(edge.function.get());
  }
  return graph;
}

AutogradWay AutogradWay::between(const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>& inputs,
                                 const OwnNodes& own) {
  AutogradWay way;
  // The way ends at an input, unless another input may lie behind it.
  torch::autograd::edge_list begins, end;
  for (const at::Tensor& root : roots) begins.push_back(torch::autograd::impl::gradient_edge(root));
  if (inputs.size() == 1) end.push_back(torch::autograd::impl::gradient_edge(inputs[0]));
  std::unordered_set<Node*> met;
  std::vector<Node*> open;
  auto meet = [&](Node* node) {
    bool ends = !end.empty() && node == end[0].function.get();
    if (node && !ends && met.insert(node).second) open.push_back(node);
  };
  for (const auto& edge : begins) meet(edge.function.get());
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node))
      way.plain |= leaf->variable.defined() && !belongs_to_transform(leaf->variable);
    else
      way.others |= !own.holds(*node);
    for (const auto& edge : node->next_edges()) meet(edge.function.get());
  }
  return way;
}

namespace {
// Null where the hook is none of Python's. Torch exports none of these types.
PyObject* dict_of(torch::autograd::FunctionPreHook& hook) {
  const char* name = typeid(hook).name();
  if (std::strstr(name, "PyFunctionTensorPreHook"))
    return static_cast<torch::autograd::PyFunctionTensorPreHook&>(hook).dict;
  if (std::strstr(name, "PyFunctionPreHook"))
    return static_cast<torch::autograd::PyFunctionPreHook&>(hook).dict;
  return nullptr;
}
PyObject* dict_of(torch::autograd::FunctionPostHook& hook) {
  if (!std::strstr(typeid(hook).name(), "PyFunctionPostHook")) return nullptr;
  return static_cast<torch::autograd::PyFunctionPostHook&>(hook).dict;
}
PyObject* dict_of(torch::autograd::PostAccumulateGradHook& hook) {
  if (!std::strstr(typeid(hook).name(), "PyFunctionTensorPostAccGradHooks")) return nullptr;
  return static_cast<torch::autograd::PyFunctionTensorPostAccGradHooks&>(hook).dict;
}
}  // namespace

std::optional<std::vector<PyObject*>> hook_dicts_of(Node& node) {
  std::vector<PyObject*> dicts;
  for (auto& hook : node.tensor_pre_hooks()) dicts.push_back(dict_of(*hook));
  for (auto& hook : node.pre_hooks()) dicts.push_back(dict_of(*hook));
  for (auto& hook : node.post_hooks()) dicts.push_back(dict_of(*hook));
  if (auto* hook = node.tensor_post_acc_grad_hooks().get()) dicts.push_back(dict_of(*hook));
  auto is_known = [](PyObject* dict) { return dict && PyDict_Check(dict); };
  if (!node.retains_grad_hooks().empty() || !std::all_of(dicts.begin(), dicts.end(), is_known)) return {};
  return dicts;
}

bool has_other_hooks(const at::Tensor& leaf) {
  auto* meta = torch::autograd::impl::get_autograd_meta(leaf);
  if (!meta) return false;
  if (meta->cpp_hooks_list_ || (meta->post_acc_grad_hooks_ && !dict_of(*meta->post_acc_grad_hooks_)))
    return true;
  for (auto& hook : meta->hooks_)
    if (!dict_of(*hook)) return true;
  auto accumulator = meta->grad_accumulator_.lock();
  return accumulator && !(accumulator->pre_hooks().empty() && accumulator->post_hooks().empty() &&
                          accumulator->retains_grad_hooks().empty());
}

PyObject* hooks_of(const at::Tensor& tensor, bool accumulated) {
  PyObject* all = PyList_New(0);
  auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  auto add = [&](PyObject* dict) {
    PyObject *key, *hook;
    for (Py_ssize_t at = 0; all && dict && PyDict_Check(dict) && PyDict_Next(dict, &at, &key, &hook);)
      if (PyList_Append(all, hook) < 0) Py_CLEAR(all);
  };
  if (meta && accumulated && meta->post_acc_grad_hooks_) add(dict_of(*meta->post_acc_grad_hooks_));
  if (meta && !accumulated)
    for (auto& hook : meta->hooks_) add(dict_of(*hook));
  PyObject* hooks = all ? PyList_AsTuple(all) : nullptr;
  Py_XDECREF(all);
  return hooks;
}

PyObject* dict_of_hooks(const at::Tensor& tensor, bool accumulated) {
  auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (!meta) return nullptr;
  if (accumulated) return meta->post_acc_grad_hooks_ ? dict_of(*meta->post_acc_grad_hooks_) : nullptr;
  for (auto& hook : meta->hooks_)
    if (PyObject* dict = dict_of(*hook)) return dict;
  return nullptr;
}

bool has_hooks(const at::Tensor& tensor) {
  auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (!meta) return false;
  if (calls_any(meta->hooks_) || meta->cpp_hooks_list_ || meta->post_acc_grad_hooks_) return true;
  auto accumulator = meta->grad_accumulator_.lock();
  return accumulator && has_hooks_of_its_own(*accumulator);
}

}  // namespace lazytrace
