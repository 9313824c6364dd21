"""Numbers that are rounded to some digits, as logs of training do it."""

from __future__ import annotations

import math
import random
import struct

import pytest
import torch

from lazytrace import traced
from tests.soundness.runner import Cases, X, call, check

cases = Cases()


def bits(value):
    return type(value), struct.pack("d", value)


@pytest.mark.parametrize("digits", [0, 1, 2, 4, 15, 22, 23, -1, -3, True])
def test_each_float_is_rounded_as_python_does(digits):
    def rounded(x, value):
        return x, round(value, digits)

    generator = random.Random(digits)
    values = [generator.uniform(-1, 1) * 10.0 ** generator.randint(-25, 25) for _ in range(400)]
    values += [0.5, 1.5, 2.5, -0.5, 0.125, 2.675, 1.005, 0.0, -0.0, 1e300, 5e-324, 1e22, 123456.5, -7.25]
    fast = traced(rounded)
    for value in values:
        assert bits(fast(X(2), value)[1]) == bits(round(value, digits)), value
    stats = fast.stats()
    assert stats.hits >= len(values) - 4, stats
    for value in (math.nan, math.inf, -math.inf):
        assert bits(fast(X(2), value)[1]) == bits(round(value, digits))


def calls(n):
    return [call(X(2, 3) * (0.37 * i + 0.1)) for i in range(n)]


@cases(hits=9)
def a_loss_that_is_kept_rounded(trace):
    kept = []

    def step(x):
        kept.append(round(x.sum().item(), 4))

    return trace(step), calls(12), lambda: kept


@cases(hits=10)
def a_rounded_number_goes_on(trace):
    def step(x):
        scale = round(x.mean().item(), 2)
        return x * scale, scale + 1

    return trace(step), calls(12)


@cases(hits=8)
def a_percentage(trace):
    seen = {"right": 0, "all": 0}

    def step(x):
        seen["right"] += (x > 0.5).sum().item()
        seen["all"] += x.numel()
        return round(100.0 * seen["right"] / seen["all"], 1)

    return trace(step), calls(12), lambda: seen


@cases(hits=8)
def a_branch_that_looks_at_it(trace):
    def step(x):
        if round(x.mean().item(), 1) > 1.0:
            return x * 2
        return x * 3

    return trace(step), calls(12)


@cases(hits=10)
def a_whole_number(trace):
    def step(x):
        return round(x.sum().item())

    return trace(step), calls(12)


@cases(hits=7)
def digits_that_change(trace):
    def step(x, digits):
        return round(x.sum().item(), digits)

    return trace(step), [call(X(2, 3) * (0.37 * i), i % 4) for i in range(12)]


@cases.parametrize
def test_agrees(make, expected):
    check(make, **expected)


def test_a_listing_says_what_is_rounded():
    fast = traced(lambda x, value: (x, round(value, 3)))
    for value in (1.23456, 2.34567, 3.45678):
        fast(torch.ones(2), value)
    assert fast.stats().hits == 1
