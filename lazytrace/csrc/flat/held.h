// A tensor of then, which somebody else may hold as well.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>

#include <string>

#include "torch/tensor_meta.h"

namespace lazytrace {

// What torch's errors call the operator of a node with this name: "Tanh" of TanhBackward0, "Clamp1" of
// ClampBackward1, but all of CopyBackwards.
std::string operator_of_node(const std::string& name);

// Keeps the tensor, what memory it showed, and how often that had been written to.
class Held {
 public:
  // `kept`: what to keep in the place of `tensor`, where the tensor itself must not be held. Weak references
  // keep its address, and that of its memory, from being given to another one.
  static Held of(const at::Tensor& tensor, const at::Tensor& kept);
  static Held of(const at::Tensor& tensor) { return of(tensor, tensor); }

  // Of a leaf that a graph leads to: through the node that adds up its gradient, which holds it.
  static Held of_leaf(const at::Tensor& leaf);

  // Undefined for such a leaf.
  const at::Tensor& tensor() const { return kept_; }
  // How often it had been written to, and how often it has been by now.
  int64_t then() const { return version_; }
  int64_t now() const;
  bool is_as_it_was() const { return now() == version_; }
  // Whether it shows the same memory in the same way: `look` is how it looked. One that is gone shows what it
  // did.
  bool shows_the_same(const TensorMeta& look) const;
  // What torch calls the tensor in an error; empty where it is gone.
  std::string description() const;
  // The tensor itself; what is kept in its place where it is gone.
  at::Tensor owner() const;

 private:
  at::Tensor kept_;
  c10::intrusive_ptr<torch::autograd::Node> adder_;
  bool is_other_ = false;
  int64_t version_ = 0, offset_ = 0;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> owner_{
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  c10::weak_intrusive_ptr<c10::StorageImpl> memory_{c10::intrusive_ptr<c10::StorageImpl>()};
};

}  // namespace lazytrace
