"""Containers that hold a nan: it is equal to itself alone, so what they answer shows which object it is."""

from __future__ import annotations

import collections
import collections.abc
import itertools
import math
import operator

import numpy as np
import pytest
import torch

from lazytrace import traced
from tests.soundness.runner import X, call, check


class Items(collections.abc.Sequence):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, at):
        return self.items[at]


class Iterates:
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


def counts_in_a_list(items, one):
    found = []
    found.extend(items)
    return found.count(one)


def as_they_come(items):
    for item in items:
        yield item + 0 if item == 0 else item


LOOKS = {
    "in": lambda items, one: one in items,
    "counted": operator.countOf,
    "in_a_list": lambda items, one: one in list(items),
    "in_a_tuple": lambda items, one: one in tuple(items),
    "in_a_set": lambda items, one: one in set(items),
    "in_a_generator": lambda items, one: one in as_they_come(items),
    "counted_in_a_generator": lambda items, one: operator.countOf(as_they_come(items), one),
    "in_a_set_of_a_generator": lambda items, one: one in set(as_they_come(items)),
    "in_a_chain": lambda items, one: one in itertools.chain(items, [1.0]),
    "equal_lists": lambda items, one: list(items) == [one, 1.5],
    "equal_tuples": lambda items, one: tuple(items) == (one, 1.5),
    "less": lambda items, one: tuple(items) < (one, 2.0),
    "a_key": lambda items, one: {one: 1}.get(next(iter(items)), 0),
    "how_many": lambda items, one: len({one, *items}),
    "a_counter": lambda items, one: collections.Counter(items)[one],
    "isdisjoint": lambda items, one: {one}.isdisjoint(items),
    "grew": counts_in_a_list,
    "groups": lambda items, one: [len(list(group)) for _, group in itertools.groupby([*items, one])],
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("kind", [list, Items, Iterates])
@pytest.mark.parametrize("name", LOOKS)
def test_which_nan_it_is(name, kind, dynamic):
    def make(trace):
        one, look = float("nan"), LOOKS[name]
        inner = [one, 1.5]
        items = kind(inner) if kind is not list else inner

        def put(value):
            inner[0] = value

        twice = [call(X()) for _ in range(2)]
        values = [one, -math.nan, one, float("nan"), float("nan"), one, 3.0, one, float("nan"), one]
        steps = [step for value in values for step in (lambda value=value: put(value), *twice)]
        return trace(lambda x: (x * 2, look(items, one)), dynamic=dynamic), steps, lambda: inner

    if (name, kind) == ("in", Items):  # Python's code of `in` asks for the identity of each
        check(make, eager="compares-identity")
    else:
        check(make, hits=2)


PAIRS = {
    "equal_lists": lambda a, b: [a, 1.5] == [b, 1.5],
    "equal_tuples": lambda a, b: (a, 1.5) == (b, 1.5),
    "less": lambda a, b: (a, 1.0) < (b, 2.0),
    "nested": lambda a, b: [[a], 2] == [[b], 2],
    "decides": lambda a, b: 1 if [a] == [b] else 2,
    "in": lambda a, b: a in [b, 2.0],
    "counted": lambda a, b: [b, b].count(a),
    "in_a_set": lambda a, b: len({a, b}),
    "a_key": lambda a, b: {a: 1}.get(b),
}
NAN = float("nan")
NUMBERS = [3.0, 5.0, 6.5, NAN, NAN, float("nan"), 1.0, NAN, 2.0, NAN, 5.0, NAN]
OTHERS = [4.0, 6.0, 7.0, NAN, float("nan"), float("nan"), 2.0, NAN, NAN, NAN, 5.0, NAN]


class Held:
    a = b = 0.0


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PAIRS)
def test_two_numbers_in_state_that_become_one_nan(name, dynamic):
    def make(trace):
        held, look = Held(), PAIRS[name]

        def put(a, b):
            held.a, held.b = a, b

        step = trace(lambda x: (x * held.a, look(held.a, held.b)), dynamic=dynamic)
        pairs = zip(NUMBERS, OTHERS, strict=True)
        twice = [call(X()) for _ in range(2)]
        return step, [one for a, b in pairs for one in (lambda a=a, b=b: put(a, b), *twice)]

    check(make, hits=5)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_an_argument_and_a_number_in_state_that_are_one_nan(name, inside):
    def make(trace):
        held, look = Held(), PAIRS[name]

        def put(b):
            held.b = b

        def run(x, given):
            a = given[0] if inside else given
            return x * a, look(a, held.b)

        def called(a):
            return call(X(), [a] if inside else a)

        pairs = zip(NUMBERS, OTHERS, strict=True)
        return trace(run), [one for a, b in pairs for one in (lambda b=b: put(b), called(a), called(a))]

    check(make, hits=5)


@pytest.mark.parametrize("name", PAIRS)
def test_two_arguments_that_are_one_nan(name):
    def make(trace):
        look = PAIRS[name]
        pairs = zip(NUMBERS, OTHERS, strict=True)
        step = trace(lambda x, a, b: (x * a, look(a, b)))
        return step, [one for a, b in pairs for one in (call(X(), a, b), call(X(), a, b))]

    check(make, hits=5)


VALUES = {
    "complex": lambda: complex(math.nan, 1.0),
    "numpy": lambda: np.float64("nan"),
    "date": lambda: np.datetime64("NaT"),
    "in_a_tuple": lambda: (float("nan"), 1),
}


@pytest.mark.parametrize("name", VALUES)
def test_other_values_that_are_not_equal_to_themselves(name):
    def make(trace):
        one, other = VALUES[name](), VALUES[name]()
        held = [one]

        def put(value):
            held[0] = value

        twice = [call(X()) for _ in range(2)]
        values = [one, other, one, VALUES[name](), one]
        steps = [step for value in values for step in (lambda value=value: put(value), *twice)]
        return trace(lambda x: (x * 2, operator.countOf(iter(held), one))), steps

    check(make, hits=2)


@pytest.mark.parametrize("dynamic", [None, False, True])
@pytest.mark.parametrize("looks", ["fills", "decides"])
def test_the_sign_of_a_nan_that_is_read(looks, dynamic):
    def make(trace):
        def run(x):
            sign = math.copysign(1.0, x.item())
            return torch.full((2,), sign) if looks == "fills" else torch.ones(2) * (1 if sign > 0 else 2)

        positive, negative = torch.tensor(math.nan), torch.tensor(-math.nan)
        order = [positive, positive, negative, negative, positive, negative]
        return trace(run, dynamic=dynamic), [call(x) for x in order]

    check(make, hits=3)


def test_one_nan_is_replayed_in_arithmetic():
    def make(trace):
        held = Held()
        held.a = math.nan
        return trace(lambda x: x * held.a), [call(X()) for _ in range(3)]

    check(make, hits=2, recordings=1)


def test_results_that_are_nan_are_objects_of_the_call():
    def make(trace):
        def run(x):
            a, b = x.sum().item(), x.sum().item()
            return [a] == [a], [a] == [b], a in [b, a], [a, b].count(a)

        nan = torch.tensor([math.nan, 1.0])
        return trace(run), [call(torch.ones(2)), call(torch.ones(2)), *[call(nan) for _ in range(4)]]

    check(make, hits=2)


def test_a_nan_that_is_a_key_is_found():
    """Its hash is where it lies."""

    def run(t):
        n = t.item()
        return dict([(n, 1)])  # noqa: C406 (the class is called)

    step = traced(run)
    for value in (0.5, math.nan, math.nan, 2.0, math.nan):
        found = step(torch.tensor(value))
        assert all(key in found for key in found)


@pytest.mark.parametrize("chooses", [max, min])
@pytest.mark.parametrize("at", [0, 1])
def test_the_largest_of_a_list_is_looked_for(chooses, at):
    """Worked out from followed numbers it would be another nan, which no list has."""

    def make(trace):
        held = [0.0, 1.5, 2.0]

        @trace
        def fn(x):
            found = chooses(held)
            return x * held.index(found), found in held

        def put(value):
            return lambda: held.__setitem__(at, value)

        steps = [call(X()), put(3.5), call(X()), put(9.5), call(X()), put(math.nan), call(X()), call(X())]
        return fn, [*steps, put(math.nan), call(X()), put(1.0), call(X())], lambda: [repr(v) for v in held]

    check(make, recordings=5, hits=2)


def test_the_largest_of_a_growing_list_is_looked_for():
    def make(trace):
        held = [0.0, 1.5, 2.0]

        @trace
        def fn(x):
            held.append(x.sum().item())
            found = max(held)
            return x * held.index(found), found in held

        def put(value):
            return lambda: held.__setitem__(0, value)

        steps = [call(X() * (i + 1)) for i in range(8)]
        steps.insert(6, put(1.0))
        steps.insert(4, put(math.nan))
        return fn, steps, lambda: [repr(value) for value in held]

    check(make, eager="reads a nan in a list", recordings=3)
