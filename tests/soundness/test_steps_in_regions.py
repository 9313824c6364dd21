"""Steps that give another thing at other calls, in regions of autocast and others: the function goes on."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch

from tests.soundness.runner import Holder, X, call, check


def place_drawn(s):
    return random.choice(s.flags)


def place_counted(s):
    return s.flags[s.n % 3]


def looks_drawn(s):
    return random.choice(s.tensors)


def of_an_iterator(s):
    return next(s.given)


def of_a_generator(s):
    return next(s.generated)


def of_a_count(s):
    return next(s.count)


def sized_by_state(s):
    return torch.from_numpy(s.rng.normal(size=s.size)).sum()


STEPS = [
    place_drawn, place_counted, looks_drawn, of_an_iterator, of_a_generator, of_a_count, sized_by_state,
]  # fmt: skip


def writes(s, x):
    s.total.add_(1)


def draws(s, x):
    torch.rand(2)


def nothing(s, x):
    pass


def state():
    return Holder(
        n=0, size=3, flags=[True, None, False], tensors=[torch.ones(3), torch.ones(1), torch.ones(3)],
        given=itertools.cycle([1.0, 2.0, True]),
        generated=(one for one in itertools.cycle([1, torch.ones(3)])),
        count=itertools.count(), rng=np.random.default_rng(0), total=torch.zeros(1),
    )  # fmt: skip


def make(body, before, region):
    def case(trace):
        s, weight = state(), torch.ones(3)

        def step(x):
            s.n += 1
            before(s, x)
            with region():
                value = body(s)
                y = x * weight * (3 if value is None else value)
            return y, value

        def change():
            s.count, s.size, s.flags = itertools.count(0.5), 4, ["a", 2.5, 1]
            s.flags[0] = 7

        steps = [*[call(X()) for _ in range(9)], change, *[call(X()) for _ in range(6)]]
        stream = lambda: (random.getstate()[1][-1], repr(s.rng.bit_generator.state["state"]))  # noqa: E731
        return trace(step), steps, lambda: (s.n, s.total, repr(s.count), stream())

    return case


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


@pytest.mark.parametrize("region", [autocast, torch.no_grad], ids=lambda region: region.__name__)
@pytest.mark.parametrize("before", [nothing, draws, writes], ids=lambda before: before.__name__)
@pytest.mark.parametrize("body", STEPS, ids=lambda body: body.__name__)
def test_a_step_in_a_region(body, before, region):
    check(make(body, before, region), hits=1)
