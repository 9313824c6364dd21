"""Kept views and wrappers show what the function knows by another way, too: a dict, a function."""

from __future__ import annotations

import collections
from types import MappingProxyType

import pytest

from tests.soundness.runner import Holder, X, around, call, check


def loop(view):
    total = 0.0
    for v in view:
        total += v
    return total


def twice(v):
    return v * 2


# How a function comes to know the dict itself before it asks the view.
KNOWN = {
    "item": lambda d: d["p"],
    "length": len,
    "values": lambda d: sum(d.values()),
    "keys": lambda d: len(list(d)),
}
ASKED = {
    "sum": sum,
    "loop": loop,
    "generator": lambda view: sum(v for v in view),
    "map": lambda view: sum(map(twice, view)),
    "length": len,
    "iter": lambda view: next(iter(view)),
    "member": lambda view: 5.0 in view,
}


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("asked", ASKED)
def test_a_view_of_another_dict(known, asked):
    """It shows that dict, and no guard of the first says so."""

    def make(trace):
        state = Holder(d={"p": 1.0, "q": 2.0})
        state.view = state.d.values()
        know, ask = KNOWN[known], ASKED[asked]
        changed = {"a": 5.0}.values()
        steps = [*around(lambda: setattr(state, "view", changed), X()), lambda: state.d.update(p=3.0)]
        return trace(lambda x: x * know(state.d) + ask(state.view)), [*steps, call(X()), call(X())]

    check(make, hits=2)


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, MappingProxyType, collections.defaultdict])
@pytest.mark.parametrize("shown", ["keys", "items"])
def test_keys_of_another_dict(kind, shown):
    def made(**entries):
        return kind(entries) if kind is not collections.defaultdict else kind(int, entries)

    def make(trace):
        state = Holder(d=made(p=1.0), other=made(p=1.0, q=2.0))
        state.view = getattr(state.d, shown)()

        def step(x):
            return x * state.d["p"] + state.other["q"] + len(state.view)

        return trace(step), around(lambda: setattr(state, "view", getattr(state.other, shown)()), X())

    plain = kind is not collections.OrderedDict
    check(make, hits=2) if plain else check(make, eager="reads a ")


@pytest.mark.parametrize("kind", [classmethod, staticmethod])
def test_a_wrapper_of_another_function(kind):
    """What `__get__` gives is the function that it holds."""

    def make(trace):
        def one(*_):
            return 1.0

        def two(*_):
            return 2.0

        state = Holder(wrapper=kind(one))

        def step(x):
            return x * one() + two() + state.wrapper.__get__(None, int)()

        return trace(step), around(lambda: setattr(state, "wrapper", kind(two)), X())

    check(make, hits=2)


def test_a_wrapper_of_no_function():
    def make(trace):
        state = Holder(wrapper=classmethod(len))

        def step(x):
            return x * callable(state.wrapper.__get__(None, int))

        return trace(step), around(lambda: setattr(state, "wrapper", classmethod(max)), X())

    check(make, eager="reads a classmethod")
