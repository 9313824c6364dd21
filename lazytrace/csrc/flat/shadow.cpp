#include "flat/shadow.h"

#include "replay/interpreter.h"
#include "torch/random_streams.h"

namespace lazytrace {

Shadow::Shadow(const Plan& plan, const std::vector<at::Tensor>& registers)
    : plan_(plan), registers_(static_cast<size_t>(plan.program().registers)) {
  for (int reg : plan.used) registers_[reg] = twins_.of(registers[reg]);
  for (int reg : plan.program().captures) registers_[reg] = twins_.of(registers[reg]);
}

std::string Shadow::obstacle(const Program& program) {
  if (program.python_between) return "hooks of saved tensors are called";
  if (!program.gradients.empty()) return "it reads gradients";
  for (const Step& step : program.steps) {
    if (step.opaque) return step.opaque->name + " is called as a whole";
    if (step.python) return "a kernel in Python";
    if (step.effect && step.kind != Step::Kind::Operator) return "it changes more than values of tensors";
    for (const Argument& argument : step.arguments)
      if (argument.kind == Argument::Kind::Generator) return "a generator is drawn from";
  }
  return "";
}

std::string run_unseen(const Plan& plan, std::vector<at::Tensor>* registers,
                       const std::vector<PyObject*>& state, const NumberValues& given, Witness* witness,
                       const DoneOnce& done, bool* led_away) {
  try {
    OpaqueResults opaque;
    EarlyWrites early;
    InterpreterMemory memory;
    memory.numbers = given;
    memory.done = done;
    Outcome outcome = Interpreter(plan, *registers, state, opaque, early, memory).run(0, nullptr, witness);
    if (led_away) *led_away = !outcome.ok();
    return outcome.ok() ? "" : "step " + std::to_string(outcome.step) + " gave " + outcome.found;
  } catch (...) {
    std::exception_ptr error = caught();  // the program itself will say so
    return "it raised";
  }
}

std::string Shadow::run(const std::vector<PyObject*>& state, const NumberValues& given, Witness* witness) {
  if (!twins_.obstacle().empty()) return twins_.obstacle();
  RandomStreams before = RandomStreams::now();
  std::string found = run_unseen(plan_, &registers_, state, given, witness);
  before.put_back();
  return found;
}

}  // namespace lazytrace
