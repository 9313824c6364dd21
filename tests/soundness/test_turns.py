"""State that holds None and something else by turns: what a step of second order keeps for the next call."""

from __future__ import annotations

import types
import weakref

import pytest
import torch

from lazytrace import traced
from tests.soundness.runner import Cases, X, call, calls, check

cases = Cases()
NS = types.SimpleNamespace


def slopes():
    """State, and a function that keeps a tensor there at every other call."""
    state = NS(slope=None)

    def fn(x):
        if state.slope is None:
            state.slope = x * 2
            return x + 1
        y = x * state.slope
        state.slope = None
        return y

    return state, fn


@cases(hits=6)
def a_tensor_that_was_made(trace):
    state, fn = slopes()

    return trace(fn), calls(12), lambda: state


@cases(hits=6)
def an_argument_and_what_was_made_of_it(trace):
    """As a solver of second order keeps the sample, its derivative and the length of the step."""
    state = NS(sample=None, slope=None, length=None, calls=0)

    def fn(x):
        state.calls += 1
        slope = torch.tanh(x)
        if state.slope is None:
            state.slope, state.length, state.sample = slope, slope.abs().max(), x
            return x + slope * state.length
        slope = (state.slope + slope) / 2
        length, sample = state.length, state.sample
        state.slope = state.length = state.sample = None
        return sample + slope * length

    return trace(fn), calls(12), lambda: state


@cases(hits=6)
def with_gradients(trace):
    w = X(grad=True)
    state = NS(slope=None)

    def fn(x):
        if state.slope is None:
            state.slope = x * w
            return state.slope.sum()
        loss = (x * state.slope).sum()
        state.slope = None
        loss.backward()
        return loss.detach()

    return trace(fn), calls(12), lambda: (state, w.grad)


@cases(hits=6)
def an_entry_of_a_dict(trace):
    state = {"kept": None, "sum": torch.zeros(3)}

    def fn(x):
        if state["kept"] is None:
            state["kept"] = x * 2
        else:
            state["sum"].add_(state["kept"])
            state["kept"] = None
        return state["sum"] * x

    return trace(fn), calls(12), lambda: state


class Slots:
    """One place, beside no namespace."""

    __slots__ = ("kept",)


@cases(hits=6)
def a_slot_and_a_tuple(trace):
    state = Slots()
    state.kept = None

    def fn(x):
        if state.kept is None:
            state.kept = (x * 2, [x + 1])
            return x
        (double, (more,)), state.kept = state.kept, None
        return double + more

    return trace(fn), calls(12), lambda: state.kept


@cases(hits=4)
def changed_by_others_in_between(trace):
    state, fn = slopes()

    def of_another_size():
        state.slope = torch.ones(1)

    def gone():
        state.slope = None

    steps = calls(10)
    return trace(fn), [*steps, of_another_size, *steps[:4], gone, *steps[:5]], lambda: state


@cases(hits=4)
def raises_by_turns(trace):
    state = NS(slope=None)

    def fn(x, limit):
        if state.slope is None:
            state.slope = x * 2
            if limit > 3:
                raise ValueError(limit)
            return x + 1
        y = x * state.slope
        state.slope = None
        return y

    steps = [call(k * X(), 0) for k in range(1, 11)]
    return trace(fn), [*steps, call(X(), 5), *steps[:3], call(X(), 5), *steps], lambda: state


def test_what_was_kept_goes_when_it_is_replaced():
    state, fn = slopes()

    step = traced(fn)
    for _ in range(9):
        step(X())
    assert step.stats().hits >= 4
    kept = weakref.ref(state.slope)
    step(X())
    assert step.stats().hits >= 5
    assert state.slope is None
    assert kept() is None


def test_state_that_is_made_once_is_waited_for():
    """It took the place of None, and no recording is wasted on a call that does so."""
    state = NS(mask=None)

    def fn(x):
        if state.mask is None:
            state.mask = torch.ones_like(x)
        return x * state.mask

    step = traced(fn)
    for _ in range(6):
        step(X())
    assert (step.stats().recordings, step.stats().hits) == (1, 4)


@cases.parametrize
def test_turns(make, expected):
    check(make, **expected)


@pytest.mark.parametrize("count", [2, 3])
def test_each_of_several_in_its_turn(count):
    """Models that are trained by turns keep one thing each."""

    def make(trace):
        states = [NS(kept=None) for _ in range(count)]

        def fn(x, which):
            state = states[which]
            state.kept = x * 2 if state.kept is None else None
            return x + which

        return trace(fn), [call(k * X(), k % count) for k in range(1, 12 * count)], lambda: states

    check(make, hits=5 * count)
