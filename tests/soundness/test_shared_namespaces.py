"""Objects that share one namespace, as the states of accelerate do."""

from __future__ import annotations

import types

import pytest

from tests.soundness.runner import X, agree, call, check


class Borg:
    """All of a family are one."""

    def __init__(self, family):
        self.__dict__ = family


def flag(x, a, b):
    y = x * 2 if b.on else x * 3
    a.on = not a.on
    return y


def counts_then_asks(x, a, b):
    a.n += 1
    a.on = a.n % 2 == 0
    return x * 2 if b.on else x * 3


def asks_one_counts_with_the_other(x, a, b):
    y = x * b.n
    a.n = b.n + 1
    return y


def reads_back_by_the_other(x, a, b):
    a.n = a.n + 1
    return x * b.n


def both_count(x, a, b):
    a.n += 1
    b.n += 1
    return x * a.n + b.n


def makes_an_attribute(x, a, b):
    a.new = 3.0
    return x * getattr(b, "new", 1.0) + (2 if hasattr(a, "new") else 1)


def deletes_an_attribute(x, a, b):
    a.gone = 1
    del b.gone
    return x * (2 if hasattr(a, "gone") else 3)


def looks_at_the_namespace(x, a, b):
    a.n += 1
    return x * len(vars(b)) + b.__dict__["n"]


def keeps_a_tensor(x, a, b):
    a.kept = x * 2
    return b.kept + 1


def sets_all(x, a, b):
    a.__dict__.update(n=a.n + 1)
    return x * b.n


USES = [flag, counts_then_asks, asks_one_counts_with_the_other, reads_back_by_the_other, both_count]
OTHERS = [makes_an_attribute, deletes_an_attribute, looks_at_the_namespace, keeps_a_tensor, sets_all]


def family():
    return {"n": 1, "on": False, "kept": None}


def counting(use, apart):
    def make(trace):
        one = family()
        a, b = Borg(one), Borg(family() if apart else one)
        return trace(lambda x: use(x, a, b)), [call(X()) for _ in range(14)], lambda: [vars(a), vars(b)]

    return make


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("use", USES, ids=lambda one: one.__name__)
def test_namespace_of_several(use, apart):
    check(counting(use, apart), hits=8)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("use", OTHERS, ids=lambda one: one.__name__)
def test_other_uses_of_a_namespace_of_several(use, apart):
    agree(counting(use, apart))


@pytest.mark.parametrize("use", USES + OTHERS, ids=lambda one: one.__name__)
def test_namespaces_that_come_together_and_part(use):
    """Whether objects share one is looked at by each replay."""

    def make(trace):
        one, other = family(), family()
        st = types.SimpleNamespace(a=Borg(one), b=Borg(one))
        fn = trace(lambda x: use(x, st.a, st.b))

        def arrange_and_call(x, a, b):
            st.a.__dict__, st.b.__dict__ = (one, other)[a], (one, other)[b]
            return fn(x)

        turns = [(0, 0)] * 4 + [(0, 1)] * 3 + [(1, 1)] * 4 + [(1, 0), (0, 0), (0, 1), (1, 1), (0, 0)]
        return arrange_and_call, [call(X(), *turn) for turn in turns], lambda: [one, other]

    agree(make)


@pytest.mark.parametrize("use", USES + OTHERS, ids=lambda one: one.__name__)
def test_one_object_after_the_other(use):
    """The very same one in both places, two that share a namespace, two that do not."""

    def make(trace):
        one = family()
        a, b, c = Borg(one), Borg(one), Borg(family())
        fn = trace(use)
        pairs = [
            (a, b),
            (a, b),
            (a, b),
            (a, a),
            (a, b),
            (a, c),
            (b, a),
            (c, c),
            (a, b),
            (c, a),
            (b, b),
            (a, b),
        ]
        return fn, [call(X(), *pair) for pair in pairs], lambda: [one, vars(c)]

    agree(make)


def test_three_of_a_family_and_a_dict_of_it():
    def make(trace):
        one = family()
        a, b, c = Borg(one), Borg(one), Borg(one)

        def fn(x):
            a.n += 1
            y = x * b.n
            c.n += 1
            return y + one["n"] + a.n

        return trace(fn), [call(X()) for _ in range(10)], lambda: one

    agree(make)
