"""Which object a number that is followed is, asked by `is`: refused, and answered right meanwhile."""

from __future__ import annotations

import os
import random
from collections import defaultdict, deque

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


# ---------------------------------------------------------------- once the recording has ended
def ends_the_recording():
    return os.getpid()


def by_place(s, x):
    drawn = s.pool[s.n % 4]
    return [drawn is one for one in s.pool]


def by_draw(s, x):
    drawn = random.choice(s.pool)
    return [drawn is one for one in s.pool], s.pool.index(drawn)


def by_id(s, x):
    drawn = s.pool[s.n % 4]
    return [id(drawn) == id(one) for one in s.pool]


def in_containers(s, x):
    drawn = s.pool[s.n % 4]
    all_, table, pair, queue = [[drawn]], {"a": drawn}, (drawn, 1), deque([drawn])
    ends_the_recording()
    return [
        (one is all_[0][0], one is table["a"], one is pair[0], one is queue[0], one is drawn)
        for one in s.pool
    ]


def in_a_closure(s, x):
    drawn = s.pool[s.n % 4]

    def which():
        return [drawn is one for one in s.pool]

    ends_the_recording()
    return which()


def in_a_function_that_waits(s, x):
    kept = s.pool[s.n % 4]

    def inner():
        ends_the_recording()
        return [kept is one for one in s.pool]

    return inner(), [kept is one for one in s.pool]


def while_it_is_gone_through(s, x):
    found = []
    for place, one in enumerate(s.pool):
        if place == 1:
            ends_the_recording()
        found.append([one is other for other in s.pool])
    return found


def in_what_the_call_makes(s, x):
    drawn = s.pool[s.n % 4]
    made, table = Holder(), defaultdict(list)
    made.one, made.more, table["one"] = drawn, [drawn], drawn

    def with_default(one=drawn):
        return one

    def waits():
        kept = drawn
        yield 0
        yield kept

    def outer():
        kept = drawn
        return lambda: kept

    waiting, inner = waits(), outer()
    next(waiting)
    ends_the_recording()
    held = [made.one, made.more[0], table["one"], with_default(), next(waiting), inner()]
    return [[one is other for other in s.pool] for one in held]


def in_state(s, x):
    s.kept = s.pool[s.n % 4]
    s.held = [s.kept]
    ends_the_recording()
    return [(s.kept is one, s.held[0] is one) for one in s.pool]


def what_sorted_and_max_gave(s, x):
    ordered, most = sorted(s.pool), max(s.pool)
    ends_the_recording()
    return [[one is other for other in s.pool] for one in (*ordered, most)]


STATE = {
    "floats": lambda: [1.5, 2.5, float("1.5"), 3.5],
    "ints": lambda: [1000, 2000, int("1000"), 3000],
    "small ints": lambda: [1, 2, 1, 3],
    "texts": lambda: ["one", "two", "".join(["o", "ne"]), "six"],
    "pairs": lambda: [(1, 2.0), (3, 4.0), (1, float("2.0")), (5, 6.0)],
}
OF_STATE = {
    **dict.fromkeys((by_place, by_draw, while_it_is_gone_through), "compares-identity"),
    by_id: "calls id()",
    **dict.fromkeys((in_containers, in_a_closure, in_a_function_that_waits), "calls posix.getpid()"),
    **dict.fromkeys((in_what_the_call_makes, in_state), "calls posix.getpid()"),
    what_sorted_and_max_gave: "calls posix.getpid()",
}
# Of small ints there is one object each; a float that was drawn is given at no other call.
ELSE = {
    (by_place, "small ints"): {"hits": 5},
    (by_draw, "small ints"): {"hits": 5},
    (while_it_is_gone_through, "small ints"): {"eager": "calls posix.getpid()"},
    **{(body, "floats"): {"eager": "asked-value"} for body in (by_place, by_draw, by_id)},
}


@pytest.mark.parametrize("kind", STATE)
@pytest.mark.parametrize("body", OF_STATE, ids=lambda body: body.__name__)
def test_the_call_that_records_answers_as_any(kind, body):
    def make(trace):
        s = Holder(pool=STATE[kind](), n=0)

        def step(x):
            s.n += 1
            return body(s, x), x + 1

        def kept():
            return [getattr(s, "kept", None) is one for one in s.pool]

        return trace(step), [call(torch.ones(2)) for _ in range(8)], lambda: (s.n, kept())

    check(make, **ELSE.get((body, kind), {"eager": OF_STATE[body]}))


def test_a_list_that_is_followed_gives_its_own():
    """What goes through it gave numbers that are followed until the recording has ended."""

    def make(trace):
        s = Holder(pool=[0.5 + i for i in range(8)])

        def step(x):
            drawn = random.choice(s.pool)
            return [drawn is one for one in s.pool], x + 1

        step = trace(step)
        return step, [one for _ in range(5) for one in (call(torch.ones(2)), lambda: s.pool.pop(0))]

    check(make, eager="asked-value")


def test_small_ints_that_were_worked_out_are_those_of_python():
    def make(trace):
        s = Holder(n=1, next=2, ends=False)

        def step(x):
            s.next, found = s.n + 1, [s.n + 2]
            if s.ends:
                ends_the_recording()
                return s.next is int(str(s.next)), found[0] is int(str(found[0])), x + 1
            return x + s.next

        def change():
            s.n += 1
            s.ends = s.n > 3

        steps = [one for _ in range(6) for one in (call(torch.ones(2)), change)]
        return trace(step), steps, lambda: s.next is int(str(s.next))

    check(make, hits=1, eager="calls posix.getpid()")


class WithProperty:
    """Its attribute lies under the name of the property."""

    def __init__(self, n, told):
        self.__dict__["n"] = n
        self.__dict__["told"] = told

    @property
    def n(self):
        return self.__dict__["n"]

    @n.setter
    def n(self, value):
        self.told.append(value)
        self.__dict__["n"] = value * 100


class Checked:
    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, owner, cls=None):
        return owner.__dict__[self.name]

    def __set__(self, owner, value):
        owner.told.append(value)
        owner.__dict__[self.name] = value


class WithDescriptor:
    n = Checked()

    def __init__(self, n, told):
        self.told = told
        self.__dict__["n"] = n


@pytest.mark.parametrize("cls", [WithProperty, WithDescriptor])
def test_what_sets_an_attribute_is_not_called_for_it(cls):
    def make(trace):
        s = Holder(n=3, kept=None, told=[])

        def step(x):
            s.kept = cls(s.n + 1, s.told)
            made = cls(s.n, s.told)
            return x * made.n, made.n, s.kept.n

        def change():
            s.n += 100

        steps = [one for _ in range(4) for one in (call(torch.ones(2)), call(torch.ones(2)), change)]
        return trace(step), steps, lambda: (s.told, s.kept and s.kept.__dict__)

    check(make, hits=5)
