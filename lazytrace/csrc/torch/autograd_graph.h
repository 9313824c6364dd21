// What a backward pass would run into: hooks, functions in Python, leaves.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/python_headers.h>

#include <optional>
#include <unordered_set>
#include <vector>

#include "torch/own_nodes.h"

namespace lazytrace {

// The graph behind some tensors, as autograd would go through it. Needs the GIL, as nodes may belong to
// Python.
struct AutogradGraph {
  bool python = false;                         // a function in Python runs on the way
  std::vector<torch::autograd::Node*> hooked;  // nodes that call hooks
  bool elsewhere = false;                      // autograd runs nodes of it in a thread of a GPU
  bool outer = false;                          // it goes on into a graph of `histories`
  std::vector<at::Tensor> leaves;              // tensors whose `.grad` it may change
  std::unordered_set<torch::autograd::Node*> nodes;

  using Nodes = std::vector<c10::weak_intrusive_ptr<torch::autograd::Node>>;
  // Custom functions, by their class.
  using Functions = std::unordered_set<const void*>;
  // `pure`: those whose Python code comes to operators alone.
  static AutogradGraph of(const std::vector<at::Tensor>& roots, const Nodes& histories = {},
                          const Functions& pure = {});
  bool runs_python() const { return python || !hooked.empty(); }
};

// What is known of the graph between some roots and the inputs whose gradients are asked for, where the
// operators of a backward pass become steps: which of them run hangs on the graph alone.
struct AutogradWay {
  bool others = false;  // it has nodes that the call has not made, and may be another one at the next call
  bool plain =
      false;  // it comes to leaves that do not belong to a transform, which are told by their identity

  static AutogradWay between(const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>& inputs,
                             const OwnNodes& own);
};

// What counts the versions of a tensor; tensors that share it are written to together. Compared only.
const void* version_counter_of(const at::Tensor& tensor);

// Where a view was made, as far as it decides what autograd does once it is written to; -1 where it is none.
int origin_of_view(const at::Tensor& tensor);

// Whether it is a view that was written to in a way that autograd forbids. Asking for its node, or whether it
// is a leaf, raises.
bool is_stale(const at::Tensor& tensor);

// What a pass does with the gradient of a tensor, if it requires one: a leaf is added to, and where one is
// retained, it is another tensor each time.
enum class Takes : uint8_t { Nothing, Adds, Retains };
Takes takes_gradients(const at::Tensor& tensor);

// Whether a graph could lead to each of them that requires gradients. None leads to a view that is stale, or
// was made without gradients: it requires them all the same if its base does.
bool have_edges(const std::vector<int>& of, const std::vector<at::Tensor>& registers);

// Whether it belongs to a custom function in Python.
bool is_python(torch::autograd::Node& node);

// Whether a backward pass that comes to this node runs Python code, or another hook.
bool calls_python(torch::autograd::Node& node);

// Whether operators record what is done with it, though no gradient ever comes to it: a view of a tensor with
// a graph that was made under inference mode has neither a node nor what adds up the gradient of a leaf.
bool leads_nowhere(const at::Tensor& tensor);

// Whether a backward pass that comes to this tensor would call a hook. Neither needs nor takes the GIL.
bool has_hooks(const at::Tensor& tensor);

// The dicts of Python's hooks that a node calls: before it runs, and after that. Null where it calls others,
// too. Borrowed; needs the GIL.
std::optional<std::vector<PyObject*>> hook_dicts_of(torch::autograd::Node& node);

// Whether it has other hooks than those of Python's that hooks_of() gives.
bool has_other_hooks(const at::Tensor& leaf);

// What Tensor.register_hook, or register_post_accumulate_grad_hook, has set on it, as a tuple. Needs the GIL.
PyObject* hooks_of(const at::Tensor& tensor, bool accumulated);
// The dict that Python's hooks lie in, borrowed; null where there are none.
PyObject* dict_of_hooks(const at::Tensor& tensor, bool accumulated);

}  // namespace lazytrace
