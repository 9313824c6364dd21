// Sees the backward pass through a graph that a program leaves to its caller.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "flat/backward_form.h"
#include "flat/kernels.h"
#include "flat/open_graph.h"
#include "flat/roots.h"

namespace lazytrace {

// A gradient that looks like this, of values that hang on `seed`.
at::Tensor gradient_like(const TensorMeta& look, uint64_t seed);

// Once a program has run under a Flattening: runs a pass as the caller's would be, writes its kernels down
// behind those of the program, and in the end cuts them off into a form of their own. Make it before the
// program runs; needs the GIL.
class Following {
 public:
  // `kernels`: those that the Flattening writes.
  Following(const Plan& plan, const std::vector<at::Tensor>& registers, Kernels* kernels);

  // See Flattening::follow(). `modes`: those at the end; `names`: the registers of the program, by register
  // of a kernel; `collect`: whether kernels are to be written down from now on.
  void follow(std::shared_ptr<const Plan> whole, const std::vector<int>& outputs,
              const std::vector<TensorMeta>& looks, const Modes& modes, const std::vector<int>& names,
              const std::function<void(bool)>& collect);
  const std::string& obstacle() const { return obstacle_; }

  // The first of the registers that are of the pass alone.
  int first_register() const { return first_of_pass_; }
  // Calls name(register) for what it has noted by register, which may be given another number.
  void rename(const std::function<void(int&)>& name);
  // Cuts the kernels of the pass off. `outputs` grows by what it needs of the others.
  // `nodes`: how many the program makes.
  std::shared_ptr<const BackwardForm> finish(std::vector<int>* outputs, uint64_t nodes);

 private:
  void hinder(const std::string& why);
  bool keeps_edges() const;
  std::vector<at::Tensor> meet_roots(const Roots& roots, const std::vector<TensorMeta>& looks);
  bool raises_twice(const Roots& roots) const;
  void note_views(const std::vector<int>& registers, const std::vector<int>& names);
  void note_written();
  void note_saved(const OpenGraph& graph, const Roots& roots, const std::vector<int>& outputs);
  void note_inner(const OpenGraph& graph, const Roots& roots);
  OpenGraph part_of_pass(const Roots& roots) const;
  void hinder_by_kernels();
  void note_open(const std::vector<char>& needed, const std::vector<int>& outputs);
  void make_views_again(std::vector<Step>* steps) const;

  const std::vector<at::Tensor>& registers_;
  Kernels* kernels_;
  std::vector<int> begins_;  // the registers that the program begins with
  Ends ends_;                // before it ran
  std::shared_ptr<BackwardForm> form_;
  size_t cut_ = 0;  // the first kernel of the pass
  int first_of_pass_ = 0;
  Modes modes_;
  std::string obstacle_;
};

}  // namespace lazytrace
