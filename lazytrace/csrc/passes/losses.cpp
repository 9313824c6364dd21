#include <ATen/Operators.h>

#include "passes/told.h"
#include "passes/ways.h"

namespace lazytrace {

namespace {

// The loss, and how many rows it is the mean of.
class NllLoss final : public Lowered {
 public:
  using Call = decltype(&at::_ops::nll_loss_forward_output::call);

  static Way make(Call call, const Step& step) {
    auto made = std::make_unique<NllLoss>();
    made->call_ = call;
    const Arguments& a = step.arguments;
    bool set = a.size() == 5 && step.results.size() == 2 && is_nothing(a[2]) && made->scores_.set(a[0]) &&
               made->classes_.set(a[1]) && made->reduction_.set(a[3]) && made->ignored_.set(a[4]);
    return set ? std::move(made) : nullptr;
  }
  bool run(const Step& step, const Desk& desk) const override {
    if (!scores_.fits(desk) || !classes_.fits(desk)) return false;
    at::Tensor loss = blank(*step.results[0].meta, desk.recycler);
    at::Tensor count = blank(*step.results[1].meta, desk.recycler);
    if (!loss.defined() || !count.defined()) return false;
    at::AutoDispatchBelowADInplaceOrView below;
    call_(scores_.get(desk), classes_.get(desk), std::nullopt, reduction_.get(desk), ignored_.get(desk), loss,
          count);
    keep(step.results[0], std::move(loss), desk);
    keep(step.results[1], std::move(count), desk);
    return true;
  }

 private:
  Call call_ = nullptr;
  Slot<const at::Tensor&> scores_, classes_;
  Slot<int64_t> reduction_, ignored_;
};

class NllLossBackward final : public Lowered {
 public:
  using Call = decltype(&at::_ops::nll_loss_backward_grad_input::call);

  static Way make(Call call, const Step& step) {
    auto made = std::make_unique<NllLossBackward>();
    made->call_ = call;
    const Arguments& a = step.arguments;
    bool set = a.size() == 7 && is_nothing(a[3]) && made->gradient_.set(a[0]) && made->scores_.set(a[1]) &&
               made->classes_.set(a[2]) && made->reduction_.set(a[4]) && made->ignored_.set(a[5]) &&
               made->count_.set(a[6]);
    return set ? std::move(made) : nullptr;
  }
  bool run(const Step& step, const Desk& desk) const override {
    if (!gradient_.fits(desk) || !scores_.fits(desk) || !classes_.fits(desk) || !count_.fits(desk))
      return false;
    at::Tensor out = blank(*step.results[0].meta, desk.recycler);
    if (!out.defined()) return false;
    at::AutoDispatchBelowADInplaceOrView below;
    call_(gradient_.get(desk), scores_.get(desk), classes_.get(desk), std::nullopt, reduction_.get(desk),
          ignored_.get(desk), count_.get(desk), out);
    keep(step.results[0], std::move(out), desk);
    return true;
  }

 private:
  Call call_ = nullptr;
  Slot<const at::Tensor&> gradient_, scores_, classes_, count_;
  Slot<int64_t> reduction_, ignored_;
};

}  // namespace

Way nll_loss(const Step& step) {
  return NllLoss::make(LAZYTRACE_KERNEL(nll_loss_forward_output, nll_loss_forward_symint_outf), step);
}
Way nll_loss2d(const Step& step) {
  return NllLoss::make(LAZYTRACE_KERNEL(nll_loss2d_forward_output, nll_loss2d_forward_symint_outf), step);
}
Way nll_loss_backward(const Step& step) {
  return NllLossBackward::make(LAZYTRACE_KERNEL(nll_loss_backward_grad_input, nll_loss_backward_symint_outf),
                               step);
}
Way nll_loss2d_backward(const Step& step) {
  return NllLossBackward::make(
      LAZYTRACE_KERNEL(nll_loss2d_backward_grad_input, nll_loss2d_backward_symint_outf), step);
}

}  // namespace lazytrace
