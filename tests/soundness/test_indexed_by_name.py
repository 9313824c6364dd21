"""Tensors whose items are asked for and set by functions and methods: as `tensor[key]` does it."""

from __future__ import annotations

import operator

import pytest
import torch

from tests.processes import python
from tests.soundness.runner import call, check

# In some of them the slices go through all rows, of which torch makes no slice.
SIZES = [(4, 3), (6, 3), (5, 3), (8, 3), (1, 3), (0, 3), (0, 3), (2, 3), (0, 4), (3, 3), (2, 7), (7, 2)]


def by_method(x, key, value):
    x.__setitem__(key, value)
    return x


def by_the_class(x, key, value):
    torch.Tensor.__setitem__(x, key, value)
    return x


def by_operator(x, key, value):
    operator.setitem(x, key, value)
    return x


SETTERS = [by_method, by_the_class, by_operator]
GETTERS = {
    "method": lambda x, key: x.__getitem__(key),
    "class": torch.Tensor.__getitem__,
    "operator": operator.getitem,
}
KEYS = {
    "half": lambda x: slice(0, x.shape[0] // 2),
    "rest": lambda x: slice(x.shape[0] // 2, None),
    "others": lambda x: slice(0, x.shape[1]),
    "columns": lambda x: (slice(None), slice(0, x.shape[0])),
    "whole": lambda x: slice(0, x.shape[0]),
}
VALUES = {"number": lambda x, key: 1.5, "size": lambda x, key: x.shape[1], "rows": lambda x, key: x[key] * 2}


def of_sizes():
    return [call(torch.ones(*size, requires_grad=True)) for size in SIZES]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("how", SETTERS, ids=lambda how: how.__name__)
def test_items_that_are_set(how, key, value):
    def make(trace):
        return trace(lambda x: how(x.clone(), KEYS[key](x), VALUES[value](x, KEYS[key](x)))), of_sizes()

    check(make, hits=7)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("how", GETTERS)
def test_items_that_are_asked_for(how, key):
    def make(trace):
        return trace(lambda x: GETTERS[how](x, KEYS[key](x))), of_sizes()

    check(make, hits=8)


def with_a_method_of_somebody(name):
    usual = getattr(torch.Tensor, name)

    def make(trace):
        def step(x):
            y = x * 2
            usual(y, slice(0, x.shape[0] // 2), *([x[0] + 5] if name == "__setitem__" else []))
            operator.setitem(y, 0, 1.0)
            return y, operator.getitem(y, slice(0, x.shape[1]))

        def put(method):
            return lambda: setattr(torch.Tensor, name, method)

        def own(self, *args):
            return usual(self + 1 if name == "__getitem__" else self, *args)

        arguments = [call(torch.ones(n, 3)) for n in (2, 3, 4, 5)]
        return trace(step), [*arguments, put(own), *arguments, put(usual), *arguments]

    check(make, hits=4)


@pytest.mark.parametrize("name", ["__getitem__", "__setitem__"])
def test_a_method_of_somebody_calls_the_one_of_torch(name):
    """Which must not come to that of somebody again.

    In a process of its own: whoever has once set it has changed for good what C code takes a tensor for.
    """
    code = f"from {__name__} import *; with_a_method_of_somebody({name!r}); print('equal')"
    done = python("-c", code)
    assert done.stdout.split() == ["equal"], done.stderr
