"""What random programs and attacks have found: each of these was wrong once."""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F

import lazytrace
from tests.soundness.runner import Cases, X, call, check, opaque

cases = Cases()


def positive(x):
    """A step that raises."""
    if x.sum() < 0:
        raise ValueError("negative")
    return x * 2


class Positive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return positive(x)

    @staticmethod
    def backward(ctx, g):
        return g * 2


def both_ways():
    """Inputs that let `positive` raise first, and later."""
    return [call(k * X()) for k in (-5, 1, 1, -5, -5, 1)]


# ---------------------------------------------------------------- steps that raise
@cases(hits=2)
def opaque_step_raises_and_is_caught(trace):
    step = opaque(trace, positive)

    def fn(x):
        try:
            return step(x)
        except ValueError:
            return x - 1

    return trace(fn), both_ways()


@cases(hits=2)
def opaque_step_raises_later(trace):
    step = opaque(trace, positive)

    def fn(x):
        try:
            return step(x)
        except ValueError:
            return x - 1

    return trace(fn), [call(k * X()) for k in (1, 1, -5, -5, 1, -5)]


@cases(hits=2)
def opaque_step_raises_after_a_write(trace):
    step = opaque(trace, positive)

    def fn(x):
        x.add_(1)
        try:
            return step(x)
        except ValueError:
            return x - 1

    return trace(fn), [call(k * X()) for k in (1, 1, -5, -5, 1, -5)]


@cases(hits=2)
def scripted_step_raises_and_is_caught(trace):
    def half(x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() < 0):
            raise ValueError("negative")
        return torch.tanh(x)

    step = lazytrace.script_if_tracing(half) if trace.enabled else half

    def fn(x):
        try:
            return step(x)
        except Exception:
            return x - 1

    return trace(fn), both_ways()


@cases(hits=2)
def autograd_function_raises_and_is_caught(trace):
    def fn(x):
        try:
            return Positive.apply(x)
        except ValueError:
            return x - 1

    return trace(fn), both_ways()


@cases(hits=2)
def autograd_function_raises_after_a_write(trace):
    def fn(x):
        x.add_(1)
        try:
            return Positive.apply(x)
        except ValueError:
            return x - 1

    return trace(fn), [call(k * X()) for k in (1, 1, -5, -5, 1, -5)]


@cases(hits=2)
def nested_function_whose_step_raises(trace):
    step = opaque(trace, positive)
    inner = trace(lambda x: step(x) + 1)

    def fn(x):
        try:
            return inner(x)
        except ValueError as error:
            return str(error)

    return trace(fn), both_ways()


@cases(hits=2)
def step_raises_and_is_suppressed(trace):
    step = opaque(trace, positive)

    def fn(x):
        y = x
        with contextlib.suppress(ValueError):
            y = step(x)
        return y + 1

    return trace(fn), both_ways()


@cases(hits=2)
def step_raises_and_finally_returns(trace):
    step = opaque(trace, positive)

    def fn(x):
        y = x
        try:
            y = step(x)
        finally:
            return y + 1  # noqa: B012

    return trace(fn), both_ways()


# ---------------------------------------------------------------- operators that raise after a write
@cases(hits=2)
def operator_raises_after_a_write(trace):
    def fn(x, w):
        w.add_(1)
        try:
            return torch.linalg.cholesky(x) + w
        except RuntimeError:
            return torch.linalg.cholesky(x + 10 * torch.eye(2)) - w

    good, bad, w = torch.eye(2), -torch.eye(2), torch.zeros(())
    return trace(fn), [call(x, w) for x in (good, good, bad, bad, good, bad)]


@cases(hits=2)
def operator_raises_after_random_numbers(trace):
    def fn(x):
        y = torch.rand(2, 2)
        try:
            return torch.linalg.cholesky(x) + y
        except RuntimeError:
            return y

    return trace(fn), [call(k * torch.eye(2)) for k in (1, 1, -5, -5, 1, -5)]


@cases(hits=1)
def write_that_raises_on_a_view(trace):
    def fn(x):
        x.add_(1)
        try:
            x.detach_()
        except RuntimeError:
            return x * 2
        return x * 3

    x = torch.ones(3)
    return trace(fn), [call(torch.ones(3)), call(torch.ones(3)), call(x[:]), call(x[:])]


@cases(hits=2)
def index_out_of_range_after_a_write(trace):
    table, used = torch.nn.Embedding(3, 2), torch.zeros(())

    def fn(i):
        used.add_(1)
        try:
            return table(i)
        except IndexError:
            return table(i * 0) + used

    return trace(fn), [call(torch.tensor([k])) for k in (1, 1, 7, 7, 1, 7)], lambda: used


def test_a_call_that_raises_in_its_first_write_is_counted():
    fn = lazytrace.traced(lambda x: x.detach_())
    fn(torch.ones(3))
    with contextlib.suppress(RuntimeError):
        fn(torch.ones(3)[:])
    assert fn.stats().calls == 2


# ---------------------------------------------------------------- opaque steps: results, state, arguments
@cases(hits=6)
def argument_or_new_tensor_after_random_numbers(trace):
    def shrink(x):
        return torch.tanh(x) if x.norm() > 1 else x

    step = opaque(trace, shrink)
    return trace(lambda x: step(F.dropout(x, 0.5)) * 2), [call(torch.tensor([2.0, 0.25]))] * 8


@cases(hits=4)
def tensor_or_none_after_a_write(trace):
    step = opaque(trace, lambda x: x * 2 if x.sum() > 0 else None)

    def fn(x):
        x.add_(1)
        y = step(x)
        return x if y is None else y

    return trace(fn), [call(k * X()) for k in (1, 1, -5, -5, 1, -5)]


@cases(hits=2)
def autograd_function_of_changing_shape_after_a_write(trace):
    class Positives(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x[x > 0] * 2

        @staticmethod
        def backward(ctx, g):
            return torch.ones(3)

    w = torch.zeros(())

    def fn(x):
        w.add_(1)
        return Positives.apply(x) + w

    return trace(fn), [call((k * X()).requires_grad_()) for k in (1, 1, -5, -5, 1, -5)], lambda: w


@cases(eager="read-after-change")
def opaque_step_changes_what_was_read_before(trace):
    o = {"k": 2.0}

    def bump(x):
        o["k"] = o["k"] % 3 + 1
        return x.sum()

    step = opaque(trace, bump)

    def fn(x):
        k = o["k"]
        return x * k if step(x) > 0 else x - k

    return trace(fn), [call(k * X()) for k in (1, 1, 1, 1, 1, -1, -1, 1, -1, 1, -1, -1)], lambda: o


@cases(hits=2)
def opaque_step_keeps_what_it_was_given(trace):
    kept = []

    def keep(x):
        kept.append(x)
        return x.sum()

    step = opaque(trace, keep)

    def fn(x):
        y = x * 2
        total = step(y)
        y.add_(1)
        return y if total > 0 else y * 3

    return trace(fn), [call(k * X()) for k in (1, -1, 1, -1, -1, 1)], lambda: kept


@cases(hits=1, eager="resumes-after-opaque")
def opaque_step_with_an_effect_before_another_shape(trace):
    class Thing:
        pass

    o = Thing()
    o.n, o.w = 0, torch.tensor(-2.0)

    def spoil(x):
        o.n += 1
        return x + o.n

    first, second = opaque(trace, spoil), opaque(trace, lambda x: x[x > 0])
    return trace(lambda x: second(first(o.w)) + x.sum()), [call(X())] * 5, lambda: o


# ---------------------------------------------------------------- what is fed after an exit
@cases(hits=4)
def state_loaded_before_another_operator(trace):
    w = torch.ones(3)

    def fn(x):
        w.sub_(0.1 * x)
        return x * w if torch.rand(()) > 0.5 else x

    return trace(fn), [call(X())] * 6, lambda: w


@cases(hits=3, recordings=1)
def scalar_of_state_loaded_before_another_operator(trace):
    c = torch.tensor(3.0)
    return trace(lambda x: c.masked_fill(x > 0, torch.rand(()).item())), [call(X())] * 4


@cases(eager="read-after-change")
def opaque_step_that_returns_a_new_constant(trace):
    keep = opaque(trace, lambda x: x)
    return trace(lambda x: (keep(torch.full((), 0.5)), len(f"{torch.rand(()).item()}"))), [call(X())] * 4


@cases(hits=2)
def literal_before_an_exit(trace):
    total = torch.zeros(())

    def fn(x):
        total.add_(1)
        y = x + torch.tensor([1.0, 2.0, 3.0])
        return y * 2 if x.sum() > 0 else y

    return trace(fn), [call(k * X()) for k in (1, -1, 1, -1)], lambda: total


@cases(hits=3, recordings=1)
def empty_literal_before_an_exit(trace):
    return trace(lambda x: torch.tensor([]).sum() + torch.rand(()).item()), [call(X())] * 4


@cases(hits=4)
def data_of_a_random_result_before_an_exit(trace):
    w = torch.tensor(0.0)

    def fn(x):
        a = torch.normal(w, 1.0).data
        return x * 2 if a < 0 else x

    return trace(fn), [call(X())] * 6


@cases(hits=1, eager="resumes-after-opaque")
def opaque_step_with_an_effect_before_an_error(trace):
    class Thing:
        pass

    o = Thing()
    o.n, o.w = 0, torch.zeros(3)

    def spoil(x):
        o.n += 1
        return x + o.n

    step = opaque(trace, spoil)

    def fn(x):
        try:
            if o.w.sum():
                pass
            return torch.linalg.cholesky(torch.eye(3) * step(x).sum())
        except RuntimeError:
            return x

    def reset():
        o.n = 0

    return trace(fn), [call(X()), reset, call(X()), reset, call(X() * -9), reset, call(X() * -9)], lambda: o


@cases(eager="read-after-change")
def opaque_step_that_switches_the_mode_before_an_exit(trace):
    total = torch.zeros(())
    switch = opaque(trace, lambda flag: (torch.set_grad_enabled(flag), None)[1])

    def fn(x):
        total.add_(1)
        switch(False)
        y = x * 2
        switch(True)
        return y if torch.rand(()) > 0.5 else x

    return trace(fn), [call(X(grad=True))] * 5, lambda: total


@cases(hits=2)
def opaque_step_of_two_shapes_before_an_exit(trace):
    total = torch.zeros(())
    step = opaque(trace, lambda x: x[x > 0] * 2)

    def fn(x):
        total.add_(1)
        y = step(x)
        x.add_(1)
        out = y + 1 if y.numel() else x
        if torch.rand(()) > 0.5:
            total.add_(1)
        return out

    return trace(fn), [call(k * X()) for k in (1, 1, -1, -1, 1, -1)], lambda: total


@cases.parametrize
def test_found(make, expected):
    check(make, **expected)
