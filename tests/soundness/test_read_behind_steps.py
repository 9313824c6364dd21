"""State that Python code of a step changes at some calls only, and the function reads behind it alone."""

from __future__ import annotations

import pytest
import torch

import lazytrace
from tests.soundness.runner import Cases, Holder, X, call, check, opaque

cases = Cases()


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
    state, kept = Holder(scale=1.0), []

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
    state = Holder(w=torch.ones(3))

    def swap(x):
        if x.sum() > 10:
            state.w = state.w * 2
        return x * 2

    swap = opaque(trace, swap)
    return trace(lambda x: swap(x) + state.w), now_and_then(), lambda: state.w


@cases(hits=5)
def behind_writes_and_draws(trace):
    state, w = Holder(scale=1.0, calls=0), torch.ones(3)

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
    w, state = torch.nn.Parameter(torch.ones(3)), Holder(large=False)

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
    state = Holder(scale=1.0)

    change = doubles_scale(trace, state)

    def fn(x):
        y = change(x * 0) + change(x)
        return y * state.scale

    return trace(fn), now_and_then(), lambda: state.scale


@cases(hits=4)
def what_a_step_changes_and_raises(trace):
    state = Holder(scale=1.0)

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


def toggled(trace, fn, changes):
    """Calls of `fn(x, step, state)`, whose step changes whether `state.w` requires gradients."""
    state, calls = Holder(w=torch.ones(3, requires_grad=True)), []

    def step(x):
        calls.append(1)
        if len(calls) in changes:
            state.w.requires_grad_(not state.w.requires_grad)
        return x * 2

    step = opaque(trace, step)
    return trace(lambda x: fn(x, step, state)), [call(X())] * 8, lambda: (state.w, calls)


@cases(hits=5)
def flag_of_a_tensor_that_is_read_behind(trace):
    return toggled(trace, lambda x, step, state: step(x) + x * state.w, {3})


@cases(eager="resumes-after-opaque")
def flag_of_a_tensor_at_each_call(trace):
    return toggled(trace, lambda x, step, state: step(x) + x * state.w, range(99))


@cases(eager="opaque-turns")
def flag_of_a_tensor_that_is_read_before_at_each_call(trace):
    def fn(x, step, state):
        y = x * state.w
        return step(x) + y * state.w

    return toggled(trace, fn, range(99))


@cases(hits=4)
def shape_of_what_it_is_given(trace):
    """Each call of the step turns it; each recording is of one size."""

    def turn(x):
        x.t_()
        return x * 2

    turn = opaque(trace, turn)

    def fn(x):
        y = x + 1
        z = turn(y)
        return z, y, y * 2

    return trace(fn), [call(X(2, 3))] * 4 + [call(X(4, 3))] * 3


@cases(hits=6)
def mode_that_the_step_switches(trace):
    """The function puts it back, and reads a tensor in between."""
    w = torch.ones(3, requires_grad=True)

    def step(x):
        y = x * w  # in the mode of before
        torch.set_grad_enabled(False)
        return y

    step = opaque(trace, step)

    def fn(x):
        with torch.enable_grad():
            y = step(x)
            between = x * w
        return y, between, x + w

    return trace(fn), [call(X())] * 7


@cases(hits=6)
def mode_that_the_step_switches_last(trace):
    step = opaque(trace, lambda x: (x * 2, torch.set_grad_enabled(False))[0])

    def fn(x):
        y = x * 3
        with torch.enable_grad():
            z = step(y)
        return z + y

    return trace(fn), [call(X(grad=True))] * 7


@cases.parametrize
def test_read_behind_steps(make, expected):
    check(make, **expected)


def read_before_it_changes():
    """A function, and its state, which a step changes at some calls after it was read."""
    state = Holder(scale=1.0)

    @lazytrace.opaque
    def change(x):
        if x.sum() > 10:
            state.scale *= 2
        return x * 2

    @lazytrace.traced
    def fn(x):
        before = state.scale
        return change(x) * state.scale + before

    return fn, state


def test_what_was_read_before_cannot_be_read_again():
    """The function runs again from its start, and would find there what the step has left."""
    fn, _ = read_before_it_changes()
    for _ in range(3):
        assert torch.equal(fn(X()), X() * 2 + 1)
    with pytest.raises(lazytrace.ReplayError, match="Python state that it has changed"):
        fn(X() + 5)


def test_what_was_read_before_cannot_be_read_again_where_the_step_raises():
    state = Holder(scale=1.0)

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


@pytest.mark.parametrize("sizes", [[3, 3, 3, 3], [3, 4, 5, 6]])
def test_a_call_that_was_stopped_halfway_is_the_last_of_its_kind(sizes):
    """Those that follow run eagerly, also where each has a size of its own."""
    fn, state = read_before_it_changes()
    for size in sizes[:3]:
        fn(torch.ones(size))
    with pytest.raises(lazytrace.ReplayError):
        fn(torch.ones(sizes[2]) * 5)
    assert "run eagerly: a replay could not be brought to an end" in str(fn.explain(torch.ones(sizes[3])))
    for _ in range(2):
        before = state.scale
        assert fn(torch.ones(sizes[3]) * 5)[0] == 10 * state.scale + before == 20 * before + before
    assert [lazytrace.reason_code(text) for text in fn.stats().eager] == ["stopped-halfway"]


@pytest.mark.parametrize("toggles", [False, True])
def test_a_mode_that_is_not_switched_again(toggles):
    """The operators behind the step would run in another mode than that of the recording."""
    w, calls = torch.ones(3, requires_grad=True), []

    @lazytrace.opaque
    def step(x):
        calls.append(1)
        if len(calls) == 1:
            torch.set_grad_enabled(False)
        if toggles:
            w.requires_grad_(not w.requires_grad)
        return x * 2

    @lazytrace.traced
    def fn(x):
        with torch.enable_grad():
            return step(x) + x * w

    assert not fn(X()).requires_grad
    with pytest.raises(lazytrace.ReplayError, match="a mode of torch that it has switched"):
        fn(X())
