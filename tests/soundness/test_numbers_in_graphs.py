"""Numbers that differ from call to call and become part of a graph of autograd, in flat steps."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.soundness.runner import agree
from tests.soundness.test_flat_steps import forms
from tests.soundness.test_steps import Model, inputs, parts, sgd

COUNT = 14


def annealed(model, state, x):
    state["n"] += 1
    beta = min(1.0, state["n"] / 10)
    y = model(x)
    return y.square().mean() + beta * y.abs().mean()


def divided(model, state, x):
    state["n"] += 1
    return F.softmax(model(x) / (1.0 + 0.1 * state["n"]), dim=-1).square().sum()


def divides(model, state, x):
    state["n"] += 1
    return (state["n"] / (model(x).square() + 1)).mean()


def mixed(model, state, x):
    lam = random.random()
    y = model(x)
    return lam * y.square().mean() + (1 - lam) * y.abs().mean()


def added(model, state, x):
    state["n"] += 1
    return (model(x) + state["n"] * 0.5).square().mean() - state["n"]


def subtracted(model, state, x):
    state["n"] += 1
    return (model(x) - state["n"]).square().mean()


def in_place(model, state, x):
    state["n"] += 1
    y = model(x) * 1
    y.mul_(0.5 * state["n"]).add_(state["n"])
    y.div_(1.0 + state["n"])
    return y.square().mean()


def whole(model, state, x):
    state["n"] += 1
    return (model(x) * state["n"]).square().mean()


def two_of_one_value(model, state, x):
    state["n"] += 1
    state["m"] = state.get("m", 0) + (2 if state["n"] > 6 else 1)
    y = model(x)
    return (y * (state["n"] * 0.25)).square().mean() + (y * (state["m"] * 0.25)).abs().mean()


def twice(model, state, x):
    state["n"] += 1
    scale = 0.25 * state["n"]
    y = model(x) * scale
    return (y * scale).square().mean()


def squared(model, state, x):
    """Double backward: the penalty on a gradient has a weight that changes."""
    state["n"] += 1
    x = x.clone().requires_grad_()
    weight = 0.1 * state["n"]
    (gradient,) = torch.autograd.grad((model(x) * weight).square().sum(), x, create_graph=True)
    return weight * gradient.square().mean()


def due_where_a_kernel_goes(model, state, x):
    """The first kernel of a batch norm makes memory that nobody takes."""
    y = model(x)
    state["n"] += 1
    weight = 0.1 * state["n"]
    y = F.batch_norm(y, None, None, training=True)
    return (y * weight).exp().mean()


def training(body):
    def make(trace):
        random.seed(3)
        model = Model()
        optimizer, state = sgd(model), {"n": 0}

        def step(x):
            optimizer.zero_grad()
            loss = body(model, state, x)
            loss.backward()
            optimizer.step()
            return loss.item()

        return trace(step), inputs(COUNT), lambda: (parts(model), state)

    return make


FLAT = [
    annealed,
    divided,
    divides,
    mixed,
    added,
    subtracted,
    in_place,
    whole,
    twice,
    squared,
    due_where_a_kernel_goes,
]


@pytest.mark.parametrize("body", FLAT, ids=lambda body: body.__name__)
def test_a_number_that_changes(body):
    tracer = agree(training(body))
    assert tracer.count("hits") >= 8, tracer.account()
    assert "flat" in forms(tracer), forms(tracer)


def test_two_numbers_that_were_one_value():
    tracer = agree(training(two_of_one_value))
    assert tracer.count("hits") >= 5, tracer.account()


def powered(model, state, x):
    state["n"] += 1
    return (model(x).square() + 1).pow(1.0 + 0.1 * state["n"]).mean()


def weighted_sum(model, state, x):
    state["n"] += 1
    y = model(x)
    return torch.add(y.square(), y, alpha=0.1 * state["n"]).mean()


def clamped(model, state, x):
    state["n"] += 1
    return model(x).clamp(max=0.1 * state["n"]).square().mean()


# A number that becomes a constant of a node is not followed there.
@pytest.mark.parametrize("body", [powered, weighted_sum, clamped], ids=lambda body: body.__name__)
def test_a_number_that_a_node_keeps(body):
    tracer = agree(training(body))
    assert tracer.count("hits") >= 8, tracer.account()
    assert "a number that may differ enters a graph" in forms(tracer), forms(tracer)


def test_the_model_is_traced_alone():
    """A node that is run after the call has no numbers of the call's."""

    def make(trace):
        torch.manual_seed(0)
        net = nn.Linear(3, 2)
        forward = trace(lambda x, scale: (net(x) * scale).square())

        def step(x, scale):
            net.zero_grad()
            forward(x, scale).sum().backward()
            return net.weight.grad.clone()

        calls = inputs(COUNT)
        for i, one in enumerate(calls):
            one.args = (torch.randn(4, 3, generator=torch.Generator().manual_seed(i)), 0.5 + i)
        return step, calls, lambda: list(net.parameters())

    tracer = agree(make)
    assert tracer.count("hits") >= 8, tracer.account()
