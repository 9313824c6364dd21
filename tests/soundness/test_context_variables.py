"""Context variables that the function sets for a while: a replay sets none, so nobody else may be asking."""

from __future__ import annotations

import contextlib
import contextvars
import logging

import torch

import lazytrace
from tests.soundness.runner import Cases, X, call, check

cases = Cases()
SCALE = contextvars.ContextVar("SCALE", default=1.0)


@contextlib.contextmanager
def scaled(by):
    token = SCALE.set(by)
    try:
        yield
    finally:
        SCALE.reset(token)


@lazytrace.opaque
def opaque_scale(x):
    return x * SCALE.get()


class Scaled(torch.autograd.Function):
    """By what the variable is at each pass."""

    @staticmethod
    def forward(ctx, x):
        return x * SCALE.get()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * SCALE.get()


def calls():
    return [call(k * X()) for k in range(1, 5)]


@cases(eager="opaque-after-write")
def asked_by_an_opaque_function(trace):
    def fn(x):
        with scaled(5.0):
            return opaque_scale(x)

    return trace(fn), calls(), SCALE.get


@cases(eager="opaque-after-write")
def asked_by_a_custom_function(trace):
    w = X(grad=True)

    def fn(x):
        with scaled(5.0):
            y = Scaled.apply(x * w).sum()
        y.backward()
        return y

    return trace(fn), calls(), lambda: (SCALE.get(), w.grad)


@cases(eager="opaque-after-write")
def asked_by_a_hook(trace):
    def fn(x):
        w = torch.ones(3, requires_grad=True)
        w.register_hook(lambda gradient: gradient * SCALE.get())
        with scaled(5.0):
            (w * x).sum().backward()
        return w.grad

    return trace(fn), calls(), SCALE.get


@cases(eager="opaque-after-write")
def asked_by_a_filter_of_logging(trace):
    told = []

    class Handler(logging.Handler):
        def emit(self, record):
            told.append((record.getMessage(), SCALE.get()))

    logger = logging.Logger("of a case")
    logger.addHandler(Handler())

    def fn(x):
        with scaled(float(x.shape[0])):
            logger.warning("inside")
        return x * 2

    return trace(fn), calls(), lambda: told


@cases(hits=3)
def asked_once_it_is_back(trace):
    def fn(x):
        with scaled(5.0):
            y = x * SCALE.get()
        return opaque_scale(y)

    return trace(fn), calls(), SCALE.get


@cases(hits=3)
def passes_without_python_code(trace):
    def fn(x):
        w = torch.ones(3, requires_grad=True)
        with scaled(5.0):
            (w * x * SCALE.get()).sum().backward()
        return w.grad

    return trace(fn), calls(), SCALE.get


@contextlib.contextmanager
def held_at(variable, value):
    """Puts it back without a token, as managers do that keep what was there."""
    before = variable.get()
    variable.set(value)
    try:
        yield
    finally:
        variable.set(before)


def changes(*values):
    """Two calls, then two behind each change of the variable."""
    steps = [call(X()), call(2 * X())]
    for value in values:
        steps += [lambda value=value: SCALE.set(value), call(3 * X()), call(4 * X())]
    return steps


def in_a_context(trace, fn, steps):
    """SCALE as it is set here, for the plain and the traced function."""
    SCALE.set(1.0)
    return trace(fn), steps, SCALE.get


@cases(hits=4)
def put_back_without_a_token(trace):
    def fn(x):
        with held_at(SCALE, 5.0):
            y = x * SCALE.get()
        return y * SCALE.get()

    return in_a_context(trace, fn, changes(2.0, 1.0, 3.0))


@cases(hits=3, eager="sets-context-variable")
def put_back_where_nothing_was_set(trace):
    """The first call leaves the default set, which shows."""
    variable = contextvars.ContextVar("variable", default=2.0)

    def fn(x):
        with held_at(variable, 5.0):
            return x * variable.get()

    return trace(fn), calls() * 2, lambda: variable in contextvars.copy_context()


@cases(hits=4)
def an_object_put_back(trace):
    """Which object it is shows, and it may be another one."""
    variable = contextvars.ContextVar("variable")
    first, second = [2.0], [3.0]
    variable.set(first)

    def fn(x):
        with held_at(variable, [5.0]):
            y = x * variable.get()[0]
        return y * variable.get()[0]

    steps = [*calls()[:2], lambda: variable.set(second), *calls(), lambda: second.append(1), *calls()]
    return trace(fn), steps, lambda: (variable.get() is first, variable.get() is second)


@cases(eager="sets-context-variable")
def another_object_put_back(trace):
    variable = contextvars.ContextVar("variable")
    variable.set([1.0])

    def fn(x):
        with held_at(variable, [5.0]):
            y = x * variable.get()[0]
        variable.set(list(variable.get()))
        return y

    return trace(fn), calls(), variable.get


@cases(hits=2)
def the_same_object_by_another_way(trace):
    """It is what was there only as long as both are one."""
    variable, other = contextvars.ContextVar("variable"), [1.0]
    variable.set(other)

    def fn(x):
        y = x * variable.get()[0]
        variable.set(other)
        return y

    steps = [*calls()[:3], lambda: variable.set([1.0]), *calls()[:3], lambda: variable.set([1.0]), *calls()]
    return trace(fn), steps, lambda: variable.get() is other


@cases(eager="opaque-after-write")
def asked_before_it_is_put_back(trace):
    def fn(x):
        with held_at(SCALE, 5.0):
            return opaque_scale(x)

    return in_a_context(trace, fn, changes(2.0, 3.0))


@cases(hits=2)
def asked_behind_what_puts_it_back(trace):
    def fn(x):
        with held_at(SCALE, 5.0):
            y = x * SCALE.get()
        return opaque_scale(y)

    return in_a_context(trace, fn, changes(2.0, 3.0))


@cases(eager="sets-context-variable")
def put_back_by_a_token_of_before(trace):
    """It does so once, and raises the next time."""
    tokens = []

    def renew():
        tokens[:] = [SCALE.set(1.0)]

    def fn(x):
        SCALE.set(5.0)
        y = x * SCALE.get()
        try:
            SCALE.reset(tokens[0])
        except RuntimeError:
            SCALE.set(1.0)
            return y * 2
        return y

    SCALE.set(1.0)
    steps = [one for _ in range(3) for one in (renew, call(X()), call(X()))]
    return trace(fn), steps, SCALE.get


@cases(hits=2)
def left_by_an_exception(trace):
    def fn(x):
        try:
            with held_at(SCALE, 5.0):
                y = x * SCALE.get()
                if SCALE.get() > 4.0:
                    raise KeyError
        except KeyError:
            y = y * 2
        return y * SCALE.get()

    return in_a_context(trace, fn, changes(2.0, 3.0))


@cases(hits=2)
def read_on_both_ways_of_a_branch(trace):
    """A function that runs again after a side exit finds it as it was."""

    def fn(x):
        with held_at(SCALE, 5.0):
            y = x * SCALE.get()
            if y.sum() > 0:
                return y * SCALE.get()
            SCALE.set(6.0)
            return y * SCALE.get()

    SCALE.set(1.0)
    return trace(fn), [call(k * X().abs()) for k in (1, 2, -1, -2, 3, -3)], SCALE.get


@cases.parametrize
def test_context_variables(make, expected):
    check(make, **expected)
