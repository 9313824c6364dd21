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


@cases.parametrize
def test_context_variables(make, expected):
    check(make, **expected)
