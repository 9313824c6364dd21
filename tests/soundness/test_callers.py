"""Who called: what a function sees behind its own frame is the caller, in calls that are no hits, too."""

from __future__ import annotations

import copy
import heapq
import math
import operator
import random
import sys
import traceback
import warnings
from typing import NamedTuple

import numpy as np
import pytest
import torch

from lazytrace import traced
from tests.soundness.runner import Cases, Holder, X, agree, call, check

cases = Cases()

AROUND = "calls sys._getframe() for a frame around the call"


def above(depth):
    """The frames above the one that asks, from the caller of the function that is traced on."""
    frame = sys._getframe(depth)
    found = []
    while frame is not None and len(found) < 3:
        found.append((frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    return found


@cases(eager=AROUND)
def the_frames_above(trace):
    def fn(x):
        return x * 2, above(2)

    return trace(fn), [call(X())] * 4


@cases(eager=AROUND)
def the_frames_above_a_function_inside(trace):
    def inside(x):
        return x * 2, above(3)

    def fn(x):
        return inside(x)

    return trace(fn), [call(X())] * 4


@cases(eager=AROUND)
def the_frames_above_a_method(trace):
    class Model:
        @trace
        def run(self, x):
            return x * 2, above(2)

    return Model.run, [call(X()).of(Model().run)] * 4


@cases(eager=AROUND)
def the_frames_above_a_function_that_is_inlined(trace):
    """It stands between the caller and what it calls in both."""

    def inside(x):
        return x * 2, above(2)

    inner = trace(inside)

    def fn(x):
        return inner(x)

    return trace(fn), [call(X())] * 4


@cases(eager=AROUND)
def the_frames_above_what_is_traced_twice(trace):
    def fn(x):
        return x * 2, above(2)

    return trace(trace(fn)), [call(X())] * 4


@cases(hits=2, eager=AROUND)
def the_frames_above_after_a_side_exit(trace):
    """The function runs again, fed what the replay has computed."""
    seen = []

    def fn(x):
        if x.sum() > 0:
            return x * 2
        seen.append(above(2))
        return x * 3

    down = torch.full((2, 3), -1.0)
    return trace(fn), [call(X()), call(X()), call(down), call(X())], lambda: seen


@cases(eager=AROUND)
def generators_that_the_function_runs(trace):
    def frames():
        yield above(2)
        yield above(3)

    def fn(x):
        one, two = frames()
        return x * 2, one, two

    return trace(fn), [call(X())] * 4


@cases(eager="warns-around")
def the_place_of_a_warning(trace):
    given = []

    def fn(x):
        warnings.warn("careful", UserWarning, stacklevel=2)
        return x * 2

    def start():
        warnings.resetwarnings()
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, category, file, line, *rest: given.append((file, line))

    return trace(fn), [start, *[call(X())] * 4], lambda: given


def raising(x):
    raise ValueError("no")


@cases(eager="raised ValueError")
def the_traceback_of_what_is_raised(trace):
    def fn(x):
        return raising(x * 2)

    traced = trace(fn)

    def caught(x):
        try:
            traced(x)
        except ValueError as error:
            return [one.name for one in traceback.extract_tb(error.__traceback__)]

    return traced, [call(X()).of(caught)] * 4


class Row(NamedTuple):
    first: float


class Mine:
    def __lt__(self, other):
        raise ValueError("no order")


# What stands for other code in a recording has frames of its own.
RAISING = {
    "arithmetic": lambda x: 1 / (x.sum().item() - x.sum().item()),
    "math": lambda x: math.sqrt(-abs(x[0].item())),
    "divmod": lambda x: divmod(3, x.shape[0] - 3),
    "a conversion": lambda x: int(x.sum().item() * math.inf),
    "an index": lambda x: [1, 2][x.shape[0]],
    "an index of a tensor": lambda x: x[x.shape[0] + 1],
    "a format": lambda x: format(x[0].item(), "zz"),
    "numpy": lambda x: np.zeros(3) + np.zeros(x.shape[0] + 1),
    "an array": lambda x: x.numpy()[x.shape[0]],
    "a getter": lambda x: operator.itemgetter(3)([1, 2]),
    "a getter of names": lambda x: operator.attrgetter("size.no")(x),
    "a heap": lambda x: heapq.heappush([Mine()], Mine()),
    "a key": lambda x: sorted([x, x], key=lambda one: raising(one)),
    "a named tuple": lambda x: Row(1.0)._replace(second=x.sum().item()),
    "a sample": lambda x: random.sample([1, 2], x.shape[0]),
    "a copy": lambda x: copy.deepcopy([x, raising]) and raising(x),
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", RAISING)
def test_tracebacks_hold_the_frames_of_the_program(name, inside):
    def frames(error):
        return [(one.name, one.lineno) for one in traceback.extract_tb(error.__traceback__)]

    def make(trace):
        def fn(x):
            x = x * 2
            if not inside:
                return RAISING[name](x)
            try:
                return RAISING[name](x)
            except Exception as error:
                return frames(error)

        traced = trace(fn)

        def caught(x):
            try:
                return traced(x)
            except Exception as error:
                return frames(error)

        return traced, [call(X(k)).of(caught) for k in (3, 3, 4, 3)]

    agree(make)


def test_a_traceback_of_what_a_replay_raises_ends_at_the_call():
    """What has been written by then forbids to run the function again, whose frames would be in it."""

    def step(x, n):
        x.add_(1)
        return x[n] * 2

    fn = traced(step)
    for n in (0, 1, 0, 2):
        fn(torch.ones(3), n)
    with pytest.raises(IndexError) as caught:
        fn(torch.ones(3), 5)
    (only,) = traceback.extract_tb(caught.value.__traceback__)
    assert only.name == "test_a_traceback_of_what_a_replay_raises_ends_at_the_call"
    assert fn.stats().hits
    assert "raised IndexError" in str(fn.stats().eager)


def test_numpy_warns_where_the_function_stands():
    state = Holder(scale=np.float64(2.0))

    @traced
    def fn(x):
        return x * float(3.0 / state.scale)

    for value in (2.0, 4.0, 0.0):
        state.scale = np.float64(value)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            fn(X())
        assert [one.filename for one in told] == [__file__] * (value == 0.0)


@cases.parametrize
def test_callers(make, expected):
    shown, filters = warnings.showwarning, warnings.filters[:]
    try:
        check(make, **expected)
    finally:
        warnings.showwarning = shown
        warnings.filters[:] = filters
