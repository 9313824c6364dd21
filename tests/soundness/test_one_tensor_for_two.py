"""Tensors that were two are one in a later call, where a function goes on from a side exit behind writes."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn

from tests.soundness.runner import agree, call


def counts(state):
    state.n += 1


def appends(state):
    state.items.append(1)


def keeps(state):
    state.last = torch.float32


WRITES = [counts, appends, keeps]


def world(**tensors):
    return types.SimpleNamespace(n=0, items=[], last=None, **tensors)


@pytest.mark.parametrize("write", WRITES)
def test_an_argument_that_is_state(write):
    def make(trace):
        state = world(h=torch.zeros(3), buffer=torch.ones(3))

        def step(x):
            write(state)
            y = state.buffer * 2
            if x.sum() > 0:
                state.h[:1] += 1
            return y

        different = [call(-torch.ones(3)) for _ in range(4)]
        return (
            trace(step),
            [*different, *(call(state.buffer) for _ in range(4)), *different],
            lambda: vars(state),
        )

    agree(make)


@pytest.mark.parametrize("write", WRITES)
def test_state_that_becomes_one(write):
    def make(trace):
        state = world(a=torch.ones(3), b=torch.ones(3))

        def step(x):
            write(state)
            y = state.a * 2 + state.b
            return y + 1 if x.sum() > 0 else y

        def change():
            state.b = state.a

        steps = [call(-torch.ones(3)) for _ in range(4)]
        return trace(step), [*steps, change, *(call(torch.ones(3)) for _ in range(4))], lambda: vars(state)

    agree(make)


def test_a_hidden_state_that_is_handed_back():
    def make(trace):
        state = world(h=torch.zeros(3))

        def step(x, h):
            state.n += 1
            y = torch.tanh(x + h) + state.h.detach() * 0.1
            if y.sum() > 1:
                y = y * 0.5
            state.h = y
            return y

        first = [call(-torch.ones(3), torch.zeros(3) - 5) for _ in range(5)]
        later = [lambda: traced(torch.ones(3) * 3, state.h) for _ in range(4)]
        traced = trace(step)
        return traced, [*first, *later], lambda: vars(state)

    agree(make)


def test_a_parameter_that_is_passed():
    def make(trace):
        torch.manual_seed(0)
        net, state = nn.Linear(3, 3), world()

        def step(x):
            state.n += 1
            y = net(x).sum() + net.bias.sum()
            return y * 2 if x.sum() > 0 else y

        def positive():
            with torch.no_grad():
                net.bias.fill_(1)

        other = nn.Parameter(-torch.ones(3))
        return trace(step), [*(call(other) for _ in range(4)), positive, *(call(net.bias) for _ in range(3))]

    agree(make)
