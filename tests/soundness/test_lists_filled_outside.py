"""Lists of floats in state that are filled outside of the call: rewards of an episode, losses of an epoch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.soundness.runner import agree, call, check


class State:
    def __init__(self):
        self.values, self.other = [], []


def returns(state):
    """As the examples of reinforcement learning have it."""
    found, total = [], 0.0
    for reward in state.values[::-1]:
        total = reward + 0.99 * total
        found.insert(0, total)
    state.values.clear()
    return torch.tensor(found)


def deleted(state):
    total = sum(value * 2 for value in state.values)
    del state.values[:]
    return total


def written_ahead(state):
    found = []
    for i, value in enumerate(state.values):
        found.append(value)
        if i + 1 < len(state.values):
            state.values[i + 1] = value * 2
    return found


def written_behind(state):
    for i, value in enumerate(state.values):
        state.values[i] = value * 2
    return sum(state.values)


def grown(state):
    found = []
    for value in state.values:
        found.append(value)
        if len(state.values) < 6:
            state.values.append(value + 1)
    return found


def emptied(state):
    found = []
    for value in state.values:
        found.append(value)
        state.values.pop()
    return found


def started_over(state):
    total = sum(state.values) / len(state.values)
    state.values = []
    return total


USES = {
    "sum": lambda s: sum(s.values),
    "extremes": lambda s: (max(s.values) - min(s.values)) * 0 + s.values[0],
    "list": lambda s: list(s.values),
    "tuple": lambda s: tuple(s.values),
    "loop": lambda s: [value * 2 for value in s.values],
    "generator": lambda s: sum(value * 2 for value in s.values),
    "slice": lambda s: (s.values[1:], s.values[:-1], s.values[::2]),
    "part": lambda s: sum(s.values[-2:]) / 2,
    "starred": lambda s: [*s.values],
    "returns": returns,
    "started over": started_over,
    "deleted by a statement": deleted,
    "ended early": lambda s: next(value for value in s.values if value > -1),
}
AS_MAY_BE = {
    "written ahead": written_ahead,
    "written behind": written_behind,
    "grown": grown,
    "emptied": emptied,
    "pairs": lambda s: [a * b for a, b in zip(s.values, s.values[1:], strict=False)],
    "counted": lambda s: {i: value for i, value in enumerate(s.values, 1)},  # noqa: C416
}


def steps(use, fill):
    def make(trace):
        state, draw = State(), np.random.default_rng(0)
        step = trace(lambda x: (use(state), x))

        def run(x):
            fill(state, draw)
            return step(x), list(state.values)

        return run, [call(torch.ones(1)) for _ in range(9)]

    return make


def refill(state, draw):
    state.values[:] = draw.random(4).tolist()


def put_another(state, draw):
    state.values = draw.random(4).tolist()


@pytest.mark.parametrize("fill", [refill, put_another])
@pytest.mark.parametrize("name", USES)
def test_others_each_time(name, fill):
    check(steps(USES[name], fill), hits=5)


@pytest.mark.parametrize("fill", [refill, put_another])
@pytest.mark.parametrize("name", AS_MAY_BE)
def test_what_is_written_meanwhile_is_seen(name, fill):
    agree(steps(AS_MAY_BE[name], fill))


@pytest.mark.parametrize("name", ["sum", "loop", "slice", "returns"])
def test_other_lengths_and_kinds(name):
    kinds = [
        [0.5, 1.5],
        [2.5, 3.5],
        [4.5, 5.5],
        [1.5],
        [2.5, 3],
        [True, 0.5],
        [6.5, 7.5],
        [np.float64(2), 1.0],
    ]
    kinds += [[0.5, 2.5], [8.5, float("nan")], [9.5, float("inf")], [1e300, 1e300], [0.25, 0.5]]

    def make(trace):
        state = State()
        step = trace(lambda: USES[name](state))

        def run(values):
            state.values[:] = values
            return step()

        return run, [call(values) for values in kinds]

    check(make, hits=1)


@pytest.mark.parametrize("iterator", [zip, enumerate, lambda v: (x * 2 for x in v), iter])
def test_what_goes_through_it_outlives_the_call(iterator):
    def make(trace):
        state, draw = State(), np.random.default_rng(0)
        step = trace(lambda: state.__setattr__("other", (iterator(state.values), sum(state.values))))

        def run():
            refill(state, draw)
            step()
            state.values.append(7.0)
            return list(state.other[0])

        return run, [call() for _ in range(6)]

    check(make, eager="iter" if iterator is iter else "cannot be rebuilt")


def handed_to_numpy(take, fill, kinds=float):
    """A number of the call is appended to what stands there, and numpy is handed the list."""

    def make(trace):
        state, draw = State(), np.random.default_rng(0)

        def body(a):
            state.values.append(kinds(a.mean()))
            return take(state)

        step = trace(body)

        def run(a):
            fill(state, draw)
            return step(a), list(state.values)

        return run, [call(draw.random(4).astype(np.float32)) for _ in range(9)]

    return make


OF_NUMPY = ["argmax", "argsort", "array", "average", "cumsum", "max", "mean", "median", "min", "prod"]
OF_NUMPY += ["sort", "std", "sum", "var"]


@pytest.mark.parametrize("kinds", [float, np.float32])
@pytest.mark.parametrize("fill", [refill, put_another])
@pytest.mark.parametrize("name", OF_NUMPY)
def test_numpy_is_handed_a_list_that_was_appended_to(name, fill, kinds):
    take = getattr(np, name)
    check(handed_to_numpy(lambda state: take(state.values), fill, kinds), hits=4)


@pytest.mark.parametrize(
    "take",
    [
        lambda s: np.array([s.values, s.values]),
        lambda s: np.sum([s.values, [1.0] * 5]),
        lambda s: np.max(a=s.values),
        lambda s: np.max(*[s.values]),
        lambda s: np.diff(s.values),
    ],
)
def test_numpy_is_handed_such_a_list_in_other_ways(take):
    agree(handed_to_numpy(take, refill))


def test_numpy_is_handed_a_list_that_grows():
    check(handed_to_numpy(lambda s: np.max(s.values), lambda *_: None), recordings=8)


@pytest.mark.parametrize("name", OF_NUMPY)
def test_numpy_is_handed_a_list_of_state(name):
    take = getattr(np, name)
    check(steps(lambda state: take(state.values), refill), hits=4)
