"""A function that runs again and comes to its numbers by another path than when it was recorded."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from tests.soundness.runner import Cases, Holder, call, check

cases = Cases()

OTHERWISE = "resumes-otherwise"


class Valued:
    def __init__(self, value):
        self.value = value


def as_tensor(x, number):
    return x + number


def as_scalar(x, number):
    return torch.add(x, x, alpha=number)


def as_entry(x, number):
    return torch.tensor([number, 1.0])[0] * x


def as_condition(x, number):
    return x * number if number > 0 else x


def as_loop(x, number):
    return sum(x for _ in range(int(number)))


USES = [as_tensor, as_scalar, as_entry, as_condition, as_loop]


def owners(use, value, *, both):
    """`second` is another object for a while, whose number is followed; that of `first` if both are."""

    def make(trace):
        state = Holder(log=[], count=torch.zeros(2))
        one, other = Valued(value), Valued(value * 3)
        state.first, state.second = one, other

        def fn(x):
            state.second.value  # noqa: B018
            y = use(x, state.first.value)
            state.log.append(f"{y.sum().item():.3f}")
            state.count.add_(1)
            return y + state.count[0] if y.sum().item() > 50 else y

        def change(owner, factor):
            return lambda: setattr(owner, "value", value * factor)

        def join():
            state.second = one

        x = torch.ones(3)
        steps = [call(x), change(other, 4), call(x), change(other, 9), call(x)]
        if both:
            steps += [change(one, 2), call(x), change(one, 3), call(x), change(other, 7), call(x)]
        return trace(fn), [*steps, join, *[call(x * 30)] * 3, call(x)], lambda: (state.log, state.count)

    return make


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("value", [1, 1.0], ids=["int", "float"])
def test_two_owners_that_become_one(use, value):
    """What was constant under one name would be followed under the other, which it has by then, too."""
    check(owners(use, value, both=False), hits=2, recordings=4)


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("value", [1, 1.0], ids=["int", "float"])
def test_two_owners_that_are_followed(use, value):
    check(owners(use, value, both=True), hits=2, eager=OTHERWISE)


HELD = {
    "lists": (lambda n: [n, 1], lambda owner: owner[0], lambda owner, n: owner.__setitem__(0, n)),
    "lists_gone_through": (lambda n: [n, 1], sum, lambda owner, n: owner.__setitem__(0, n)),
    "dicts": (lambda n: {"n": n}, lambda owner: owner["n"], lambda owner, n: owner.update(n=n)),
    "values": (lambda n: {"n": n}, lambda owner: sum(owner.values()), lambda owner, n: owner.update(n=n)),
    "tuples": (
        lambda n: Valued((n, 1)),
        lambda owner: owner.value[0],
        lambda owner, n: setattr(owner, "value", (n, 1)),
    ),
    "numbers_of_numpy": (
        lambda n: Valued(np.int64(n)),
        lambda owner: owner.value * 2,
        lambda owner, n: setattr(owner, "value", np.int64(n)),
    ),
    "inner_ones": (
        lambda n: Valued(Valued(n)),
        lambda owner: owner.value.value,
        lambda owner, n: setattr(owner.value, "value", n),
    ),
}


@pytest.mark.parametrize("held", HELD)
def test_two_containers_that_become_one(held):
    make_one, read, write = HELD[held]

    def make(trace):
        one, other = make_one(2), make_one(3)
        state = Holder(first=one, second=other, count=torch.zeros(1))

        def fn(x):
            y = torch.as_tensor(read(state.second)) * x + torch.tensor(read(state.first))
            state.count.add_(1)
            return y * 2 + state.count if y.sum().item() > 500 else y

        def join():
            state.second = one

        x = torch.ones(3)
        steps = [call(x), lambda: write(other, 5), call(x), lambda: write(other, 7), call(x), join]
        return trace(fn), [*steps, *[call(x * 300)] * 3, call(x)], lambda: state.count

    check(make, hits=2)


@pytest.mark.parametrize("kind", [np.int64, np.float32], ids=lambda kind: kind.__name__)
def test_one_number_in_two_owners(kind):
    """It shows which one it is, and is one number wherever it lies."""

    def make(trace):
        one, other = Valued(kind(2)), Valued(kind(3))
        count = torch.zeros(1)

        def fn(x):
            y = torch.tensor(other.value * 2) * x + torch.tensor(one.value * 3)
            count.add_(1)
            return y * 2 + count if y.sum().item() > 500 else y

        def change(n):
            return lambda: setattr(other, "value", kind(n))

        def share():
            other.value = one.value

        x = torch.ones(3)
        steps = [call(x), change(5), call(x), change(7), call(x), share, *[call(x * 300)] * 3, call(x)]
        return trace(fn), steps, lambda: count

    check(make, hits=2)


@cases(hits=3, recordings=2)
def one_constant_in_two_owners(trace):
    """Beside a number that is followed: the two are one object at each call."""
    followed, shared = Valued(np.int64(2)), np.int64(3)
    one, other = Valued(shared), Valued(shared)
    count = torch.zeros(1)

    def fn(x):
        count.add_(1)
        return torch.tensor(followed.value) * x + int(one.value) * int(other.value)

    def step():
        followed.value = followed.value + np.int64(1)

    x = torch.ones(3)
    return trace(fn), [part for _ in range(5) for part in (call(x), step)], lambda: count


@cases(hits=3, eager=OTHERWISE)
def an_entry_that_it_has_written(trace):
    """What the cache gives is written to when the function comes to it again, and counts as one use."""
    table, world = [1.0, 2.0], {"calls": 0}

    def plan(n):
        return table if n % 2 else [n]

    cached = functools.lru_cache(64)(plan)

    def fn(x):
        world["calls"] += 1
        table[0] = world["calls"] + x.shape[0]
        return x * cached(x.shape[0])[0]

    rows = [call(torch.arange(n * 3.0).view(n, 3)) for n in (2, 4, 6, 3, 5, 3, 8, 5, 3, 2, 9, 4, 3)]
    return trace(fn), rows, lambda: (table, world, cached.cache_info())


@cases.parametrize
def test_case(make, expected):
    check(make, **expected)
