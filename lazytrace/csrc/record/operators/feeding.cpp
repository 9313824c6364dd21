#include "record/operators/feeding.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "cpython/objects.h"
#include "torch/facts.h"

namespace lazytrace {

PyObject* divergence_type() {
  static PyObject* type = PyErr_NewException("lazytrace._core.Diverged", PyExc_BaseException, nullptr);
  return type;
}

namespace {
void set_look(const at::Tensor& tensor, const TensorMeta& look) {
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(look.sizes(), look.strides());
}
}  // namespace

void Feeding::begin(std::shared_ptr<Resume> resume) {
  region_ = std::move(resume->region);
  feeder_ = std::make_unique<Feeder>(resume);
  for (size_t i = 0; i <= resume->step; ++i) {
    const Step& step = resume->program->steps[i];
    if (step.kind != Step::Kind::Operator || !facts_of(step.op).turns) continue;
    const at::Tensor& tensor = feeder_->held(step.arguments[0].reg);
    if (tensor.defined()) turned_.push_back({tensor, TensorMeta::of(tensor)});
  }
}

void Feeding::turn(const Result& expected, const c10::IValue& value) const {
  bool made = !expected.known || facts_of(this->expected().op).turns;
  if (turned_.empty() || at_exit() || expected.kind != Result::Kind::Register || !made) return;
  for (const Turned& turned : turned_)
    if (value.isTensor() && turned.tensor.is_same(value.toTensor()))
      return set_look(turned.tensor, *expected.meta);
}

// All that has turned them has run.
void Feeding::turn_back() {
  for (const Turned& turned : turned_) set_look(turned.tensor, turned.look);
  turned_.clear();
}

void Feeding::diverge(const std::string& how) const {
  region_.end();
  py::gil_scoped_acquire gil;
  if (feeder_->diverged.empty()) {
    py::tuple at = place_tuple(*place_);
    std::string file = text_of(at[0].ptr());
    feeder_->diverged =
        how + (file.empty() ? "" : " (" + file + ":" + std::to_string(at[1].cast<int>()) + ")");
  }
  PyErr_SetString(divergence_type(), feeder_->diverged.c_str());
  throw py::error_already_set();
}

std::string Feeding::divergence() const {
  if (!feeder_) return "";
  if (!feeder_->diverged.empty()) return feeder_->diverged;
  return feeder_->active() ? "it ended before " + expected().op.schema().name() : "";
}

bool Feeding::expect(const Step& made, const NumberRecorder* numbers) const {
  std::string difference = feeder_->difference(made);
  if (difference.empty()) return true;
  if (!is_alike(made, numbers)) diverge(difference);
  return false;
}

bool Feeding::is_alike(const Step& made, const NumberRecorder* numbers) const {
  auto value = [&](int id) { return to_ivalue((*numbers)[id], numbers->value(id)); };
  return numbers && feeder_->is_alike(made, value);
}

bool Feeding::meets(const Step& made, const NumberRecorder* numbers) const {
  return feeder_->difference(made).empty() || is_alike(made, numbers);
}

void Feeding::expect_opaque() const {
  if (!feeder_->active() || expected().kind != Step::Kind::Opaque) diverge("an opaque function");
}

// A part of a print() is one text.
bool Feeding::expects_print(size_t reads) const {
  if (!expects("print", reads)) return false;
  const std::vector<Tree>& values = feeder_->behind_reads(reads)->opaque->call.items[0].items;
  auto is_text = [](const Tree& value) {
    return value.kind == Tree::Kind::Constant || value.kind == Tree::Kind::Text;
  };
  return values.size() > 1 || !std::all_of(values.begin(), values.end(), is_text);
}

void Feeding::give(torch::jit::Stack* stack) {
  if (at_exit()) turn_back();
  try {
    feeder_->give(stack);
  } catch (...) {
    advance();  // that was the exit
    throw;
  }
}

py::object Feeding::value() {
  try {
    return feeder_->value();
  } catch (...) {
    advance();  // that was the exit
    throw;
  }
}

// The register of a literal: Python filled memory of its own, and goes on with that of the replay.
void Feeding::meet(const Result& expected, const c10::IValue& value) const {
  if (!value.isTensor() || !expected.known || expected.reg < 0) return;
  const at::Tensor& tensor = value.toTensor();
  if (!tensor.defined() || !feeder_->holds(expected.reg, tensor) || origins_->known(tensor)) return;
  origins_->add_again(tensor, expected.reg, tensor.requires_grad());
}

int Feeding::meet_block(Step* step) const {
  const Step& ran = expected();
  int registers = 0;
  // The hooks of a pass were watched, if they have filled a list, too.
  if (!ran.opaque || !(ran.opaque->watched || ran.opaque->engine)) return registers;
  for (size_t i = step->arguments.size(); i < ran.arguments.size(); ++i) {
    int reg = ran.arguments[i].reg;
    step->arguments.push_back(ran.arguments[i]);
    registers = std::max(registers, reg + 1);
    const at::Tensor& tensor = feeder_->held(reg);
    if (tensor.defined() && !origins_->known(tensor))
      origins_->add_again(tensor, reg, tensor.requires_grad());
  }
  return registers;
}

// A tensor that requires gradients by now did not do so when its step ran, where a later step made it.
void Feeding::note_gradients(const Result& expected, const c10::IValue& value) const {
  if (at_exit()) return;
  auto note = [&](const at::Tensor& tensor, const TensorMeta& meta) {
    Origins::Known* known = tensor.defined() ? origins_->known(tensor) : nullptr;
    if (known) known->requires_grad = meta.requires_grad();
    // What is written to a view makes that of which it is one require gradients, too.
    bool written = expected.known && meta.requires_grad() && tensor.is_view();
    if (Origins::Known* base = written ? origins_->known(at::Tensor(tensor._base())) : nullptr)
      base->requires_grad = true;
  };
  if (expected.kind == Result::Kind::Register) note(value.toTensor(), *expected.meta);
  if (expected.kind != Result::Kind::List) return;
  auto list = value.toTensorList();
  for (size_t i = 0; i < list.size() && i < expected.list.size(); ++i)
    note(list.get(i), *expected.list[i].meta);
}

// What it did to tensors and to Python state was not seen this time, but when its trace was recorded.
void Feeding::take_over_opaque(Step* step) const {
  const OpaqueStep& ran = *expected().opaque;
  OpaqueStep& made = *step->opaque;
  made.effects = ran.effects || at_exit();
  made.random = ran.random;
  made.touches = ran.touches;
  made.watched = ran.watched;
  made.confuses = ran.confuses;
  made.looks = ran.looks;
  if (!at_exit()) made.keeps = ran.keeps, made.fills = ran.fills, made.may_not_keep = ran.may_not_keep;
  step->effect |= made.effects;
  // What was asked for this time is what this call has come to, by which its program is proved.
  if (!at_exit() && !made.asks) made.shape = ran.shape, made.values = ran.values;
  // The replay holds it by now, too.
  const Given& given = feeder_->given();
  bool differs = at_exit() && !given.shape.empty();
  made.others = differs ? given.others : ran.others;
  if (differs && given.shape != "!") made.shape = given.shape;
}

namespace {
// How a result looks whose sizes may differ, and which part of its argument it shows, is for this call to
// say: what is recorded behind it is recorded at the sizes of this call. `then`: of the recording that went
// before.
void look_as_now(const Result& now, Result* then) {
  bool loose = then->loose && then->meta->defined() && now.meta->defined();
  if (loose && then->meta->dtype() == now.meta->dtype() && then->meta->keys() == now.meta->keys()) {
    auto meta = std::make_shared<TensorMeta>(*now.meta);
    meta->set_requires_grad(then->meta->requires_grad());
    then->meta = std::move(meta);
  }
  if (!then->known) {
    then->base = now.base;
    then->distance = now.distance;
  }
  for (size_t i = 0; i < then->list.size() && i < now.list.size(); ++i)
    look_as_now(now.list[i], &then->list[i]);
}
}  // namespace

bool Feeding::take_over(Step* step, const NumberRecorder* numbers) {
  const Step& ran = expected();
  bool same = expect(*step, numbers);
  std::string difference = at_exit() ? "" : feeder_->difference_of_results(*step);
  if (!difference.empty()) {
    if (!numbers || !feeder_->gives_alike(*step)) diverge(difference);
    same = false;
  }
  step->node = ran.node;
  step->gone = ran.gone;
  if (!at_exit()) {
    step->branch = ran.branch;
    std::vector<Result> now = std::exchange(step->results, ran.results);
    // What they require is as it was then: later steps may have changed it.
    for (size_t i = 0; i < now.size() && i < step->results.size(); ++i)
      look_as_now(now[i], &step->results[i]);
  }
  step->random = ran.random;
  step->effect = ran.effect;
  step->python = ran.python;
  step->below = ran.below;
  if (step->opaque) take_over_opaque(step);
  step->exit = ran.exit;
  step->region = ran.region;
  step->by_size = ran.by_size;
  step->filled = ran.filled;
  advance();
  return same;
}

void Feeding::advance() {
  feeder_->advance();
  if (active()) return;
  turn_back();
  regions_->go_on_in(std::move(region_));
}

}  // namespace lazytrace
