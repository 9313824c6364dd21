"""What training loops count: numbers in lists and dicts of before the call, taken apart, emptied, filled."""

from __future__ import annotations

import types

import pytest
import torch

from tests.soundness.runner import Cases, call, check

cases = Cases()


def values(n=8):
    return [call(torch.tensor([float(i), 0.5 * i - 1.0, 2.0])) for i in range(n)]


def among(steps, change, at=5):
    """The same steps with a change of the world between two."""
    return [*steps[:at], change, *steps[at:]]


# ---------------------------------------------------------------- taken apart after writes
@cases(hits=7)
def a_list_that_was_written(trace):
    total = [0.0, 0]

    def step(x):
        total[0] += x.sum().item()
        total[1] += 1
        s, n = total
        return s / n

    return trace(step), among(values(), lambda: total.__setitem__(1, 7)), lambda: total


@cases(hits=7)
def lists_in_a_dict(trace):
    meters = {"loss": [0.0, 0], "top": [0.0, 0]}

    def step(x):
        for name, value in (("loss", x.sum().item()), ("top", x.max().item())):
            meters[name][0] += value * len(x)
            meters[name][1] += len(x)
        return {name: s / n for name, (s, n) in meters.items()}

    return trace(step), among(values(), lambda: meters["top"].__setitem__(0, 1.0)), lambda: meters


@cases(hits=5)
def one_entry_written_of_another_type(trace):
    """An int where a float was is another way."""
    total = [0.0, 2]

    def step(x):
        total[1] += 1
        s, n = total
        total[0] = x.sum().item()
        return s * n

    return trace(step), among(values(), lambda: total.__setitem__(0, 3)), lambda: total


@cases(hits=5)
def one_that_has_become_longer(trace):
    total = [0.0, 0]

    def step(x):
        total[0] += x.sum().item()
        first, *rest = total
        return first, rest

    return trace(step), among(values(), lambda: total.append(1)), lambda: total


@cases(hits=6)
def a_tensor_among_them(trace):
    held = [0.0, torch.zeros(3)]

    def step(x):
        held[0] += x[0].item()
        held[1] = held[1] + x
        s, t = held
        return t * s

    return trace(step), among(values(), lambda: held.__setitem__(1, torch.ones(3))), lambda: held


# ---------------------------------------------------------------- emptied and filled
@cases(hits=4)
def one_that_holds_the_same_again(trace):
    """The recording leaves what it has found: a replay that finds something else must write it, too."""
    kept = [2.0, 2.0]

    def step(x):
        kept.clear()
        kept.append(x[2].item())
        kept.append(2.0)
        return kept[0] + x[0]

    return trace(step), among(values(), lambda: kept.__setitem__(1, 5.0), 6), lambda: kept


@cases(hits=4)
def a_dict_of_logs(trace):
    logs = {}

    def step(x):
        logs.clear()
        logs["loss"] = x.sum().item()
        logs["top"] = x.max().item()
        return logs["loss"] - logs["top"]

    return trace(step), among(values(), lambda: logs.update(top=0.0)), lambda: logs


@cases(hits=4)
def a_dict_that_holds_the_same_again(trace):
    logs = {"a": 1.0}

    def step(x):
        logs.clear()
        logs["a"] = 1.0
        return x * logs["a"]

    return trace(step), among(values(7), lambda: logs.update(a=3.0)), lambda: logs


@cases(hits=1)
def one_with_an_object_in_it(trace):
    class Told:
        def __init__(self, told):
            self.told = told

        def __del__(self):
            self.told.append("gone")

    told, kept = [], [1.0]

    def step(x):
        kept.clear()
        kept.append(x[0].item())
        return x * 2

    return trace(step), among(values(6), lambda: kept.__setitem__(0, Told(told)), 4), lambda: [told, kept]


@cases(hits=4)
def read_before_it_is_emptied(trace):
    kept = {"a": 1.0, "b": 2.0}

    def step(x):
        last = kept["a"] + kept["b"]
        kept.clear()
        kept["a"], kept["b"] = x[0].item(), x[1].item()
        return last + x[2]

    return trace(step), among(values(), lambda: kept.update(a=4.0)), lambda: kept


@cases(hits=4)
def a_buffer_that_is_emptied(trace):
    """Of a list each content has a recording of its own; other lists are as they are."""
    kept, times = [1.0], [2.0]

    def step(x):
        kept.clear()
        kept.append(2.0)
        return x * times[0]

    return trace(step), among(values(), lambda: kept.append(4.0)), lambda: kept


# ---------------------------------------------------------------- ways that turn up again
@cases(hits=16)
def every_fifth_step(trace):
    """What the longer way has written is read by the shorter one, which was recorded before."""
    s = types.SimpleNamespace(n=0, last=0.0)

    def step(x):
        y = x * 2
        if s.n % 5 == 0:
            s.last = (x * 3).sum().item()
        s.n += 1
        return y, s.last

    return trace(step), values(24), lambda: s


@pytest.mark.parametrize("kind", [int, float])
def test_two_ways_with_numbers_of_their_own(kind):
    def make(trace):
        s = types.SimpleNamespace(n=0, a=kind(1), b=kind(2))

        def step(x):
            y = x + 1
            if s.n % 3 == 0:
                s.a = s.a + kind(1)
                y = y * s.b
            else:
                s.b = s.b + kind(2)
                y = y * s.a
            s.n += 1
            return y

        return trace(step), values(24), lambda: s

    check(make, hits=15)


@cases.parametrize
def test_meters(make, expected):
    check(make, **expected)
