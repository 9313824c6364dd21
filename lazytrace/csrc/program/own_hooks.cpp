#include "program/own_hooks.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

namespace lazytrace {

namespace {
// The leaf that the step sets a hook on, or takes one off, or null.
const at::Tensor* leaf_of(const Step& step, const std::vector<at::Tensor>& registers) {
  if (!step.opaque || !step.opaque->hooks_outside) return nullptr;
  return &registers[static_cast<size_t>(step.arguments[0].reg)];
}
}  // namespace

size_t OwnHooks::on(const Program& program, size_t step, const std::vector<at::Tensor>& registers,
                    const at::Tensor& leaf) {
  int count = 0;
  for (size_t i = 0; i < step; ++i) {
    const at::Tensor* hooked = leaf_of(program.steps[i], registers);
    if (hooked && hooked->is_same(leaf)) count += program.steps[i].opaque->hooks;
  }
  return static_cast<size_t>(count);
}

OwnHooks::OwnHooks(const Program& program, size_t step, const std::vector<at::Tensor>& registers) {
  if (!program.hooks_outside) return;
  std::vector<const at::Tensor*> leaves;
  for (size_t i = 0; i < step; ++i) {
    const at::Tensor* leaf = leaf_of(program.steps[i], registers);
    auto is_it = [&](const at::Tensor* one) { return one->is_same(*leaf); };
    if (leaf && leaf->defined() && std::none_of(leaves.begin(), leaves.end(), is_it)) leaves.push_back(leaf);
  }
  for (const at::Tensor* leaf : leaves) take(*leaf, on(program, step, registers, *leaf));
}

void OwnHooks::take(const at::Tensor& leaf, size_t count) {
  auto shown = py::reinterpret_steal<py::object>(THPVariable_Wrap(leaf));
  PyObject* hooks = reinterpret_cast<THPVariable*>(shown.ptr())->backward_hooks;
  if (!hooks || !PyDict_Check(hooks)) return;
  auto dict = py::reinterpret_borrow<py::object>(hooks);
  for (py::list keys(dict); count > 0 && !keys.empty(); --count) {
    py::object key = keys.attr("pop")();
    taken_.push_back({dict, key, dict[key]});
    dict.attr("__delitem__")(key);
  }
}

OwnHooks::~OwnHooks() {
  for (auto one = taken_.rbegin(); one != taken_.rend(); ++one)
    if (PyObject_SetItem(one->dict.ptr(), one->key.ptr(), one->hook.ptr()) < 0) PyErr_Clear();
}

}  // namespace lazytrace
