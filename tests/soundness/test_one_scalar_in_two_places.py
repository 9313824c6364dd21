"""Which numbers of numpy's in a result are one object, where they lie in state."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.soundness.runner import Holder, call, check

# Those that are followed, and those that are compared with what they were.
FOLLOWED = {"float32": np.float32, "int64": np.int64}
COMPARED = {"int32": np.int32, "float16": np.float16, "uint8": np.uint8}

BODIES = {
    "a tuple": lambda s: (s.k, s.other),
    "a list": lambda s: [s.k, s.other],
    "a dict": lambda s: {"k": s.k, "other": s.other},
    "apart": lambda s: ((s.k, 1), [s.other]),
    "entries": lambda s: [*s.rows],
    "one of them twice": lambda s: (s.k, s.k, s.other),
    "a sorted list": lambda s: sorted(s.rows),
    "what is stored": lambda s: setattr(s, "kept", s.k) or s.other,
}


def results(number, text, pairs):
    """The function, called with each pair: whether it is one object, and what it is."""

    def make(trace):
        s = Holder(k=number(1), other=number(2), rows=[number(1), number(2)], kept=None)

        def put(one, k, other):
            def change():
                s.k, s.other = number(k), number(other)
                s.other = s.k if one else s.other
                s.rows[:] = [s.k, s.other]

            return change

        steps = [step for pair in pairs for step in (put(*pair), call(torch.ones(2)))]
        return trace(lambda x: (BODIES[text](s), x * 2)), steps, lambda: [s.kept]

    return make


APART_AND_ONE = [
    *[(False, 3, 3)] * 3, *[(True, 3, 3)] * 3, *[(False, 3, 3)] * 2, *[(True, 3, 3)] * 2
]  # fmt: skip
OTHERS_EACH_TIME = [*[(False, k, k + 1) for k in range(4)], *[(True, k, k) for k in range(4)], (False, 1, 1)]


@pytest.mark.parametrize("text", BODIES)
@pytest.mark.parametrize("kind", FOLLOWED | COMPARED)
def test_of_equal_numbers(kind, text):
    check(results((FOLLOWED | COMPARED)[kind], text, APART_AND_ONE), hits=1)


@pytest.mark.parametrize("text", BODIES)
@pytest.mark.parametrize("kind", FOLLOWED)
def test_of_numbers_that_are_followed(kind, text):
    by_value = (kind, text) == ("int64", "a sorted list")
    check(results(FOLLOWED[kind], text, OTHERS_EACH_TIME), **({"recordings": 9} if by_value else {"hits": 6}))


def passed(kind, body):
    def make(trace):
        steps = [call(torch.ones(2), FOLLOWED[kind](k)) for k in (1, 2, 3, 4)]
        return trace(body), steps

    return make


@pytest.mark.parametrize("kind", FOLLOWED)
def test_of_one_that_is_passed(kind):
    check(passed(kind, lambda x, k: (x, k, [k])), hits=2)


@pytest.mark.parametrize("kind", FOLLOWED)
def test_of_one_that_is_worked_out_once(kind):
    def body(x, k):
        twice = k + k
        return x, twice, {"twice": twice}

    check(passed(kind, body), hits=2)


@pytest.mark.parametrize("kind", FOLLOWED)
def test_of_one_that_is_worked_out_twice(kind):
    check(passed(kind, lambda x, k: (x, k + k, k + k)), hits=2)


@pytest.mark.parametrize("kind", FOLLOWED)
def test_of_some_that_are_worked_out_twice(kind):
    def body(x, k):
        one, other = k + k, k + k
        return x, [one, other], (other, one), k, one

    check(passed(kind, body), hits=2)
