"""A function that runs again and comes to its numbers by another path than when it was recorded."""

from __future__ import annotations

import functools

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


@pytest.mark.parametrize("use", [as_tensor, as_scalar], ids=lambda use: use.__name__)
@pytest.mark.parametrize("value", [1, 1.0], ids=["int", "float"])
def test_two_owners_that_become_one(use, value):
    """What was constant under one name is followed under the other, which it has by then, too."""

    def make(trace):
        state = Holder(log=[], count=torch.zeros(2))
        one, other = Valued(value), Valued(value * 3)
        state.first = state.second = one

        def fn(x, owner):
            isinstance(owner, list)
            state.second.value  # noqa: B018
            y = use(x, state.first.value)
            state.log.append(f"{y.sum().item():.3f}")
            state.count.add_(1)
            return y + state.count[0] if y.sum().item() > 50 else y

        def set_one():
            one.value = value * 2

        def part():
            state.second = other

        def set_other():
            other.value = value * 9

        def join():
            state.second = one

        x = torch.ones(3)
        steps = [call(x, one), set_one, call(x, one), part, call(x * 2, other), set_other, call(x * 2, other)]
        return (
            trace(fn),
            [*steps, join, call(x * 30, one), call(x * 30, one)],
            lambda: (state.log, state.count),
        )

    check(make, hits=1, eager=OTHERWISE)


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
