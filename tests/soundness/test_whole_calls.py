"""Functions of torch whose calls are one step each: `Function.apply` and activation checkpointing."""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import lazytrace
from tests.soundness.runner import Cases, call, check

cases = Cases()


class Squares(torch.autograd.Function):
    """x * x, by hand."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x


# How often functions have run, told by operators that no program sees: a count in Python would be state.
RAN = torch.zeros(2)


class Rounds(torch.autograd.Function):
    """A straight-through estimator, which tells how often it has run."""

    @staticmethod
    def forward(ctx, x, scale):
        RAN[0] += 1
        return (x * scale).round() / scale

    @staticmethod
    def backward(ctx, g):
        RAN[1] += 1
        return g, None


def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))


def inputs(count, rows=3):
    return [call(torch.randn(rows, 4)) for _ in range(count)]


def trained(loss_of, optimizer=None, between=None, net=None):
    """A case: a step whose loss is `loss_of(net, x)`; `between(net)` runs before the later calls."""

    def make(trace):
        own = (net or model)()
        opt = (optimizer or (lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9)))(own.parameters())

        def step(x):
            opt.zero_grad()
            loss = loss_of(own, x)
            loss.backward()
            opt.step()
            return loss.detach()

        steps = inputs(8)
        if between is not None:
            steps[4:4] = [lambda: between(own)]
        state = [*own.parameters(), *own.buffers()]
        return trace(step), steps, lambda: [(t, t.grad, opt.state_dict()["state"]) for t in state]

    return make


# ---------------------------------------------------------------- custom functions in whole steps
@cases(hits=5)
def function_before_an_optimizer(trace):
    return trained(lambda net, x: Squares.apply(net(x)).mean())(trace)


@cases(hits=5)
def function_between_layers(trace):
    return trained(lambda net, x: net[2](Squares.apply(net[0](x))).square().mean())(trace)


@cases(hits=5)
def function_and_adam(trace):
    loss = lambda net, x: Rounds.apply(net(x), 4.0).square().mean()  # noqa: E731
    return trained(loss, lambda ps: torch.optim.Adam(ps, 0.01))(trace)


@cases(hits=1)
def function_of_a_frozen_parameter(trace):
    freeze = lambda net: net[0].weight.requires_grad_(False)  # noqa: E731
    return trained(lambda net, x: Squares.apply(net(x)).mean(), between=freeze)(trace)


@cases(hits=1)
def function_and_a_new_hook(trace):
    hook = lambda net: net[0].weight.register_hook(lambda g: g * 3)  # noqa: E731
    return trained(lambda net, x: Squares.apply(net(x)).mean(), between=hook)(trace)


@cases(hits=4)
def hook_that_clamps(trace):
    def net():
        made = model()
        made[0].weight.register_hook(lambda g: g.clamp(-0.01, 0.01))
        return made

    return trained(lambda net, x: net(x).square().mean(), net=net)(trace)


@cases(hits=4)
def hook_that_keeps_what_it_is_given(trace):
    kept = []

    def net():
        made = model()
        made[2].bias.register_hook(lambda g: kept.append(g))
        return made

    step, steps, state = trained(lambda net, x: net(x).square().mean(), net=net)(trace)
    return step, steps, lambda: [state(), list(kept)]


@cases(eager="read-after-change")
def hook_that_keeps_the_cotangent(trace):
    """Python code that runs again must not be given another tensor than the hook has kept."""
    w, kept = torch.nn.Parameter(torch.ones(4)), []
    w.register_hook(lambda g: kept.append(g))

    def step(x):
        w.grad = None
        given = torch.ones(4)
        (w * 1).backward(given)
        if x.sum() > 0:
            w.grad.mul_(2)
        return given

    return trace(step), inputs(8), lambda: [w.grad, list(kept)]


@cases(hits=4)
def branches_behind_a_function(trace):
    RAN.zero_()

    def step(x):
        y = Rounds.apply(x, 2.0)
        return y * 2 if y.sum() > 0 else y - 1

    return trace(step), inputs(8), lambda: RAN.tolist()


@cases(hits=2)
def branches_behind_a_step(trace):
    RAN.zero_()
    net = model()
    opt = torch.optim.SGD(net.parameters(), 0.1)

    def step(x):
        opt.zero_grad()
        loss = Rounds.apply(net(x), 8.0).mean()
        loss.backward()
        opt.step()
        if loss > 0:
            for p in net.parameters():
                p.data.mul_(0.5)
        return loss.detach()

    return trace(step), inputs(10), lambda: [(p, p.grad) for p in net.parameters()] + RAN.tolist()


@cases(hits=6, recordings=2)
def branches_behind_a_backward_pass(trace):
    """That torch notes the context of a backward pass changes no state."""
    w = torch.nn.Parameter(torch.ones(4))

    def step(x):
        w.grad = None
        Squares.apply(x * w).sum().backward()
        return w.grad * 2 if w.grad.sum() > x.numel() else w.grad + 1

    steps = [call(torch.full((2, 4), k)) for k in (2.0, 0.5, 2.0, 0.5, 2.0, 2.0, 0.5, 0.5)]
    return trace(step), steps, lambda: w.grad


class Picks(torch.autograd.Function):
    """A result whose size hangs on values."""

    @staticmethod
    def forward(ctx, x):
        RAN[0] += 1
        ctx.save_for_backward(x > 0)
        return x[x > 0]

    @staticmethod
    def backward(ctx, g):
        (where,) = ctx.saved_tensors
        return torch.zeros(where.shape).masked_scatter(where, g)


@cases(hits=1)
def result_of_another_size(trace):
    RAN.zero_()
    w = torch.nn.Parameter(torch.ones(4))

    def step(x):
        w.grad = None
        y = Picks.apply(x * w)
        y.square().sum().backward()
        return y.detach() * 2

    return trace(step), inputs(10, rows=1), lambda: [w.grad, RAN.tolist()]


class Raises(torch.autograd.Function):
    """Raises for some values, forward or backward."""

    @staticmethod
    def forward(ctx, x):
        if x[0, 0] > 1:
            raise ValueError("forward")
        ctx.last = x[0, 1]
        return x * 2

    @staticmethod
    def backward(ctx, g):
        if ctx.last > 1:
            raise ValueError("backward")
        return g * 2


@cases(hits=2)
def function_that_raises(trace):
    w, seen = torch.nn.Parameter(torch.ones(4)), []

    def step(x):
        try:
            Raises.apply(x * w).sum().backward()
        except ValueError as error:
            return str(error)
        return w.grad * 1

    torch.manual_seed(3)
    quiet = [call(torch.randn(2, 4).clamp(max=0.5)) for _ in range(4)]
    return trace(step), [*quiet, *inputs(8, rows=2)], lambda: [w.grad, seen]


class Doubles(torch.autograd.Function):
    """Has an apply() of its own."""

    @staticmethod
    def forward(ctx, x, k):
        return x * k

    @staticmethod
    def backward(ctx, g):
        return g * 2, None

    @classmethod
    def apply(cls, x):
        return super().apply(x + 1, 2)


@cases(hits=3)
def apply_of_its_own(trace):
    return trace(lambda x: Doubles.apply(x)), inputs(4)


class InPlace(torch.autograd.Function):
    """Writes to its argument and gives it back, beside something that has no gradient."""

    @staticmethod
    def forward(ctx, x):
        x.mul_(3)
        ctx.mark_dirty(x)
        found = x.detach() > 0
        ctx.mark_non_differentiable(found)
        return x, found

    @staticmethod
    def backward(ctx, g, _):
        return g * 3


@cases(hits=4)
def function_that_writes_in_place(trace):
    def loss(net, x):
        y, found = InPlace.apply(net(x))
        return (y * found).square().mean()

    return trained(loss)(trace)


@cases(hits=2)
def functions_that_c_code_calls(trace):
    w = torch.nn.Parameter(torch.ones(4))
    return trace(lambda x: sum(map(Squares.apply, [x * w, w]))), inputs(4), lambda: w.grad


@cases(hits=2)
def function_by_another_name(trace):
    w, square = torch.nn.Parameter(torch.ones(4)), Squares.apply
    return trace(lambda x: square(x * w).sum().backward()), inputs(5), lambda: w.grad


@cases(hits=2)
def function_with_unpacked_arguments(trace):
    w, given = torch.nn.Parameter(torch.ones(4)), {"scale": 2.0}

    def step(x):
        Rounds.apply(*(x * w, given["scale"])).sum().backward()

    return trace(step), inputs(5), lambda: w.grad


@cases(hits=2)
def double_backward_through_a_function(trace):
    w = torch.nn.Parameter(torch.ones(4))

    def step(x):
        (g,) = torch.autograd.grad(Squares.apply(Squares.apply(x * w)).sum(), w, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), w)
        return g.detach(), h

    return trace(step), inputs(5)


# ---------------------------------------------------------------- activation checkpointing
class Block(torch.nn.Module):
    """What is checkpointed: has buffers and randomness, and tells how often it has run."""

    def __init__(self, drop=0.0, norm=False):
        super().__init__()
        self.line = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4) if norm else torch.nn.Identity()
        self.drop = torch.nn.Dropout(drop)

    def forward(self, x):
        RAN[0] += 1
        return self.drop(torch.tanh(self.norm(self.line(x))))


def checkpointed(reentrant, block=Block, **options):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(4, 4)
            self.blocks = torch.nn.ModuleList([block(), block()])

        def forward(self, x):
            x = self.first(x)
            for inner in self.blocks:
                x = checkpoint(inner, x, use_reentrant=reentrant, **options)
            return x

    def make(trace):
        RAN.zero_()
        step, steps, state = trained(lambda net, x: net(x).square().mean(), net=Net)(trace)
        return step, steps, lambda: [state(), RAN.tolist()]

    return make


for reentrant in (False, True):
    kind = "reentrant" if reentrant else "not_reentrant"
    for name, block in {
        "plain": Block,
        "dropout": functools.partial(Block, drop=0.5),
        "norm": functools.partial(Block, norm=True),
    }.items():
        made = checkpointed(reentrant, block)
        made.__name__ = f"checkpoint_{kind}_{name}"
        cases(made, hits=5)
    made = checkpointed(reentrant, preserve_rng_state=False)
    made.__name__ = f"checkpoint_{kind}_without_random_state"
    cases(made, hits=5)


@cases(hits=6)
def checkpoints_of_a_sequence(trace):
    def net():
        return torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))

    loss = lambda net, x: checkpoint_sequential(net, 2, x, use_reentrant=False).square().mean()  # noqa: E731
    return trained(loss, net=net)(trace)


@cases(hits=4)
def checkpoint_by_a_partial(trace):
    through = functools.partial(checkpoint, use_reentrant=False)
    return trained(lambda net, x: through(net, x).square().mean())(trace)


@cases(hits=2)
def checkpoint_of_a_function_that_changes(trace):
    scale, w = [1.0], torch.nn.Parameter(torch.ones(4))

    def inner(x):
        return (x * w * scale[0]).sin()

    def step(x):
        w.grad = None
        checkpoint(inner, x, use_reentrant=False).sum().backward()

    def change():
        scale[0] = 3.0

    return trace(step), [*inputs(4), change, *inputs(3)], lambda: w.grad


@cases(hits=3)
def checkpoint_of_a_function_that_the_call_makes(trace):
    w = torch.nn.Parameter(torch.ones(4))

    def step(x):
        w.grad = None
        checkpoint(lambda y: (y * w).sin(), x, use_reentrant=False).sum().backward()

    return trace(step), inputs(4), lambda: w.grad


@cases(hits=2)
def checkpoint_of_a_module_that_counts(trace):
    class Counts(Block):
        seen = 0

        def forward(self, x):
            self.seen += 1
            return super().forward(x)

    block = Counts()
    loss = lambda net, x: checkpoint(net, x, use_reentrant=False).square().mean()  # noqa: E731
    step, steps, state = trained(loss, net=lambda: block)(trace)
    return step, steps, lambda: [state(), block.seen]


@cases(hits=2)
def a_hook_that_an_opaque_function_has_put_on_what_is_saved(trace):
    """The graph shows no node that runs Python code, and yet the backward pass does."""
    w, unpacked = torch.nn.Parameter(torch.ones(4)), []

    def unpack(x):
        unpacked.append(x.sum())
        return x * 2

    @lazytrace.opaque
    def saved(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            return x.sin()

    def step(x):
        w.grad = None
        saved(x * w).sum().backward()
        return w.grad * 2 if w.grad.sum() > 0 else w.grad * 1

    return trace(step), inputs(8), lambda: [w.grad, list(unpacked)]


# ---------------------------------------------------------------- numbers that are followed
@cases(hits=4)
def number_for_an_opaque_function(trace):
    """It may keep the number, and never look at it while it is recorded."""
    kept = []

    @lazytrace.opaque
    def note(x, n, *, name):
        kept.append((n, name))
        return x * 2

    def step(x):
        n = x.sum().item()
        return note(x, n, name=n * 2) + 1

    return trace(step), inputs(6), lambda: list(kept)


@cases(hits=2)
def numbers_in_a_list_for_an_opaque_function(trace):
    kept = []

    @lazytrace.opaque
    def note(x, numbers):
        kept.append(numbers)
        return x * 2

    def step(x):
        n = x.sum().item()
        return note(x, [n, {"more": n + 1}]) * n

    same = torch.ones(2, 4)
    return trace(step), [*inputs(2), call(same), call(same), call(same), *inputs(2)], lambda: list(kept)


@cases(hits=4)
def number_for_a_custom_function(trace):
    w = torch.nn.Parameter(torch.ones(4))

    def step(x):
        w.grad = None
        n = x.sum().item()
        Rounds.apply(x * w, n).sum().backward()
        return n

    return trace(step), inputs(6), lambda: w.grad


class Reshapes(torch.autograd.Function):
    """Takes a size and a number, and keeps them."""

    @staticmethod
    def forward(ctx, x, rows, scale):
        ctx.rows = rows
        return x.reshape(rows, -1) * scale / rows

    @staticmethod
    def backward(ctx, g):
        return g.reshape(ctx.rows, -1) * ctx.rows, None, None


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_sizes_and_numbers_behind_which_values_are_read(dynamic):
    """A function that runs again is asked for the same numbers, also where its recording is given up."""

    def make(trace):
        w = torch.nn.Parameter(torch.ones(4))

        def step(x):
            w.grad = None
            scale = x.sum().item()
            Reshapes.apply(x * w, x.shape[0], scale).sum().backward()
            return w.grad * x.shape[0] if w.grad.sum() > 0 else (w.grad + 1, scale)

        steps = [call(torch.randn(n, 4)) for n in (3, 5, 3, 5, 7, 7, 2, 3, 3, 9)]
        return trace(step, dynamic=dynamic), steps, lambda: w.grad

    check(make, **({"hits": 1} if dynamic is not False else {"recordings": 10}))


@pytest.mark.parametrize("dynamic", [None, True])
def test_an_opaque_function_that_changes_state_before_values_are_read(dynamic):
    def make(trace):
        kept, total = [], torch.zeros(())

        @lazytrace.opaque
        def note(x):
            kept.append(x.shape[0])
            return x * 2

        def step(x):
            total.add_(1)
            y = note(x)
            if y.sum().item() > 0:
                total.add_(2)
            return y * x.shape[0] if y.max().item() > 2 else (y, y.numel())

        steps = [call(torch.randn(n, 4)) for n in (3, 5, 3, 5, 7, 7, 2, 3, 3, 9, 1, 1)]
        return trace(step, dynamic=dynamic), steps, lambda: [total, list(kept)]

    check(make, hits=1, eager="resumes after")


# ---------------------------------------------------------------- in an autocast region of the function's own
@cases(hits=4)
def opaque_in_a_region_before_an_exit(trace):
    w, total = torch.ones(4, 4, requires_grad=True), torch.zeros(())
    twice = lazytrace.opaque(lambda x: x @ w * 2) if trace.enabled else lambda x: x @ w * 2

    def fn(x):
        total.add_(1)
        with torch.autocast("cpu", torch.bfloat16):
            y = twice(x)
        return y * 3 if y.sum() > 0 else y - total

    signs = (1, 1, -1, -1, 1, -1)
    return trace(fn), [call(sign * torch.ones(2, 4)) for sign in signs], lambda: [w, total]


@cases(hits=4)
def checkpoint_in_a_region_of_a_parameter_that_is_swapped(trace):
    net = model()
    known = list(net.parameters())

    def fn(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = checkpoint(net, x, use_reentrant=False)
        return torch.autograd.grad(y.sum(), known, allow_unused=True)

    def swap():
        net[0].weight = torch.nn.Parameter(torch.ones(6, 4))

    return trace(fn), [*inputs(4), swap, *inputs(3)], lambda: known


@cases.parametrize
def test_whole_calls(make, expected):
    check(make, **expected)


# ---------------------------------------------------------------- what an exception leaves behind
ANGRY: list[bool] = []


@lazytrace.opaque
def opaque_that_raises(h):
    if ANGRY:
        raise ValueError("opaque")
    return h * 2


def hook_that_raises(g):
    if ANGRY:
        raise ValueError("hook")


def raises_inside(w, x):
    return opaque_that_raises(x * w).tanh()


def raises_and_goes_on(w, x):
    try:
        return opaque_that_raises(x * w).tanh()
    except ValueError:
        return x * 3


def raises_in_a_pass(w, x):
    h = (x * w).exp()
    h.register_hook(hook_that_raises)
    h.sum().backward()
    return h.detach()


def raises_in_a_checkpoint(w, x):
    h = checkpoint(opaque_that_raises, x * w, use_reentrant=False)
    h.sum().backward()
    return h.detach()


@pytest.mark.parametrize(
    "body", [raises_inside, raises_and_goes_on, raises_in_a_pass, raises_in_a_checkpoint]
)
def test_an_exception_lets_go_of_what_its_replay_held(body):
    """Its traceback holds frames, and these what the replay has left for the function to go on with."""
    w = torch.ones(3, requires_grad=True)
    step = lazytrace.traced(functools.partial(body, w))
    ANGRY.clear()
    for _ in range(4):
        step(torch.ones(3))
    ANGRY.append(True)
    try:
        for _ in range(3):
            x = torch.ones(3)
            seen = weakref.ref(x)
            with contextlib.suppress(ValueError):
                step(x)
            del x
            gc.collect()
            assert seen() is None
    finally:
        ANGRY.clear()
    assert step.stats().hits > 0, step.stats()
