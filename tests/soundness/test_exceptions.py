"""Exceptions, raised and caught, that depend on values, on state and on metadata."""

from __future__ import annotations

import contextlib
import sys

import pytest
import torch

import lazytrace
from tests.soundness.runner import Cases, X, around, call, check

cases = Cases()


class Odd(Exception):
    def __init__(self, code):
        super().__init__(f"odd {code}")
        self.code = code


@cases(hits=1)
def raised_on_a_value(trace):
    @trace
    def fn(x):
        if x.sum() < 0:
            raise Odd(3)
        return x * 2

    return fn, [call(X()), call(X()), call(-X()), call(-X()), call(X())]


@cases(hits=1)
def assertion_on_a_value(trace):
    @trace
    def fn(x):
        if not x.min() > -5:
            raise AssertionError(f"too small: {x.min().item()}")
        return x * 2

    return fn, [call(X()), call(X()), call(X() - 9), call(X())]


@cases(hits=2)
def raised_on_state(trace):
    limit = [2]

    @trace
    def fn(x):
        if len(x) > limit[0]:
            raise ValueError("too long")
        return x * 2

    return fn, [
        call(X()),
        lambda: limit.__setitem__(0, 5),
        call(X()),
        call(X()),
        call(X()),
        lambda: limit.__setitem__(0, 1),
        call(X()),
    ]


@cases(hits=1)
def shape_mismatch_caught(trace):
    @trace
    def fn(x, y):
        try:
            return x + y
        except RuntimeError:
            return x * 2

    return fn, [call(X(), torch.ones(2))] * 3 + [call(X(), X())] * 2


@cases(eager="operator-raised")
def cholesky_failure_caught(trace):
    @trace
    def fn(a):
        try:
            return torch.linalg.cholesky(a)
        except torch.linalg.LinAlgError:
            return torch.zeros_like(a)

    good, bad = torch.eye(2) * 4, -torch.eye(2)
    return fn, [call(bad), call(bad), call(good), call(good), call(bad), call(good)]


@cases(hits=2)
def cholesky_success_then_failure(trace):
    @trace
    def fn(a):
        try:
            return torch.linalg.cholesky(a)
        except RuntimeError as error:
            return torch.zeros_like(a), type(error).__name__

    good, bad = torch.eye(2) * 4, -torch.eye(2)
    return fn, [call(good), call(good), call(bad), call(bad), call(good)]


@cases(eager="operator-raised")
def index_failure_caught(trace):
    table = torch.arange(4.0)

    @trace
    def fn(i):
        try:
            return table[i]
        except IndexError:
            return torch.tensor(-1.0)

    ok, out = torch.tensor([1, 2]), torch.tensor([1, 9])
    return fn, [call(out), call(out), call(ok), call(ok), call(out)]


@cases(hits=2)
def index_success_then_failure(trace):
    table = torch.arange(4.0)

    @trace
    def fn(i):
        try:
            return table[i]
        except IndexError:
            return torch.tensor(-1.0)

    ok, out = torch.tensor([1, 2]), torch.tensor([1, 9])
    return fn, [call(ok), call(ok), call(out), call(out), call(ok)]


@cases(hits=2)
def index_error_passes(trace):
    table = torch.arange(4.0)
    ok, out = torch.tensor([1, 2]), torch.tensor([1, 9])
    return trace(lambda i: table[i]), [call(ok), call(ok), call(out), call(ok), call(out)]


@cases(hits=2)
def embedding_error_passes(trace):
    table = torch.arange(8.0).view(4, 2)
    ok, out = torch.tensor([1, 2]), torch.tensor([1, 9])
    fn = trace(lambda i: torch.nn.functional.embedding(i, table))
    return fn, [call(ok), call(ok), call(out), call(ok)]


@cases(hits=2)
def linear_algebra_error_passes(trace):
    good, bad = torch.eye(2) * 4, -torch.eye(2)
    return trace(lambda a: torch.linalg.cholesky(a)), [call(good), call(good), call(bad), call(good)]


@cases(hits=2)
def inverse_error_passes(trace):
    good, bad = torch.eye(2) * 4, torch.zeros(2, 2)
    return trace(lambda a: torch.linalg.inv(a)), [call(good), call(good), call(bad), call(good)]


@cases(hits=2)
def multinomial_error_passes(trace):
    good, bad = torch.ones(3), torch.tensor([1.0, -1.0, 1.0])
    return trace(lambda p: torch.multinomial(p, 2)), [call(good), call(good), call(bad), call(good)]


@cases(hits=2)
def division_by_zero_passes(trace):
    good, bad = torch.tensor([2]), torch.tensor([0])
    fn = trace(lambda x: torch.tensor([7]) // x)
    return fn, [call(good), call(good), call(bad), call(good)]


@cases(hits=2)
def scalar_conversion_error(trace):
    fn = trace(lambda x: float(x[x > 0]))
    one, two = torch.tensor([1.0, -1.0]), torch.tensor([1.0, 1.0])
    return fn, [call(one), call(one), call(two), call(one), call(one), call(two), call(one)]


@cases(hits=2)
def mutation_before_an_exception(trace):
    @trace
    def fn(x, y):
        x.add_(1)
        return x.view(3) + y

    x, y = X(), X()
    return fn, [call(x, y), call(x, y), call(x, torch.ones(2)), call(x, torch.ones(2)), call(x, y)]


@cases(hits=2)
def mutation_before_a_value_exception(trace):
    table = torch.arange(4.0)

    @trace
    def fn(x, i):
        x.add_(1)
        return x[:2] * table[i]

    x, ok, out = X(), torch.tensor([1, 2]), torch.tensor([1, 9])
    return fn, [call(x, ok), call(x, ok), call(x, out), call(x, out), call(x, ok)]


@cases(hits=2)
def finally_with_a_mutation(trace):
    table = torch.arange(4.0)

    @trace
    def fn(x, i):
        try:
            return table[i] * 2
        finally:
            x.add_(1)

    x, ok, out = X(), torch.tensor([1, 2]), torch.tensor([1, 9])
    return fn, [call(x, ok), call(x, ok), call(x, out), call(x, out), call(x, ok)]


@cases(hits=2)
def with_block_that_swallows(trace):
    table = torch.arange(4.0)

    @trace
    def fn(i):
        out = torch.zeros(2)
        with contextlib.suppress(IndexError):
            out = table[i]
        return out

    ok, out = torch.tensor([1, 2]), torch.tensor([1, 9])
    return fn, [call(ok), call(ok), call(out), call(out), call(ok)]


@cases(hits=2)
def exception_group_and_notes(trace):
    @trace
    def fn(x):
        try:
            raise Odd(1)
        except Odd as error:
            error.add_note("here")
            return x * error.code

    return fn, [call(X())] * 3


@cases(hits=2)
def exception_in_state(trace):
    errors = {"kind": KeyError}

    @trace
    def fn(x):
        try:
            raise KeyError("k")
        except errors["kind"]:
            return x * 2
        except LookupError:
            return x * 3

    return fn, around(lambda: errors.update(kind=IndexError), X())


# The plain call raises, so there is nothing to replay.
@cases(eager="raised")
def raised_from_another(trace):
    @trace
    def fn(x):
        try:
            x.view(7)
        except RuntimeError as error:
            raise Odd(2) from error

    return fn, [call(X())] * 3


@cases(hits=2)
def keyboard_interrupt_like(trace):
    count = [0]

    @trace
    def fn(x):
        count[0] += 1
        if count[0] == 2:
            raise SystemError("now")
        return x

    return fn, [call(X())] * 4, lambda: list(count)


@cases(hits=1)
def error_of_an_unsupported_type(trace):
    return trace(lambda x: torch.linalg.inv(x)), [call(torch.eye(2, dtype=torch.int64))] * 2 + [
        call(torch.eye(2))
    ] * 2


# ---------------------------------------------------------------- what is handled around the call
def inside_a_handler(function):
    def handler(x):
        try:
            raise KeyError(7.0)
        except KeyError:
            return function(x)

    return handler


def handled_or_not(function):
    """Calls outside and inside the handler of an exception."""
    inside = inside_a_handler(function)
    outside = [call(X()), call(X())]
    return [*outside, call(X()).of(inside), call(X()).of(inside), *outside]


@cases(hits=3, eager="reads the exception that is handled around the call")
def raise_again_what_the_caller_handles(trace):
    @trace
    def fn(x):
        try:
            raise
        except KeyError as error:
            return x * error.args[0]
        except RuntimeError:
            return x

    return fn, handled_or_not(fn)


@cases(hits=3, eager="reads the exception that is handled around the call")
def context_of_an_exception(trace):
    @trace
    def fn(x):
        try:
            raise ValueError(1)
        except ValueError as error:
            return x if error.__context__ is None else x * 3

    return fn, handled_or_not(fn)


@cases(hits=3, eager="reads the exception that is handled around the call")
def exception_in_sys(trace):
    @trace
    def fn(x):
        return x if sys.exc_info()[0] is None else x * 3

    return fn, handled_or_not(fn)


@cases(hits=5)
def exception_of_its_own_in_sys(trace):
    @trace
    def fn(x):
        try:
            raise ValueError(2.0)
        except ValueError:
            return x * sys.exc_info()[1].args[0]

    return fn, [call(k * X()) for k in range(6)]


@cases(hits=5)
def raise_again_what_it_handles_itself(trace):
    @trace
    def fn(x):
        try:
            try:
                raise KeyError(2.0)
            except KeyError:
                raise
        except KeyError as error:
            return x * error.args[0]

    return fn, [call(X()), call(X()), call(X()).of(inside_a_handler(fn)), *[call(X())] * 3]


@cases(hits=2)
def context_of_its_own(trace):
    def fn(x):
        try:
            try:
                raise ValueError(2.0)
            except ValueError:
                raise KeyError(1) from None
        except KeyError as error:
            return x * error.__context__.args[0]

    return trace(fn), [call(X())] * 3


# ---------------------------------------------------------------- raised in a handler of the function
FEW = torch.tensor([1.0, 2.0, 0.0, 1.0])
MANY = torch.tensor([0.0, 9.0, 0.0, 0.0])
SOMETIMES = [call(x) for x in (FEW, FEW, FEW, MANY, FEW, FEW, MANY, MANY, FEW)]


def in_handler(trace, do, buffer=None):
    """Does something where the function handles an exception: the context of what is raised there."""

    def fn(x):
        if buffer is not None:
            buffer.add_(1)
        try:
            raise KeyError("first")
        except KeyError:
            y = do(x)
        return y * 2

    return trace(fn), SOMETIMES, lambda: buffer


def refuses(x):
    if x[1] > 5:
        raise Odd(5)
    return x + 1


def refuses_twice(x):
    try:
        return refuses(x)
    except Odd as error:
        raise ValueError("again") from error


@cases(eager="opaque-in-handler")
def context_of_what_a_step_raises(trace):
    return in_handler(trace, lazytrace.opaque(refuses) if trace.enabled else refuses)


@cases(eager="opaque-in-handler")
def context_of_what_a_step_raises_behind_a_write(trace):
    return in_handler(trace, lazytrace.opaque(refuses) if trace.enabled else refuses, torch.zeros(2))


@cases(eager="opaque-in-handler")
def context_behind_the_context_of_a_step(trace):
    return in_handler(trace, lazytrace.opaque(refuses_twice) if trace.enabled else refuses_twice)


@cases(eager="opaque-in-handler")
def context_in_handlers_of_the_caller(trace):
    fn, steps, _ = in_handler(trace, lazytrace.opaque(refuses) if trace.enabled else refuses)

    def caller(x):
        try:
            raise LookupError("of the caller")
        except LookupError:
            return fn(x)

    return caller, steps


def asked(trace, do):
    """The step itself asks what is handled."""
    step = lazytrace.opaque(do) if trace.enabled else do

    def fn(x, handles):
        try:
            if handles:
                raise KeyError("first")
            return step(x)
        except KeyError:
            return step(x) + 1

    return trace(fn), [call(X(), k in (0, 3, 4)) for k in range(9)]


@cases(hits=3, eager="opaque-in-handler")
def a_step_that_asks_what_is_handled(trace):
    return asked(trace, lambda x: x * (1 if sys.exc_info()[0] is None else 2))


@cases(hits=3)
def a_step_that_raises_what_is_handled(trace):
    def again(x):
        if sys.exc_info()[0] is not None:
            raise
        return x * 2

    return asked(trace, again)


@cases(hits=4)
def context_of_what_a_hook_raises(trace):
    def do(x):
        y = (x * 2).requires_grad_()
        y.register_hook(refuses)
        (y * x).sum().backward()
        return y.detach()

    return in_handler(trace, do)


@cases(hits=3)
def context_of_what_an_operator_raises(trace):
    return in_handler(trace, lambda x: torch.ones(3)[x[:2].long()], torch.zeros(2))


@cases(hits=4)
def context_of_what_a_number_raises(trace):
    return in_handler(trace, lambda x: 1 / x[0].item() * x, torch.zeros(2))


@cases(eager="opaque-in-handler")
def context_of_the_end_of_an_iterator(trace):
    numbers = iter([1, 2, 3])
    return in_handler(trace, lambda x: next(numbers) * x)


@cases.parametrize
def test_exceptions(make, expected):
    check(make, **expected)


def test_traceback_of_a_recording_shows_the_line():
    @lazytrace.traced
    def fn(x):
        return x.view(7)

    with pytest.raises(RuntimeError) as caught:
        fn(X())
    assert any(entry.name == "fn" for entry in caught.traceback)
    assert not lazytrace.is_tracing()


def test_nothing_is_left_switched_after_an_exception():
    @lazytrace.traced
    def fn(x):
        with torch.no_grad(), torch.autocast("cpu"):
            raise Odd(1)

    for _ in range(3):
        with pytest.raises(Odd):
            fn(X())
        assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")
        assert not lazytrace.is_tracing()
