"""Autocast regions of the function's own: what is cast once there, and what by each use.

Autocast keeps what it has cast of a leaf until the outermost region ends. Each use of what is kept adds to
one gradient in the lower precision, so how often a tensor was cast shows in bits of its gradient.
"""

from __future__ import annotations

import torch
from torch import nn

from tests.soundness.runner import Cases, call, check
from tests.soundness.test_flat_steps import ENOUGH

cases = Cases()


def autocast(**options):
    return torch.autocast("cpu", dtype=torch.bfloat16, **options)


def x(seed):
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))


def weight(seed=0):
    return torch.nn.Parameter(x(seed).t() @ x(seed + 1) / 8)


def region(w, **options):
    """A product in a region of autocast of its own."""

    def half(x):
        with autocast(**options):
            return (x @ w).float()

    return half


def passes(trace, fn, *weights, use=lambda out: out.square().sum().backward(), is_leaf=True):
    """The function with a pass through its graph at each call, until one node stands for that graph."""
    traced = trace(fn)

    def step(seed, use=use):
        start = x(seed).requires_grad_()
        out = traced(start if is_leaf else start * 1)
        found = use(out)
        grads = [start.grad, *(w.grad for w in weights)]
        for w in weights:
            w.grad = None
        return found, grads, out.detach()

    return step, [call(seed) for seed in range(ENOUGH + 3)]


@cases(hits=ENOUGH)
def an_argument_with_a_history_is_cast_by_each_use(trace):
    a, b = weight(), weight(2)

    def fn(x):
        with autocast():
            return (x @ a).float() + (x @ b).float()

    return passes(trace, fn, a, b, is_leaf=False)


@cases(hits=ENOUGH)
def a_leaf_among_the_arguments_is_cast_once(trace):
    a, b = weight(), weight(2)

    def fn(x):
        with autocast():
            return (x @ a).float() + (x @ b).float()

    return passes(trace, fn, a, b)


@cases(hits=ENOUGH)
def a_leaf_that_shows_a_part_of_another_is_cast_by_each_use(trace):
    w = torch.cat([weight(), weight(2)])[:16].requires_grad_()

    def fn(x):
        with autocast():
            return ((x @ w).tanh() @ w).float()

    return passes(trace, fn, w)


@cases(hits=ENOUGH)
def now_a_leaf_now_none(trace):
    a, b = weight(), weight(2)

    def fn(x):
        with autocast():
            return (x @ a).float() + (x @ b).float()

    traced = trace(fn)
    leaf, steps = passes(lambda _: traced, fn, a, b)
    other, _ = passes(lambda _: traced, fn, a, b, is_leaf=False)
    turns = (call(seed).of(other if seed % 2 else leaf) for seed in range(2 * ENOUGH + 4))
    return leaf, [*steps, *turns]


def of_weights(out, *weights):
    return torch.autograd.grad(out.square().sum(), weights)


def twice(out, *weights):
    (first,) = torch.autograd.grad(out.square().sum(), weights, create_graph=True)
    return first, *torch.autograd.grad(first.square().sum(), weights)


def asked_late(trace, question, is_leaf):
    """A weight that two products share: after passes for gradients alone, one that needs the whole graph."""
    w = weight()

    def fn(x):
        with autocast():
            return ((x @ w).tanh() @ w).float()

    step, steps = passes(trace, fn, w, is_leaf=is_leaf)
    late = call(31, use=lambda out: question(out, w))
    return step, [*steps, late, *steps[:3], late]


@cases(hits=ENOUGH)
def gradients_of_a_weight_that_was_cast_once(trace):
    return asked_late(trace, of_weights, True)


@cases(hits=ENOUGH)
def a_graph_of_the_gradients_of_a_weight_that_was_cast_once(trace):
    return asked_late(trace, twice, True)


@cases(hits=ENOUGH)
def a_graph_of_the_gradients_behind_an_argument_with_a_history(trace):
    return asked_late(trace, twice, False)


def small(trace, fn, *weights):
    """A pass at each call of a few; a replay would show from the second on."""
    step, steps = passes(trace, fn, *weights)
    return step, steps[:4]


@cases(hits=2)
def a_weight_in_two_regions(trace):
    w = weight()
    half = region(w)

    return small(trace, lambda x: half(half(x)), w)


@cases(hits=2)
def a_weight_in_regions_apart(trace):
    w = weight()
    half = region(w)

    return small(trace, lambda x: half(half(x).tanh()), w)


@cases(hits=2)
def a_weight_around_a_region_that_is_off(trace):
    w = weight()

    def fn(x):
        with autocast():
            h = x @ w
            with autocast(enabled=False):
                h = h.float().tanh()
            return (h @ w).float()

    return small(trace, fn, w)


@cases(hits=2)
def weights_in_a_list(trace):
    a, b = weight(), weight(2)

    def half(x):
        with autocast():
            return (x @ torch.cat([a, b], 1)).float()[:, :16]

    return small(trace, lambda x: half(half(x)) @ b, a, b)


@cases(hits=2)
def a_weight_that_was_cast_without_a_graph_first(trace):
    """Torch keeps what has no graph, so the second use brings no gradient."""
    w = weight()

    def fn(x):
        with autocast():
            with torch.no_grad():
                target = x @ w
            with autocast(enabled=False):
                h = x.tanh()
            return (h @ w - target).float()

    return small(trace, fn, w)


@cases(hits=2)
def regions_with_weights_of_their_own(trace):
    a, b = weight(), weight(2)

    def fn(x):
        with autocast():
            h = x @ a
            with autocast(enabled=False):
                h = h.float().tanh()
            h = h @ b
        with autocast():
            return (h * 2).float()

    return small(trace, fn, a, b)


@cases(hits=2)
def regions_that_keep_nothing(trace):
    w = weight()
    half = region(w, cache_enabled=False)

    return small(trace, lambda x: half(half(x)), w)


@cases(hits=2)
def regions_without_gradients(trace):
    w = weight()
    half = region(w)

    fn = trace(torch.no_grad()(lambda x: half(half(x))))
    return fn, [call(x(seed)) for seed in range(4)]


@cases(hits=2)
def regions_inside_the_callers(trace):
    """What is cast stays until the caller's region ends."""
    w = weight()
    half = region(w)

    def around(fn):
        def step(x):
            with autocast():
                return fn(x)

        return step

    return small(lambda fn: around(trace(fn)), lambda x: half(half(x)), w)


@cases(hits=3, eager="cast-again")
def regions_inside_one_of_the_callers_that_is_off(trace):
    """There what is cast stays from region to region; elsewhere it does not."""
    w = weight()
    half = region(w)

    inside, _ = passes(trace, lambda x: half(half(x)), w)

    def off(seed):
        with autocast(enabled=False):
            return inside(seed)

    turns = [off, off, inside, inside, inside, off, inside]
    return inside, [call(seed).of(turn) for seed, turn in enumerate(turns)]


@cases(hits=ENOUGH)
def one_node_for_two_regions(trace):
    w = weight()
    half = region(w)

    return passes(trace, lambda x: half(half(x)), w)


@cases(hits=ENOUGH)
def one_node_for_a_region_with_a_part_that_is_off(trace):
    """As models of language work out positions: two of their calls in one region share what was cast."""
    a, b = weight(), weight(2)

    def model(x):
        with autocast(enabled=False):
            angles = (x.float() * 0.5).sin()
        return (angles @ a).tanh() @ b

    def fn(x):
        with autocast():
            return (model(x) - model(x * 2)).float()

    return passes(trace, fn, a, b)


@cases(hits=ENOUGH)
def regions_in_turns_with_some_that_are_off(trace):
    w = weight()

    def fn(x):
        for enabled in (True, False, True, True, False):
            with autocast(enabled=enabled):
                x = (x @ w).float()
        return x

    return passes(trace, fn, w)


@cases(hits=2)
def whole_steps_with_two_regions(trace):
    w = weight()
    optimizer = torch.optim.SGD([w], lr=0.01, momentum=0.9)

    def fn(x):
        optimizer.zero_grad()
        with autocast():
            fake = x @ w
        with autocast():
            loss = (fake.detach() @ w - fake).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return trace(fn), [call(x(seed)) for seed in range(8)], lambda: [w, w.grad]


@cases(hits=2)
def an_exit_in_a_part_that_is_off(trace):
    w = weight()

    def fn(x):
        with autocast():
            h = x @ w
            with autocast(enabled=False):
                h = h.float().tanh()
                if h.sum() > 0:
                    h = h * 2
            return (h @ w).float()

    step, _ = passes(trace, fn, w)
    return step, [call(seed) for seed in range(10)]


@cases(hits=2)
def a_write_in_a_part_that_is_off(trace):
    w, total = weight(), torch.zeros(8, 16)

    def fn(x):
        with autocast():
            h = x @ w
            with autocast(enabled=False):
                total.add_(h.detach().float())
            return (h.tanh() @ w).float()

    step, steps = small(trace, fn, w)
    return step, steps, lambda: total


@cases(hits=2)
def a_write_in_a_region_that_casts_nothing(trace):
    w, total = weight(), torch.zeros(8, 16)

    def fn(x):
        with autocast(enabled=False):
            total.add_(x.detach())
            return (x @ w).tanh() @ w

    step, steps = small(trace, fn, w)
    return step, steps, lambda: total


@cases(hits=3)
def statistics_of_a_normalization(trace):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        optimizer.zero_grad()
        with autocast():
            loss = model(x).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    steps = [call(torch.randn(5, 6)) for _ in range(6)]
    return trace(step), steps, lambda: (list(model.parameters()), list(model.buffers()))


@cases(hits=3)
def a_weight_is_written_to_that_was_cast(trace):
    """What was cast before the write is used behind it, too."""
    layer = nn.Linear(6, 6)

    def step(x):
        layer.zero_grad()
        with autocast():
            first = layer(x)
            with torch.no_grad():
                layer.weight.mul_(0.9)
            loss = (layer(x) * first).float().sum()
        loss.backward()
        return loss.item()

    return trace(step), [call(torch.randn(5, 6)) for _ in range(6)], lambda: list(layer.parameters())


@cases(hits=2)
def a_branch_behind_a_write(trace):
    w, total = weight(), torch.zeros(8, 16)

    def fn(x):
        with autocast():
            h = (x @ w).float()
            total.add_(h.detach())
            if h.sum() > 0:
                h = h * 2
            return (h @ w).float()

    step, steps = small(trace, fn, w)
    return step, steps, lambda: total


def caught_inside(name, before):
    """Whoever goes on behind what was raised goes on with the weights that were cast before it."""

    def make(trace):
        layer, total = nn.Linear(6, 6), torch.zeros(6)

        def step(x, matrix):
            layer.zero_grad()
            with autocast():
                a = before(layer(x).float(), total)
                try:
                    b = torch.linalg.cholesky(matrix)
                except RuntimeError:
                    b = torch.ones(6, 6)
                loss = (layer(a) @ b).float().pow(2).mean()
            loss.backward()
            return loss.item()

        steps = [call(torch.randn(5, 6), torch.eye(6) * (-1 if k in (3, 5) else 1)) for k in range(6)]
        return trace(step), steps, lambda: (list(layer.parameters()), total)

    make.__name__ = f"caught_inside_{name}"
    cases(make, hits=2)


def adds_up(a, total):
    total.add_(a.detach().sum(0))
    return a


caught_inside("behind_a_gradient", lambda a, total: a)
caught_inside("behind_a_write", adds_up)
caught_inside("behind_random_numbers", lambda a, total: torch.dropout(a, 0.3, True))


@cases.parametrize
def test_casts(make, expected):
    check(make, **expected)
