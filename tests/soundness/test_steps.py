"""Whole training steps: backward passes, gradients and optimizers inside traced functions."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from tests.soundness.runner import Cases, call, check

cases = Cases()


class Model(torch.nn.Module):
    """Two layers that share a bias, and a parameter that gets no gradient."""

    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(4, 6)
        self.two = torch.nn.Linear(6, 6)
        self.two.bias = self.one.bias
        self.idle = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.two(torch.tanh(self.one(x)))


def parts(model):
    """What a step may change of a model: parameters and their gradients."""
    return [(p, p.grad) for p in model.parameters()]


def inputs(count, rows=3):
    return [call(torch.randn(rows, 4)) for _ in range(count)]


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, **options})


def trained(body, optimizer=sgd, count=8, between=None):
    """A case: `body(model, optimizer, x)` of x traced; `between` runs before the later calls."""

    def make(trace):
        model = Model()
        opt = optimizer(model)
        step = trace(lambda x: body(model, opt, x))
        steps = inputs(count)
        if between is not None:
            steps[4:4] = [lambda: between(model, opt)]
        return step, steps, lambda: parts(model)

    return make


def plain(model, opt, x):
    opt.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    opt.step()
    return loss.detach()


# ---------------------------------------------------------------- the ways of a step
def returns_loss(model, opt, x):
    opt.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    opt.step()
    return loss


def zeroes(model, opt, x):
    opt.zero_grad(set_to_none=False)
    model(x).square().mean().backward()
    opt.step()


def accumulates(model, opt, x):
    opt.zero_grad()
    for part in x.split(1):
        (model(part).square().mean() / 3).backward()
    opt.step()


def clips_values(model, opt, x):
    opt.zero_grad()
    model(x).square().sum().backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.05)
    opt.step()


def clips_norm(model, opt, x):
    opt.zero_grad()
    model(x).square().sum().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    opt.step()
    return norm


def by_hand(model, opt, x):
    model(x).square().mean().backward()
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p -= 0.1 * p.grad
                p.grad = None


def asks_for_gradients(model, opt, x):
    parameters = [model.one.weight, model.two.weight]
    grads = torch.autograd.grad(model(x).square().mean(), parameters)
    with torch.no_grad():
        for p, g in zip(parameters, grads, strict=True):
            p.sub_(g, alpha=0.1)
    return grads


def gradient_penalty(model, opt, x):
    opt.zero_grad()
    leaf = x.detach().requires_grad_()
    out = model(leaf).sum()
    (slope,) = torch.autograd.grad(out, leaf, create_graph=True)
    (out + (slope.norm(dim=1) - 1).square().mean()).backward()
    opt.step()
    return slope.detach()


def retains(model, opt, x):
    opt.zero_grad()
    loss = model(x).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    opt.step()
    return loss.detach()


def allows_unused(model, opt, x):
    return torch.autograd.grad(model(x).sum(), [model.one.weight, model.idle], allow_unused=True)


def of_some_inputs(model, opt, x):
    opt.zero_grad()
    model(x).square().mean().backward(inputs=[model.two.weight])
    opt.step()


def scaled_by_a_cotangent(model, opt, x):
    opt.zero_grad()
    out = model(x)
    out.backward(torch.full_like(out, 0.5))
    opt.step()


def reads_gradients(model, opt, x):
    opt.zero_grad()
    model(x).square().mean().backward()
    return [p.grad.norm() for p in model.parameters() if p.grad is not None], model.idle.grad is None


def keeps_an_average(model, opt, x):
    plain(model, opt, x)
    with torch.no_grad():
        model.idle.mul_(0.9).add_(model.one.weight.mean(), alpha=0.1)


WAYS = [
    plain, returns_loss, zeroes, accumulates, clips_values, clips_norm, by_hand, asks_for_gradients,
    gradient_penalty, retains, allows_unused, of_some_inputs, scaled_by_a_cotangent, reads_gradients,
    keeps_an_average,
]  # fmt: skip


@pytest.mark.parametrize("body", WAYS, ids=lambda body: body.__name__)
def test_a_step(body):
    check(trained(body), hits=5)


@pytest.mark.parametrize("body", WAYS, ids=lambda body: body.__name__)
def test_a_step_at_other_sizes(body):
    def make(trace):
        model = Model()
        opt = sgd(model)
        step = trace(lambda x: body(model, opt, x))
        return step, [call(torch.randn(n, 4)) for n in (3, 5, 3, 5, 3, 5, 3, 5)], lambda: parts(model)

    check(make, hits=2)


# ---------------------------------------------------------------- optimizers
OPTIMIZERS = {
    "momentum": lambda m: sgd(m, momentum=0.9),
    "nesterov": lambda m: sgd(m, momentum=0.9, nesterov=True, weight_decay=0.01),
    "foreach": lambda m: sgd(m, momentum=0.9, foreach=True),
    "fused": lambda m: sgd(m, momentum=0.9, fused=True),
    "maximize": lambda m: sgd(m, maximize=True),
    "groups": lambda m: torch.optim.SGD(
        [{"params": m.one.parameters()}, {"params": [m.two.weight], "lr": 0.01}], lr=0.1
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer(name):
    check(trained(plain, OPTIMIZERS[name]), hits=4)


# ---------------------------------------------------------------- what changes between two calls
def first(model):
    return model.one.weight


def replaced(model, opt):
    first(model).grad = torch.ones_like(first(model))


def aliased(model, opt):
    model.two.weight.grad = torch.ones(6, 6)
    model.one.bias.grad = model.two.weight.grad[0]


def one_for_two(model, opt):
    model.one.bias.grad = torch.ones(6)
    model.two.bias = torch.nn.Parameter(torch.zeros(6))
    model.two.bias.grad = model.one.bias.grad


def other_layout(model, opt):
    first(model).grad = torch.ones(4, 6).t()


def none_at_all(model, opt):
    for p in model.parameters():
        p.grad = None


def frozen(model, opt):
    model.one.weight.requires_grad_(False)


def swapped(model, opt):
    model.two.weight = torch.nn.Parameter(torch.ones(6, 6))


def hooked(model, opt):
    first(model).register_hook(lambda g: g * 2)


def hooked_after(model, opt):
    def halve(p):
        p.grad.mul_(0.5)

    first(model).register_post_accumulate_grad_hook(halve)


def module_hooked(model, opt):
    model.one.register_full_backward_hook(lambda m, gi, go: tuple(None if g is None else g * 2 for g in gi))


def loaded(model, opt):
    opt.load_state_dict(copy.deepcopy(opt.state_dict()))


def other_rate(model, opt):
    opt.param_groups[0]["lr"] = 0.01


def optimizer_hooked(model, opt):
    opt.register_step_pre_hook(lambda o, a, k: first(model).grad.mul_(3) and None)


def shared(model, opt):
    model.two.weight.data = model.two.weight.data.clone()
    model.idle.data = model.one.bias.data[:2]


CHANGES = [
    replaced, aliased, one_for_two, other_layout, none_at_all, frozen, swapped, hooked, hooked_after,
    module_hooked, loaded, other_rate, optimizer_hooked, shared,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize(
    "body", [plain, zeroes, accumulates, by_hand, reads_gradients], ids=lambda b: b.__name__
)
def test_a_change_between(body, change):
    check(trained(body, lambda m: sgd(m, momentum=0.9), between=change), hits=1)


# ---------------------------------------------------------------- attacks
@cases(hits=2)
def accumulates_over_calls(trace):
    model = Model()
    step = trace(lambda x: model(x).sum().backward())
    return step, inputs(4), lambda: parts(model)


@cases(hits=1)
def a_second_backward_raises(trace):
    model = Model()
    opt = sgd(model)
    step = trace(lambda x: returns_loss(model, opt, x))

    def twice(x):
        loss = step(x)
        loss.backward()

    return twice, inputs(4), lambda: parts(model)


@cases(hits=2)
def the_loss_is_read(trace):
    model = Model()
    opt = sgd(model)
    step = trace(lambda x: returns_loss(model, opt, x))

    def about(x):
        loss = step(x)
        return loss.requires_grad, loss.is_leaf, type(loss.grad_fn).__name__, loss.item()

    return about, inputs(5), lambda: parts(model)


@cases(hits=1)
def branches_on_the_loss(trace):
    model = Model()
    opt = sgd(model)

    def body(x):
        opt.zero_grad()
        loss = model(x).mean()
        loss.backward()
        if loss > 0:
            opt.step()
        return loss.detach()

    return trace(body), inputs(8), lambda: parts(model)


@cases(eager="raised")
def raises_after_backward(trace):
    model = Model()

    def body(x):
        model(x).mean().backward()
        first(model).add_(1)  # a leaf that requires gradients
        return x

    return trace(body), inputs(4), lambda: parts(model)


@cases(eager="an opaque function raised")
def catches_what_backward_raises(trace):
    model = Model()

    def body(x):
        out = torch.tanh(model.one(x))
        loss = out.sum()
        out.detach().add_(1)
        try:
            loss.backward()
        except RuntimeError:
            return out * 2
        return out

    return trace(body), inputs(4), lambda: parts(model)


@cases(hits=2)
def gradient_of_an_argument(trace):
    fn = trace(lambda x: (x * x).sum().backward())
    leaf = torch.ones(3, requires_grad=True)
    return fn, [call(leaf) for _ in range(5)], lambda: leaf.grad


@cases(hits=2)
def history_outside(trace):
    model = Model()
    fn = trace(lambda y: (y * y).sum().backward())
    return (lambda x: fn(model.one(x))), inputs(5), lambda: parts(model)


@cases(hits=2)
def an_argument_gets_hooks(trace):
    fn = trace(lambda x: (x * x).sum().backward())
    leaf = torch.ones(3, requires_grad=True)

    def hook():
        leaf.register_hook(lambda g: g * 3)

    return (
        fn,
        [call(leaf), call(leaf), call(leaf), hook, call(leaf), call(leaf), call(leaf)],
        lambda: leaf.grad,
    )


@cases(hits=2)
def a_fresh_leaf(trace):
    def fn(x):
        leaf = x.clone().requires_grad_()
        (leaf**3).sum().backward()
        return leaf.grad, leaf.requires_grad

    return trace(fn), inputs(5)


@cases(hits=2)
def set_on_a_fresh_leaf(trace):
    def fn(x):
        leaf = torch.zeros(3, 4)
        leaf.requires_grad = True
        (leaf * x).sum().backward()
        return leaf.grad

    return trace(fn), inputs(5)


@cases(hits=1)
def requires_grad_of_an_argument(trace):
    def fn(x):
        x.requires_grad_()
        return (x * 2).sum()

    return trace(fn), inputs(3)


@cases(hits=2)
def sets_the_gradient_of_another(trace):
    a, b = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))

    def fn(x):
        a.grad = x * 2
        b.grad = a.grad
        b.grad.add_(1)
        return a.grad is b.grad

    return trace(fn), [call(torch.randn(3)) for _ in range(5)], lambda: [(p, p.grad) for p in (a, b)]


@cases(hits=2)
def reads_what_it_set(trace):
    a = torch.nn.Parameter(torch.ones(3))

    def fn(x):
        a.grad = None
        none = a.grad is None
        a.grad = x.clone()
        return none, a.grad is None, a.grad * 2

    return trace(fn), [call(torch.randn(3)) for _ in range(5)], lambda: [(a, a.grad)]


@cases(hits=1)
def double_backward_of_a_loss(trace):
    w = torch.nn.Parameter(torch.ones(4))

    def fn(x):
        loss = ((x @ w) ** 3).sum()
        (g,) = torch.autograd.grad(loss, w, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), w)
        return g.detach(), h

    return trace(fn), inputs(4)


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * SCALE[0]


SCALE = [2.0]


@cases(hits=1)
def function_in_python(trace):
    w = torch.nn.Parameter(torch.ones(4))

    def fn(x):
        Doubles.apply(x * w).sum().backward()

    def change():
        SCALE[0] = 3.0

    def back():
        SCALE[0] = 2.0

    return trace(fn), [*inputs(4), change, *inputs(2), back], lambda: w.grad


@cases(hits=2)
def loss_functions(trace):
    w = torch.nn.Parameter(torch.randn(4, 5))
    target = torch.tensor([1, 0, 4])

    def fn(x):
        w.grad = None
        loss = F.cross_entropy(x @ w, target, label_smoothing=0.1)
        loss.backward()
        return loss.detach()

    return trace(fn), inputs(5), lambda: w.grad


@cases(hits=2)
def dropout(trace):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    opt = sgd(model)
    return trace(lambda x: plain(model, opt, x)), inputs(6), lambda: parts(model)


@cases(hits=2)
def batch_norm(trace):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    opt = sgd(model)

    def state():
        return [*parts(model), *model.buffers()]

    return trace(lambda x: plain(model, opt, x)), inputs(6), state


# ---------------------------------------------------------------- what torch has for training loops
def averaging(**options):
    def make(trace):
        model = Model()
        opt, average = sgd(model), torch.optim.swa_utils.AveragedModel(model, **options)

        def body(x):
            loss = plain(model, opt, x)
            average.update_parameters(model)
            return loss

        return trace(body), inputs(8), lambda: [parts(model), list(average.state_dict().values())]

    return make


# Without options a function is made and decorated with no_grad() in each call.
@pytest.mark.parametrize("average", [None, "avg_fn", "multi_avg_fn"])
def test_an_average_of_a_model(average):
    makers = {
        "avg_fn": torch.optim.swa_utils.get_ema_avg_fn,
        "multi_avg_fn": torch.optim.swa_utils.get_ema_multi_avg_fn,
    }
    check(averaging(**({average: makers[average](0.9)} if average else {})), hits=5)


@pytest.mark.parametrize("validate", [True, False])
def test_a_policy_gradient(validate):
    def body(model, opt, x):
        opt.zero_grad()
        policy = torch.distributions.Categorical(logits=model(x), validate_args=validate)
        action = policy.sample()
        loss = -(policy.log_prob(action) * x.sum(1)).mean() - 0.01 * policy.entropy().mean()
        loss.backward()
        opt.step()
        return loss.detach(), action

    check(trained(body), hits=5)


@pytest.mark.parametrize("first", [True, False])
def test_a_trace_that_takes_more_tensors_was_asked_before(first):
    """And has found some of them, out of their order, when one of its guards failed."""

    def make(trace):
        parameters = [torch.ones(3, requires_grad=True) for _ in range(4)]
        state = {"long": first}

        def step(x):
            last = parameters[3]
            if state["long"]:
                loss = (x * parameters[0] * parameters[1] * parameters[2] * last).sum()
            else:
                loss = (x * last).sum()
            loss.backward()
            last.grad = None
            return loss.detach()

        def turn():
            state["long"] = not state["long"]

        calls = [call(torch.randn(3)) for _ in range(8)]
        return trace(step), [step for one in calls for step in (one, turn)], lambda: parameters

    check(make, hits=4)


@cases.parametrize
def test_steps(make, expected):
    check(make, **expected)


# ---------------------------------------------------------------- histories from before the call
def recurrent(trace, cut=True, hook=None):
    """A hidden state is kept from call to call, with the graph that made it; each call writes it first."""
    cells, head = torch.nn.RNN(3, 4), torch.nn.Linear(4, 2)
    both = torch.nn.ModuleList([cells, head])
    held, log = {"h": torch.zeros(1, 2, 4)}, []

    def step(x):
        h = held["h"].detach() if cut else held["h"]
        out, held["h"] = cells(x, h)
        loss = head(out).square().mean()
        loss.backward()
        for p in both.parameters():
            p.data.add_(p.grad, alpha=-0.1)
        both.zero_grad()
        return loss.detach()

    traced = trace(step)

    def run(x):
        if not cut:
            held["h"] = held["h"].detach().clone().requires_grad_() * 1
        if hook and held["h"].grad_fn is not None:
            held["h"].register_hook(lambda g: log.append(1))
        return traced(x)

    steps = [call(torch.randn(5, 2, 3)) for _ in range(7)]
    return run, steps, lambda: [parts(both), held["h"], len(log)]


def test_a_history_that_is_cut_off():
    check(recurrent, hits=4)


def test_a_history_that_is_gone_into():
    check(lambda trace: recurrent(trace, cut=False), hits=6)


def test_a_history_with_a_hook():
    check(lambda trace: recurrent(trace, cut=False, hook=True), hits=6)
    check(lambda trace: recurrent(trace, hook=True), recordings=7)
