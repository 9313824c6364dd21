// The backward pass of a program that leaves a graph to its caller, as kernels.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "passes/plan.h"
#include "torch/random_streams.h"

namespace lazytrace {

// The registers that a program begins with: arguments that it needs, and captured state.
std::vector<int> beginnings_of(const Plan& plan);

// What is there before a replay and need not be there after it.
struct Earlier {
  RandomStreams random;             // of where the program draws from them; undefined otherwise
  std::vector<at::Tensor> written;  // copies of what it writes to
};

// Made with the flat form of a program whose results have a graph: what a pass that is given gradients of
// them, and asked for nothing but the gradients of all that was there before, does. Immutable once built, but
// for `surprised`.
struct BackwardForm {
  // Its registers begin with what was saved, then the gradients that it is given.
  std::shared_ptr<const Plan> plan;
  std::vector<int> saved;  // registers of the flat form that it needs

  // A result with a history.
  struct Root {
    int reg;          // of the flat form
    int of;           // of both forms: itself, or a view of it
    int kind;         // of its node
    int given;        // the register of its gradient, or -1: a pass that brings it one is another pass
    TensorMeta look;  // of that
    uint32_t at;      // which result of its node it is
    uint64_t depth;   // of its graph: the longest way through it, or more
  };
  std::vector<Root> roots;

  // A tensor that others hold, too.
  struct Open {
    int reg;  // of both forms
    TensorMeta look;
    bool saved;  // the pass needs it
  };
  std::vector<Open> begins;  // what the program begins with
  std::vector<Open> given;   // the results that the pass needs
  std::vector<int> begin_registers() const;

  // Results that others are made of, and views of them.
  struct Inner {
    size_t root;
    int reg;      // of both forms
    int kind;     // of the node of a view; -1: it is the root itself
    uint32_t at;  // which result of its node it is
  };
  std::vector<Inner> inner;
  // By root: those of them that a pass from there comes to. They are older than the root.
  std::vector<std::vector<size_t>> leads;
  std::vector<Step> views;  // make the results that are views of roots: autograd has to see them

  // A use of what was there before, in the order in which autograd adds up what comes of them.
  struct Exit {
    int end;  // the register of the flat form that is used
    int reg;  // what the pass brings to it, or -1
  };
  std::vector<Exit> exits;

  // What torch would have saved, in the order in which a pass comes to it, as far as others can write to it.
  struct Watched {
    int reg;           // of both forms: a tensor that is written to together with it
    bool in_pass;      // the recorded pass comes to it
    bool itself;       // not a view or a copy of it
    std::string text;  // of torch's error: which tensor it is, and of what
  };
  std::vector<Watched> watched;

  uint64_t nodes = 0;                 // that the program makes
  bool spends = false;                // whether torch raises at a second pass
  std::shared_ptr<const Plan> whole;  // builds the graph, for passes that ask for more
  std::vector<int> written;           // those of them that it writes to
  mutable std::atomic<bool> surprised{false};

  // What comes to each exit. The first registers hold what was saved; `gradients`: by root. False where
  // values lead it away from what was recorded. Needs the GIL, and lets go of it meanwhile.
  bool run(std::vector<at::Tensor>* registers, const std::vector<at::Tensor>& gradients,
           std::vector<at::Tensor>* brought) const;
};

}  // namespace lazytrace
