"""Which object a number that is followed is, asked by `is`: refused, and answered right meanwhile."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.soundness.runner import Holder, call, check

KINDS = {
    "floats": float,
    "ints": lambda value: 1000 + int(value),
    "small ints": int,
    "float64": np.float64,
    "float32": np.float32,
}


def larger_is_kept(s, x):
    s.k = max(s.k, s.other)
    return s.k is s.other


def smaller_of_two(s, x):
    return min(s.k, s.other) is s.other


def first_of_equals(s, x):
    return max([s.k, s.k * 1, s.other]) is s.k


def one_that_was_worked_out(s, x):
    double = s.k * 2
    return max(double, s.other) is double


def of_the_largest(s, x):
    double = s.other * 2
    return min(max(s.k, double), double) is double


def by_numpy(s, x):
    return np.maximum(s.k, s.other) is s.other


def compare(number, body, **expected):
    def make(trace):
        s = Holder(k=number(1.0), other=number(2.0))

        def are(k, other):
            def change():
                s.k, s.other = number(k), number(other)

            return change

        pairs = [(3.0, 4.0), (6.0, 5.0), (7.0, 7.0), (8.0, 30.0), (90.0, 9.0), (11.0, 12.0)]
        steps = [step for pair in pairs for step in (are(*pair), call(torch.ones(2)))]
        return trace(lambda x: (body(s, x), x + 1)), steps, lambda: vars(s)

    check(make, **expected)


BODIES = [larger_is_kept, smaller_of_two, first_of_equals, one_that_was_worked_out, of_the_largest]
REFUSED = {"eager": "compares-identity"}
# Of small ints there is one object each: which one it is, is its value, and each value has a recording.
EXPECTED = {"small ints": {"recordings": 6}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_what_max_and_min_give_back_is_one_of_their_arguments(kind, body):
    compare(KINDS[kind], body, **EXPECTED.get(kind, REFUSED))


def test_numpy_makes_a_number_of_its_own():
    compare(float, by_numpy, **REFUSED)
