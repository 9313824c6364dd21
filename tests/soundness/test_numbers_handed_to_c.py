"""Functions of C that C code calls for each item of an iterator, which gives numbers that are followed.

Methods of int and float take the digits of what they are given, without a call that would be seen.
"""

from __future__ import annotations

import functools
import itertools
import operator

import pytest
import torch

from tests.soundness.runner import Holder, X, call, check

ITEMS = {"bools": [True, False], "ints": [1, 0], "floats": [1.5, 0.5]}
FUNCTIONS = {
    "bools": [round, int.bit_length, int.__neg__, int.conjugate, bool.__repr__, int.__bool__, float, int],
    "ints": [round, int.bit_length, int.__index__, int.__float__, (1).__add__, hex, float],
    "floats": [round, float.is_integer, float.hex, (1.5).__mul__, float.__int__, operator.neg, torch.tensor],
}
WAYS = {
    "map": lambda f, items: list(map(f, items)),
    "generator": lambda f, items: list(map(f, (item for item in items))),
    "view": lambda f, items: list(map(f, dict(enumerate(items)).values())),
    "unpacked": lambda f, items: list(map(*(f, items))),
    "keywords": lambda f, items: max(*[(item for item in items)], key=f),
    "filter": lambda f, items: list(filter(f, items)),
    "sorted": lambda f, items: sorted((item for item in items), key=f),
    "max": lambda f, items: max((item for item in items), key=f),
    "accumulate": lambda f, items: list(itertools.accumulate(map(f, items), lambda a, b: b)),
    "starmap": lambda f, items: list(itertools.starmap(f, ((item,) for item in items))),
    "takewhile": lambda f, items: list(itertools.takewhile(f, (item for item in items))),
    "groupby": lambda f, items: [k for k, _ in itertools.groupby((item for item in items), f)],
    "partial": lambda f, items: list(map(functools.partial(f), items)),
}


def changed(items):
    """The other of the first two of its kind."""
    return (not items[0]) if isinstance(items[0], bool) else items[0] + 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("kind", "function"), [(kind, function) for kind, all_of in FUNCTIONS.items() for function in all_of]
)
def test_numbers_handed_to_c(way, kind, function):
    if way in ("sorted", "max", "keywords") and function is torch.tensor:
        pytest.skip("a key that is a tensor is asked for its truth, which is another case")

    def make(trace):
        state = Holder(items=list(ITEMS[kind]), found=None)

        @trace
        def fn(x):
            state.found = WAYS[way](function, state.items)
            return x * 2

        def change():
            state.items[0] = changed(state.items)

        steps = []
        for i in range(9):
            steps += [change, call(X())] if i in (2, 4, 5, 7) else [call(X())]
        return fn, steps, lambda: (state.items, [repr(one) for one in _listed(state.found)])

    check(make, hits=1)


def _listed(found):
    return found if isinstance(found, list) else [found]


def test_a_key_among_keywords():
    def make(trace):
        fn = trace(lambda x, k: max(*[[k, 1]], key=int.__neg__))
        return fn, [call(X(), k) for k in (0, 1, 2, 3, 0, 3)], lambda: None

    check(make, hits=1)


@pytest.mark.parametrize("function", [int.bit_length, int.__neg__, float.hex])
def test_values_of_tensors_that_are_the_first_numbers(function):
    def make(trace):
        convert = float if function is float.hex else int

        @trace
        def fn(x):
            return list(map(function, (convert(one.item()) for one in x)))

        return fn, [call(torch.tensor([i, 2, 7 * i])) for i in (1, 2, 2, 5, 1)], lambda: None

    check(make, hits=1)


# ---------------------------------------------------------------- of how many
@pytest.mark.parametrize("way", ["by place", "by name", "of the size"])
def test_permutations_of_as_many(way):
    """The class takes an int itself, and keeps what it is given."""

    def make(trace):
        s = Holder(k=1, q=[1, 2, 3], found=None)

        @trace
        def fn(x):
            if way == "by place":
                found = itertools.permutations(s.q, s.k)
            elif way == "by name":
                found = itertools.permutations(iterable=s.q, r=s.k)
            else:
                found = itertools.permutations(x.shape, x.shape[0] - 1)
            s.found = [list(one) for one in found]
            return x * len(s.found)

        def change():
            s.k = s.k % 3 + 1

        def shape(i):
            return torch.ones(i % 3 + 2 if way == "of the size" else 2, 2)

        steps = [step for i in range(6) for step in (call(shape(i)), call(shape(i)), change)]
        return fn, steps, lambda: s.found

    check(make, hits=6)


def test_an_attribute_that_c_keeps_as_a_number():
    def make(trace):
        @trace
        def fn(x, n):
            error = UnicodeEncodeError("ascii", "abcdef", 0, 5, "why")
            error.start = n
            error.end = n + 1
            return x * 2, str(error)

        return fn, [call(X(), n) for n in (1, 2, 3, 3, 4, 3)], lambda: None

    check(make, hits=2)
