// The proof of a flat form: it runs on copies, and must give what the program gives, bit for bit.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "flat/form.h"
#include "flat/shadow.h"
#include "flat/twins.h"
#include "replay/interpreter.h"
#include "torch/random_streams.h"

namespace lazytrace {

// Made before the program runs on `registers`, which hold arguments and state only. Copies all memory that
// these show, so that the form may write to it; what shares memory does so again. Needs the GIL.
class Rehearsal {
 public:
  // `nodes`: what the call has at guard nodes.
  Rehearsal(const FlatForm& form, const std::vector<at::Tensor>& registers,
            const std::vector<PyObject*>& nodes, const std::vector<int>& outputs);

  // Once the program has run, if that asks for anything: runs the form with the numbers that it was given;
  // the random numbers that this draws are put back.
  void run(const std::vector<PyObject*>& state, const InterpreterMemory& given);
  // Behind both: in what the two differ; empty where they agree.
  std::string difference(const std::vector<at::Tensor>& registers);
  // Whether a value, or what an operator gave, has led the form away on its way: it would have been undone.
  bool led_away() const { return led_away_; }

 private:
  std::string compare(const Twins::Pair& pair) const;
  void keep_outputs();
  torch::autograd::variable_list brought_by(const std::vector<at::Tensor>& registers);
  std::string compare_passes(const std::vector<at::Tensor>& registers) const;
  static std::string compare_results(const at::Tensor& real, const at::Tensor& copy);

  const FlatForm& form_;
  const std::vector<int>& outputs_;
  std::vector<at::Tensor> registers_;
  Twins twins_;
  std::optional<Shadow> shadow_;
  torch::autograd::variable_list copies_, real_;  // what passes bring through the graphs of both
  // The streams of random numbers before the program and its form; undefined where they are left alone.
  RandomStreams entry_;
  RandomStreams drawn_;  // and after the form
  std::string obstacle_;
  bool led_away_ = false;
};

}  // namespace lazytrace
