// Which tensor of a recording is which register, and how those that were there before are fetched again.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "program/program.h"
#include "torch/autograd_graph.h"
#include "torch/storage.h"

namespace lazytrace {

// Tensors are told apart by TensorImpl; a weak reference to each keeps its address from being used again, and
// nothing alive. Touches no Python object.
class Origins {
 public:
  explicit Origins(Program* program);

  struct Known {
    int reg;
    int memory;          // the register that shows the same at each call, itself maybe
    bool requires_grad;  // as of the last step that saw it
    c10::weak_intrusive_ptr<c10::TensorImpl> keep;
  };

  void add_input(const at::Tensor& tensor);
  // `tensor` can be fetched again from guard node `node`; it becomes a register once it is used. `exact`: the
  // guard compares its sizes, too.
  void explain(const at::Tensor& tensor, int node, bool exact);
  void explain(const at::Generator& generator, int node) {
    generators_[generator.unsafeGetGeneratorImpl()] = node;
  }
  // -1: nothing that was read has led to it.
  int node_of_generator(const at::Generator& generator) const {
    auto found = generators_.find(generator.unsafeGetGeneratorImpl());
    return found == generators_.end() ? -1 : found->second;
  }
  // What the call has come to of tensors that were there before it.
  std::vector<at::Tensor> outer() const;
  bool is_explained(const at::Tensor& tensor) const { return explained_.count(tensor.unsafeGetTensorImpl()); }

  // `external`: its memory was there before the call.
  int add(const at::Tensor& tensor, bool external);
  void add_again(const at::Tensor& tensor, int reg, bool requires_grad);
  // Registers of tensors that the call has made, and of which nobody holds one any more; each of them once.
  std::vector<int> gone();
  // Null where it has no register.
  Known* known(const at::Tensor& tensor);
  bool knows(const at::Tensor& tensor) const {
    return known_.count(tensor.unsafeGetTensorImpl()) || is_explained(tensor);
  }
  // Its register, made where it is explained; -1 where it is neither known nor explained. `exact` is set for
  // one that is made.
  int find(const at::Tensor& tensor, std::optional<bool>* exact);

  // `source.data` was read, which makes a tensor behind the dispatcher.
  void read_data(const at::Tensor& source) { data_of_.push_back(source); }
  // Its `.data` is about to be set. What was read of it so far, and that no step has seen yet, shows the
  // memory of `before` from then on.
  bool has_read_data(const at::Tensor& source) const;
  // All of those, each once.
  std::vector<at::Tensor> data_read() const;
  void read_data_of(const at::Tensor& source, const at::Tensor& before);
  // Of two that have registers: the first one shows the memory of the other from now on, at each call.
  void shows(const at::Tensor& tensor, const at::Tensor& other);
  // Whether all of them show the same memory at each call, and not in this one only.
  bool show_one(const std::vector<at::Tensor>& tensors);
  // Tensors that it may be the `.data` of.
  std::vector<at::Tensor> sources_of(const at::Tensor& tensor) const;

  // Its memory outlives the call.
  void outlives(const at::Tensor& tensor);
  // So does that of what lay at a place that is followed, and another replay finds other memory there:
  // nothing else of before the call may show it, nor may the call write to it. False where it is known to be
  // shown.
  bool draw(const at::Tensor& tensor);
  bool is_drawn(const at::Tensor& tensor) const { return drawn_.count(storage_of(tensor)); }
  // Whether something else of before the call has come to show such memory, a gradient of it among that.
  bool meets_drawn() const;
  // The histories of tensors that were there before the call: what autograd made them with.
  const AutogradGraph::Nodes& histories() const { return histories_; }
  bool is_external(const at::Tensor& tensor) const;
  // Whether a register holds an argument or captured state, whose Python object a replay gives back.
  bool was_there(int reg) const;
  // By slot of the program.
  const std::vector<int>& capture_nodes() const { return capture_nodes_; }
  void clear();

 private:
  void note_look(int reg, const at::Tensor& tensor);

  Program* program_;
  std::unordered_map<c10::TensorImpl*, Known> known_;
  struct Explained {
    int node;
    bool exact;
  };
  std::unordered_map<c10::TensorImpl*, Explained> explained_;
  std::vector<at::Tensor> explained_keep_;
  std::unordered_map<c10::GeneratorImpl*, int> generators_;  // kept by their Python objects, which are held
  // A weak reference to each keeps addresses apart: a gradient of before the call may be gone by now, and
  // what is drawn then lies elsewhere.
  std::unordered_map<c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> external_;
  std::unordered_set<c10::StorageImpl*> drawn_;  // among them
  // The memory of all of these and of the others, by address.
  static bool meets(const std::vector<MemoryRange>& ranges, const MemoryRange& range);
  std::vector<MemoryRange> outer_ranges_, drawn_ranges_;
  bool meets_drawn_ = false;
  AutogradGraph::Nodes histories_;
  std::vector<at::Tensor> data_of_;
  std::vector<at::Tensor> data_before_;  // of those that were set since
  std::vector<int> capture_nodes_;
  std::unordered_set<int> gone_;
};

}  // namespace lazytrace
