"""Tensors that were unpickled: each has a dict of hooks, which is empty until there is a hook."""

from __future__ import annotations

import io
import pickle

import pytest
import torch
from torch import nn

import lazytrace
from lazytrace import traced
from tests.soundness.runner import Cases, X, around, call, check
from tests.soundness.test_flat_steps import forms_of

cases = Cases()


def unpickled(value):
    return pickle.loads(pickle.dumps(value))


def loaded(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def doubled(gradient):
    return gradient * 2


@cases(hits=3, recordings=1)
def plain_and_unpickled_arguments_are_one_signature(trace):
    step = trace(lambda x: x * 2)
    return step, [call(X()), call(unpickled(X())), call(loaded(X())), call(X())]


@cases(hits=2)
def a_hook_of_an_unpickled_argument(trace):
    x = unpickled(X(grad=True))

    def step(x):
        (gradient,) = torch.autograd.grad((x * x).sum(), x)
        return gradient

    return trace(step), around(lambda: x.register_hook(doubled), x)


def training(model):
    """A step of training."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@cases(hits=6)
def a_hook_of_an_unpickled_parameter(trace):
    one = unpickled(net())
    step = training(one)

    hooks = []
    steps = [call(X(5, 3)) for _ in range(4)]
    put = lambda: hooks.append(one[0].weight.register_hook(doubled))  # noqa: E731
    remove = lambda: hooks.pop().remove()  # noqa: E731
    return trace(step), [*steps, put, *steps, remove, *steps], lambda: [*one.parameters()]


@cases(hits=6)
def the_node_of_an_unpickled_model(trace):
    one = unpickled(net())
    fast = trace(lambda x: one(x).square().mean())

    def step(x):
        loss = fast(x)
        loss.backward()
        gradients = [p.grad.clone() for p in one.parameters()]
        one.zero_grad()
        return gradients

    hooks = []
    steps = [call(X(5, 3)) for _ in range(4)]
    put = lambda: hooks.append(one[2].bias.register_hook(doubled))  # noqa: E731
    return step, [*steps, put, *steps]


@cases.parametrize
def test_unpickled(make, expected):
    check(make, **expected)


def test_steps_of_an_unpickled_model_are_flat():
    one = unpickled(net())
    step = traced(training(one))

    for _ in range(6):
        step(torch.ones(5, 3))
    assert forms_of(step)[0] == "flat"


def test_loaded_inputs_are_traced_and_kept(tmp_path):
    x = loaded({"x": torch.ones(2, 3)})
    fn = lazytrace.trace(lambda batch: batch["x"] * 2, (x,))
    lazytrace.verify(fn, (x,))
    lazytrace.save(fn, tmp_path / "kept.zip", (x,))
    assert torch.equal(lazytrace.load(tmp_path / "kept.zip")(x), x["x"] * 2)
    assert torch.equal(lazytrace.export(fn, (x,)).module()(x), x["x"] * 2)


def test_hooks_are_told_of():
    fn = traced(lambda x: x * 2)
    x = torch.ones(3, requires_grad=True)
    fn(x)
    x.register_hook(doubled)
    assert "hooks of x nothing -> set" in str(fn.explain(x))


@pytest.mark.parametrize(
    "other", [torch.ones(3, dtype=torch.cfloat).conj(), torch.ones(3, dtype=torch.cfloat)._neg_view()]
)
def test_bits_are_told_of(other):
    fn = traced(lambda x: x * 2)
    fn(torch.ones(3, dtype=torch.cfloat))
    assert "(a bug of lazytrace" not in str(fn.explain(other))
    assert "bits of x nothing -> " in str(fn.explain(other))
