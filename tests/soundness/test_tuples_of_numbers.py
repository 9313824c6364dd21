"""Tuples of ints and floats in state that change from call to call, such as the `betas` of an optimizer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.soundness.runner import Cases, X, call, check

cases = Cases()


class Pair(tuple):
    def __iter__(self):
        return iter([10.0, 20.0])


class Thing:
    def __init__(self, **values):
        self.__dict__.update(values)


def changing(body, first=(0.25, 0.5), grow=1.5):
    """The tuple is another one at each call, made by the caller."""

    def make(trace):
        state = Thing(pair=first, out=None)

        def step(x):
            return body(state, x)

        def change():
            state.pair = tuple(type(v)(v * grow + 1) for v in state.pair)

        steps = [step for _ in range(8) for step in (call(X()), change)]
        # Which of two equal tuples a place has is not promised.
        return trace(step), steps, lambda: (state.pair, state.out and list(state.out))

    return make


def unpacked(state, x):
    a, b = state.pair
    return x * a + b


def one_of_them(state, x):
    return x * state.pair[1]


def of_the_rest(state, x):
    a, *rest = state.pair
    return x * rest[0] - a


def replaced_by_itself(state, x):
    state.pair = (state.pair[0] * 0.5, *state.pair[1:])
    return x * state.pair[0]


def stored_elsewhere(state, x):
    state.out = state.pair
    return x + state.pair[0]


def returned(state, x):
    return x * 2, state.pair, type(state.pair)


def compared(state, x):
    return x * 2 if state.pair == (0.25, 0.5) else x * 3


def branched(state, x):
    return x * state.pair[0] if state.pair[1] > 2 else x


def as_arguments(state, x):
    return x * math.hypot(*state.pair)


def summed(state, x):
    return x * sum(state.pair), max(state.pair), sorted(state.pair), len(state.pair)


def as_key(state, x):
    return x * {(0.25, 0.5): 2.0}.get(state.pair, 3.0), hash(state.pair), 0.25 in state.pair


def as_text(state, x):
    return x * 2, str(state.pair), f"{state.pair[0]:.2f}", "{} {}".format(*state.pair)


def identical(state, x):
    kept = state.pair
    return x * 2, kept is state.pair


def into_operators(state, x):
    low, high = state.pair
    return torch.clamp(x, low, high), torch.full((2,), low), torch.lerp(x, x * 2, high)


def sliced(state, x):
    return x * state.pair[:1][0], state.pair[::-1], (*state.pair, 1), state.pair * 2


BODIES = [
    unpacked, one_of_them, of_the_rest, replaced_by_itself, stored_elsewhere, returned, compared, branched,
    as_arguments, summed, as_key, as_text, identical, into_operators, sliced,
]  # fmt: skip


EXPECTED = {
    as_key: {"recordings": 8},
    identical: {"eager": "compares the identity of two values of type tuple"},
    branched: {"hits": 5},
    replaced_by_itself: {"hits": 5},
}


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
@pytest.mark.parametrize("first", [(0.25, 0.5), (1, 2)], ids=["floats", "ints"])
def test_read(body, first):
    expected = EXPECTED.get(body, {"hits": 6})
    check(changing(body, first), **expected)


@cases(hits=3)
def others_take_its_place(trace):
    state = Thing(pair=(0.25, 0.5))

    def step(x):
        return [x * v for v in state.pair]

    def put(value):
        return lambda: setattr(state, "pair", value)

    values = [
        (1.5, 2.5),
        (3.5, 4.5),
        (5.5, 6.5),
        [1.5, 2.5],
        (1, 2.5),
        (1.5, True),
        (1.5, 2.5, 3.5),
        (),
        (7.5, 8.5),
    ]
    values += [
        Pair((1.5, 2.5)),
        (torch.tensor(1.5), 2.5),
        (math.nan, math.inf),
        (-0.0, 0.0),
        (2**70, 1),
        (9.5, 1.5),
    ]
    steps = [step for value in values for step in (call(X()), put(value))]
    return trace(step), [*steps, call(X())]


def optimizer_case(inside, build):
    def make(trace):
        torch.manual_seed(0)
        net = nn.Linear(3, 2)
        optimizer = build(net.parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=40)

        def step(x):
            optimizer.zero_grad()
            loss = net(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            if inside:
                schedule.step()
            return loss.item()

        steps = []
        for _ in range(12):
            steps.append(call(X(4, 3)))
            if not inside:
                steps.append(schedule.step)
        groups = lambda: [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]  # noqa: E731
        return trace(step), steps, lambda: (list(net.parameters()), groups())

    return make


OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, foreach=False),
    "adamw": lambda p: torch.optim.AdamW(p),
    "fused": lambda p: torch.optim.AdamW(p, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "nadam": lambda p: torch.optim.NAdam(p),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
def test_one_cycle(name, inside):
    check(optimizer_case(inside, OPTIMIZERS[name]), hits=7)


@cases.parametrize
def test_case(make, expected):
    check(make, **expected)
