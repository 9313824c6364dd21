"""A function that writes to a namespace at each call, beside things in it that change."""

from __future__ import annotations

import types

import pytest
import torch

from tests.soundness.runner import Cases, X, call, check

cases = Cases()


def twice(x):
    return x * 2


def thrice(x):
    return x * 3


class Scaled:
    factor = 2.0

    def __init__(self):
        self.n, self.step, self.helper, self.parts = 0, 1.0, twice, [1.0, 2.0]
        self.inner = types.SimpleNamespace(k=1.0, deep=types.SimpleNamespace(k=2.0))
        self.weight = torch.ones(3)

    def scale(self, x, by=1.0, *, plus=0.0):
        return x * by * self.factor + plus

    def __call__(self, x):
        self.seen = x
        x = self.helper(self.scale(x)) * self.step * self.inner.k * self.inner.deep.k
        return x * self.parts[1] * self.weight


class Other(Scaled):
    factor = 5.0

    def scale(self, x, by=1.0, *, plus=0.0):
        return x * by * self.factor + plus + 1


def other_parts():
    return types.SimpleNamespace(k=3.0, deep=types.SimpleNamespace(k=4.0))


CHANGES = {
    "a constant": lambda one: setattr(one, "step", 4.0),
    "a function": lambda one: setattr(one, "helper", thrice),
    "the code of a function": lambda one: setattr(one.helper, "__code__", thrice.__code__),
    "an object": lambda one: setattr(one, "inner", other_parts()),
    "what an object has": lambda one: setattr(one.inner, "deep", types.SimpleNamespace(k=7.0)),
    "an object deep inside": lambda one: setattr(one.inner.deep, "k", 9.0),
    "a list": lambda one: setattr(one, "parts", [1.0, 3.0]),
    "an element": lambda one: one.parts.__setitem__(1, 5.0),
    "a tensor": lambda one: setattr(one, "weight", torch.full((3,), 2.0)),
    "a tensor of another look": lambda one: setattr(one, "weight", torch.ones(1, 3)),
    "the class": lambda one: setattr(one, "__class__", Other),
    "what hides a method": lambda one: setattr(one, "scale", thrice),
    "what hides an attribute of the class": lambda one: setattr(one, "factor", 6.0),
    "a new entry": lambda one: setattr(one, "unused", 1.0),
    "the defaults of a method": lambda one: setattr(type(one).scale, "__defaults__", (3.0,)),
    "keywords of a method": lambda one: setattr(type(one).scale, "__kwdefaults__", {"plus": 2.0}),
    "no defaults": lambda one: setattr(one, "helper", types.FunctionType(twice.__code__, {})),
    "an attribute that is gone": lambda one: delattr(one, "step"),
    "the namespace": lambda one: setattr(one, "__dict__", {**vars(one), "step": 8.0}),
}


@pytest.fixture(autouse=True)
def _functions():
    code, scale = twice.__code__, Scaled.scale
    defaults, keywords = scale.__defaults__, scale.__kwdefaults__
    yield
    twice.__code__, scale.__defaults__, scale.__kwdefaults__ = code, defaults, keywords


@pytest.mark.parametrize("change", CHANGES)
def test_a_namespace_that_every_call_writes_to(change):
    def make(trace):
        one = Scaled()
        twice.__code__ = DOUBLE
        Scaled.scale.__defaults__, Scaled.scale.__kwdefaults__ = (1.0,), {"plus": 0.0}

        def alter():
            CHANGES[change](one)

        calls = [call(X())] * 3
        return trace(lambda x: one(x)), [*calls, alter, *calls, *calls], lambda: vars(one)

    check(make, hits=2)


DOUBLE = twice.__code__


# Another object at the address of the one that was there.
@cases(hits=3)
def objects_that_take_the_place_of_others(trace):
    class Holder:
        pass

    holder = Holder()
    holder.part = types.SimpleNamespace(k=1.0)

    def fn(x):
        holder.last = x
        return x * holder.part.k

    def replace(k):
        def change():
            holder.part = None
            holder.part = types.SimpleNamespace(k=k)

        return change

    steps = [call(X())] * 3
    for k in range(2, 6):
        steps += [replace(float(k)), call(X()), call(X())]
    return trace(fn), steps


# One object in two places, of which one is another object later.
@cases(hits=2)
def places_with_one_object(trace):
    part = types.SimpleNamespace(k=1.0)
    holder = types.SimpleNamespace(a=part, b=part, n=0)

    def fn(x):
        holder.last = x
        holder.a.k = 2.0
        return x * holder.b.k

    def apart():
        holder.b = types.SimpleNamespace(k=1.0)

    return trace(fn), [*[call(X())] * 3, apart, *[call(X())] * 3], lambda: vars(holder)


@cases.parametrize
def test_changing_namespaces(make, expected):
    check(make, **expected)
