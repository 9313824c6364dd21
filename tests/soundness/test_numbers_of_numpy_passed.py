"""Numbers of numpy's that are passed by themselves, as environments give rewards and places."""

from __future__ import annotations

import math
import types
import warnings

import numpy as np
import pytest
import torch

from tests.soundness.runner import agree, call, check

KINDS = [np.float64, np.float32, np.int64]


def told(value):
    return value, type(value).__name__


def numbers(kind, count=9):
    draw = np.random.default_rng(0)
    return [kind(value) for value in draw.uniform(1, 9, count)]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_followed(kind):
    def body(x, r):
        return x * r, told(r * 2), told(r + 0.5), torch.tensor(r), f"{r:.2f}", told(r.item()), r > 100

    check(lambda trace: (trace(body), [call(torch.ones(2), r) for r in numbers(kind)]), hits=6)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_kept(kind):
    def make(trace):
        state = types.SimpleNamespace(total=kind(0), last=None, log=[], rewards=np.zeros(4, kind), at=0)

        def body(reward, done=False, **more):
            state.total = state.total + reward
            state.last = reward
            state.log.append(reward + reward)
            state.rewards[state.at] = reward
            state.at = (state.at + 1) % 4
            return (
                told(state.total),
                told(more["gain"] * reward),
                isinstance(reward, kind),
                type(reward) is kind,
            )

        steps = [call(r, gain=g) for r, g in zip(numbers(kind, 12), numbers(kind, 12)[::-1], strict=True)]
        return trace(body), steps, lambda: vars(state)

    check(make, hits=5)


@pytest.mark.parametrize("kind", KINDS)
def test_several_in_a_row(kind):
    def body(x, *rewards, scale=1.0):
        return x * sum(rewards) * scale, told(max(rewards))

    steps = [call(torch.ones(2), *numbers(kind, 3)[k % 2 :], scale=kind(k)) for k in range(12)]
    check(lambda trace: (trace(body), steps), hits=4)


def test_of_one_kind_and_another():
    def body(x, r):
        return x * r, told(r * r), told(r / 3), {"r": r}

    values = [
        1.5,
        np.float64(1.5),
        np.float32(1.5),
        2,
        np.int64(2),
        np.int32(2),
        True,
        np.bool_(True),
        np.uint8(2),
    ]
    values = [
        *values,
        *(type(value)(value * 2) for value in values),
        np.float64("nan"),
        np.float32("inf"),
        *values,
    ]
    check(lambda trace: (trace(body), [call(torch.ones(2), value) for value in values]), hits=4)


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_odd_values(kind):
    def body(r, q):
        return told(r / q), told(r * q), told(r - q), r < q, told(-r), told(abs(q))

    odd = [1.5, 2.5, 0.0, -0.0, np.inf, np.nan, 1e300, 1e-310, -np.inf, 3.5, np.nan, 4.5]

    def make(trace):
        fn = trace(body)

        def use(r, q):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                return fn(r, q), {str(one.message) for one in caught}

        with np.errstate(all="ignore"):
            pairs = [(kind(r), kind(q)) for r, q in zip(odd, odd[1:] + odd[:1], strict=True)]
        return use, [call(r, q) for r, q in [*pairs[:1], *pairs, *pairs]]

    check(make, hits=2)


def test_one_that_stands_beside_an_object():
    """What guards start from is counted without it."""

    def make(trace):
        first, second = types.SimpleNamespace(n=1.0), types.SimpleNamespace(n=2.0)

        def body(one, r, other, *more, x):
            return x * r * one.n - other.n, told(r), [m.n for m in more]

        def change():
            first.n += 1

        fn = trace(body)
        steps = []
        for r in numbers(np.float64):
            steps += [
                change,
                call(first, r, second, first, x=torch.ones(2)),
                call(second, r, first, second, x=torch.ones(2)),
            ]
        return fn, steps

    check(make, hits=6)


def test_a_default():
    def body(x, r=np.float64(0.5), q=np.int64(3)):  # noqa: B008
        return x * r + q, told(r), told(q)

    steps = [call(torch.ones(1) * k) for k in range(3)] + [
        call(torch.ones(1), r) for r in numbers(np.float64)
    ]
    check(lambda trace: (trace(body), steps), hits=6)


def test_in_a_container():
    def body(x, batch):
        return x * batch["r"], told(batch["r"] * batch["more"][0])

    steps = [call(torch.ones(2), {"r": r, "more": [r]}) for r in numbers(np.float64)]
    check(lambda trace: (trace(body), steps), recordings=9)


def test_modules_and_methods():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def forward(self, x, scale):
            return self.layer(x) * scale, scale / 2

    def make(trace):
        torch.manual_seed(0)
        return trace(Net()), [call(torch.ones(1, 2), r) for r in numbers(np.float32)]

    check(make, hits=6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "ask", [math.trunc, math.floor, math.ceil, lambda r: r.hex(), lambda r: r.fromhex("1")]
)
def test_what_torchs_class_has_and_numpys_has_not(ask, kind):
    """The class of what is followed has it from `torch.SymInt` or `torch.SymFloat`."""

    def body(x, r):
        try:
            return x * 2, told(ask(r))
        except (TypeError, AttributeError) as error:
            return x * 3, str(error)

    steps = [call(torch.ones(2), r) for r in numbers(kind, 5)]
    tracer = agree(lambda trace: (trace(body, dynamic=True), steps))
    assert tracer.count("recordings") or tracer.reasons()
