"""What Python sees of a tensor that its look does not say: its class, attributes, a gradient beside no graph.

Of tensors that steps give: those of opaque functions, of places that are followed, and gradients.
"""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import lazytrace
from tests.soundness.runner import Cases, Holder, X, call, check

cases = Cases()


class Mine(torch.Tensor):
    pass


def decorated(t, **attributes):
    for name, value in attributes.items():
        setattr(t, name, value)
    return t


def with_gradient(t):
    t.grad = torch.ones_like(t)
    return t


# What makes another tensor of the same look; what is asked of it.
OTHERS = {
    "attribute": lambda t: decorated(t, tag=3),
    "parameter": lambda t: nn.Parameter(t, requires_grad=False),
    "class": lambda t: t.as_subclass(Mine),
    "gradient": with_gradient,
}


def asked_of(t):
    return t * 2, getattr(t, "tag", None), type(t).__name__, t.grad is None


def steps(*changes):
    made = [call(X()) for _ in range(6)]
    for change in changes:
        made += [change, *(call(X()) for _ in range(4))]
    return made


def drawn(trace, make):
    s = Holder(pool=[X() * n for n in range(6)])

    def fn(x):
        return asked_of(s.pool[random.randrange(6)])

    def change():
        s.pool[:] = [make(X() * n) for n in range(6)]

    return trace(fn), steps(change)


def given(trace, make):
    s = Holder(make=lambda t: t)

    @lazytrace.opaque
    def give(x):
        return s.make(x * 3)

    def fn(x):
        return asked_of(give(x))

    return trace(fn), steps(lambda: setattr(s, "make", make))


def read_late(trace, make):
    s = Holder(make=lambda t: t, t=None)

    @lazytrace.opaque
    def give(x):
        s.t = s.make(x * 3)
        return x * 1

    def fn(x):
        return give(x) + 1, asked_of(s.t)

    return trace(fn), steps(lambda: setattr(s, "make", make))


def of_autograd(trace, make):
    s = Holder(make=lambda t: t)

    class Triple(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return s.make(x * 3)

        @staticmethod
        def backward(ctx, g):
            return g * 3

    def fn(x):
        return asked_of(Triple.apply(x))

    return trace(fn), steps(lambda: setattr(s, "make", make))


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("way", [drawn, given, read_late, of_autograd], ids=lambda way: way.__name__)
def test_a_step_gives_another(way, other):
    check(lambda trace: way(trace, OTHERS[other]), hits=4)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("other", OTHERS)
def test_a_gradient_becomes_another(other, early):
    def make(trace):
        p = nn.Parameter(torch.ones(3))
        if early:
            p.grad = torch.zeros(3)

        def fn(x):
            if not early:
                (p * x).sum().backward()
            return asked_of(p.grad)

        def change():
            p.grad = OTHERS[other](torch.zeros(3))

        def change_back():
            p.grad = torch.zeros(3)

        return trace(fn), steps(change, change_back), lambda: [p.grad]

    check(make, hits=8)


@cases(eager="put-on-tensor")
def an_attribute_that_differs_from_call_to_call(trace):
    s = Holder(n=0)

    @lazytrace.opaque
    def give(x):
        s.n += 1
        return decorated(x * 2, tag=s.n)

    def fn(x):
        return give(x) * 2, give(x).tag

    return trace(fn), steps(), lambda: [s.n]


@cases(eager="put-on-tensor")
def an_attribute_that_comes_later(trace):
    s = Holder(n=0)

    @lazytrace.opaque
    def give(x):
        s.n += 1
        return decorated(x * 2, tag=s.n, **({"late": 2} if s.n > 3 else {}))

    def fn(x):
        return x * getattr(give(x), "late", 1)

    return trace(fn), steps(), lambda: [s.n]


@cases(eager="put-on-tensor")
def an_attribute_of_an_argument_of_a_step(trace):
    s = Holder(n=0)

    @lazytrace.opaque
    def put(x):
        s.n += 1
        x.tag = s.n

    def fn(x):
        y = x * 2
        put(y)
        return y * y.tag

    return trace(fn), steps(), lambda: [s.n]


def test_an_attribute_that_a_later_call_puts_on_an_argument_is_told():
    s = Holder(n=0)

    @lazytrace.opaque
    def put(x):
        s.n += 1
        if s.n > 3:
            x.tag = s.n

    @lazytrace.traced
    def fn(x):
        y = x * 2
        put(y)
        return y * getattr(y, "tag", 1)

    for _ in range(3):
        fn(X())
    assert fn.stats().hits == 2
    with pytest.raises(lazytrace.ReplayError, match="put attributes on"):
        fn(X())


@cases.parametrize
def test_traits(make, expected):
    check(make, **expected)
