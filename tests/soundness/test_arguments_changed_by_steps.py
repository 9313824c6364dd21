"""Lists and dicts that are arguments, which a step changes at some calls, and that are read behind it."""

from __future__ import annotations

import pytest

import lazytrace
from tests.soundness.runner import Cases, X, agree, call, check

cases = Cases()


def changed(trace, body, change, *, at=(4, 6), opaque=True):
    """Nine calls. At some of them a step changes what they pass, which is put back between the calls."""
    held = {"list": [1.0, 2.0], "dict": {"k": 2.0}, "inner": [[1.0, 3.0]], "tensors": [X(3)]}
    calls = []

    def quiet(x):
        calls.append(1)
        if len(calls) in at:
            change(held)
        return x * 2

    def advanced():
        while True:
            calls.append(1)
            if len(calls) in at:
                change(held)
            yield 2.0

    it = advanced()
    op = lazytrace.opaque(quiet) if opaque else lambda x: x * next(it)
    fn = trace(lambda x, a, d, n, t: body(op, x, a, d, n, t))

    def put_back():
        held["list"][:] = [1.0, 2.0]
        held["dict"].clear()
        held["dict"].update(k=2.0)
        held["inner"][0][:] = [1.0, 3.0]
        del held["tensors"][1:]

    def step(k):
        return fn(X(3) * k, held["list"], held["dict"], held["inner"], held["tensors"])

    return fn, [one for k in range(9) for one in (call(k).of(step), put_back)], lambda: held


def append(held):
    held["list"].append(3.0)
    held["dict"]["new"] = 5.0
    held["inner"][0].append(1.0)
    held["tensors"].append(held["tensors"][0] * 2)


def assign(held):
    held["list"][0] = 7.0
    held["dict"]["k"] = 7.0
    held["inner"][0][0] = 7.0


@cases(hits=4)
def how_long_a_list_is(trace):
    return changed(trace, lambda op, x, a, d, n, t: op(x) * len(a), append)


@cases(hits=4)
def behind_a_generator(trace):
    return changed(trace, lambda op, x, a, d, n, t: op(x) * len(a), append, opaque=False)


@cases(hits=4)
def an_entry_of_a_list(trace):
    return changed(trace, lambda op, x, a, d, n, t: op(x) * a[0], assign)


@cases(hits=4)
def the_last_tensor(trace):
    return changed(trace, lambda op, x, a, d, n, t: op(x) * t[-1], append)


@cases(hits=4)
def all_of_a_list(trace):
    return changed(trace, lambda op, x, a, d, n, t: op(x) * sum(a), append)


@cases(hits=4)
def an_entry_of_a_dict(trace):
    return changed(trace, lambda op, x, a, d, n, t: op(x) * d["k"], assign)


@cases(hits=4)
def a_key_that_is_not_there(trace):
    return changed(trace, lambda op, x, a, d, n, t: op(x) * d.get("new", 1), append)


@cases(hits=4)
def how_many_a_dict_has(trace):
    return changed(trace, lambda op, x, a, d, n, t: op(x) * len(d), append)


@cases(hits=4)
def a_list_in_a_list(trace):
    return changed(trace, lambda op, x, a, d, n, t: op(x) * len(n[0]) * n[0][0], append)


@cases(hits=4)
def read_on_both_sides(trace):
    return changed(trace, lambda op, x, a, d, n, t: len(a) + op(x) * len(a), append)


@cases(hits=4)
def an_entry_on_both_sides(trace):
    return changed(trace, lambda op, x, a, d, n, t: a[0] + op(x) * a[0], assign)


@cases(hits=4)
def a_copy_of_a_list(trace):
    return changed(trace, lambda op, x, a, d, n, t: (op(x), list(a)), append)


@cases.parametrize
def test_arguments_changed_by_steps(make, expected):
    check(make, **expected)


# ---------------------------------------------------------------- read before the step and behind it
def loops(op, x, a, d, n, t):
    for one in a:
        x = op(x) * one
    return x


def loops_over_numbered(op, x, a, d, n, t):
    for i, one in enumerate(a):
        x = op(x) * one + i
    return x


def loops_over_pairs(op, x, a, d, n, t):
    for one, other in zip(a, n[0], strict=False):
        x = op(x) * one + other
    return x


def loops_over_items(op, x, a, d, n, t):
    for _, one in list(d.items()):
        x = op(x) * one
    return x * len(d)


def loops_over_tensors(op, x, a, d, n, t):
    for one in t:
        x = op(x) + one
    return x


def takes_the_next(op, x, a, d, n, t):
    rest = iter(a)
    x = op(x) * next(rest)
    return x * next(rest)


def unpacks(op, x, a, d, n, t):
    _, second = a
    x = op(x)
    return x * a[0] * second


def asks_again(op, x, a, d, n, t):
    before = len(a) + a[0] + d["k"] + n[0][0]
    x = op(x) * before
    return x * a[0] + d["k"] + n[0][0] + len(n[0])


def copies(op, x, a, d, n, t):
    before = a[:], dict(d)
    x = op(x)
    return x * len(before[0]) + before[1]["k"], a[:], dict(d)


def writes_first(op, x, a, d, n, t):
    a.append(9.0)
    x = op(x)
    return x * len(a) * a[0]


ACROSS = [
    *(loops, loops_over_numbered, loops_over_pairs, loops_over_items, loops_over_tensors),
    *(takes_the_next, unpacks, asks_again, copies, writes_first),
]


@pytest.mark.parametrize("at", [(1,), (1, 5), (3, 9), (7,), (14,)], ids=str)
@pytest.mark.parametrize("change", [append, assign])
@pytest.mark.parametrize("body", ACROSS)
def test_across_a_step(body, change, at):
    """`at`: at which calls of the step, the first of which is recorded."""
    tracer = agree(lambda trace: changed(trace, body, change, at=at))
    assert tracer.count("hits") >= 1 or 1 in at
