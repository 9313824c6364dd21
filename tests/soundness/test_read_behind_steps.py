"""State that Python code of a step changes at some calls only, and the function reads behind it alone."""

from __future__ import annotations

import pytest
import torch

import lazytrace
from tests.soundness.runner import Cases, X, call, check

cases = Cases()


class Thing:
    def __init__(self, **values):
        self.__dict__.update(values)


def opaque(trace, fn):
    return lazytrace.opaque(fn) if trace.enabled else fn


def doubles_scale(trace, state):
    """A step that changes `state.scale` where its argument is large."""

    def change(x):
        if x.sum() > 10:
            state.scale *= 2
        return x * 2

    return opaque(trace, change)


def now_and_then():
    """Two of three calls change nothing."""
    return [call(X() + (5 if i % 3 == 2 else 0)) for i in range(9)]


@cases(hits=5)
def entry_of_a_dict(trace):
    seen = {"large": 0}

    def count(x):
        if x.sum() > 10:
            seen["large"] += 1
        return x * 2

    count = opaque(trace, count)
    return trace(lambda x: count(x) + seen["large"]), now_and_then(), lambda: seen


@cases(hits=5)
def attribute_and_length(trace):
    state, kept = Thing(scale=1.0), []

    def change(x):
        if x.sum() > 10:
            state.scale *= 2
            kept.append(x.sum().item())
        return x * 2

    change = opaque(trace, change)

    def fn(x):
        y = change(x)
        return y * state.scale + len(kept)

    return trace(fn), now_and_then(), lambda: (state.scale, kept)


@cases(hits=5)
def tensor_that_is_swapped(trace):
    state = Thing(w=torch.ones(3))

    def swap(x):
        if x.sum() > 10:
            state.w = state.w * 2
        return x * 2

    swap = opaque(trace, swap)
    return trace(lambda x: swap(x) + state.w), now_and_then(), lambda: state.w


@cases(hits=5)
def behind_writes_and_draws(trace):
    state, w = Thing(scale=1.0, calls=0), torch.ones(3)

    change = doubles_scale(trace, state)

    def fn(x):
        state.calls += 1
        w.mul_(1.5)
        noise = torch.rand(3)
        y = change(x) + noise
        state.calls += 1
        return y * state.scale + w

    return trace(fn), now_and_then(), lambda: (state.scale, state.calls, w)


@cases(hits=4)
def flag_of_a_hook(trace):
    w, state = torch.nn.Parameter(torch.ones(3)), Thing(large=False)

    def hook(g):
        if g.abs().max() > 4:
            state.large = True

    w.register_hook(hook)

    def fn(x):
        w.grad = None
        (x * w).sum().backward()
        return w.grad * 2 if state.large else w.grad

    def again(x):
        state.large = False
        return traced(x)

    traced = trace(fn)
    return again, now_and_then(), lambda: (w.grad, state.large)


@cases(hits=4)
def one_of_two_steps(trace):
    state = Thing(scale=1.0)

    change = doubles_scale(trace, state)

    def fn(x):
        y = change(x * 0) + change(x)
        return y * state.scale

    return trace(fn), now_and_then(), lambda: state.scale


@cases(hits=4)
def what_a_step_changes_and_raises(trace):
    state = Thing(scale=1.0)

    def change(x):
        if x.sum() > 10:
            state.scale *= 2
            raise ValueError("large")
        return x * 2

    change = opaque(trace, change)

    def fn(x):
        try:
            y = change(x)
        except ValueError:
            y = x
        return y * state.scale

    return trace(fn), now_and_then(), lambda: state.scale


@cases.parametrize
def test_read_behind_steps(make, expected):
    check(make, **expected)


def test_what_was_read_before_cannot_be_read_again():
    """The function runs again from its start, and would find there what the step has left."""
    state = Thing(scale=1.0)

    @lazytrace.opaque
    def change(x):
        if x.sum() > 10:
            state.scale *= 2
        return x * 2

    @lazytrace.traced
    def fn(x):
        before = state.scale
        return change(x) * state.scale + before

    for _ in range(3):
        assert torch.equal(fn(X()), X() * 2 + 1)
    with pytest.raises(lazytrace.ReplayError, match="Python state that it has changed"):
        fn(X() + 5)


def test_what_was_read_before_cannot_be_read_again_where_the_step_raises():
    state = Thing(scale=1.0)

    @lazytrace.opaque
    def change(x):
        if x.sum() > 10:
            state.scale *= 2
            raise ValueError("large")
        return x * 2

    @lazytrace.traced
    def fn(x):
        before = state.scale
        try:
            y = change(x)
        except ValueError:
            y = x
        return y + before

    for _ in range(3):
        assert torch.equal(fn(X()), X() * 2 + 1)
    with pytest.raises(lazytrace.ReplayError, match="Python state that it has changed"):
        fn(X() + 5)
