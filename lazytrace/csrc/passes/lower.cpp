#include "passes/lower.h"

#include <algorithm>
#include <string>
#include <unordered_set>

#include "passes/ways.h"
#include "torch/facts.h"
#include "torch/overrides.h"

namespace lazytrace {

namespace {

class Lowering {
 public:
  Lowering(Plan* plan, const std::vector<int>& outputs) : plan_(*plan), program_(plan->program()) {
    bound_.assign(static_cast<size_t>(program_.registers), 0);
    metas_.assign(static_cast<size_t>(program_.registers), nullptr);
    for (const Step& step : program_.steps)
      for (const Result& result : step.results) {
        if (result.reg >= 0) metas_[result.reg] = result.meta;
        for (const Result& one : result.list)
          if (one.reg >= 0) metas_[one.reg] = one.meta;
      }
    for (int reg : outputs) bound_[reg] = 1;
    find_bound();
    if (program_.dynamic && !program_.changes_looks &&
        std::none_of(program_.steps.begin(), program_.steps.end(), may_resize))
      note_looks();
  }

  void run() {
    const Modes* modes = &program_.modes[0];
    for (size_t i = 0; i < program_.steps.size(); ++i) {
      const Step& step = program_.steps[i];
      StepPlan& planned = plan_.steps[i];
      if (step.modes >= 0) modes = &program_.modes[step.modes];
      if (step.kind != Step::Kind::Operator || step.random || step.gives_either) continue;
      // A kernel has nothing to do with autograd, whatever it is told of the mode.
      bool plain = (step.flat || !modes->grad) && !modes->any_autocast();
      if (plain && !program_.dynamic) planned.lowered = writing_way(step);
      if (planned.lowered || step.effect) continue;
      if (step.takes_numbers && !program_.dynamic) {
        if (plain && takes_scalars(step)) planned.lowered = way_of(step, i, plain);
        continue;
      }
      planned.lowered =
          program_.dynamic ? way_at_some_sizes(step, i, plain) : way_at_its_sizes(step, i, plain);
      if (plain && leaves_no_trace(step))
        planned.quiet = step.flat ? StepPlan::Quiet::Always : quiet(step.op);
    }
  }

 private:
  // out= gives an empty tensor whatever size it takes, and so may an operator of somebody else's give what it
  // writes to: a register has more than one look.
  static bool may_resize(const Step& step) {
    if (step.kind != Step::Kind::Operator) return false;
    const auto& schema = step.op.schema();
    bool foreign = schema.name().rfind("aten::", 0) != 0;
    return std::any_of(
        schema.arguments().begin(), schema.arguments().end(), [&](const c10::Argument& argument) {
          return argument.is_out() || (foreign && argument.alias_info() && argument.alias_info()->isWrite());
        });
  }

  // How each register looked in the recording.
  void note_looks() {
    plan_.looks = program_.looks;
    plan_.looks.resize(static_cast<size_t>(program_.registers));
    for (size_t reg = 0; reg < metas_.size(); ++reg)
      if (metas_[reg] && !plan_.looks[reg]) plan_.looks[reg] = metas_[reg];
  }

  std::shared_ptr<const Lowered> way_at_its_sizes(const Step& step, size_t at, bool plain) {
    if (step.results.size() == 1) return way_of(step, at, plain);
    return plain ? way_of_all(step) : nullptr;
  }

  // A way that is made for the sizes of the recording serves where the tensors that the step takes have them.
  std::shared_ptr<const Lowered> way_at_some_sizes(const Step& step, size_t at, bool plain) {
    if (gives_back_always(step)) return nothing();
    if (plan_.looks.empty() || !plain) return nullptr;
    bool shows = step.results.size() == 1 && is_alias(step.results[0], at) && is_view(step);
    // Those of a view say which part is shown; others are factors and the like.
    if (step.takes_numbers && !shows && !takes_only_scalars(step)) return nullptr;
    if (step.takes_numbers && shows && program_.numbers_then.empty()) return nullptr;  // it comes from a file
    auto found = way_at_its_sizes(step, at, plain);
    if (!found) return nullptr;
    return where_same(step, std::move(found), shows ? numbers_of(step) : NumbersThen());
  }

  using NumbersThen = std::vector<std::pair<int, NumberValue>>;
  NumbersThen numbers_of(const Step& step) const {
    NumbersThen found;
    auto note = [&](int id) {
      if (id >= 0) found.emplace_back(id, program_.numbers_then[static_cast<size_t>(id)]);
    };
    for (const Argument& argument : step.arguments) {
      if (argument.kind == Argument::Kind::Number || argument.kind == Argument::Kind::NumberTensor)
        note(argument.reg);
      if (argument.kind == Argument::Kind::Numbers)
        for (int id : argument.list) note(id);
    }
    return found;
  }

  // Registers that leave the program, that something writes to, that other code than torch's is given, or
  // whose views do or are any of these: what they are to autograd can be seen.
  void find_bound() {
    for (size_t i = program_.steps.size(); i-- > 0;) {
      const Step& step = program_.steps[i];
      bool foreign = step.kind != Step::Kind::Operator || step.op.schema().name().rfind("aten::", 0) != 0;
      bool kept = static_cast<int>(i) <= plan_.keep_until || foreign || hands_on_gradients(step);
      // What is written to from what was there before may come to show the memory of another argument.
      kept |= step.effect && facts_of(step.op).changes_metadata;
      const auto& declared = step.op.schema().arguments();
      for (size_t a = 0; a < step.arguments.size(); ++a) {
        const Argument& argument = step.arguments[a];
        bool written = step.kind == Step::Kind::Operator && a < declared.size() && declared[a].alias_info() &&
                       declared[a].alias_info()->isWrite();
        if (kept || written) bind(argument);
      }
      if (detaches(step)) continue;
      for (const Result& result : step.results) {
        pass_on(result, kept);
        for (const Result& one : result.list) pass_on(one, kept);
      }
      if (may_show_other_memory(step) && gives_bound(step))
        for (const Argument& argument : step.arguments) bind(argument);
    }
  }

  // Whether a result that is a copy in the recording may show the memory of an argument at another size.
  bool may_show_other_memory(const Step& step) const {
    return program_.dynamic && !facts_of(step.op).makes_new;
  }

  bool gives_bound(const Step& step) const {
    auto leaves = [&](const Result& result) { return result.reg >= 0 && bound_[result.reg]; };
    return std::any_of(step.results.begin(), step.results.end(), [&](const Result& result) {
      return leaves(result) || std::any_of(result.list.begin(), result.list.end(), leaves);
    });
  }

  void bind(const Argument& argument) {
    if (argument.kind == Argument::Kind::Register) bound_[argument.reg] = 1;
    if (argument.kind != Argument::Kind::List) return;  // of Numbers the list names numbers
    for (int reg : argument.list)
      if (reg >= 0) bound_[reg] = 1;
  }

  // A kernel that gives another look at the memory of its argument, which is no view of it to autograd.
  static bool detaches(const Step& step) {
    return step.flat && step.op.schema().name() == "aten::detach" && step.results[0].base >= 0 &&
           step.results[0].reg >= 0 && !step.results[0].known && step.results[0].meta->strided() &&
           step.results[0].meta->plain_keys();
  }

  // Whether the results require gradients because an argument does, in a step that its operator must run: an
  // alias of the argument, which requires none, would not do.
  bool hands_on_gradients(const Step& step) const {
    auto real = [&](const Result& result) {
      if (!result.meta->requires_grad() || result.known) return false;
      if (!is_view(step) || result.base < 0) return true;
      const TensorMeta* base =
          metas_[result.base].get();  // null of what is there before the program: it is no alias
      return base && (base->keys() != result.meta->keys() || base->dtype() != result.meta->dtype());
    };
    for (const Result& result : step.results)
      if (real(result) || std::any_of(result.list.begin(), result.list.end(), real)) return true;
    return false;
  }

  void pass_on(const Result& result, bool kept) {
    if (result.reg >= 0 && kept) bound_[result.reg] = 1;
    if (result.base >= 0 && (result.reg < 0 || bound_[result.reg])) bound_[result.base] = 1;
  }

  // Whether the numbers that may differ are factors and the like, which say nothing of how results look.
  static bool takes_scalars(const Step& step) {
    return step.results.size() == 1 && !step.results[0].loose && !step.results[0].known &&
           takes_only_scalars(step);
  }

  static bool takes_only_scalars(const Step& step) {
    return std::all_of(step.arguments.begin(), step.arguments.end(), [](const Argument& argument) {
      return argument.kind != Argument::Kind::Numbers && argument.kind != Argument::Kind::Generator &&
             argument.memory == Argument::Memory::Any;
    });
  }

  static std::shared_ptr<const Lowered> writing_way(const Step& step) {
    if (step.arguments.empty() || step.arguments[0].memory != Argument::Memory::Any) return nullptr;
    const Argument& self = step.arguments[0];
    if (self.kind == Argument::Kind::List && step.results.empty()) return way_in_place_of_each(step);
    if (step.results.size() != 1) return nullptr;
    const Result& result = step.results[0];
    bool gives_self = result.kind == Result::Kind::Register && result.known && !result.loose &&
                      self.kind == Argument::Kind::Register && result.reg == self.reg;
    return gives_self ? way_in_place(step) : nullptr;
  }

  std::shared_ptr<const Lowered> way_of(const Step& step, size_t at, bool plain) {
    const auto& schema = step.op.schema();
    const std::string name = full_name(schema);
    const Result& result = step.results[0];
    if (gives_back(step, schema.name())) return nothing();
    if (name == "aten::item" && result.kind == Result::Kind::Number &&
        step.arguments[0].kind == Argument::Kind::Register)
      return item();
    if (!plain) return nullptr;
    if ((is_alias(result, at) && is_view(step)) || detaches(step)) return alias();
    if (name == "aten::_foreach_norm.Scalar" && result.kind == Result::Kind::List &&
        std::all_of(result.list.begin(), result.list.end(), is_new))
      return norm_of_each(step);
    if (!is_new(result)) return nullptr;
    // With a bias and three dimensions the result is a view of a matrix.
    bool viewed = schema.name() == "aten::linear" && result.meta->sizes().size() == 3 && result.reg >= 0 &&
                  step.arguments[2].kind == Argument::Kind::Register;
    if (viewed && bound_[result.reg]) return nullptr;
    return lazytrace::way(step);
  }

  // Whether the operator may run below autograd, and below what counts versions and keeps track of views:
  // where none of its results is seen, and it changes nothing else, nobody can tell.
  bool leaves_no_trace(const Step& step) {
    // A view of what requires gradients requires them, and does not where it is made below autograd.
    auto seen = [&](const Result& result) {
      return result.known || result.meta->requires_grad() || (result.reg >= 0 && bound_[result.reg]);
    };
    for (const Result& result : step.results) {
      if (result.kind == Result::Kind::Read || result.kind == Result::Kind::Number || seen(result))
        return false;
      for (const Result& one : result.list)
        if (seen(one)) return false;
    }
    const auto& schema = step.op.schema();
    // What the kernels of autograd do by themselves (VariableTypeManual.cpp).
    static const std::unordered_set<std::string> kByHand = {"aten::detach", "aten::_fw_primal",
                                                            "aten::_make_dual", "aten::_unpack_dual"};
    if (schema.name().rfind("aten::", 0) != 0 || kByHand.count(schema.name())) return false;
    for (auto& argument : schema.arguments())
      if (argument.alias_info() && argument.alias_info()->isWrite()) return false;
    return true;
  }

  // An operator with a kernel for autograd runs the rest of its code below autograd in any case. The code of
  // any other meets autograd at each step: there, views of what requires gradients require them, and some
  // operators choose another kernel for such tensors.
  static StepPlan::Quiet quiet(const c10::OperatorHandle& op) {
    // These hand their tensors on to one operator that has such a kernel, whether or not any requires
    // gradients (ATen/native: layer_norm.cpp, group_norm.cpp, Convolution.cpp).
    static const std::unordered_set<std::string> kHandOn = {"aten::layer_norm", "aten::group_norm",
                                                            "aten::conv1d", "aten::conv2d", "aten::conv3d"};
    // Of both kinds of kernel the dispatcher takes the composite one.
    bool own = op.hasKernelForDispatchKey(c10::DispatchKey::Autograd) &&
               !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    return own || kHandOn.count(op.schema().name()) ? StepPlan::Quiet::Always
                                                    : StepPlan::Quiet::WithoutGradients;
  }

  // Whether the operator gives its argument back for reasons that the look of the argument decides.
  static bool gives_back(const Step& step, const std::string& name) {
    static const std::unordered_set<std::string> kNames = {"aten::to",           "aten::contiguous",
                                                           "aten::dropout",      "aten::type_as",
                                                           "aten::resolve_conj", "aten::resolve_neg"};
    if (step.results.size() != 1) return false;
    const Result& result = step.results[0];
    return result.known && result.kind == Result::Kind::Register && result.reg >= 0 &&
           !step.arguments.empty() && step.arguments[0].kind == Argument::Kind::Register &&
           step.arguments[0].reg == result.reg && kNames.count(name);
  }

  // Whether it does so at all sizes: for its dtype and device, or since dropout is off.
  static bool gives_back_always(const Step& step) {
    const std::string& name = step.op.schema().name();
    if (!gives_back(step, name)) return false;
    const Argument& last = step.arguments.back();
    bool is_constant = last.kind == Argument::Kind::Constant;
    if (name == "aten::to") return is_constant && last.constant.isNone();  // no memory format is asked for
    if (name == "aten::dropout") return is_constant && last.constant.isBool() && !last.constant.toBool();
    return name != "aten::contiguous";
  }

  // Whether a result that shows the memory of an argument is a view that follows from how the arguments look,
  // as the key and the guards hold it: an operator of torch that writes nothing and takes no other tensor
  // whose values could say which part is shown. The offset that as_strided takes counts from the beginning of
  // the memory, which they do not hold. In a dynamic program numbers are compared with what they were, and
  // sizes lead nowhere else where they are the same.
  bool is_view(const Step& step) const {
    static const std::unordered_set<std::string> kByLook = {"aten::view_as", "aten::expand_as",
                                                            "aten::reshape_as"};
    const auto& schema = step.op.schema();
    const std::string& name = schema.name();
    bool leads_away = step.exit && !(program_.dynamic && step.by_size);
    if (name.rfind("aten::", 0) != 0 || name.find("as_strided") != std::string::npos || leads_away)
      return false;
    int others = 0;
    for (auto& argument : step.arguments) {
      bool number = argument.kind == Argument::Kind::Number || argument.kind == Argument::Kind::Numbers;
      bool constant = argument.kind == Argument::Kind::Constant && !argument.constant.isTensor();
      others += !constant && !(program_.dynamic && number);
    }
    for (auto& argument : schema.arguments())
      if (argument.alias_info() && argument.alias_info()->isWrite()) return false;
    return others == 1 || kByLook.count(name);
  }

  bool is_alias(const Result& result, size_t at) const {
    if (static_cast<int>(at) <= plan_.keep_until) return false;
    if (result.kind == Result::Kind::Register) return is_loose(result);
    if (result.kind != Result::Kind::List || result.list.empty()) return false;
    for (const Result& one : result.list)
      if (!is_loose(one)) return false;
    return true;
  }

  bool is_loose(const Result& result) const {
    return result.base >= 0 && !result.known && result.meta->strided() && result.meta->plain_keys() &&
           (result.reg < 0 || !bound_[result.reg]);
  }

  // Dense memory without gaps, of the CPU, as a factory would make it.
  static bool is_plain(const TensorMeta& meta) {
    return meta.strided() && meta.device().is_cpu() && meta.plain_keys() && !meta.requires_grad() &&
           meta.bytes() > 0 && meta.dense();
  }

  // A tensor with such memory of its own.
  static bool is_new(const Result& result) {
    return result.kind == Result::Kind::Register && !result.known && result.base < 0 &&
           is_plain(*result.meta);
  }

  static std::shared_ptr<const Lowered> way_of_all(const Step& step) {
    bool fits = std::all_of(step.results.begin(), step.results.end(), is_new);
    return fits ? way_of_several(step) : nullptr;
  }

  Plan& plan_;
  const Program& program_;
  std::vector<char> bound_;
  Looks::Recorded metas_;  // by register, of what steps give
};

}  // namespace

// A kernel that somebody has put in the place of torch's own, from Python, may be reached from any operator.
void lower(Plan* plan, const std::vector<int>& outputs) {
  plan->overrides = aten_overrides();
  if (!aten_is_overridden()) Lowering(plan, outputs).run();
}

}  // namespace lazytrace
